package reconcile

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/envelope"
)

// look reads a due run's record and does what it needs.
func (rc *Reconciler) look(ctx context.Context, e *entry) {
	h, err := rc.Records.Load(ctx, e.id)
	if errors.Is(err, port.ErrNotFound) {
		rc.gone(ctx, e)
		return
	}
	if err == nil {
		err = rc.tend(ctx, e, h)
	}
	if err != nil {
		rc.failed(ctx, e, h, err)
		return
	}
	rc.mu.Lock()
	rc.hasRoom(e.id)
	rc.mu.Unlock()
}

// leftAlone is how often the log names a run whose record must be left as it is.
const leftAlone = time.Hour

// failed ends a look that did not come to its end: the run stays due.
func (rc *Reconciler) failed(ctx context.Context, e *entry, h *record.Handle, err error) {
	if ctx.Err() == nil && !errors.Is(err, port.ErrConflict) {
		trace := ""
		if h != nil && h.Run != nil {
			trace = h.Run.TraceID()
		}
		rc.Log.Warn("run not tended to, it stays due", "tenant", e.id.Tenant, "run_id", e.id.Run, "trace_id", trace, "error", err)
	}
	if ctx.Err() == nil && errors.Is(err, port.ErrFull) {
		rc.noRoom(e.id)
	}
	if errors.Is(err, engine.ErrBroken) || errors.Is(err, engine.ErrNewer) {
		// Left alone: nothing is to be done until another revision is stored, which is seen.
		rc.mu.Lock()
		seq := e.seq
		rc.mu.Unlock()
		rc.done(e, seq, true, time.Now().Add(leftAlone))
		return
	}
	wait := rc.pause()
	if errors.Is(err, port.ErrConflict) {
		wait = 5 * time.Millisecond
	}
	seq := uint64(0)
	if h != nil {
		seq = h.Seq
	}
	rc.done(e, seq, true, time.Now().Add(wait))
}

// pause is half a lease with jitter.
func (rc *Reconciler) pause() time.Duration {
	return rc.Lease/2 + time.Duration(rc.Random()*float64(rc.Lease)/8)
}

// gone: there is no record any more. A letter of it must not stay.
func (rc *Reconciler) gone(ctx context.Context, e *entry) {
	rc.mu.Lock()
	seq := e.seq
	rc.mu.Unlock()
	if err := rc.tidyLetters(ctx, e, nil); err != nil {
		rc.done(e, seq, true, time.Now().Add(rc.pause()))
		return
	}
	rc.done(e, seq, false, time.Time{})
}

func (rc *Reconciler) source() engine.Source {
	return engine.Source{By: rc.ID, Random: rc.Random(), At: rc.Records.Now()}
}

// tend does what the record needs: a lease that ended, the deadline, windows, lookups, publishing, a wake.
func (rc *Reconciler) tend(ctx context.Context, e *entry, h *record.Handle) error {
	if h.Run.End != nil {
		return rc.tendEnd(ctx, e, h)
	}
	began := moment{time.Now(), rc.Records.Due()}
	if err := rc.tidyLetters(ctx, e, h); err != nil {
		return err
	}
	changed := rc.decide(e, h.Run, began.due)
	if changed {
		if err := rc.write(ctx, h); err != nil {
			return err
		}
		rc.windows(e, h.Run) // what it made unknown is stored: its windows begin now
	}
	if err := rc.Records.Publish(ctx, h); err != nil {
		return err
	}
	if err := rc.Records.FetchDoubts(ctx, h); err != nil {
		return err
	}
	if due := h.Run.Lookups(began.due); len(due) > 0 {
		// A tool that does not answer must not keep other runs waiting: lookups are waited for beside the workers.
		rc.aside.Go(func() {
			err := rc.verify(ctx, e, h, due)
			if err == nil {
				err = rc.Records.Publish(ctx, h)
			}
			if err == nil {
				err = rc.after(ctx, e, h, began)
			}
			if err != nil {
				rc.failed(ctx, e, h, err)
			}
		})
		return nil
	}
	return rc.after(ctx, e, h, began)
}

// moment is when a look began: on this process's own clock, and what was due by then.
type moment struct {
	local time.Time
	due   envelope.Time
}

// after is the end of a look at a run that went on.
func (rc *Reconciler) after(ctx context.Context, e *entry, h *record.Handle, began moment) error {
	if h.Run.End != nil {
		rc.done(e, h.Seq, true, time.Now())
		return nil
	}
	return rc.onward(ctx, e, h, began)
}

