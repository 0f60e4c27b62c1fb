package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

var (
	seedFlag  = flag.Uint64("sim.seed", 0, "the first seed of the world (0: 1)")
	countFlag = flag.Int("sim.n", 0, "how many seeds (0: what fits into go test)")
	traceFlag = flag.Bool("sim.trace", false, "print the trace of every seed")
)

const (
	lease    = 5 * time.Second
	chaosFor = 40 * time.Second
	calmFor  = 15 * time.Minute
)

// TestWorld plays seeded worlds: chaos first, in which every rule must hold after every step; then the faults stop, and
// everything must settle.
func TestWorld(t *testing.T) {
	first, n := *seedFlag, *countFlag
	if first == 0 {
		first = 1
	}
	if n == 0 {
		n = 300
		if *seedFlag != 0 {
			n = 1
		}
		if testing.Short() {
			n = 50
		}
	}
	began := time.Now()
	var total tally
	var next atomic.Uint64
	next.Store(first)
	t.Run("seeds", func(t *testing.T) {
		for lane := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				t.Parallel()
				for !total.failed.Load() {
					seed := next.Add(1) - 1
					if seed >= first+uint64(n) {
						return
					}
					synctest.Test(t, func(t *testing.T) { total.play(t, seed) })
				}
			})
		}
	})
	for _, a := range []envelope.Answer{envelope.Later, envelope.Pending, envelope.Failed} {
		if n >= 50 && total.answers[a] == 0 {
			t.Errorf("no lookup answers %s", a)
		}
	}
	t.Logf("%d seeds from %d in %s: %s", n, first, time.Since(began).Round(time.Millisecond), &total)
}

func (a *tally) play(t *testing.T, seed uint64) {
	w := playSeed(t, seed)
	a.add(w)
	if *traceFlag {
		fmt.Fprintln(os.Stderr, w.report())
	}
	if w.isBroken() {
		a.failed.Store(true)
		t.Errorf("seed %d (make sim SEED=%d N=1): %s", seed, seed, w.report())
	}
}

// tally counts what the worlds met: a simulation in which nothing happens proves nothing.
type tally struct {
	failed                                                atomic.Bool
	mu                                                    sync.Mutex
	runs, calls, deaths, unknown, resolved, sends, prompt int
	answers                                               map[envelope.Answer]int
}

func (a *tally) add(w *world) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	a.runs += len(w.runs)
	a.calls += w.calls
	a.sends += len(w.flights)
	a.prompt += w.prompt
	for _, line := range w.trace {
		switch {
		case strings.Contains(line, " dies (") && !strings.Contains(line, "the world ends"):
			a.deaths++
		case strings.Contains(line, "looks "):
			a.unknown++
			if a.answers == nil {
				a.answers = map[envelope.Answer]int{}
			}
			a.answers[envelope.Answer(line[strings.LastIndexByte(line, ' ')+1:])]++
		case strings.Contains(line, "is recorded"):
			a.resolved++
		}
	}
}

func (a *tally) String() string {
	return fmt.Sprintf("%d runs, %d seam calls, %d requests, %d deaths, %d lookups (%v), %d calls of operators, %d things looked at for being prompt",
		a.runs, a.calls, a.sends, a.deaths, a.unknown, a.answers, a.resolved, a.prompt)
}

// player plays one seed.
type player struct {
	*world
	seed   uint64
	calm   bool
	rate   int // of a thousand seam calls
	jobs   map[run.ID][][]byte
	wires  []run.ID
	closed chan struct{}
}

func playSeed(t testing.TB, seed uint64) *world {
	w := newWorld(t, seed)
	p := &player{world: w, seed: seed, jobs: map[run.ID][][]byte{}, closed: make(chan struct{})}
	p.rate = []int{0, 4, 15, 40}[w.dice.n("rate", 4)]
	w.plan, w.behave, w.refusesLookups = p.mishap, p.conduct, 150
	w.ackWait = 2 * lease
	for i := range 2 + w.dice.n("executors", 2) {
		name := fmt.Sprintf("x%d", i+1)
		w.executors = append(w.executors, &executor{w: w, name: name, lease: lease, lazy: true, disk: newMemory(w, name)})
	}
	for i := range 1 + w.dice.n("reconcilers", 2) {
		w.recons = append(w.recons, &reconciler{w: w, name: fmt.Sprintf("r%d", i+1), lease: lease})
	}
	p.run()
	p.script()
	p.settle()
	p.end()
	return w
}

// mishap draws what befalls a seam call.
func (p *player) mishap(who *proc, op, key string) fault {
	p.mu.Lock()
	p.calls++
	calm := p.calm
	p.mu.Unlock()
	if calm || p.rate == 0 {
		return none
	}
	n := p.dice.n("mishap"+who.name+op+key, 1000)
	if n >= p.rate {
		return none
	}
	switch k := p.dice.n("kind"+who.name+op+key, 10); {
	case k < 1 && who.name != "op":
		return []fault{crashBefore, crashAfter}[p.dice.n("crash"+who.name, 2)]
	case k < 4:
		return failBefore
	case k < 6:
		return failAfter
	case k < 8:
		return failLate
	}
	return hang
}

