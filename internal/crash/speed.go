package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Speed is how fast a calm fleet recovers.
type Speed struct {
	Lease    time.Duration
	Window   time.Duration
	Reads    []time.Duration // from the kill of a worker until its read is dispatched again
	Writes   []time.Duration // from the kill of a worker until its write is unknown
	Verified []time.Duration // from unknown until the lookup after the window has proved absence
	Leases   int             // expired leases of one dead worker
	All      time.Duration   // until a reconciler that starts has recovered all of them, its own lease included
}

// measure runs the three measurements, one after another.
func measure(ctx context.Context, bin binaries, dir string, rounds, leases int) (*Speed, error) {
	s := &Speed{Lease: time.Second, Window: toolNamed("pay").Window, Leases: leases}
	if err := s.recovery(ctx, bin, filepath.Join(dir, "recovery"), rounds); err != nil {
		return nil, fmt.Errorf("recovery of a killed worker's run: %w", err)
	}
	var err error
	if s.All, err = expired(ctx, bin, filepath.Join(dir, "leases"), leases); err != nil {
		return nil, fmt.Errorf("recovery of expired leases: %w", err)
	}
	return s, nil
}

// watchful hears of requests and outcomes as they come.
type watchful struct {
	mu       sync.Mutex
	arrivals map[string][]Request
	told     map[run.ID][]Told
	changed  chan struct{}
}

func (w *watchful) note(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

// until waits until found is true; it is called with mu held.
func (w *watchful) until(ctx context.Context, found func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		w.mu.Lock()
		ok, changed := found(), w.changed
		w.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.New("it did not happen within 30 s")
		}
	}
}

// recovery kills workers in the middle of reads and writes, and lets writes vanish.
func (s *Speed) recovery(ctx context.Context, bin binaries, dir string, rounds int) error {
	p, err := NewProvider(1)
	if err != nil {
		return err
	}
	defer p.Close()
	w := &watchful{arrivals: map[string][]Request{}, told: map[run.ID][]Told{}, changed: make(chan struct{})}
	p.script = func(q *Request) string {
		switch {
		case q.Nth > 1 && q.Tool == "load":
			return "read,answer"
		case q.Nth > 1:
			return "commit,answer"
		case q.Key != "" && q.Ref[len(tenant)+1] == 'v':
			return "none,drop"
		}
		return "none,hang"
	}
	p.arrived = func(q Request) { w.note(func() { w.arrivals[q.Ref] = append(w.arrivals[q.Ref], q) }) }
	f, err := newFleet(ctx, bin, dir, s.Lease, p)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.start(2, 1); err != nil {
		return err
	}
	results := newResults()
	fctx, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	wg.Go(func() {
		results.Follow(fctx, f.js, func(id run.ID, _ *envelope.Outcome) {
			steps, _ := results.Of(id)
			w.note(func() { w.told[id] = steps })
		})
	})
	for i := range rounds {
		tool := []string{"load", "pay"}[i%2]
		took, err := s.orphan(ctx, f, w, "k"+strconv.Itoa(i), tool)
		if err != nil {
			return err
		}
		if tool == "load" {
			s.Reads = append(s.Reads, took)
		} else {
			s.Writes = append(s.Writes, took)
		}
	}
	for i := range rounds {
		took, err := s.vanish(ctx, f, w, "v"+strconv.Itoa(i))
		if err != nil {
			return err
		}
		s.Verified = append(s.Verified, took)
	}
	for _, d := range [][]time.Duration{s.Reads, s.Writes, s.Verified} {
		slices.Sort(d)
	}
	return nil
}

func submit(ctx context.Context, f *Fleet, name, tool string) (run.ID, error) {
	id := run.ID{Tenant: tenant, Run: name}
	_, err := f.js.Publish(ctx, topology.JobSubject(queue, id), singleStep(id, tool))
	return id, err
}

func singleStep(id run.ID, tool string) []byte {
	data, err := json.Marshal(run.Job{
		Schema: run.JobSchema, Tenant: id.Tenant, RunID: id.Run,
		Steps: []run.JobStep{{Step: "s", Tool: tool, Args: json.RawMessage(`{"amount":1}`)}},
	})
	if err != nil {
		panic(err)
	}
	return data
}

// orphan kills the worker of a call that hangs, and times until somebody else goes on: a read is dispatched again, a write
// becomes unknown. The worker itself comes back later.
func (s *Speed) orphan(ctx context.Context, f *Fleet, w *watchful, name, tool string) (time.Duration, error) {
	id, err := submit(ctx, f, name, tool)
	if err != nil {
		return 0, err
	}
	ref := id.String() + "/s"
	if err := w.until(ctx, func() bool { return len(w.arrivals[ref]) == 1 }); err != nil {
		return 0, err
	}
	w.mu.Lock()
	worker := w.arrivals[ref][0].Worker
	w.mu.Unlock()
	at := time.Now()
	for _, p := range f.Executors {
		if p.current() == worker {
			p.Kill(s.Lease+1500*time.Millisecond, nil)
		}
	}
	var on time.Time
	err = w.until(ctx, func() bool {
		if tool == "load" && len(w.arrivals[ref]) > 1 {
			on = w.arrivals[ref][1].At
		}
		for _, t := range w.told[id] {
			if tool != "load" && t.message.Outcome == envelope.UnknownNow {
				on = t.Stored
			}
		}
		return !on.IsZero()
	})
	if err != nil {
		return 0, err
	}
	for _, p := range f.Executors {
		for age, up := p.Up(); !up || age < 500*time.Millisecond; age, up = p.Up() {
			if !pause.For(ctx, 20*time.Millisecond) {
				return 0, ctx.Err()
			}
		}
	}
	return on.Sub(at), nil
}

