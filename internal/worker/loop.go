package worker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// loop works on one run. Everything but the inbox belongs to its goroutine.
type loop struct {
	w  *Worker
	id run.ID

	mu      sync.Mutex
	inbox   []port.Delivery
	results []*result
	hinted  bool
	kick    chan struct{}

	h        *record.Handle  // nil: must be read
	store    string          // token of the store that it was read from
	live     bool            // it is stored, and of a run that has not ended: it must not be gone
	fresh    bool            // the first delivery says that there is no record yet, so that none needs to be read
	arrived  []port.Delivery // to be taken into the record
	holding  []port.Delivery // taken in, to be answered when the run rests
	ended    []*result       // to be taken into the record
	calls    map[engine.DispatchID]*call
	grants   map[string]*grant
	held     int          // slots
	until    atomic.Int64 // until when the lease is ours, on the clock that counts suspension
	leased   context.Context
	endLease context.CancelFunc
	guard    *time.Timer
	left                   // taken over from a loop that gave the run up, and added to
	signalAt time.Time     // next in-progress signals
	barred   time.Time     // until when no write is started, because the journal took no intent
	patience time.Duration // how long it was barred last; 0: the journal is written
	due      envelope.Time // by which the last decision was made
	again    time.Time     // when the run must be looked at again
	woken    bool          // a wake has come: lookups that only an executor can make are made
	failing  time.Time     // since when the store gives errors
	cutOff   bool          // calls were cut off at the end of the drain time
	passes   bool          // a step's tool is another executor's: what was delivered is given back for that one
}

func newLoop(w *Worker, id run.ID) *loop {
	return &loop{w: w, id: id, kick: make(chan struct{}, 1), calls: map[engine.DispatchID]*call{}, grants: map[string]*grant{}, fresh: true}
}

func (l *loop) arrive(d port.Delivery) {
	l.mu.Lock()
	l.inbox = append(l.inbox, d)
	l.mu.Unlock()
	l.poke()
}

func (l *loop) hint() {
	l.mu.Lock()
	l.hinted = true
	l.mu.Unlock()
	l.poke()
}

func (l *loop) finished(r *result) {
	l.mu.Lock()
	l.results = append(l.results, r)
	l.mu.Unlock()
	l.poke()
}

func (l *loop) poke() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// pending reports whether something has come that the loop has not looked at.
func (l *loop) pending() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.inbox) > 0 || len(l.results) > 0 || l.hinted
}

func (l *loop) collect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.inbox {
		if l.inbox[i].Redelivered || l.inbox[i].Wake {
			l.fresh = false
			if l.inbox[i].Wake || len(l.calls) == 0 {
				l.h = nil // somebody else has gone on, or may have, where no lease is ours
			}
		}
	}
	l.arrived = append(l.arrived, l.inbox...)
	l.ended = append(l.ended, l.results...)
	l.inbox, l.results = nil, nil
	if l.hinted {
		l.hinted, l.h, l.fresh = false, nil, false
	}
}

func (l *loop) run() {
	defer l.w.wg.Done()
	defer l.w.Observe.RunsInFlight(-1)
	l.signalAt = time.Now().Add(l.w.Lease / signalsPerLease)
	for {
		l.collect()
		err := l.w.ctx.Err()
		if err == nil {
			err = l.advance()
		}
		if errors.Is(err, errAway) && l.w.ctx.Err() == nil {
			if l.bide() {
				continue
			}
			return
		}
		if err != nil && l.persists(err) {
			continue
		}
		if err != nil {
			l.abort(err)
			return
		}
		l.failing = time.Time{}
		switch {
		case !l.rests():
			if l.underway() {
				l.answerWakes()
			}
			l.wait()
		case l.early():
			l.wait()
		default:
			l.answer()
			if len(l.calls) > 0 {
				l.wait()
			} else if l.w.leaving(l) {
				l.slots(0)
				return
			}
		}
	}
}

// advance takes in what has come, and brings the run as far as it goes without waiting.
func (l *loop) advance() error {
	ctx := l.w.ctx
	for {
		if err := l.moved(); err != nil {
			return err
		}
		if l.h == nil {
			if err := l.open(ctx); err != nil {
				return err
			}
		}
		c := l.decide(ctx)
		if c.err != nil {
			return c.err
		}
		if c.changed {
			err := l.commit(ctx, c)
			if errors.Is(err, port.ErrConflict) {
				l.refused(c)
				continue
			}
			if errors.Is(err, errUnjournaled) {
				l.bar(c)
				continue
			}
			if err != nil {
				l.unsent = append(l.unsent, c.starts...) // written or not: they do not leave
				return err
			}
			l.written(c)
		} else {
			if err := l.unchanged(ctx, c); err != nil {
				return err
			}
		}
		if err := l.publish(ctx); err != nil {
			return err
		}
		if !c.changed || len(c.starts) > 0 || l.h == nil {
			if l.h == nil {
				continue
			}
			return nil
		}
	}
}

