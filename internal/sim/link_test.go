package sim

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/worker"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// link is a process's connection to the server: the seams of records, queue and fleet.
type link struct{ p *proc }

var (
	_ port.Store   = link{}
	_ port.Hints   = link{}
	_ worker.Store = link{}
	_ port.Waker   = link{}
	_ port.Watch   = link{}
	_ port.Fleet   = link{}
)

func (l link) Load(ctx context.Context, id run.ID) (out port.Record, err error) {
	err = l.p.do(ctx, "runs.load", id.Run, reads, func() (err error) {
		out, err = l.p.w.load(id)
		return err
	})
	return out, err
}

func (l link) Save(ctx context.Context, id run.ID, data []byte, h port.Header, expect uint64) (uint64, error) {
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

func (l link) Server() string { return l.p.w.serverName() }

func (l link) Append(ctx context.Context, server string, out []port.Outgoing) ([]uint64, error) {
	out = slices.Clone(out)
	seqs := make([]uint64, len(out))
	for i := range out {
		o := &out[i]
		err := l.p.do(ctx, "results.append", o.RunID, writes, func() (err error) {
			seq, err := l.p.w.post(l.p.name, server, o)
			seqs[i] = seq
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return seqs, nil
}

func (l link) LastOutcome(ctx context.Context, id run.ID, scope envelope.Scope) (out port.Outcome, err error) {
	err = l.p.do(ctx, "results.last", id.Run, reads, func() (err error) {
		out, err = l.p.w.lastOutcome(id, scope)
		return err
	})
	return out, err
}

func (l link) ReadOutcome(ctx context.Context, seq uint64) (data []byte, err error) {
	err = l.p.do(ctx, "results.read", "", reads, func() error {
		l.p.w.mu.Lock()
		defer l.p.w.mu.Unlock()
		data = l.p.w.bodies[seq]
		if data == nil {
			return port.ErrNotFound
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

func (l link) GetLetter(ctx context.Context, id run.ID, owner string) (out port.Letter, err error) {
	err = l.p.do(ctx, "letters.get", id.Run, reads, func() (err error) {
		out, err = l.p.w.getLetter(id, owner)
		return err
	})
	return out, err
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
			return port.ErrNotFound
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

func (l link) LoadFleet(ctx context.Context, _ string) (data []byte, seq uint64, err error) {
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

func (l link) SaveFleet(ctx context.Context, _ string, data []byte, h port.Header, expect uint64) (uint64, error) {
	var seq uint64
	err := l.p.do(ctx, "fleet.save", "", writes, func() (err error) {
		seq, err = l.p.w.saveFleet(data, h, expect)
		return err
	})
	if err != nil {
		return 0, err
	}
	return seq, nil
}

func (s *server) saveFleet(data []byte, h port.Header, expect uint64) (uint64, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	last := uint64(0)
	if s.fleet != nil {
		last = s.fleet.Seq
	}
	if last != expect {
		return 0, port.ErrConflict
	}
	s.runSeq++
	s.fleet = &storedRun{Record: port.Record{Data: bytes.Clone(data), Seq: s.runSeq, Header: h}}
	s.runLog = append(s.runLog, port.Change{ID: port.ActiveID, Seq: s.runSeq, Header: h})
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

func (l link) WatchRuns(ctx context.Context, fn func(port.Change)) error {
	return follow(ctx, l.p, "watch.runs", func() []port.Change { return l.p.w.runLog },
		func(c port.Change, old bool) bool {
			if old && l.p.w.superseded(c) {
				return false // the stream keeps the last message of a subject only
			}
			fn(c)
			return true
		}, func() { fn(port.Change{Report: port.Current}) })
}

func (w *world) superseded(c port.Change) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.ID == port.ActiveID {
		return w.fleet.Seq != c.Seq
	}
	return w.runs[c.ID].Seq != c.Seq
}

func (l link) WatchOutcomes(ctx context.Context, from time.Time, fn func(port.Outcome)) error {
	return follow(ctx, l.p, "watch.outcomes", func() []port.Outcome { return l.p.w.resultLog },
		func(c port.Outcome, _ bool) bool {
			if c.Time.Before(from) {
				return false
			}
			fn(c)
			return true
		}, func() { fn(port.Outcome{Report: port.Current}) })
}

func (l link) WatchLetters(ctx context.Context, fn func(port.Letter)) error {
	return follow(ctx, l.p, "watch.letters", func() []port.Letter { return l.p.w.letterLog },
		func(c port.Letter, old bool) bool {
			if old && !l.p.w.hasLetter(c) {
				return false
			}
			fn(c)
			return true
		}, func() { fn(port.Letter{Report: port.Current}) })
}

func (w *world) hasLetter(c port.Letter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.letters[letterSubject{c.ID, c.Owner}]
	return l != nil && l.Seq == c.Seq
}
