package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// The one order of durable steps, for a step of a run (a write; a read skips the two journal lines):
//
//	0  take the tool's slot and its rate token, then the executor's slot      grant
//	1  decide: lease, executing, dispatch id, budget reserved                 decide
//	2  journal the intent (fsync) beside the record's compare-and-set; both   commit
//	   known, or no dispatch
//	3  as the last statement before the request leaves: lease and deadline    CallInfo.Last
//	   are still ours, and the store is the one that the fleet has agreed on
//	4  classify the reply into an envelope, validate the result               the tool
//	5  decide tentatively as in 6; journal the effect, and the intent of the  commit
//	   step that 6 would start, in one transaction (fsync)
//	6  decide: the step's end, the next step's start, the outcomes owed       decide
//	7  the record's compare-and-set; refused: read again and decide again     commit, refused
//	8  publish the letter and wait, then the outcomes and wait                publish
//	9  settle in the journal; acknowledge the job                             written, answer

// change is what one look at the record makes of everything that has come.
type change struct {
	changed bool
	taken   int // of l.arrived
	ended   []*result
	starts  []*engine.Dispatch
	gone    bool   // there is no record: what is known stays in the journal, unsettled
	tell    string // holder of a foreign lease that should read the record
	err     error
}

// decide applies everything that has come to the record, and starts what may start. It does no I/O but to read results
// back that a reference needs.
func (l *loop) decide(ctx context.Context) *change {
	c := &change{}
	now, due := l.w.Records.Now(), l.w.Records.Due()
	l.due = due
	l.again = time.Time{} // begin says anew; a time that has passed must not keep the loop turning
	l.intake(c, now)
	r := l.h.Run
	if r == nil {
		c.ended, c.gone = l.ended, true
		l.dropAll()
		return c
	}
	src := engine.Source{By: l.w.ID, Random: l.w.Random(), At: now}
	if due >= r.Deadline && r.Expire(now) == engine.Applied {
		c.changed = true
		l.cancelLost()
	}
	for _, d := range l.unsent {
		if r.GiveBack(d.ID, false, l.w.Tools, src) != engine.Dropped {
			c.changed = true
		}
	}
	for _, res := range l.ended {
		if l.apply(r, res, src) != engine.Dropped {
			c.changed = true
		}
		c.ended = append(c.ended, res)
	}
	if r.Lease != nil && len(l.calls) == len(c.ended) && l.orphaned(r) {
		if r.LeaseEnded(l.w.Tools, src) == engine.Applied {
			c.changed = true
		}
	}
	if r.Lease != nil && !l.mine(r.Lease.Holder) {
		c.tell = r.Lease.Holder
		l.dropAll()
		c.err = l.verify(ctx, r, due) // it needs no lease
		return c
	}
	if r.Pending {
		return c // accepted without starting anything; the next look goes on
	}
	if l.judge(r, now) { // what an operator's call has brought
		c.changed = true
	}
	if c.err = l.begin(ctx, c, now, due); c.err == nil {
		c.err = l.verify(ctx, r, due)
	}
	if r.Lease != nil && l.renewDue() {
		c.changed = true
	}
	return c
}

// orphaned: the lease is an earlier start's of this journal, or this process's own although it has no call: nobody else
// may end it, and nobody works under it.
func (l *loop) orphaned(r *engine.Run) bool {
	if l.mine(r.Lease.Holder) {
		for _, s := range r.Steps {
			if s.State == run.Executing {
				if _, have := l.calls[s.Dispatch]; have {
					return false
				}
			}
		}
		return true
	}
	return sameJournal(r.Lease.Holder, l.w.Holder)
}