// persists: an error of the store is not an answer. Who knows something about a dispatch, or has one in flight, reads the
// record and decides again, for two leases; after that others have settled it, and what is known waits in the journal.
func (l *loop) persists(err error) bool {
	if l.w.ctx.Err() != nil || len(l.calls) == 0 && len(l.unsent) == 0 {
		return false
	}
	now := time.Now()
	if l.failing.IsZero() {
		l.failing = now
	}
	if now.Sub(l.failing) > 2*l.w.Lease {
		return false
	}
	l.w.Log.Warn("run not brought forward, again soon", "tenant", l.id.Tenant, "run_id", l.id.Run, "trace_id", l.traceID(), "error", err)
	l.h, l.fresh = nil, false
	pause.For(l.w.ctx, 50*time.Millisecond+now.Sub(l.failing)/2)
	return true
}

// errAway: the store is not known to be the one that the fleet has agreed on. Nothing is decided on what it says.
var errAway = errors.New("the store of run records is not settled with")

// moved: the store has lost records, and what the journals know is restored into it. The record that this loop knew is void,
// and what was taken into it is taken in again. The queue may have gone back too and give its sequences a second time: what
// came from it is worked on, and not answered.
func (l *loop) moved() error {
	token, ok := l.w.Store.Current()
	if !ok {
		return errAway
	}
	if l.store != "" && l.store != token {
		l.h, l.fresh, l.mayRead, l.live = nil, false, false, false
		l.arrived = append(l.holding, l.arrived...)
		l.holding = nil
		for i := range l.arrived {
			l.arrived[i].Acker = unanswered{}
		}
	}
	l.store = token
	return nil
}

// unanswered is for deliveries from a queue that may have gone back: an answer could go to another message.
type unanswered struct{}

func (unanswered) Ack() error                  { return nil }
func (unanswered) InProgress() error           { return nil }
func (unanswered) Release(time.Duration) error { return nil }

// bide waits a moment for the store. What has come back is in the journal meanwhile; who has nothing in flight gives its
// deliveries back. It reports whether the loop goes on.
func (l *loop) bide() bool {
	var entries []engine.Entry
	for _, res := range l.ended {
		if res.write && !res.journaled && res.lookup == nil {
			entries = append(entries, engine.Entry{Effect: &engine.EffectFact{Dispatch: res.dispatch, Reply: res.reply, At: res.at}})
		}
	}
	if len(entries) > 0 && l.w.Journal.Write(l.w.ctx, entries...) == nil {
		for _, res := range l.ended {
			res.journaled = true
		}
	}
	if len(l.calls) > 0 || len(l.unsent) > 0 {
		l.pause(time.Now().Add(storeDelay))
		return true
	}
	l.leave(func(d *port.Delivery) { _ = d.Release(storeDelay) })
	return false
}

// open reads the record, unless the delivery's own word makes it likely that there is none: then a refusal tells.
func (l *loop) open(ctx context.Context) error {
	if l.fresh {
		l.fresh = false
		l.h = &record.Handle{ID: l.id}
		return nil
	}
	h, err := l.w.Records.Load(ctx, l.id)
	if errors.Is(err, port.ErrNotFound) {
		if l.live {
			l.live = false
			l.w.Store.Vanished("the record of run " + l.id.String() + " was removed while it was worked on")
			return errAway
		}
		l.h = &record.Handle{ID: l.id}
		return nil
	}
	if err != nil {
		return err
	}
	l.h, l.live = h, h.Run.End == nil
	l.cancelLost()
	return nil
}

// refused: somebody else has written. What was decided on the old record is decided again on the new one, unless the
// record is not ours any more; evidence is bound to its dispatch, so nothing can go to the wrong place.
func (l *loop) refused(c *change) {
	l.h = nil
	l.neverSent(c.starts)
}

// neverSent tells the journal of intents that were not acted on.
func (l *loop) neverSent(starts []*engine.Dispatch) {
	for _, s := range starts {
		if s.Effect == envelope.Write {
			l.w.Journal.Later(engine.Entry{Effect: engine.NeverSent(s.ID, l.w.Records.Now())}, engine.Entry{Settled: s.ID})
		}
	}
}

