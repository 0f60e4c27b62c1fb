package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

const (
	tenant = "crash"
	queue  = "default"
)

// Plan is one run as its publisher means it: its jobs, the later ones published as the agent loop goes on.
type Plan struct {
	ID    run.ID
	Shape string
	Jobs  []run.Job

	sent     []run.Job // in their order
	reopened bool      // the store has lost some of it
	next     int       // the next job to publish
	key      string    // of a call through a gateway
	heard    heard     // by the agent that made it
	waits    bool      // for the outcome of the last job's step
	Accepted time.Time
	Ended    time.Time
}

var shapes = []struct {
	name   string
	weight int
}{
	{"single write", 24}, {gatewayCall, 10}, {"read, write, read", 22}, {"parallel writes", 14}, {"open run", 20}, {tightBudget, 5}, {shortTime, 5},
}

// Runs that a budget may end.
const (
	tightBudget = "few calls"
	shortTime   = "little time"

	fewCalls   = 3
	littleTime = 3 // seconds
)

// plan draws a run.
func drawPlan(r *rand.Rand, n int) *Plan {
	p := &Plan{ID: run.ID{Tenant: tenant, Run: fmt.Sprintf("r%06d", n)}}
	at := r.IntN(100)
	for _, s := range shapes {
		if at -= s.weight; at < 0 {
			p.Shape = s.name
			break
		}
	}
	if p.Shape == gatewayCall {
		return drawCall(n, drawWrite(r))
	}
	write := func(step string) run.JobStep {
		return run.JobStep{Step: step, Tool: drawWrite(r), Args: json.RawMessage(`{"amount":1}`)}
	}
	read := func(step string) run.JobStep {
		return run.JobStep{Step: step, Tool: "load", Args: json.RawMessage(`{"id":"x"}`)}
	}
	job := func(more bool, steps ...run.JobStep) {
		p.Jobs = append(p.Jobs, run.Job{Schema: run.JobSchema, Tenant: p.ID.Tenant, RunID: p.ID.Run, Steps: steps, More: more})
	}
	switch p.Shape {
	case "single write":
		job(false, write("w"))
	case "read, write, read":
		w := write("w")
		w.Args = json.RawMessage(`{"of":{"$from":"a#/id"}}`)
		job(false, read("a"), w, read("b"))
	case tightBudget:
		job(false, read("a"), write("w1"), write("w2"))
		calls := int64(fewCalls)
		p.Jobs[0].Budget = &budget.Request{MaxToolCalls: &calls}
	case shortTime:
		job(false, read("a"), write("w1"), write("w2"))
		seconds := float64(littleTime)
		p.Jobs[0].Budget = &budget.Request{MaxElapsedSeconds: &seconds}
	case "parallel writes":
		job(false, write("w1"), write("w2"), write("w3"))
		p.Jobs[0].Parallel = true
	case "open run":
		job(true, read("a"))
		for i := range 1 + r.IntN(3) {
			job(true, write(fmt.Sprintf("w%d", i)))
		}
		if r.IntN(2) == 0 {
			job(false)
		} else {
			job(false, write("last"))
		}
	}
	return p
}

// drawWrite chooses a tool; most writes can be looked up.
func drawWrite(r *rand.Rand) string {
	names := []string{"pay", "pay", "pay", "pay", "pay", "pay", "ship", "ship", "book", "book", "note", "note", "mail", "sync", "work"}
	return names[r.IntN(len(names))]
}

// Publisher keeps a number of runs going, and drives the open ones as an agent loop does.
type Publisher struct {
	fleet  *Fleet
	random *rand.Rand
	busy   int // runs at once

	mu      sync.Mutex
	plans   map[run.ID]*Plan
	open    int
	agents  int // that have no answer yet
	held    bool
	jobs    int // accepted by the stream
	twice   int // published again although accepted, or because the acknowledgement did not come
	changed chan struct{}
}

func newPublisher(f *Fleet, seed uint64, busy int) *Publisher {
	return &Publisher{fleet: f, random: rand.New(rand.NewPCG(seed, 2)), busy: busy, plans: map[run.ID]*Plan{}, changed: make(chan struct{}, 1)}
}

// Run begins runs until ctx ends; started runs go on. every is the least time between two.
func (p *Publisher) Run(ctx context.Context, every time.Duration) {
	for n := 1; pause.For(ctx, every); n++ {
		for p.full() {
			select {
			case <-p.changed:
			case <-ctx.Done():
				return
			}
		}
		p.begin(context.WithoutCancel(ctx), drawPlan(p.random, n), p.random.IntN(10) == 0)
	}
}

func (p *Publisher) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held || p.open >= p.busy
}

// Hold stops beginning runs, or goes on.
func (p *Publisher) Hold(held bool) {
	p.mu.Lock()
	p.held = held
	p.mu.Unlock()
	p.tell()
}

func (p *Publisher) tell() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

func (p *Publisher) begin(ctx context.Context, plan *Plan, again bool) {
	p.mu.Lock()
	p.plans[plan.ID] = plan
	p.open++
	p.mu.Unlock()
	p.advance(ctx, plan, again)
}

// Unfinished is how many runs have no terminal outcome yet.
func (p *Publisher) Unfinished() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open + p.agents
}

