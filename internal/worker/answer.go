package worker

import (
	"slices"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// When the queue's messages are answered. A job is acknowledged when its run rests. Of the wakes of a run only one can be in
// the queue, so one in a loop's hands keeps the reconciler's next one away: who holds one does, for as long as it holds it,
// everything of the run that becomes due, and answers it as soon as somebody else sees to that.

// holdsWake reports whether a wake is in this loop's hands.
func (l *loop) holdsWake() bool { return slices.ContainsFunc(l.holding, isWake) }

func isWake(d port.Delivery) bool { return d.Wake }

// underway: the run goes on under a lease of ours, which the reconciler watches. A lookup has none.
func (l *loop) underway() bool {
	r := l.h.Run
	if r == nil || r.Lease == nil || !l.mine(r.Lease.Holder) || l.leaseLeft() <= 0 || l.soon() != 0 {
		return false
	}
	for d := range l.calls {
		if l.needs(d) && r.Carrying(d).State != run.Executing {
			return false
		}
	}
	return true
}

// rests: nothing that this loop waits for can bring the run forward.
func (l *loop) rests() bool {
	for d := range l.calls {
		if l.needs(d) {
			return false
		}
	}
	return len(l.grants) == 0
}

// needs: the run goes on with the end of this call or lookup. Where the step was settled meanwhile (by a report, for
// example) its end is evidence, and no delivery is kept for it: others must be free to go on with the run.
func (l *loop) needs(d engine.DispatchID) bool {
	if l.h == nil || l.h.Run == nil {
		return true
	}
	s := l.h.Run.Carrying(d)
	return s != nil && (s.State == run.Executing || s.State == run.Unknown)
}

// early reports whether the run was woken a moment before it is due by this process's own bound on the server's time: who
// woke it has a better one. The wake is kept until then; if this process dies the queue delivers it again.
func (l *loop) early() bool {
	at := l.soon()
	if at == 0 || !l.holdsWake() || l.w.isDraining() {
		return false
	}
	l.again = time.Now().Add(at.Sub(l.w.Records.Due()) + time.Millisecond)
	return true
}

// soon is when something of the run becomes due, or became so since the last decision, that may be due already by the
// server's clock; zero: nothing.
func (l *loop) soon() envelope.Time {
	if l.h == nil || l.h.Run == nil {
		return 0
	}
	if at := l.h.Run.DueAfter(l.due); at <= l.w.Records.Now() {
		return at
	}
	return 0
}

// answer acknowledges the deliveries of a run that rests: the record says until when, so that it is woken then, and every
// outcome it owed is in the stream. A run that could go on is given back instead, while this process drains or lacks the tool.
func (l *loop) answer() {
	giveBack := false
	if l.h != nil && l.h.Run != nil && l.w.isDraining() {
		due := l.w.Records.Due()
		giveBack = l.soon() != 0 || len(l.h.Run.Next(due).Ready) > 0 || len(l.h.Run.Lookups(due)) > 0
	}
	for i := range l.holding {
		d := &l.holding[i]
		switch {
		case giveBack:
			l.told(d, d.Release(0))
		case l.passes:
			l.told(d, d.Release(passOn))
		default:
			l.told(d, d.Ack())
		}
	}
	l.holding = nil
}

// answerWakes acknowledges the wakes alone.
func (l *loop) answerWakes() {
	for i := range l.holding {
		if d := &l.holding[i]; d.Wake {
			l.told(d, d.Ack())
		}
	}
	l.holding = slices.DeleteFunc(l.holding, isWake)
}

// told: an answer may be lost, and then the delivery comes again.
func (l *loop) told(d *port.Delivery, err error) {
	if err != nil {
		l.w.Log.Debug("delivery not answered", "subject", d.Subject, "error", err)
	}
}

// giveUp gives back the delivery of a run that this worker could not bring forward. An error may be over in a moment; what
// it was given back for before waits longer.
func (w *Worker) giveUp(d *port.Delivery) {
	switch {
	case w.ctx.Err() != nil:
		_ = d.Release(0) // this process ends
	case d.Redelivered:
		_ = d.Release(w.Lease / 2)
	default:
		_ = d.Release(min(time.Second, w.Lease/2))
	}
}

// forgetLoop removes a loop that gave up and releases what it had not looked at.
func (w *Worker) forgetLoop(l *loop) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.loops, l.id)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.inbox {
		w.giveUp(&d)
	}
	l.inbox = nil
}
