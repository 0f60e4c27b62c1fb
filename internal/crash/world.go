package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Options are what one kill test is made of.
type Options struct {
	Deaths   int
	Seed     uint64
	Dir      string // of everything that the processes write
	Lease    time.Duration
	Interval time.Duration // mean time between two faults
	Busy     int           // unfinished runs at once
	Every    time.Duration // least time between two new runs
	Round    int           // deaths between two breaks
	Settle   time.Duration // after the faults everything must have its end within this
	Progress func(line string)
}

// Result is what one kill test came to.
type Result struct {
	Options
	Verdict
	Faults    map[Kind]int
	OwnEnds   []string // processes that ended although nobody asked them to, with their last words
	Deaths    int
	Runs      int
	Jobs      int
	Calls     int // runs that agents made through a gateway
	Tries     int // how often they called
	Repeated  int // publishes beyond the first of a job
	Requests  int
	Lookups   int
	Commands  int // calls of the command tool
	Orphaned  int // of those, the ones whose executor was killed in the middle
	Alerts    map[string]int
	Recovered []time.Duration // from a kill to the next outcome of a step that it had in flight
	Verified  []time.Duration // from an unknown outcome to the next, without the window
	Settled   time.Duration
	Took      time.Duration
	Stories   []string
	Speed     *Speed // nil: not measured
}