// Plans are all runs that were begun, by name.
func (p *Publisher) Plans() []*Plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]*Plan, 0, len(p.plans))
	for _, plan := range p.plans {
		out = append(out, plan)
	}
	slices.SortFunc(out, func(a, b *Plan) int { return int(a.Accepted.Sub(b.Accepted)) })
	return out
}

// advance publishes the plan's next job.
func (p *Publisher) advance(ctx context.Context, plan *Plan, again bool, waive ...string) {
	p.mu.Lock()
	if plan.next >= len(plan.Jobs) {
		p.mu.Unlock()
		return
	}
	job := plan.Jobs[plan.next]
	plan.next++
	if len(waive) > 0 { // a step has failed for good: the agent closes the run
		job, plan.next = run.Job{Schema: run.JobSchema, Tenant: plan.ID.Tenant, RunID: plan.ID.Run, Waive: waive}, len(plan.Jobs)
	}
	plan.waits = true
	plan.sent = append(plan.sent, job)
	if plan.Shape == gatewayCall {
		p.agents++
		random := rand.New(rand.NewPCG(p.random.Uint64(), 3))
		p.mu.Unlock()
		go func() {
			h := p.fleet.agent(p.fleet.ctx, plan, random)
			p.mu.Lock()
			defer p.mu.Unlock()
			plan.heard = h
			p.agents--
		}()
		return
	}
	p.mu.Unlock()
	go func() {
		p.publish(ctx, plan, job)
		if again {
			p.publish(ctx, plan, job)
		}
	}()
}

// publish puts a job into the stream until that acknowledges it: an error may mean that it is there already.
func (p *Publisher) publish(ctx context.Context, plan *Plan, job run.Job) {
	data, err := json.Marshal(job)
	if err != nil {
		panic(err)
	}
	for first := true; ; first = false {
		octx, cancel := context.WithTimeout(ctx, time.Second)
		_, err := p.fleet.js.Publish(octx, topology.JobSubject(queue, plan.ID), data, jetstream.WithRetryAttempts(0))
		cancel()
		p.mu.Lock()
		if err == nil {
			p.jobs++
			if plan.Accepted.IsZero() {
				plan.Accepted = time.Now()
			}
		}
		if !first {
			p.twice++
		}
		p.mu.Unlock()
		if err == nil || !pause.For(ctx, 100*time.Millisecond) {
			return
		}
	}
}

// Reopen takes back the ends that the store has lost, which is now as it was at a moment.
func (p *Publisher) Reopen(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, plan := range p.plans {
		// An end that was heard shortly after that moment may be in the copy.
		if !plan.Ended.IsZero() && plan.Ended.Before(at.Add(-time.Second)) {
			continue
		}
		if plan.reopened = true; !plan.Ended.IsZero() {
			plan.Ended = time.Time{}
			p.open++
			// It may have ended before its agent had said all: then that goes on from what was sent last.
			plan.next, plan.waits = min(len(plan.sent), len(plan.Jobs)), true
		}
	}
}

// Again publishes all jobs of unfinished runs once more, each run's in their order.
func (p *Publisher) Again(ctx context.Context) {
	p.mu.Lock()
	jobs := map[*Plan][]run.Job{}
	for _, plan := range p.plans {
		if plan.Ended.IsZero() {
			jobs[plan] = slices.Clone(plan.sent)
		}
	}
	p.mu.Unlock()
	var all sync.WaitGroup
	for plan, list := range jobs {
		all.Go(func() {
			for _, job := range list {
				p.publish(ctx, plan, job)
			}
		})
	}
	all.Wait()
}

// Heard takes an outcome in: the agent of an open run publishes its next job when a step is done.
func (p *Publisher) Heard(ctx context.Context, id run.ID, o *envelope.Outcome) {
	p.mu.Lock()
	plan := p.plans[id]
	if plan == nil {
		p.mu.Unlock()
		return
	}
	if plan.Accepted.IsZero() {
		plan.Accepted = time.Now() // by a gateway, which is not asked when
	}
	if o.Scope == envelope.RunScope {
		if plan.Ended.IsZero() {
			plan.Ended = time.Now()
			plan.waits = false
			plan.next = len(plan.Jobs)
			p.open--
			p.tell()
		}
		p.mu.Unlock()
		return
	}
	last := &plan.Jobs[max(plan.next-1, 0)]
	if n := len(plan.sent); n > 0 {
		last = &plan.sent[n-1]
	}
	// Closed by giving up a step that had failed, which did not fail in the store that was put back.
	close := plan.reopened && len(last.Waive) > 0 && o.Envelope != nil && o.Envelope.Code == envelope.CodeJobInvalid
	mine := plan.waits && plan.next < len(plan.Jobs) && len(last.Steps) == 1 && last.Steps[0].Step == o.Step && o.Terminal
	if mine {
		plan.waits = false
	}
	p.mu.Unlock()
	switch {
	case close:
		go p.publish(ctx, plan, run.Job{Schema: run.JobSchema, Tenant: id.Tenant, RunID: id.Run})
	case !mine:
	case o.Outcome == envelope.OK:
		p.advance(ctx, plan, false)
	case o.Outcome == envelope.Fatal:
		p.advance(ctx, plan, false, o.Step)
	}
}
