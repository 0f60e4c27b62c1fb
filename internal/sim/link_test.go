package sim

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/agentrun/executor/internal/reconcile"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/worker"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// link is a process's connection to the server: the seams of records, queue and fleet.
type link struct{ p *proc }

var (
	_ record.Store    = link{}
	_ worker.Hints    = link{}
	_ worker.Store    = link{}
	_ reconcile.Waker = link{}
	_ reconcile.Watch = link{}
	_ reconcile.Fleet = fleetLink{}
)

func (l link) Load(ctx context.Context, id run.ID) (out record.Stored, err error) {
	err = l.p.do(ctx, "runs.load", id.Run, reads, func() (err error) {
		out, err = l.p.w.load(id)
		return err
	})
	return out, err
}

func (l link) Save(ctx context.Context, id run.ID, data []byte, h record.Header, expect uint64) (uint64, error) {
	data = bytes.Clone(data)
	var seq uint64 // read only when it is known: a call that failed may land later
	err := l.p.do(ctx, "runs.save", id.Run, writes, func() (err error) {
		seq, err = l.p.w.save(l.p.name, id, data, h, expect)
		return err
	})
	if err != nil {
		return 0, err
	}
	return seq, nil
}

func (l link) Append(ctx context.Context, out []record.Outgoing) ([]uint64, error) {
	out = slices.Clone(out)
	seqs := make([]uint64, len(out))
	for i := range out {
		o := &out[i]
		err := l.p.do(ctx, "results.append", o.ID.Run, writes, func() (err error) {
			seq, err := l.p.w.post(l.p.name, o)
			seqs[i] = seq
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return seqs, nil
}

func (l link) LastOutcome(ctx context.Context, id run.ID, scope envelope.Scope) (n int, seq, first uint64, err error) {
	err = l.p.do(ctx, "results.last", id.Run, reads, func() error {
		last, err := l.p.w.lastOutcome(id, scope)
		n, seq, first = last.n, last.seq, last.first
		return err
	})
	return n, seq, first, err
}

func (l link) ReadOutcome(ctx context.Context, seq uint64) (data []byte, err error) {
	err = l.p.do(ctx, "results.read", "", reads, func() error {
		l.p.w.mu.Lock()
		defer l.p.w.mu.Unlock()
		data = l.p.w.bodies[seq]
		if data == nil {
			return record.ErrNotFound
		}
		return nil
	})
	return data, err
}

func (l link) PutLetter(ctx context.Context, id run.ID, owner string, data []byte, letterID string, expect uint64) (uint64, error) {
	data = bytes.Clone(data)
	var seq uint64
	err := l.p.do(ctx, "letters.put", id.Run, writes, func() (err error) {
		seq, err = l.p.w.putLetter(l.p.name, id, owner, data, letterID, expect)
		return err
	})
	if err != nil {
		return 0, err
	}
	return seq, nil
}

func (l link) GetLetter(ctx context.Context, id run.ID, owner string) (s record.Stored, letterID string, err error) {
	err = l.p.do(ctx, "letters.get", id.Run, reads, func() (err error) {
		s, letterID, err = l.p.w.getLetter(id, owner)
		return err
	})
	return s, letterID, err
}

func (l link) PutAlert(ctx context.Context, _, _, _ string, _ []byte, id string) error {
	return l.p.do(ctx, "alerts.put", id, writes, func() error {
		l.p.w.mu.Lock()
		defer l.p.w.mu.Unlock()
		l.p.w.alerts[id]++
		return nil
	})
}

func (l link) DeleteLetter(ctx context.Context, seq uint64) error {
	return l.p.do(ctx, "letters.delete", "", writes, func() error {
		l.p.w.deleteLetter(l.p.name, seq)
		return nil
	})
}

func (l link) PutObject(ctx context.Context, name string, data []byte) error {
	data = bytes.Clone(data)
	return l.p.do(ctx, "objects.put", name, writes, func() error {
		l.p.w.mu.Lock()
		defer l.p.w.mu.Unlock()
		l.p.w.objects[name] = data
		return nil
	})
}

func (l link) GetObject(ctx context.Context, name string) (data []byte, err error) {
	err = l.p.do(ctx, "objects.get", name, reads, func() error {
		l.p.w.mu.Lock()
		defer l.p.w.mu.Unlock()
		data = l.p.w.objects[name]
		if data == nil {
			return record.ErrNotFound
		}
		return nil
	})
	return data, err
}

// Wake is a publish to a stream that keeps one message per subject and refuses a second one.
func (l link) Wake(ctx context.Context, queue string, id run.ID) (bool, error) {
	fresh := false
	err := l.p.do(ctx, "wakes.put", id.Run, writes, func() error {
		fresh = l.p.w.wake(queue, id)
		return nil
	})
	return err == nil && fresh, err
}

// Current: there is one store of records, and it loses nothing.
func (l link) Current() (string, bool) { return "the store", true }
func (l link) Vanished(what string)    { l.p.w.t.Errorf("%s: %s", l.p.name, what) }
func (l link) Sent()                   {}

// Hint promises nothing.
func (l link) Hint(holder string, id run.ID) error {
	if !l.p.gate() {
		return errDead
	}
	switch f := l.p.w.befall(l.p, "hints.send", id.Run); f {
	case crashBefore, crashAfter:
		l.p.die("at hints.send")
		return errDead
	case none:
	default:
		return errInjected
	}
	go l.p.w.hinted(holder, id)
	return nil
}

// fleetLink is the record of which reconciler is active.
type fleetLink struct{ p *proc }

func (l fleetLink) Load(ctx context.Context) (data []byte, seq uint64, err error) {
	err = l.p.do(ctx, "fleet.load", "", reads, func() error {
		l.p.w.mu.Lock()
		defer l.p.w.mu.Unlock()
		if f := l.p.w.fleet; f != nil {
			data, seq = f.Data, f.Seq
		}
		return nil
	})
	return data, seq, err
}

func (l fleetLink) Save(ctx context.Context, data []byte, lease string, expect uint64) (uint64, error) {
	var seq uint64
	err := l.p.do(ctx, "fleet.save", "", writes, func() (err error) {
		seq, err = l.p.w.saveFleet(data, lease, expect)
		return err
	})
	if err != nil {
		return 0, err
	}
	return seq, nil
}

func (s *server) saveFleet(data []byte, lease string, expect uint64) (uint64, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	last := uint64(0)
	if s.fleet != nil {
		last = s.fleet.Seq
	}
	if last != expect {
		return 0, record.ErrConflict
	}
	s.runSeq++
	s.fleet = &storedRun{Stored: record.Stored{Data: bytes.Clone(data), Seq: s.runSeq}, header: record.Header{State: "fleet", Lease: lease}}
	s.runLog = append(s.runLog, reconcile.Change{ID: reconcile.FleetID, Seq: s.runSeq, Header: s.fleet.header})
	s.changed()
	return s.runSeq, nil
}

// follow reports a log from its beginning and then what comes, late and in order, until ctx ends.
func follow[T any](ctx context.Context, p *proc, what string, log func() []T, report func(T, bool) bool, current func()) error {
	at := 0
	p.w.mu.Lock()
	first := len(log())
	p.w.mu.Unlock()
	marked := false
	for {
		p.w.mu.Lock()
		all := log()
		moved := p.w.moved
		p.w.mu.Unlock()
		for at < len(all) {
			if err := p.travel(ctx, what, p.w.befall(p, what, "") == hang); err != nil {
				return err
			}
			report(all[at], at < first)
			at++
			if at == first {
				break
			}
		}
		if at >= first && !marked {
			marked = true
			current()
			continue
		}
		if at < len(all) {
			continue
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l link) Runs(ctx context.Context, fn func(reconcile.Change)) error {
	return follow(ctx, l.p, "watch.runs", func() []reconcile.Change { return l.p.w.runLog },
		func(c reconcile.Change, old bool) bool {
			if old && l.p.w.superseded(c) {
				return false // the stream keeps the last message of a subject only
			}
			fn(c)
			return true
		}, func() { fn(reconcile.Change{Kind: reconcile.Current}) })
}

func (w *world) superseded(c reconcile.Change) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.ID == reconcile.FleetID {
		return w.fleet.Seq != c.Seq
	}
	return w.runs[c.ID].Seq != c.Seq
}

func (l link) Outcomes(ctx context.Context, from time.Time, fn func(reconcile.Outcome)) error {
	return follow(ctx, l.p, "watch.outcomes", func() []resultChange { return l.p.w.resultLog },
		func(c resultChange, _ bool) bool {
			if c.at.Before(from) {
				return false
			}
			fn(c.Outcome)
			return true
		}, func() { fn(reconcile.Outcome{Kind: reconcile.Current}) })
}

func (l link) Letters(ctx context.Context, fn func(reconcile.Letter)) error {
	return follow(ctx, l.p, "watch.letters", func() []reconcile.Letter { return l.p.w.letterLog },
		func(c reconcile.Letter, old bool) bool {
			if old && !l.p.w.hasLetter(c) {
				return false
			}
			fn(c)
			return true
		}, func() { fn(reconcile.Letter{Kind: reconcile.Current}) })
}

func (w *world) hasLetter(c reconcile.Letter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.letters[letterSubject{c.ID, c.Owner}]
	return l != nil && l.Seq == c.Seq
}
