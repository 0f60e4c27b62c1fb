package sim

import (
	"context"
	"encoding/json"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/worker"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// provider is the far side of every tool. Its ledger is the truth.
type provider struct {
	w       *world
	tools   map[string]*run.Tool
	limits  map[string]worker.Limits
	flights []*flight
	spent   map[run.ID]int // requests that arrived, by run

	refusesLookups int // of a thousand lookups, because it is asked too often
}

// conduct is what the provider does with one request.
type conduct struct {
	notSent  bool           // the connection is refused
	commits  bool           // it is done, commitIn after its arrival
	commitIn time.Duration  //
	answers  bool           // with reply, answerIn after its arrival
	answerIn time.Duration  //
	reply    envelope.Reply //
	late     bool           // cut off before it was done: it is done all the same, inside the window
	job      time.Duration  // accepted as a job that takes so long, whatever becomes of its caller: it commits then, or has failed
}

// flight is one request that arrived.
type flight struct {
	engine.Dispatch
	conduct
	id        run.ID
	by        *proc
	at        time.Time
	cut       bool // the caller has gone
	decided   bool // no commit can follow any more
	committed bool
	visible   time.Time // when lookups see it
	failed    bool      // a job that was given up
}

func (f *flight) mayCommit() bool { return !f.decided }

var policy = run.Retry{
	MaxAttempts: 3, InitialDelay: 100 * time.Millisecond, MaxDelay: time.Second, Multiplier: 2, Jitter: 0.2,
	MaxRetryAfter: 15 * time.Minute,
}

const window = 2 * time.Second

func (v *provider) init(w *world) {
	v.w, v.tools, v.limits, v.spent = w, map[string]*run.Tool{}, map[string]worker.Limits{}, map[run.ID]int{}
	lookup := func() *run.Verify {
		return &run.Verify{Window: window, HasWindow: true, MaxAttempts: 4, Timeout: time.Second}
	}
	always, blind := lookup(), lookup()
	always.Always = true
	blind.HasWindow, blind.Window = false, 0
	for _, t := range []*run.Tool{
		{Name: "read", Effect: envelope.Read, Timeout: 2 * time.Second},
		{Name: "slowread", Effect: envelope.Read, Timeout: 12 * time.Second},
		{Name: "write", Effect: envelope.Write, Timeout: 3 * time.Second, Verify: lookup()},
		{Name: "slow", Effect: envelope.Write, Timeout: 14 * time.Second, Verify: lookup()},
		{Name: "always", Effect: envelope.Write, Timeout: 3 * time.Second, Verify: always},
		{Name: "blind", Effect: envelope.Write, Timeout: 3 * time.Second, Verify: blind},
		{Name: "keyed", Effect: envelope.Write, Timeout: 3 * time.Second, IdempotentFor: 20 * time.Second},
		{Name: "none", Effect: envelope.Write, Timeout: 3 * time.Second},
		{Name: "remote", Effect: envelope.Write, Timeout: 3 * time.Second, Verify: lookup()}, // only executors can look it up
		{Name: "jobs", Effect: envelope.Write, Timeout: 3 * time.Second, Verify: lookup()},   // accepts, and works on it
		{Name: "narrow", Effect: envelope.Write, Timeout: 3 * time.Second, Verify: lookup()},
	} {
		t.Retry, t.PoisonAfter = policy, 5
		v.tools[t.Name] = t
	}
	v.limits["narrow"] = worker.Limits{Concurrency: 1}
}

func (v *provider) Tool(name string) (*run.Tool, bool) {
	t, ok := v.tools[name]
	return t, ok
}

func (v *provider) Limits(tool string) worker.Limits { return v.limits[tool] }

// arrive takes a request in; the rules about dispatches are checked here, against the truth.
func (w *world) arrive(p *proc, id run.ID, d *engine.Dispatch, c conduct) *flight {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := &flight{Dispatch: *d, conduct: c, id: id, by: p, at: time.Now()}
	w.checkArrival(f)
	w.spent[id]++
	w.flights = append(w.flights, f)
	w.sayLocked("%s sends %s of %s (%s attempt %d): commits %v in %s, answers %v in %s", p.name, w.name(d.ID), id.Run, d.Step, d.Attempt,
		c.commits, c.commitIn, c.answers, c.answerIn)
	if c.job > 0 {
		w.accept(f)
		return f
	}
	if !c.commits {
		f.decided = c.answers && !c.reply.NoReply // a refusal: nothing can follow; silence decides at the cut
		return f
	}
	if w.keptPromise(f) {
		f.decided, f.committed, f.visible = true, true, time.Now()
		return f
	}
	time.AfterFunc(c.commitIn, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !f.decided && !f.cut {
			w.commit(f, window*9/10)
		}
	})
	return f
}