// intake takes deliveries into the record: jobs are accepted, repeated or refused; a wake only says "look".
func (l *loop) intake(c *change, now envelope.Time) {
	c.taken = len(l.arrived)
	for i := range l.arrived {
		d := &l.arrived[i]
		if d.Wake {
			l.woken = true
			continue
		}
		switch {
		case l.h.Run == nil && !d.Valid:
			l.h.Run = engine.CreateUnaddressed(l.id, d.Message, l.w.Defaults(), now)
			c.changed = true
		case l.h.Run == nil && d.Redelivered && !l.mayRead:
			// Delivered before, and no record: perhaps it kills its reader. It is counted before it is read.
			l.h.Run = engine.Unread(l.id, d.Message, l.w.Defaults(), l.w.PoisonAfter, now)
			c.changed, c.taken = true, i
			return
		case l.h.Run == nil:
			l.h.Run = engine.Create(l.id, d.Message, l.w.Defaults(), now)
			c.changed = true
		case l.h.Run.Pending && l.mayRead:
			l.h.Run.Read(d.Message, l.w.Defaults(), now)
			c.changed = true
		case l.h.Run.Pending:
			l.h.Run.CountUnread(l.w.PoisonAfter, now)
			c.changed, c.taken = true, i
			return
		default:
			if l.h.Run.Append(d.Message, l.w.Defaults(), now).Changed {
				c.changed = true
			}
		}
		// Job by job: the steps that came with a wrong one are those that it keeps from starting.
		if l.judge(l.h.Run, now) {
			c.changed = true
		}
	}
}

// apply makes of a call's or lookup's end what the evidence table says.
func (l *loop) apply(r *engine.Run, res *result, src engine.Source) engine.Verdict {
	src.At = max(src.At, res.at)
	if res.lookup != nil {
		src.Start = res.started
		return r.Looked(res.dispatch, *res.answer, res.lookup.Proves, l.w.Tools, src)
	}
	reply := res.reply
	if res.ref != nil {
		reply.Ref, reply.Result = res.ref, nil // the journal has it whole
	}
	switch {
	case res.notOurs && reply.NotSent:
		return r.GiveBack(res.dispatch, false, l.w.Tools, src) // the lease was gone before anything left: it costs nothing
	case r.Cutting() && (reply.NoReply || reply.NotSent) && r.CutRead(res.dispatch, src.At) == engine.Applied:
		return engine.Applied
	case l.cutOff && reply.NotSent:
		return r.GiveBack(res.dispatch, false, l.w.Tools, src)
	case l.cutOff && reply.NoReply:
		return r.GiveBack(res.dispatch, true, l.w.Tools, src)
	}
	return r.Reply(res.dispatch, reply, l.w.Tools, src)
}

// begin starts the steps whose turn has come and that have their slots.
func (l *loop) begin(ctx context.Context, c *change, now, due envelope.Time) error {
	if l.w.isDraining() {
		l.dropAll()
		return nil
	}
	r := l.h.Run
	l.passes = false
	var need engine.Need
	for range r.Steps { // a step that may not start gets its end at once and can make way for the next
		need = r.Next(due)
		if need.At != 0 {
			l.again = time.Now().Add(need.At.Sub(due) + time.Millisecond)
		}
		progress := false
		for _, name := range slices.Concat(need.Ready, l.waitingHere(need.Postponed)) {
			s := r.Step(name)
			if l.away(r, s, now) {
				continue
			}
			g := l.grant(s, c)
			if !g.ready() || l.isBarred(s.Tool) {
				continue
			}
			if err := l.w.Records.Fetch(ctx, l.h, name); err != nil {
				return err
			}
			if s.Postponed && !g.told {
				g.gate.back()
			}
			if d := r.Begin(name, l.w.Tools, l.start(), now); d != nil {
				c.starts = append(c.starts, d)
			} else {
				l.drop(name)
				progress = true
			}
			c.changed = true
			if progress || r.End != nil || r.Decided != nil {
				break // a step that ended can have stopped those after it: what is ready is asked anew
			}
		}
		if !progress {
			break
		}
	}
	l.postpone(c, need, now)
	return nil
}

func (l *loop) start() engine.Start {
	return engine.Start{
		Dispatch: engine.DispatchID(newID()), LeaseID: newID(), Holder: l.w.Holder, Seconds: l.w.Lease.Seconds(), Worker: l.w.ID,
		Random: l.w.Random(),
	}
}