// decide applies what time alone decides. It reports whether the record changed.
func (rc *Reconciler) decide(e *entry, r *engine.Run, due envelope.Time) bool {
	src := rc.source()
	changed := false
	// First: a window is timed from when a stored record said unknown, never from what is only about to be written.
	for _, d := range rc.windows(e, r) {
		if r.WindowOver(d, src.At) == engine.Applied {
			changed = true
		}
	}
	if r.Lease != nil && rc.leaseOver(e, r.Lease) && r.LeaseEnded(rc.Tools, src) == engine.Applied {
		rc.Log.Info("lease ended", "tenant", e.id.Tenant, "run_id", e.id.Run, "trace_id", r.TraceID(), "holder", e.lease.Holder)
		changed = true
	}
	if r.ClockSet(rc.Tools, src.At) == engine.Applied {
		rc.Log.Warn("a wait is cut: it was written while the server's clock was ahead", "tenant", e.id.Tenant, "run_id", e.id.Run, "trace_id", r.TraceID())
		changed = true
	}
	if due >= r.Deadline && r.Expire(src.At) == engine.Applied {
		changed = true
	}
	if r.Escalate(rc.Tools, src) == engine.Applied {
		changed = true
	}
	return changed
}

// leaseOver: this process has itself seen the same lease, unchanged, for its whole length. No timestamp is compared.
func (rc *Reconciler) leaseOver(e *entry, l *engine.Lease) bool {
	now := time.Now()
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if e.lease.ID != l.ID || e.lease.Renewal != l.Renewal {
		e.lease, _ = record.ParseLease(record.LeaseHeader(l))
		e.seen = now
		return false
	}
	return now.Sub(e.seen) >= e.lease.Length
}

// windows keeps, on this process's own clock, since when each dispatch has been seen unknown, and returns those whose
// consistency window has passed.
func (rc *Reconciler) windows(e *entry, r *engine.Run) (over []engine.DispatchID) {
	now := time.Now()
	doubts := r.Doubts()
	rc.mu.Lock()
	defer rc.mu.Unlock()
	next := make(map[engine.DispatchID]time.Time, len(doubts))
	for _, d := range doubts {
		s := r.Carrying(d)
		tool, ok := rc.Tools.Tool(s.Tool)
		if !ok || tool.Verify == nil || !tool.Verify.HasWindow {
			continue
		}
		end, known := e.doubts[d]
		if !known {
			end = now.Add(tool.Verify.Window)
		}
		if !now.Before(end) {
			over = append(over, d)
		}
		next[d] = end
	}
	e.doubts = next
	return over
}

// write saves a decision of this process. The letters and alerts that follow from it are published by tendEnd. Who holds the
// run, and works on another of its steps, learns at once what it may go on with.
func (rc *Reconciler) write(ctx context.Context, h *record.Handle) error {
	if err := rc.Records.Save(ctx, h); err != nil {
		return err
	}
	if l := h.Run.Lease; l != nil {
		if err := rc.Waker.Hint(l.Holder, h.ID); err != nil {
			rc.Log.Debug("hint not sent", "error", err)
		}
	}
	return nil
}

// verify sends the lookups that are due, side by side, and records each verdict, bound to the dispatch it asked about.
func (rc *Reconciler) verify(ctx context.Context, e *entry, h *record.Handle, due []engine.Lookup) error {
	type verdict struct {
		l      *engine.Lookup
		answer envelope.Lookup
		known  bool
		start  envelope.Time
	}
	answers := make(chan verdict, len(due))
	id, trace := h.ID, h.Run.Trace
	for i := range due {
		l := &due[i]
		go func() {
			free := rc.lookups.enter(ctx, l.Tool)
			defer free()
			v := verdict{l: l, start: rc.Records.Now()}
			tool, ok := rc.Tools.Tool(l.Tool)
			if ok && tool.Verify != nil {
				limit := tool.Verify.Timeout
				if limit <= 0 {
					limit = tool.Timeout
				}
				lctx, cancel := context.WithTimeout(ctx, limit+rc.Tools.ReadyWithin(l.Tool))
				v.answer, v.known = rc.Tools.Lookup(lctx, id, l, trace)
				v.answer.Seen.SentAt, v.answer.Seen.AnsweredAt = v.start, rc.Records.Now()
				if ref, err := rc.Records.Offload(lctx, id, l.Step, l.Dispatch, v.answer.Result, nil); err == nil && ref != nil {
					v.answer.Ref, v.answer.Result = ref, nil
				}
				cancel()
			}
			answers <- v
		}()
	}
	for range due {
		v := <-answers
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !v.known {
			// An executor can look this tool up: it is woken for it.
			if err := rc.wake(ctx, e, h.Run.Queue); err != nil {
				return err
			}
			continue
		}
		if err := rc.record(ctx, h, v.l, v.answer, v.start); err != nil {
			return err
		}
	}
	return nil
}