// vanish times the verification of a write that never happened: from unknown until absent is proved.
func (s *Speed) vanish(ctx context.Context, f *Fleet, w *watchful, name string) (time.Duration, error) {
	id, err := submit(ctx, f, name, "pay")
	if err != nil {
		return 0, err
	}
	var from, to time.Time
	err = w.until(ctx, func() bool {
		for _, t := range w.told[id] {
			switch {
			case t.message.Outcome == envelope.UnknownNow && from.IsZero():
				from = t.Stored
			case t.message.Outcome == envelope.Retryable && to.IsZero():
				to = t.Stored
			}
		}
		return !to.IsZero()
	})
	return to.Sub(from), err
}

// deadTools are what the dead worker of expired believed of its tools.
type deadTools struct{}

func (deadTools) Tool(name string) (*run.Tool, bool) {
	t := toolNamed(name)
	if t == nil {
		return nil, false
	}
	effect := envelope.Read
	if t.Write {
		effect = envelope.Write
	}
	return &run.Tool{Name: name, Effect: effect, Timeout: t.Timeout, Retry: run.Retry{MaxAttempts: MaxAttempts}}, true
}

// deadDefaults are what the dead worker's config said.
func deadDefaults() engine.Defaults {
	return engine.Defaults{Owner: "oncall", Workflow: "crash", Actor: "agent:crash", Budget: budget.Limits{
		MaxTurns: 50, MaxToolCalls: MaxCalls, MaxAttemptsPerStep: MaxAttempts, MaxElapsedMillis: 3600_000,
		MaxInputTokens: 1, MaxOutputTokens: 1, MaxEstimatedCostMinorUnits: 1,
	}}
}

// expired puts runs into the store whose worker has died, half of them in the middle of a write, and times how long a
// reconciler takes, from its start, until no record has that worker's lease.
func expired(ctx context.Context, bin binaries, dir string, n int) (time.Duration, error) {
	p, err := NewProvider(1)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	const lease = time.Second
	f, err := newFleet(ctx, bin, dir, lease, p)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	conn, err := streams.Connect(streams.Options{Options: bus.Options{URL: "nats://" + f.addr, Name: "crash", Logger: slog.New(slog.DiscardHandler)}})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.Setup(ctx, streams.Config{Replicas: 1, RunRetention: 168 * time.Hour, MaxRuns: 4e6, MaxJobs: 1e6, MaxLetters: 1e6, AckWait: 2 * lease}); err != nil {
		return 0, err
	}
	records := app.NewRecords(conn, 168*time.Hour)
	for i := range n {
		if err := orphanRecord(ctx, records, i, lease); err != nil {
			return 0, err
		}
	}
	c, err := f.js.OrderedConsumer(ctx, topology.RunsStream, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverNewPolicy, HeadersOnly: true})
	if err != nil {
		return 0, err
	}
	free := map[string]bool{}
	done := make(chan struct{})
	watch, err := c.Consume(func(m jetstream.Msg) {
		if id, ok := topology.ParseRunSubject(m.Subject()); ok && id != port.ActiveID && m.Headers().Get("Agentrun-Lease") == "" && !free[m.Subject()] {
			if free[m.Subject()] = true; len(free) == n {
				close(done)
			}
		}
	})
	if err != nil {
		return 0, err
	}
	defer watch.Stop()
	began := time.Now()
	if err := f.start(0, 1); err != nil {
		return 0, err
	}
	select {
	case <-done:
		return time.Since(began), nil
	case <-time.After(2 * time.Minute):
		return 0, errors.New("not all of them were recovered within 2 minutes")
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func orphanRecord(ctx context.Context, records *record.Records, i int, lease time.Duration) error {
	id := run.ID{Tenant: tenant, Run: "x" + strconv.Itoa(i)}
	now := records.Now()
	r := engine.Create(id, engine.Message{Seq: uint64(i + 1), Time: now, Queue: queue, Data: singleStep(id, []string{"load", "pay"}[i%2])}, deadDefaults(), now)
	d := r.Begin("s", deadTools{}, engine.Start{
		Dispatch: engine.DispatchID("d" + strconv.Itoa(i)), LeaseID: "l" + strconv.Itoa(i), Holder: "dead.1", Seconds: lease.Seconds(), Worker: "dead",
	}, now)
	if d == nil {
		return fmt.Errorf("run %s did not start", id)
	}
	return records.Save(ctx, &record.Handle{ID: id, Run: r})
}