// cancelLost cuts calls off that the record does not carry any more: only a lost lease id does that.
func (l *loop) cancelLost() {
	r := l.h.Run
	mine := r.Lease != nil && l.mine(r.Lease.Holder)
	for d, c := range l.calls {
		if s := r.Carrying(d); s == nil || s.State == run.Executing && !mine {
			c.cancel()
		} else if r.Cutting() && c.dispatch.Effect == envelope.Read {
			c.cancel()
		}
	}
}

// traceID is the run's trace for the log; "" while the record is not known.
func (l *loop) traceID() string {
	if l.h == nil || l.h.Run == nil {
		return ""
	}
	return l.h.Run.TraceID()
}

func (l *loop) mine(holder string) bool { return holder == l.w.Holder }

// abort leaves the run as a crash would: what is in flight is cut off, and the record tells others. What came back is
// handed to the journal, which writes it as soon as it can: what it never takes is looked up.
func (l *loop) abort(err error) {
	for _, c := range l.calls {
		c.cancel()
	}
	for len(l.ended) < len(l.calls) { // each call has one end, and both are forgotten together
		<-l.kick
		l.collect()
	}
	for _, res := range l.ended {
		if res.write && !res.journaled && res.lookup == nil {
			l.w.Journal.Later(engine.Entry{Effect: &engine.EffectFact{Dispatch: res.dispatch, Reply: res.reply, At: res.at}})
		}
	}
	for _, c := range l.calls {
		c.gate.leave(l.id.Tenant, c.entry)
	}
	l.calls, l.ended = map[engine.DispatchID]*call{}, nil
	l.mayRead = true
	l.w.keep(l.id, l.left)
	l.letGo()
	if l.w.ctx.Err() == nil {
		l.w.Log.Error("run given up by this worker", "tenant", l.id.Tenant, "run_id", l.id.Run, "trace_id", l.traceID(), "error", err)
	}
	l.leave(l.w.giveUp)
}

// left is what a loop knows of its run and nobody else could: it is handed to the next loop of the run.
type left struct {
	mayRead bool               // the job has been counted as one that may kill its reader, or has killed nobody here
	unsent  []*engine.Dispatch // perhaps the record says that they are executing; they have not left
}

// leftMost bounds what is remembered of runs that were given up.
const leftMost = 10_000

// keep is for a run that this process gives up because of the store: that it lives is known to nobody else, and what comes
// again would be counted as lost with a worker.
func (w *Worker) keep(id run.ID, what left) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.left) >= leftMost {
		clear(w.left) // they count a loss more
	}
	w.left[id] = what
}

// leave gives back what the loop holds, and ends it. It has nothing in flight.
func (l *loop) leave(giveBack func(*port.Delivery)) {
	for _, g := range l.grants {
		g.giveUp(l.w, l.id.Tenant)
	}
	l.grants = map[string]*grant{}
	l.collect()
	for _, d := range append(l.holding, l.arrived...) {
		giveBack(&d)
	}
	l.holding, l.arrived = nil, nil
	l.slots(0)
	if !l.w.leaving(l) {
		// Something came in the last moment; a new loop takes it.
		l.w.forgetLoop(l)
	}
}

// slots keeps n slots and gives the others back.
func (l *loop) slots(n int) {
	if l.held > n {
		l.w.slots.release(l.id.Tenant, l.held-n)
		l.held = n
	}
}

// signalsPerLease is how often in a lease the queue is told that its messages are in good hands. A wake that nobody speaks
// for is delivered again after a quarter of a lease.
const signalsPerLease = 10

// wait sleeps until something comes, a time is reached, or the process drains.
func (l *loop) wait() {
	next := l.signalAt
	if !l.again.IsZero() && l.again.Before(next) {
		next = l.again
	}
	if at, ok := l.renewAt(); ok && at.Before(next) {
		next = at
	}
	l.pause(next)
}

// pause sleeps until something comes, the time is reached, or the process drains.
func (l *loop) pause(next time.Time) {
	timer := time.NewTimer(max(time.Until(next), 0))
	defer timer.Stop()
	cutoff := l.w.cutoff
	if l.cutOff {
		cutoff = nil
	}
	select {
	case <-l.kick:
	case <-timer.C:
	case <-l.w.ctx.Done():
	case <-cutoff:
		l.cutOff = true
		for _, c := range l.calls {
			c.cancel()
		}
	}
	if now := time.Now(); !now.Before(l.signalAt) {
		l.signalAt = now.Add(l.w.Lease / signalsPerLease)
		for _, d := range l.holding {
			_ = d.InProgress()
		}
		for _, d := range l.arrived {
			_ = d.InProgress()
		}
	}
}