// commit makes a change durable: lines 2, 5 and 7.
func (l *loop) commit(ctx context.Context, c *change) error {
	r := l.h.Run
	if r.Lease != nil && l.mine(r.Lease.Holder) && l.h.Seq != 0 {
		r.Renew(r.Lease.ID)
	}
	effects, intents := c.effects(), l.intents(c)
	if len(effects) > 0 || l.unwritable(intents) {
		if err := l.journal(ctx, append(c.entries(effects), intents...)); err != nil {
			if len(intents) > 0 || ctx.Err() != nil {
				return err
			}
			return l.save(ctx) // the record learns what came all the same; abort has it tried once more if that fails too
		}
		for _, res := range effects {
			res.journaled = true
		}
		return l.save(ctx)
	}
	if len(intents) == 0 {
		return l.save(ctx)
	}
	// Line 2: side by side, and both must be known before anything is dispatched (intent-first).
	journaled := make(chan error, 1)
	go func() { journaled <- l.journal(ctx, intents) }()
	err := l.save(ctx)
	if jerr := <-journaled; err == nil && jerr != nil {
		return jerr
	}
	return err
}

// effects are the writes that have ended and whose ends are not in the journal yet.
func (c *change) effects() (out []*result) {
	for _, res := range c.ended {
		if res.write && !res.journaled && res.lookup == nil {
			out = append(out, res)
		}
	}
	return out
}

// entries are the effects as the journal keeps them.
func (c *change) entries(effects []*result) (out []engine.Entry) {
	for _, res := range effects {
		out = append(out, engine.Entry{Effect: &engine.EffectFact{Dispatch: res.dispatch, Reply: res.reply, At: res.at}})
	}
	return out
}

// intents are the journal entries of the writes that the change starts.
func (l *loop) intents(c *change) (out []engine.Entry) {
	for _, d := range c.starts {
		if d.Effect == envelope.Write {
			out = append(out, engine.Entry{Intent: l.intent(d)})
		}
	}
	return out
}

// save is the record's compare-and-set. A lease write counts from before it was sent.
func (l *loop) save(ctx context.Context) error {
	var boot time.Duration
	var sent time.Time
	lease := l.h.Run.Lease
	mine := lease != nil && l.mine(lease.Holder)
	if mine {
		boot, sent = l.w.Boot(), time.Now()
	}
	blocked := condition{ready: l.w.Ready, name: "records", who: l.id.String()}
	defer blocked.clear()
	for tries := (pause.Longer{}); ; {
		err := l.w.Records.Save(ctx, l.h)
		if errors.Is(err, port.ErrFull) {
			blocked.set("AGENTRUN_RUNS is full: raise --max-runs, or wait until ended runs are forgotten")
			if !tries.Wait(ctx) {
				return ctx.Err()
			}
			continue
		}
		if err != nil {
			return err
		}
		break
	}
	l.live = l.h.Run.End == nil
	if mine {
		l.hold(boot+l.w.held(), sent)
	}
	return nil
}

// errUnjournaled: the journal did not take an intent, so that the write may not leave, and nothing that the change says of
// it may stand.
var errUnjournaled = errors.New("the journal cannot be written")

// The time between two attempts to start a write while the journal takes none.
const (
	journalSoonest = 20 * time.Millisecond
	journalLatest  = 2 * time.Second
)

