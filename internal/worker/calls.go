package worker

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// call is one dispatch or lookup in flight.
type call struct {
	dispatch *engine.Dispatch
	cancel   context.CancelFunc
	renews   bool // its timeout, with what comes before, does not fit into the lease
	gate     *gate
	entry    chan struct{}
}

// result is how a call or a lookup ended.
type result struct {
	dispatch  engine.DispatchID
	reply     envelope.Reply
	ref       *envelope.ObjectRef // of a large result that is kept in the object store
	write     bool
	notOurs   bool // the lease or the deadline was gone before the request could leave
	at        envelope.Time
	took      time.Duration
	journaled bool

	lookup  *engine.Lookup
	answer  *envelope.Lookup
	started envelope.Time
}

var errNotOurs = errors.New("the lease is gone")

// hold notes until when, on the clock that counts suspension, the lease is ours. Calls are cut off then, whatever the loop
// waits for; what comes back is evidence.
// sent is when the lease write was sent, read after the other clock.
func (l *loop) hold(until time.Duration, sent time.Time) {
	l.until.Store(int64(until))
	if l.leased == nil || l.leased.Err() != nil {
		l.leased, l.endLease = context.WithCancel(l.w.ctx)
	}
	if l.guard != nil {
		l.guard.Stop()
	}
	end := l.endLease
	l.guard = time.AfterFunc(l.w.held()-time.Since(sent), func() {
		if l.leaseLeft() <= 0 {
			end()
		}
	})
}

// letGo ends the watch over a lease under which nothing is in flight any more.
func (l *loop) letGo() {
	if l.guard != nil {
		l.guard.Stop()
	}
	if l.endLease != nil {
		l.endLease()
	}
}

// held is for how long after its write was sent a lease counts.
func (w *Worker) held() time.Duration { return w.Lease - w.Lease/10 }

func (l *loop) leaseLeft() time.Duration { return time.Duration(l.until.Load()) - l.w.Boot() }

// launch sends a dispatch whose start is in the record and whose intent is in the journal.
func (l *loop) launch(d *engine.Dispatch) {
	g := l.grants[d.Step]
	delete(l.grants, d.Step)
	limit := d.Timeout + l.w.Tools.ReadyWithin(d.Tool)
	c := &call{dispatch: d, renews: limit >= l.leaseLeft()}
	if g != nil {
		c.gate, c.entry = g.gate, g.entry
	}
	if left := d.Deadline.Sub(l.w.Records.Due()) + time.Millisecond; left < limit {
		limit = left
	}
	ctx, cancel := context.WithTimeout(l.leased, limit)
	c.cancel = cancel
	l.calls[d.ID] = c
	trace := l.h.Run.Trace
	deadline, leased := d.Deadline, l.leased
	go func() {
		res := &result{dispatch: d.ID, write: d.Effect == envelope.Write}
		var sent envelope.Time
		info := CallInfo{ID: l.id, Trace: trace, Last: func() error {
			// Line 3. A machine that was paused since the record was written finds its lease gone here.
			if l.leaseLeft() <= 0 || !l.w.current() {
				res.notOurs = true
				return errNotOurs
			}
			if l.w.Records.Due() >= deadline {
				return context.DeadlineExceeded
			}
			sent = l.w.Records.Now()
			return nil
		}}
		if d.Due != 0 {
			l.w.Observe.RetryLate(max(l.w.Records.Now().Sub(d.Due), 0))
		}
		began := time.Now()
		res.reply = l.w.Tools.Call(ctx, d, info)
		l.w.saw(&res.reply.Seen, sent, !res.reply.NoReply)
		res.ref = l.offload(leased, d, trace, res.reply.Result)
		res.at = l.w.Records.Now()
		code := envelope.Code("")
		if !res.reply.OK {
			code = res.reply.Row.Code
		}
		res.took = time.Since(began)
		l.w.Observe.ToolCall(d.Tool, d.Effect, code, res.took)
		l.finished(res)
	}()
}