// record writes a verdict. Refused means: read again and ask again whether the step still carries that dispatch.
func (rc *Reconciler) record(ctx context.Context, h *record.Handle, l *engine.Lookup, answer envelope.Lookup, start envelope.Time) error {
	for {
		src := rc.source()
		src.Start = start
		if h.Run.Looked(l.Dispatch, answer, l.Proves, rc.Tools, src) == engine.Dropped {
			return nil
		}
		err := rc.write(ctx, h)
		if err == nil {
			return nil
		}
		if !errors.Is(err, port.ErrConflict) {
			return err
		}
		fresh, err := rc.Records.Load(ctx, h.ID)
		if err != nil {
			return err
		}
		*h = *fresh
	}
}

// onward wakes a run that an executor must go on with, and says when to look again.
func (rc *Reconciler) onward(ctx context.Context, e *entry, h *record.Handle, began moment) error {
	r := h.Run
	due := rc.Records.Due()
	need := r.Next(due)
	if r.Lease == nil && len(need.Ready) > 0 {
		if err := rc.wake(ctx, e, r.Queue); err != nil {
			return err
		}
	}
	now := time.Now()
	at := rc.following(e, r, began, now)
	rc.watchDeadline(r, due)
	rc.Log.Debug("looked at", "tenant", e.id.Tenant, "run_id", e.id.Run, "revision", h.Seq, "state", r.State(), "ready", len(need.Ready), "again_in", at.Sub(now))
	rc.done(e, h.Seq, true, at)
	return nil
}

// wakeAgain is after how long a run is woken again that had a wake already. That one may just be answered by an executor
// that has not seen what is due now, and then nothing else would bring one here; or it waits for a free slot like many
// others, which costs these few looks.
var wakeAgain = [...]time.Duration{50 * time.Millisecond, 250 * time.Millisecond, time.Second}

// wake puts a run into its queue's wakes. A wake that was there already is not this one's: the run is looked at again soon.
func (rc *Reconciler) wake(ctx context.Context, e *entry, queue string) error {
	fresh, err := rc.Waker.Wake(ctx, queue, e.id)
	if err != nil {
		return err
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if !fresh && e.tries < len(wakeAgain) {
		e.again = time.Now().Add(wakeAgain[e.tries])
		e.tries++
	}
	return nil
}

// following is when a run must be looked at again. What became due since the look began is due at once; what was due before,
// and still is, has been tried: again, but not at once.
func (rc *Reconciler) following(e *entry, r *engine.Run, began moment, now time.Time) time.Time {
	at := now.Add(time.Hour)
	sooner := func(t time.Time) {
		if t.Before(at) {
			at = t
		}
	}
	if due := r.DueAfter(began.due); due != 0 {
		sooner(now.Add(due.Time().Sub(rc.Records.Clock.Lower()) + time.Millisecond))
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if r.Lease != nil {
		sooner(e.seen.Add(e.lease.Length))
	}
	for _, end := range e.doubts {
		if end.After(began.local) {
			sooner(end) // an earlier one is in the record as over
		}
	}
	if !at.After(began.local) {
		at = now.Add(rc.pause())
	}
	if due := r.Due(began.due); due != 0 && due <= began.due {
		sooner(now.Add(rc.pause()))
	}
	if !e.again.IsZero() {
		sooner(e.again)
		e.again = time.Time{}
	}
	return at
}

// lookups bounds how many lookups of one tool are out at once; those of other tools do not wait for them.
type lookups struct {
	mu     sync.Mutex
	byTool map[string]chan struct{}
}

// lookupsPerTool is how many lookups of one tool are out at once.
const lookupsPerTool = 16

// enter waits for room, or for ctx to end, and returns what gives the room back.
func (l *lookups) enter(ctx context.Context, tool string) func() {
	l.mu.Lock()
	room := l.byTool[tool]
	if room == nil {
		room = make(chan struct{}, lookupsPerTool)
		l.byTool[tool] = room
	}
	l.mu.Unlock()
	select {
	case room <- struct{}{}:
		return func() { <-room }
	case <-ctx.Done():
		return func() {}
	}
}