// journal writes entries, once: the loop decides again without those that were not written.
func (l *loop) journal(ctx context.Context, entries []engine.Entry) error {
	err := l.w.Journal.Write(ctx, entries...)
	if err == nil {
		l.patience, l.barred = 0, time.Time{}
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	l.w.Log.Error("journal not written", "tenant", l.id.Tenant, "run_id", l.id.Run, "error", err)
	return fmt.Errorf("%w: %w", errUnjournaled, err)
}

// unwritable: the journal took none of this run's last intents. While that is so the journal is asked before the record:
// else the record would say again and again of a write that it is executing.
func (l *loop) unwritable(intents []engine.Entry) bool { return l.patience > 0 && len(intents) > 0 }

// bar starts no write for a while, because without its intent in the journal none may leave. What came of writes that
// have ended goes into the record meanwhile. That the journal cannot be written is its own to say, in readiness too.
func (l *loop) bar(c *change) {
	l.patience = min(max(2*l.patience, journalSoonest), journalLatest)
	l.barred = time.Now().Add(l.patience)
	l.unsent = append(l.unsent, c.starts...) // perhaps the record has them
	l.h, l.fresh = nil, false
}

// isBarred: a step's turn has come, and it may not start because the journal cannot be written.
func (l *loop) isBarred(tool string) bool {
	wait := time.Until(l.barred)
	if wait <= 0 {
		return false
	}
	if t, known := l.w.Tools.Tool(tool); !known || t.Effect != envelope.Write {
		return false
	}
	if at := time.Now().Add(wait); l.again.IsZero() || at.Before(l.again) {
		l.again = at
	}
	return true
}

func (l *loop) intent(d *engine.Dispatch) *engine.Intent {
	r := l.h.Run
	return &engine.Intent{
		Dispatch: d.ID, Tenant: r.Tenant, RunID: r.RunID, Queue: r.Queue, Workflow: r.Workflow, Owner: r.Owner, Actor: r.Actor,
		Purpose: r.Intent, Budget: r.Budget, Step: d.Step, Tool: d.Tool, Args: d.Args.Text(), Proposed: d.Proposed, Optional: d.Optional,
		Attempt: d.Attempt, Proposal: d.Proposal, Key: d.Key, At: r.UpdatedAt,
	}
}

// written: the change is in the record. Calls leave, what came is done with, and the journal may forget.
func (l *loop) written(c *change) {
	l.took(c)
	l.mayRead = l.mayRead || l.h.Run.Pending
	writes := false
	for _, d := range c.starts {
		writes = writes || d.Effect == envelope.Write
		l.launch(d)
	}
	if writes {
		// Should the store lose this revision, it is seen to have gone back.
		l.w.Journal.Saw(l.h.Seq)
		l.w.Store.Sent()
	}
	l.slots(max(1, len(l.calls)))
	if c.tell != "" {
		if err := l.w.Hints.Hint(c.tell, l.id); err != nil {
			l.w.Log.Debug("hint not sent", "error", err)
		}
	}
}

// unchanged: what came needed no write of the record. Without a record an effect is journaled all the same: should the
// store have been lost, it is what the run is restored from.
func (l *loop) unchanged(ctx context.Context, c *change) error {
	if effects := c.effects(); c.gone && len(effects) > 0 {
		switch err := l.journal(ctx, c.entries(effects)); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			l.w.Journal.Later(c.entries(effects)...)
		}
	}
	l.took(c)
	if len(l.calls) == 0 && len(l.grants) > 0 {
		l.slots(l.granted()) // waiting for a tool's slot or token holds no slot
	}
	return nil
}

func (l *loop) took(c *change) {
	l.neverSent(l.unsent)
	l.unsent = nil
	l.holding = append(l.holding, l.arrived[:c.taken]...)
	l.arrived = append(l.arrived[:0], l.arrived[c.taken:]...)
	for _, res := range c.ended {
		if call := l.calls[res.dispatch]; call != nil {
			delete(l.calls, res.dispatch)
			call.cancel()
			if res.lookup == nil && !res.notOurs {
				call.gate.learn(call.entry, &res.reply, call.dispatch.Attempt, res.took)
			}
			call.gate.leave(l.id.Tenant, call.entry)
		}
		if res.write && res.lookup == nil && !c.gone {
			l.w.Journal.Later(engine.Entry{Settled: res.dispatch})
		}
	}
	if len(c.ended) > 0 {
		l.ended = l.ended[:copy(l.ended, l.ended[len(c.ended):])]
	}
	if len(l.calls) == 0 && len(c.starts) == 0 {
		l.letGo()
	}
}

// sameJournal: two holders are starts of one journal; a holder is the journal's random id, a dot, and the start number.
func sameJournal(a, b string) bool {
	cut := func(s string) string {
		for i := len(s) - 1; i >= 0; i-- {
			if s[i] == '.' {
				return s[:i]
			}
		}
		return s
	}
	return cut(a) == cut(b)
}