// accept takes a request as a job: lookups see it under way within the window, and later what it came to. w.mu is held.
func (w *world) accept(f *flight) {
	f.visible = time.Now().Add(w.dice.between("lag"+f.Ref, 0, window*9/10))
	time.AfterFunc(f.job, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		f.decided = true
		if f.commits {
			f.committed = true
			w.checkCommit(f)
		} else {
			f.failed = true
		}
		w.sayLocked("the job of %s is through: done %v", w.name(f.ID), f.committed)
	})
}

// keptPromise: a tool that honours the key does not do the same operation twice.
func (w *world) keptPromise(f *flight) bool {
	if w.tools[f.Tool].IdempotentFor == 0 {
		return false
	}
	for _, e := range w.flights {
		if e != f && e.Key == f.Key && e.committed {
			return true
		}
	}
	return false
}

// honest keeps a tool that honours its key from refusing for good what it has done under that key.
func (w *world) honest(d *engine.Dispatch, c conduct) conduct {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.answers && !c.commits && c.reply.Row.Outcome != envelope.Retryable && w.keptPromise(&flight{Dispatch: *d}) {
		c.commits, c.reply = true, envelope.Reply{OK: true, Result: json.RawMessage(`{"id":"c"}`), EvidenceRef: d.Ref}
	}
	return c
}

// commit enters a request into the ledger; lookups see it at most lag later. w.mu is held.
func (w *world) commit(f *flight, lag time.Duration) {
	f.decided = true
	if w.keptPromise(f) {
		f.committed, f.visible = true, time.Now()
		return
	}
	f.committed = true
	f.visible = time.Now().Add(w.dice.between("lag"+f.Ref, 0, lag+1))
	w.sayLocked("the provider does %s (%s)", w.name(f.ID), f.Ref)
	w.checkCommit(f)
}

// cutAll ends the calls of a process that died.
func (w *world) cutAll(p *proc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.flights {
		if f.by == p {
			w.cutOff(f)
		}
	}
}

// cutOff: the caller has gone. What was not done by now is done inside the window or never. w.mu is held.
func (w *world) cutOff(f *flight) {
	if f.cut {
		return
	}
	f.cut = true
	if f.decided || f.job > 0 {
		return
	}
	if !f.late {
		f.decided = true
		return
	}
	in := w.dice.between("late"+f.Ref, time.Millisecond, window*8/10)
	end := time.Now().Add(window * 95 / 100)
	time.AfterFunc(in, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !f.decided {
			w.commit(f, time.Until(end))
		}
	})
}

// toolbox is a process's way to the provider.
type toolbox struct {
	p        *proc
	executes bool // an executor's
}

var _ worker.Tools = toolbox{}

func (b toolbox) Tool(name string) (*run.Tool, bool) { return b.p.w.Tool(name) }
func (b toolbox) Limits(tool string) worker.Limits   { return b.p.w.Limits(tool) }

