package sim

import (
	"context"
	"log/slog"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/reconcile"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/worker"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

var quiet = slog.New(slog.DiscardHandler)

func defaults() engine.Defaults {
	return engine.Defaults{
		Owner: "platform", Workflow: "case", Actor: "agent:support",
		Budget: budget.Limits{
			MaxTurns: 12, MaxToolCalls: 12, MaxAttemptsPerStep: 3, MaxElapsedMillis: 90_000,
			MaxInputTokens: 1000, MaxOutputTokens: 1000, MaxEstimatedCostMinorUnits: 100,
		},
	}
}

// clock is a process's picture of the server's time: bounds that hold it. A paused machine reads no clock.
type clock struct {
	p           *proc
	early, late time.Duration
	stops       bool // with the machine: a worker's; a reconciler reads it under its lock
}

func (c clock) Lower() time.Time { return c.now().Add(-c.early) }
func (c clock) Upper() time.Time { return c.now().Add(c.late) }

func (c clock) now() time.Time {
	if c.stops {
		c.p.gate()
		c.p.reads()
	}
	return time.Now()
}

// reads notices code that goes round in circles without waiting for anything.
func (p *proc) reads() {
	now := time.Now()
	p.mu.Lock()
	if now != p.readAt {
		p.readAt, p.readN = now, 0
	}
	p.readN++
	spins := p.readN == 5000
	p.mu.Unlock()
	if spins {
		p.w.mu.Lock()
		p.w.violated("end", "%s goes round in circles", p.name)
		p.w.mu.Unlock()
		p.die("it spins")
	}
}

// blind is an observer that does not look.
type blind struct{}

func (blind) Outcome(string, string, string)                                 {}
func (blind) ToolCall(string, envelope.Effect, envelope.Code, time.Duration) {}
func (blind) RunsInFlight(int)                                               {}
func (blind) Refusal(string)                                                 {}
func (blind) DuplicatePrevented(string)                                      {}
func (blind) BlockFor(string, string, string)                                {}
func (blind) ClearFor(string, string)                                        {}
func (blind) Block(string, string)                                           {}
func (blind) Clear(string)                                                   {}
func (blind) UnknownResolved(string, string)                                 {}
func (blind) SettleTime(time.Duration)                                       {}
func (blind) Escalation(string, string)                                      {}
func (blind) LettersOpen(string, string, int)                                {}
func (blind) ForgetLetters()                                                 {}
func (blind) Breaker(string, bool)                                           {}
func (blind) RetryLate(time.Duration)                                        {}
func (blind) PassedOn(string)                                                {}

// executor is a machine with a journal and, one after another, the lives of a worker.
type executor struct {
	w       *world
	name    string
	disk    disk
	lease   time.Duration
	lazy    bool
	life    *proc
	worker  *worker.Worker
	puller  *puller
	holder  string
	down    chan struct{} // closed when the last life's code has ended
	lives   int
	leaving *proc // the life that drains
	lost    bool  // the next life finds an empty disk
}

// start begins a life: the journal is settled, then it pulls.
func (e *executor) start() {
	e.lives++
	p := e.w.newProc(e.name)
	j, holder := e.disk.open()
	w := e.w
	d := w.dice
	clk := clock{p, d.between(e.name+"early", 0, 20*time.Millisecond), d.between(e.name+"late", 0, 20*time.Millisecond), true}
	wk := worker.New(worker.Config{
		ID: e.name, Holder: holder, Lease: e.lease, Concurrency: 4, DrainTimeout: 4 * time.Second, PoisonAfter: 5,
		Defaults: defaults, Random: func() float64 { return d.float(e.name + "random") },
		Boot: func() time.Duration {
			p.gate()
			return time.Since(w.zero)
		},
		Records: &record.Records{Store: link{p}, Clock: clk, Retention: time.Hour},
		Journal: journalLink{p, j, e.lazy}, Tools: toolbox{p, true}, Hints: link{p}, Store: link{p},
		Observe: blind{}, Ready: blind{}, Log: quiet,
	})
	pl := &puller{p: p, give: wk.Deliver, idle: make(chan struct{})}
	down := make(chan struct{})
	w.mu.Lock()
	e.life, e.worker, e.puller, e.holder, e.down = p, wk, nil, holder, down
	w.sayLocked("%s starts", e.name)
	w.mu.Unlock()
	settled := make(chan struct{})
	p.onDie = func() {
		go func() {
			wk.Stop()
			<-settled
			e.disk.close()
			close(down)
		}()
	}
	go func() {
		defer close(settled)
		if err := wk.Settle(p.ctx); err != nil {
			go p.die("could not settle: " + err.Error())
			return
		}
		w.mu.Lock()
		e.puller = pl
		w.mu.Unlock()
		w.say("%s has settled its journal", e.name)
		wk.Start(pl)
	}()
}

// drain ends a life as SIGTERM does. It returns when the worker has.
func (e *executor) drain() {
	w := e.w
	w.mu.Lock()
	p, wk, pl := e.life, e.worker, e.puller
	again := e.leaving == p
	e.leaving = p
	w.disturb() // the runs that it holds start nothing until its calls have ended
	w.sayLocked("%s drains", e.name)
	w.mu.Unlock()
	if again {
		return
	}
	if pl == nil {
		p.die("stopped before it was up")
		return
	}
	wk.Drain(context.Background(), pl)
	p.die("drained")
}

// reconciler is the lives of one reconciler.
type reconciler struct {
	w     *world
	name  string
	lease time.Duration
	life  *proc
	lives int
	down  chan struct{}
}

func (r *reconciler) start() {
	r.lives++
	p := r.w.newProc(r.name)
	d := r.w.dice
	clk := clock{p, d.between(r.name+"early", 0, 20*time.Millisecond), d.between(r.name+"late", 0, 20*time.Millisecond), false}
	rc := reconcile.New(reconcile.Config{
		ID: r.name, Holder: r.name + "." + itoa(uint64(r.lives)), Lease: r.lease, Workers: 4,
		Boot: func() time.Duration { return time.Since(r.w.zero) }, Random: func() float64 { return d.float(r.name + "random") },
		Records: &record.Records{Store: link{p}, Clock: clk, Retention: time.Hour},
		Tools:   toolbox{p: p}, Watch: link{p}, Waker: link{p}, Fleet: link{p}, Store: link{p}, Health: blind{}, Log: quiet,
	})
	down := make(chan struct{})
	r.w.mu.Lock()
	r.life, r.down = p, down
	r.w.sayLocked("%s starts", r.name)
	r.w.mu.Unlock()
	go func() {
		defer close(down)
		if err := rc.Run(p.ctx); err != nil && !p.isDead() {
			go p.die("could not start: " + err.Error())
		}
	}()
}

// operatorCall does what an operator call does: on the record first, then with the message.
func (w *world) operatorCall(p *proc, id run.ID, what string, change func(r *engine.Run, now envelope.Time) bool) {
	rs := &record.Records{Store: link{p}, Clock: clock{p: p}, Retention: time.Hour}
	for {
		h, err := rs.Load(p.ctx, id)
		if err != nil {
			return
		}
		owner := ""
		if h.Run.Letter != nil && h.Run.Letter.Open {
			owner = h.Run.Letter.Owner
		}
		if !change(h.Run, rs.Now()) {
			w.say("%s of %s is refused", what, id.Run)
			return
		}
		err = rs.Save(p.ctx, h)
		if err == port.ErrConflict {
			continue
		}
		w.say("%s of %s is recorded: %v", what, id.Run, err)
		if err != nil {
			return
		}
		if h.Run.Lease != nil {
			_ = link{p}.Hint(h.Run.Lease.Holder, id)
		}
		_ = rs.Publish(p.ctx, h)
		if l := h.Run.Letter; owner != "" && l.Open && l.Owner != owner {
			_ = rs.PublishLetter(p.ctx, h)
		}
		if l := h.Run.Letter; owner != "" && (!l.Open || l.Owner != owner) {
			_ = rs.RemoveLetter(p.ctx, id, owner)
		}
		return
	}
}