// saw notes when a call was let go and when its answer was there. A call that never left has neither.
func (w *Worker) saw(s *envelope.Seen, sent envelope.Time, answered bool) {
	if s.SentAt = sent; sent != 0 && answered {
		s.AnsweredAt = w.Records.Now()
	}
}

// renewAt is when the lease must be renewed next, if a call needs it. A call that the record has settled meanwhile (by a
// report, for example) needs none.
func (l *loop) renewAt() (time.Time, bool) {
	if l.h == nil || l.h.Run == nil || l.h.Run.Lease == nil || !l.mine(l.h.Run.Lease.Holder) {
		return time.Time{}, false
	}
	for d, c := range l.calls {
		if s := l.h.Run.Carrying(d); c.renews && s != nil && s.State == run.Executing {
			third := l.w.Lease / 3
			left := l.leaseLeft() - (l.w.Lease - l.w.Lease/10 - third)
			return time.Now().Add(max(left, 0)), true
		}
	}
	return time.Time{}, false
}

// renewDue: the record is written for the lease's sake alone.
func (l *loop) renewDue() bool {
	at, needed := l.renewAt()
	return needed && !time.Now().Before(at)
}

// offload keeps a large result in the object store, for as long as the lease is ours. One that could not be kept is too
// large for the record, which says so.
func (l *loop) offload(leased context.Context, d *engine.Dispatch, trace string, result json.RawMessage) *envelope.ObjectRef {
	say := func(level slog.Level, text string, err error) {
		l.w.Log.Log(leased, level, text, "tenant", l.id.Tenant, "run_id", l.id.Run, "step", d.Step, "attempt", d.Attempt,
			"trace_id", engine.TraceID(l.id, trace), "error", err)
	}
	ref, err := l.w.Records.Offload(leased, l.id, d.Step, d.ID, result, func(err error) {
		say(slog.LevelWarn, "large result not kept yet, again soon", err)
	})
	if err != nil {
		say(slog.LevelError, "large result not kept", err)
	}
	return ref
}

// verify sends the lookups that are due, for a run that was woken: the reconciler wakes one whose tool it does not know. A
// lookup needs no lease: its verdict is bound to the dispatch.
func (l *loop) verify(ctx context.Context, r *engine.Run, due envelope.Time) error {
	if !l.woken && !l.holdsWake() || l.w.isDraining() {
		return nil
	}
	if at := r.DueAfter(due); at != 0 {
		if again := time.Now().Add(at.Sub(due) + time.Millisecond); l.again.IsZero() || again.Before(l.again) {
			l.again = again
		}
	}
	if err := l.w.Records.FetchDoubts(ctx, l.h); err != nil {
		return err
	}
	l.woken = false
	for _, lk := range r.Lookups(due) {
		tool, ok := l.w.Tools.Tool(lk.Tool)
		if !ok || tool.Verify == nil || l.calls[lk.Dispatch] != nil {
			continue
		}
		limit := tool.Verify.Timeout
		if limit <= 0 {
			limit = tool.Timeout
		}
		lctx, cancel := context.WithTimeout(l.w.ctx, limit+l.w.Tools.ReadyWithin(lk.Tool))
		l.calls[lk.Dispatch] = &call{dispatch: &engine.Dispatch{ID: lk.Dispatch, Step: lk.Step, Tool: lk.Tool, Effect: envelope.Write}, cancel: cancel}
		trace := r.Trace
		go func() {
			res := &result{dispatch: lk.Dispatch, lookup: &lk, started: l.w.Records.Now()}
			answer, known := l.w.Tools.Lookup(lctx, l.id, &lk, trace)
			answer.Seen.SentAt, answer.Seen.AnsweredAt = res.started, l.w.Records.Now()
			if !known {
				answer = envelope.Lookup{Answer: envelope.Undecided}
			}
			if answer.Ref, _ = l.w.Records.Offload(lctx, l.id, lk.Step, lk.Dispatch, answer.Result, nil); answer.Ref != nil {
				answer.Result = nil
			}
			res.answer, res.at = &answer, l.w.Records.Now()
			l.finished(res)
		}()
	}
	return nil
}