func (b toolbox) Call(ctx context.Context, d *engine.Dispatch, info worker.CallInfo) envelope.Reply {
	w := b.p.w
	notSent := envelope.Reply{NotSent: true, Row: envelope.RowFor(envelope.CodeUpstreamUnavailable, d.Effect)}
	silence := envelope.Reply{NoReply: true, Row: envelope.RowFor(envelope.CodeUpstreamTimeout, d.Effect)}
	if d.Effect == envelope.Write {
		silence.Row = envelope.RowFor(envelope.CodeOutcomeUnknown, d.Effect)
	}
	if !b.p.gate() {
		return notSent
	}
	f := w.befall(b.p, "tool.call", info.ID.Run)
	if f == crashBefore {
		b.p.die("before tool.call")
		return notSent
	}
	if b.p.travel(ctx, "tool.call", false) != nil {
		return notSent
	}
	c := w.honest(d, w.behave(d))
	if f == hang { // the machine is paused between the record and the wire
		b.p.pause()
		time.AfterFunc(w.dice.between("nap"+b.p.name, time.Second, 12*time.Second), b.p.resume)
		b.p.gate()
	}
	if c.notSent || info.Last() != nil || b.p.isDead() {
		return notSent
	}
	fl := w.arrive(b.p, info.ID, d, c)
	if f == crashAfter {
		b.p.die("after tool.call was sent")
		return silence
	}
	answered := make(<-chan time.Time)
	if c.answers {
		t := time.NewTimer(c.answerIn)
		defer t.Stop()
		answered = t.C
	}
	select {
	case <-answered:
	case <-ctx.Done():
		w.mu.Lock()
		w.cutOff(fl)
		w.sayLocked("%s of %s is cut off", w.name(d.ID), b.p.name)
		w.mu.Unlock()
		b.p.gate()
		return silence
	case <-b.p.ctx.Done():
		return silence
	}
	w.mu.Lock()
	if c.reply.NoReply {
		w.cutOff(fl)
	} else {
		fl.decided, fl.cut = fl.job == 0, true
	}
	w.mu.Unlock()
	b.p.gate()
	return c.reply
}

func (toolbox) ReadyWithin(string) time.Duration { return 0 }

func (b toolbox) Lookup(ctx context.Context, id run.ID, l *engine.Lookup, _ string) (envelope.Lookup, bool) {
	w := b.p.w
	if l.Tool == "remote" && !b.executes {
		return envelope.Lookup{}, false
	}
	out := envelope.Lookup{Answer: envelope.Undecided}
	err := b.p.do(ctx, "tool.verify", id.Run, reads, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		out = w.lookedUp(l)
		if st := w.runs[id]; st != nil {
			w.isPrompt(id, lookupOf(l.Dispatch), st)
		}
		w.sayLocked("%s looks %s up (proves %v): %s", b.p.name, w.name(l.Dispatch), l.Proves, out.Answer)
		return nil
	})
	if err != nil {
		return envelope.Lookup{Answer: envelope.Undecided}, true
	}
	return out, true
}

// lookedUp is what the provider says of an operation: what was done, else the last that it has of it. Now and then it does not
// look, because it is asked too often. w.mu is held.
func (w *world) lookedUp(l *engine.Lookup) envelope.Lookup {
	if w.dice.chance("limited"+l.Ref, w.refusesLookups) {
		wait := w.dice.between("told"+l.Ref, 0, 4*time.Second)
		return envelope.Lookup{Answer: envelope.Later, Row: envelope.RowFor(envelope.CodeUpstreamRateLimited, envelope.Read), RetryAfter: wait.Milliseconds()}
	}
	out := envelope.Lookup{Answer: envelope.Absent}
	for _, f := range w.flights {
		switch {
		case f.Ref != l.Ref || time.Now().Before(f.visible):
		case f.committed:
			return envelope.Lookup{Answer: envelope.Found, Result: json.RawMessage(`{"id":"c"}`), EvidenceRef: string(f.Ref)}
		case f.failed:
			out = envelope.Lookup{Answer: envelope.Failed, Row: envelope.RowFor(envelope.CodeStateConflict, envelope.Write)}
		case f.job > 0:
			out = envelope.Lookup{Answer: envelope.Pending}
		}
	}
	return out
}

// ledger is how often the operation of a step was really done.
func (w *world) ledger(id run.ID, step string) int {
	n := 0
	keys := map[string]bool{}
	for _, f := range w.flights {
		if f.id != id || f.Step != step || !f.committed || f.Effect != envelope.Write {
			continue
		}
		if w.tools[f.Tool].IdempotentFor > 0 {
			if keys[f.Key] {
				continue
			}
			keys[f.Key] = true
		}
		n++
	}
	return n
}

// open reports whether a request for the step may still be done.
func (w *world) open(id run.ID, step string) bool {
	for _, f := range w.flights {
		if f.id == id && f.Step == step && f.Effect == envelope.Write && f.mayCommit() {
			return true
		}
	}
	return false
}