// conduct draws what the provider does.
func (p *player) conduct(d *engine.Dispatch) conduct {
	p.mu.Lock()
	calm := p.calm
	p.mu.Unlock()
	tool := p.tools[d.Tool]
	quick := p.dice.between("quick"+d.Ref, 2*time.Millisecond, 300*time.Millisecond)
	ok := envelope.Reply{OK: true, Result: json.RawMessage(`{"id":"c"}`), EvidenceRef: d.Ref}
	if d.Effect == envelope.Read {
		ok.EvidenceRef = ""
	}
	done := conduct{commits: true, commitIn: quick / 2, answers: true, answerIn: quick, reply: ok}
	if calm {
		return done
	}
	refuse := func(c envelope.Code) conduct {
		return conduct{answers: true, answerIn: quick, reply: envelope.Reply{Row: envelope.RowFor(c, envelope.Read)}}
	}
	if d.Tool == "jobs" && p.dice.chance("accepts"+d.Ref, 700) {
		return accepted(d, p.dice.between("job"+d.Ref, quick, 3*window), p.dice.chance("succeeds"+d.Ref, 600))
	}
	switch n := p.dice.n("conduct"+d.Ref, 22); {
	case n < 7:
		return done
	case n < 9:
		done.answerIn = p.dice.between("slow"+d.Ref, quick, tool.Timeout)
		return done
	case n < 10:
		return conduct{notSent: true}
	case n < 12:
		return refuse([]envelope.Code{envelope.CodeUpstreamUnavailable, envelope.CodeUpstreamRateLimited}[n-10])
	case n < 13:
		return refuse(envelope.CodeUpstreamRejectedInput)
	case n < 15:
		done.answers = false // done, and the reply is lost
		return done
	case n < 17:
		done.reply = envelope.Reply{NoReply: true, Row: envelope.RowFor(envelope.CodeOutcomeUnknown, d.Effect)}
		return done
	case n < 19:
		return conduct{late: true}
	case n < 20:
		return conduct{late: true, answers: true, answerIn: quick, reply: envelope.Reply{NoReply: true, Row: envelope.RowFor(envelope.CodeOutcomeUnknown, d.Effect)}}
	case n < 21:
		done.commitIn, done.answers, done.late = p.dice.between("slow"+d.Ref, quick, tool.Timeout+window), false, true
		return done
	}
	return conduct{} // it hangs and never does anything
}

// script plays the chaos: jobs first, and moments at which something befalls somebody.
func (p *player) script() {
	type moment struct {
		at time.Duration
		do func()
	}
	var all []moment
	for i := range 1 + p.dice.n("runs", 3) {
		id := run.ID{Tenant: "acme", Run: fmt.Sprintf("s%dr%d", p.seed, i+1)}
		p.wires = append(p.wires, id)
		for k, data := range p.draftJobs(id) {
			p.jobs[id] = append(p.jobs[id], data)
			at := p.dice.between("publish", 0, 3*time.Second) + time.Duration(k)*5*time.Second
			all = append(all, moment{at, func() { p.publish(id, data) }})
		}
	}
	for range 3 + p.dice.n("events", 12) {
		all = append(all, moment{p.dice.between("moment", 0, chaosFor), p.event})
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].at < all[j].at })
	for _, m := range all {
		if p.sleepUntil(m.at) {
			return
		}
		m.do()
	}
	p.sleepUntil(chaosFor)
}

// sleepUntil waits until a moment of the world; true if a rule was broken before.
func (p *player) sleepUntil(at time.Duration) bool {
	t := time.NewTimer(time.Until(p.zero.Add(at)))
	defer t.Stop()
	select {
	case <-t.C:
		return false
	case <-p.over:
		return true
	}
}

var mixOfTools = []string{"read", "slowread", "write", "write", "slow", "always", "blind", "keyed", "none", "narrow", "narrow", "remote", "remote", "jobs", "jobs"}

// draftJobs draws the jobs of a run.
func (p *player) draftJobs(id run.ID) [][]byte {
	var jobs [][]byte
	n := 1
	if p.dice.chance("more", 250) {
		n = 2
	}
	k := 0
	for j := range n {
		var steps []string
		for range 1 + p.dice.n("steps", 3) {
			k++
			args := `{"n":1}`
			if k > 1 && p.dice.chance("from", 200) {
				args = fmt.Sprintf(`{"x":{"$from":"s%d#/id"}}`, k-1)
			}
			optional := ""
			if p.dice.chance("optional", 150) {
				optional = `,"optional":true`
			}
			steps = append(steps, fmt.Sprintf(`{"step":"s%d","tool":%q,"args":%s%s}`, k, mixOfTools[p.dice.n("tool", len(mixOfTools))], args, optional))
		}
		members := ""
		if j < n-1 {
			members += `,"more":true`
		}
		if p.dice.chance("parallel", 350) {
			members += `,"parallel":true`
		}
		if j == 0 && p.dice.chance("budget", 150) {
			members += fmt.Sprintf(`,"budget":{"max_tool_calls":%d}`, 1+p.dice.n("calls", 4))
		}
		jobs = append(jobs, fmt.Appendf(nil, `{"schema":"agentrun.job/v1","tenant":%q,"run_id":%q%s,"steps":[%s]}`, id.Tenant, id.Run, members, strings.Join(steps, ",")))
	}
	return jobs
}