// crash runs one kill test.
func crash(ctx context.Context, bin binaries, opt Options) (*Result, error) {
	began := time.Now()
	p, err := NewProvider(opt.Seed)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	f, err := newFleet(ctx, bin, opt.Dir, opt.Lease, p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.start(4, 2); err != nil {
		return nil, err
	}
	if err := f.startGateways(2); err != nil {
		return nil, err
	}
	pub := newPublisher(f, opt.Seed, opt.Busy)
	results := newResults()
	fctx, endFollow := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer endFollow()
	wg.Go(func() { results.Follow(fctx, f.js, func(id run.ID, o *envelope.Outcome) { pub.Heard(fctx, id, o) }) })
	pctx, endPublish := context.WithCancel(ctx)
	defer endPublish()
	published := make(chan struct{})
	go func() { defer close(published); pub.Run(pctx, opt.Every) }()

	deaths := &deathbook{provider: p}
	in := &injector{fleet: f, random: rand.New(rand.NewPCG(opt.Seed, 1)), interval: opt.Interval, killed: deaths.killed}
	in.restore = &restore{in: in, pub: pub, results: results}
	in.progress = func(n int) {
		if opt.Progress != nil {
			opt.Progress(fmt.Sprintf("%4d of %d deaths, %d runs begun, %d unfinished, %s", n, opt.Deaths, len(pub.Plans()), pub.Unfinished(), time.Since(began).Round(time.Second)))
		}
	}
	unsettled, err := in.rounds(ctx, opt, pub)
	if err != nil {
		return nil, err
	}
	endPublish()
	<-published
	stopped := time.Now()
	unsettled = append(unsettled, settle(ctx, f, pub, results, opt)...)
	out := &Result{Options: opt, Settled: time.Since(stopped)}
	j := &judge{provider: p, faults: f.Faults, lease: opt.Lease, results: results}
	if j.state, err = readState(ctx, f.js); err != nil {
		return nil, err
	}
	out.Verdict = *j.run(pub.Plans())
	for _, u := range unsettled {
		out.Findings = append(out.Findings, Finding{Rule: RuleLoss, What: u})
	}
	out.fill(f, pub, results, j, deaths)
	out.Took = time.Since(began)
	return out, nil
}

// rounds injects the faults, with a break after every so many deaths: no faults and no new runs until all that were begun
// have their end. What only an endless stream of faults would set free again shows then.
func (in *injector) rounds(ctx context.Context, opt Options, pub *Publisher) (unsettled []string, err error) {
	for n := 0; n < opt.Deaths; {
		n = min(n+opt.Round, opt.Deaths)
		if err := in.run(ctx, n); err != nil {
			return nil, err
		}
		if n == opt.Deaths {
			break
		}
		pub.Hold(true)
		for start := time.Now(); pub.Unfinished() > 0; {
			if time.Since(start) > opt.Settle {
				return []string{fmt.Sprintf("%d runs have no end %s after the faults were interrupted at %d deaths", pub.Unfinished(), opt.Settle, n)}, nil
			}
			in.progress(n)
			if !pause.For(ctx, 50*time.Millisecond) {
				return nil, ctx.Err()
			}
		}
		pub.Hold(false)
	}
	return nil, nil
}

func (o *Result) fill(f *Fleet, pub *Publisher, results *Results, j *judge, deaths *deathbook) {
	o.Findings = append(o.Findings, ownEnds(f)...)
	o.Faults, o.OwnEnds, o.Deaths, o.Alerts = f.Faults.Count(), f.Faults.OwnEnds(), f.Faults.Deaths(), j.state.Alerts
	o.Requests, o.Lookups = f.Provider.Counts()
	o.Commands, o.Orphaned = f.Provider.Commands(), deaths.commands
	o.Runs = len(pub.Plans())
	o.Jobs, o.Repeated = pub.jobs, pub.twice
	for _, p := range pub.Plans() {
		if p.Shape == gatewayCall {
			o.Calls++
			o.Tries += p.heard.tries
		}
	}
	o.Recovered = deaths.recoveries(results)
	o.Verified = verifications(pub.Plans(), results)
	seen := map[run.ID]bool{}
	for _, v := range o.Findings {
		if v.ID != (run.ID{}) && !seen[v.ID] && len(seen) < 10 {
			seen[v.ID] = true
			o.Stories = append(o.Stories, fmt.Sprintf("%s: %s\n%s", v.ID, v.What, j.story(v.ID)))
		}
	}
}

// settle waits until every run has its end and nothing is left in the queues. What has not settled in time is returned.
func settle(ctx context.Context, f *Fleet, pub *Publisher, results *Results, opt Options) (unsettled []string) {
	for start := time.Now(); ; {
		jobs, err1 := left(ctx, f.js, topology.JobsStream)
		wakes, err2 := left(ctx, f.js, topology.WakesStream)
		open := pub.Unfinished()
		// Then nothing more may come: late commits, late replies and repeated jobs included.
		if err1 == nil && err2 == nil && jobs == 0 && wakes == 0 && open == 0 && results.Quiet() > 3*time.Second {
			return nil
		}
		if time.Since(start) > opt.Settle {
			if jobs+wakes > 0 || err1 != nil || err2 != nil {
				unsettled = append(unsettled, fmt.Sprintf("%d jobs and %d wakes are still in their queues %s after the last fault (%v, %v)", jobs, wakes, opt.Settle, err1, err2))
			}
			dump(f)
			return unsettled
		}
		if opt.Progress != nil {
			opt.Progress(fmt.Sprintf("settling: %d runs unfinished, %d jobs and %d wakes queued, %s", open, jobs, wakes, time.Since(start).Round(time.Second)))
		}
		if !pause.For(ctx, 200*time.Millisecond) {
			return []string{ctx.Err().Error()}
		}
	}
}

// dump makes every process that still runs print its goroutines into its log: something in it waits for ever.
func dump(f *Fleet) {
	for _, p := range f.All() {
		if p.Role != Server {
			p.signal(syscall.SIGQUIT, 0, nil)
		}
	}
}

// ownEnds are processes that ended although nobody asked them to: a panic among them is a broken rule.
func ownEnds(f *Fleet) (out []Finding) {
	for _, p := range f.All() {
		data, err := os.ReadFile(p.log)
		if err != nil {
			out = append(out, Finding{Rule: RuleProcess, What: err.Error()})
			continue
		}
		for _, mark := range []string{"\npanic: ", "\nfatal error: ", "DATA RACE"} {
			if i := strings.Index("\n"+string(data), mark); i >= 0 {
				out = append(out, Finding{Rule: RuleProcess, What: fmt.Sprintf("%s: %.600s", p.Name, string(data)[i:])})
			}
		}
	}
	return out
}

// deathbook remembers what killed executors had in flight.
type deathbook struct {
	provider *Provider
	mu       sync.Mutex
	pending  []orphan
	commands int // that had put their work into the background
}

type orphan struct {
	ref string
	at  time.Time
}

func (d *deathbook) killed(worker string, at time.Time) {
	found := d.provider.InFlight(worker)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range found {
		if toolNamed(q.Tool).Command && strings.HasPrefix(q.Plan, "late") {
			d.commands++
		}
		d.pending = append(d.pending, orphan{q.Ref, at})
	}
}

// recoveries are the times from each kill to the next outcome of each step that was in flight.
func (d *deathbook) recoveries(results *Results) (out []time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range d.pending {
		part := strings.Split(o.ref, "/")
		steps, _ := results.Of(run.ID{Tenant: part[0], Run: part[1]})
		for _, t := range steps {
			if t.Step == part[2] && t.Stored.After(o.at) {
				out = append(out, t.Stored.Sub(o.at))
				break
			}
		}
	}
	slices.Sort(out)
	return out
}

// verifications are the times that unknown writes took to settle, beyond the tool's window.
func verifications(plans []*Plan, results *Results) (out []time.Duration) {
	for _, p := range plans {
		steps, _ := results.Of(p.ID)
		since := map[string]time.Time{}
		for _, t := range steps {
			tool := toolNamed(t.Tool)
			at, doubted := since[t.Step]
			switch {
			case t.Outcome == envelope.UnknownNow && !doubted:
				since[t.Step] = t.Stored
			case t.Outcome != envelope.UnknownNow && doubted && tool != nil && tool.Window > 0:
				out = append(out, max(t.Stored.Sub(at)-tool.Window, 0))
				delete(since, t.Step)
			}
		}
	}
	slices.Sort(out)
	return out
}

func median(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	return d[len(d)/2]
}
