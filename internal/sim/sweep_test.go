package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

var pairsFlag = flag.Int("sim.pairs", 4, "in the sweep of pairs, how many seam calls may lie between the two crashes (0: any number)")

// raced: the race detector is on. What runs one goroutine, or the same interleavings many times over, then takes minutes
// and shows nothing new.
var raced bool

// scenario is one short history that is swept: something befalls its seam call k, for every k.
type scenario struct {
	name   string
	jobs   []string // members and steps of each job, published one after another
	behave func(w *world, d *engine.Dispatch) conduct
	script func(s *sweep) // runs beside it
	ends   envelope.Word  // of the run if nothing befalls it
}

var sweepID = run.ID{Tenant: "acme", Run: "run_1"}

func okReply(d *engine.Dispatch) envelope.Reply {
	r := envelope.Reply{OK: true, Result: json.RawMessage(`{"id":"c"}`)}
	if d.Effect == envelope.Write {
		r.EvidenceRef = d.Ref
	}
	return r
}

func done(d *engine.Dispatch, in time.Duration) conduct {
	return conduct{commits: true, commitIn: in / 2, answers: true, answerIn: in, reply: okReply(d)}
}

func swift(_ *world, d *engine.Dispatch) conduct { return done(d, 20*time.Millisecond) }

func refused(c envelope.Code) conduct {
	return conduct{answers: true, answerIn: 20 * time.Millisecond, reply: envelope.Reply{Row: envelope.RowFor(c, envelope.Read)}}
}

// accepted is a 202: the provider works on it, and that becomes something or nothing.
func accepted(d *engine.Dispatch, job time.Duration, commits bool) conduct {
	return conduct{commits: commits, job: job, answers: true, answerIn: 20 * time.Millisecond, reply: envelope.Reply{Row: envelope.RowFor(envelope.CodeOutcomeUnknown, d.Effect)}}
}

// first gives the first request of a step that really arrives to fn, and lets the others succeed.
func first(step string, fn func(d *engine.Dispatch) conduct) func(*world, *engine.Dispatch) conduct {
	return func(w *world, d *engine.Dispatch) conduct {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, f := range w.flights {
			if f.Step == d.Step {
				return done(d, 20*time.Millisecond)
			}
		}
		if d.Step != step {
			return done(d, 20*time.Millisecond)
		}
		return fn(d)
	}
}

func oneStep(tool string) string {
	return fmt.Sprintf(`"steps":[{"step":"s1","tool":%q,"args":{"n":1}}]`, tool)
}

var scenarios = []scenario{
	{name: "write", jobs: []string{oneStep("write")}, behave: swift, ends: envelope.OK},
	{
		name: "read-write-read", behave: swift, ends: envelope.OK,
		jobs: []string{`"steps":[{"step":"s1","tool":"read","args":{}},{"step":"s2","tool":"write","args":{"x":{"$from":"s1#/id"}}},{"step":"s3","tool":"read","args":{}}]`},
	},
	{
		name: "parallel-writes", behave: swift, ends: envelope.OK,
		jobs: []string{`"parallel":true,"steps":[{"step":"s1","tool":"write","args":{}},{"step":"s2","tool":"write","args":{}},{"step":"s3","tool":"write","args":{}}]`},
	},
	{
		name: "unknown-found", jobs: []string{oneStep("write")}, ends: envelope.OK,
		behave: first("s1", func(*engine.Dispatch) conduct { return conduct{commits: true, commitIn: 10 * time.Millisecond} }),
	},
	{
		name: "unknown-absent", jobs: []string{oneStep("write")}, ends: envelope.OK,
		behave: first("s1", func(*engine.Dispatch) conduct { return conduct{} }),
	},
	{
		name: "unknown-late", jobs: []string{oneStep("write")}, ends: envelope.OK,
		behave: first("s1", func(*engine.Dispatch) conduct { return conduct{late: true} }),
	},
	{name: "no-lookup", jobs: []string{oneStep("none")}, behave: swift, ends: envelope.OK},
	{
		name: "accepted", jobs: []string{oneStep("jobs")}, ends: envelope.OK,
		behave: first("s1", func(d *engine.Dispatch) conduct { return accepted(d, 3*time.Second, true) }),
	},
	{
		name: "accepted-failed", jobs: []string{oneStep("jobs")}, ends: envelope.Fatal,
		behave: func(_ *world, d *engine.Dispatch) conduct { return accepted(d, 3*time.Second, false) },
	},
	{
		name: "executor-looks-up", jobs: []string{oneStep("remote")}, ends: envelope.OK,
		behave: first("s1", func(*engine.Dispatch) conduct { return conduct{} }),
	},
	{name: "verify-always", jobs: []string{oneStep("always")}, behave: swift, ends: envelope.OK},
	{
		name: "resend-with-key", jobs: []string{oneStep("keyed")}, ends: envelope.OK,
		behave: first("s1", func(*engine.Dispatch) conduct { return conduct{commits: true, commitIn: 10 * time.Millisecond} }),
	},
	{
		name: "retry", jobs: []string{oneStep("write")}, ends: envelope.OK,
		behave: first("s1", func(*engine.Dispatch) conduct { return refused(envelope.CodeUpstreamUnavailable) }),
	},
	{
		name: "renewal", jobs: []string{oneStep("slow")}, ends: envelope.OK,
		behave: func(_ *world, d *engine.Dispatch) conduct {
			c := done(d, 9*time.Second)
			c.late = true
			return c
		},
	},
	{
		name: "cancel", ends: envelope.Cancelled,
		jobs:   []string{`"steps":[{"step":"s1","tool":"write","args":{}},{"step":"s2","tool":"write","args":{}}]`},
		behave: func(_ *world, d *engine.Dispatch) conduct { return done(d, 600*time.Millisecond) },
		script: func(s *sweep) {
			s.await(func() bool { return len(s.flights) > 0 })
			s.call("cancel", func(r *engine.Run, now envelope.Time) bool {
				return r.CancelRun("alice", "stop", now) == engine.Applied
			})
		},
	},
	{
		name: "letter-resolve", ends: envelope.OK,
		jobs:   []string{`"steps":[{"step":"s1","tool":"none","args":{}},{"step":"s2","tool":"write","args":{}}]`},
		behave: first("s1", func(*engine.Dispatch) conduct { return conduct{commits: true, commitIn: 10 * time.Millisecond} }),
		script: func(s *sweep) { s.answer() },
	},
	{
		name: "letter-replay", jobs: []string{oneStep("write")}, ends: envelope.OK,
		behave: first("s1", func(*engine.Dispatch) conduct { return refused(envelope.CodeStateConflict) }),
		script: func(s *sweep) { s.answer() },
	},
	{
		name: "report-in-flight", jobs: []string{oneStep("slow")}, ends: envelope.OK,
		behave: func(_ *world, d *engine.Dispatch) conduct {
			c := done(d, 9*time.Second)
			c.commitIn = 10 * time.Millisecond
			return c
		},
		script: func(s *sweep) { // the call goes on although its step is settled: no lease is renewed for it
			s.await(func() bool { return len(s.flights) > 0 && s.flights[0].committed })
			s.call("report", func(r *engine.Run, now envelope.Time) bool {
				_, refused := r.Report("s1", 0, "webhook", engine.Resolution{CommitState: envelope.Committed, EvidenceRef: "c"}, s.world, now)
				return refused == nil
			})
		},
	},
	{
		name: "letter-answered-early", jobs: []string{oneStep("write")}, ends: envelope.Fatal,
		behave: func(*world, *engine.Dispatch) conduct { return refused(envelope.CodeStateConflict) },
		script: func(s *sweep) { // the record is answered before its letter's message is there
			s.await(func() bool { return s.runs[sweepID] != nil && s.runs[sweepID].run.End != nil })
			s.call("discard", func(r *engine.Run, now envelope.Time) bool {
				if r.Letter == nil || !r.Letter.Open {
					return false
				}
				_, refused := r.Discard(engine.Call{Letter: r.Letter.ID, By: "alice", Reason: "seen", At: now})
				return refused == nil
			})
		},
	},
	{
		name: "paused-holder", jobs: []string{oneStep("slow")}, ends: envelope.OK,
		behave: first("s1", func(*engine.Dispatch) conduct { return conduct{late: true} }),
		script: func(s *sweep) {
			s.await(func() bool { return len(s.flights) > 0 })
			s.mu.Lock()
			life := s.executors[0].life
			s.mu.Unlock()
			life.pause()
			time.Sleep(3 * lease)
			life.resume()
		},
	},
	{
		name: "unsettled-at-the-end", ends: envelope.NeedsHuman,
		jobs: []string{`"parallel":true,"steps":[{"step":"s1","tool":"keyed","args":{}},{"step":"s2","tool":"slowread","args":{}}]`},
		behave: func(w *world, d *engine.Dispatch) conduct {
			if d.Step == "s2" { // fatal while s1 waits for its next attempt, and its first dispatch is still unknown
				c := refused(envelope.CodeUpstreamRejectedInput)
				c.answerIn = 3200 * time.Millisecond
				return c
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, f := range w.flights {
				if f.Step == d.Step {
					return refused(envelope.CodeUpstreamUnavailable)
				}
			}
			return conduct{commits: true, commitIn: 10 * time.Millisecond}
		},
	},
	{
		name: "stopped-beside", behave: swift, ends: envelope.OK, // the first step's end stops the second, which was ready too
		jobs: []string{
			`"more":true,"parallel":true,"steps":[{"step":"s1","tool":"write","args":{"x":{"$from":"none#/id"}}},{"step":"s2","tool":"write","args":{}}]`,
			`"waive":["s1","s2"],"steps":[]`,
		},
	},
	{
		name: "two-jobs", behave: swift, ends: envelope.OK,
		jobs: []string{`"more":true,` + oneStep("write"), `"steps":[{"step":"s2","tool":"write","args":{}}]`},
	},
	{
		name: "drain", jobs: []string{oneStep("slow")}, ends: envelope.OK,
		behave: func(_ *world, d *engine.Dispatch) conduct {
			c := done(d, 6*time.Second) // longer than the drain time
			c.late = true
			return c
		},
		script: func(s *sweep) {
			s.await(func() bool { return len(s.flights) > 0 })
			s.executors[0].drain()
		},
	},
}

// sweep is one run of a scenario.
type sweep struct {
	*world
	sc     *scenario
	faults map[int]fault
	closed chan struct{}
	ops    []string // name of each numbered call
}

// numbered reports whether a call takes part: the reconcilers' own lease and the watches repeat for ever and have the
// seeded world.
func numbered(p *proc, op string) bool {
	if p.name == "op" {
		return false
	}
	switch op {
	case "fleet.load", "fleet.save", "watch.runs", "watch.outcomes", "watch.letters":
		return false
	}
	return true
}

// play runs the scenario with these faults; calls is how many seam calls it had.
func (sc *scenario) play(t *testing.T, faults map[int]fault, bolt string) (calls int, ops []string, failed string) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 7)
		s := &sweep{world: w, sc: sc, faults: faults, closed: make(chan struct{})}
		w.ackWait = 2 * lease
		w.behave = func(d *engine.Dispatch) conduct { return sc.behave(w, d) }
		w.plan = s.fate
		var d disk = newMemory(w, "x1")
		if bolt != "" {
			d = newBoltFile(t, bolt)
		}
		w.executors = []*executor{{w: w, name: "x1", lease: lease, lazy: true, disk: d}}
		w.recons = []*reconciler{{w: w, name: "r1", lease: lease}}
		s.run()
		failed = w.report()
		w.mu.Lock()
		defer w.mu.Unlock()
		calls, ops = w.calls, s.ops
		if w.broken == "" {
			failed = ""
		}
	})
	return calls, ops, failed
}

func (s *sweep) fate(p *proc, op, _ string) fault {
	if !numbered(p, op) {
		return none
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	s.ops = append(s.ops, p.name+" "+op)
	return s.faults[s.calls]
}

func (s *sweep) run() {
	e, r := s.executors[0], s.recons[0]
	e.start()
	r.start()
	again := func(down func() chan struct{}, after time.Duration, start func()) {
		for {
			select {
			case <-down():
			case <-s.closed:
				return
			}
			time.Sleep(after)
			select {
			case <-s.closed:
				return
			default:
				start()
			}
		}
	}
	locked := func(ch *chan struct{}) func() chan struct{} {
		return func() chan struct{} {
			s.mu.Lock()
			defer s.mu.Unlock()
			return *ch
		}
	}
	go again(locked(&e.down), 300*time.Millisecond, e.start)
	go again(locked(&r.down), time.Second, r.start)
	time.Sleep(100 * time.Millisecond)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for i, j := range s.sc.jobs {
			s.publish(sweepID, fmt.Appendf(nil, `{"schema":"agentrun.job/v1","tenant":%q,"run_id":%q,%s}`, sweepID.Tenant, sweepID.Run, j))
			time.Sleep(time.Duration(i+1) * 300 * time.Millisecond)
		}
		if s.sc.script != nil {
			s.sc.script(s)
		}
	}()
	s.awaitFor(10*time.Minute, func() bool {
		select {
		case <-over:
		default:
			return false
		}
		return len(s.runs) > 0 && s.settled()
	})
	s.mu.Lock()
	s.checkEnd()
	if len(s.runs) == 0 {
		s.violated(engine.RuleNothingVanishes, "there is no record of the run")
	}
	s.mu.Unlock()
	close(s.closed)
	s.mu.Lock()
	procs, downs := slices.Clone(s.procs), []chan struct{}{e.down, r.down}
	s.mu.Unlock()
	for _, p := range procs {
		p.die("the world ends")
	}
	for _, down := range downs {
		<-down
	}
	time.Sleep(time.Minute)
}

// await waits until something holds, or long enough.
func (s *sweep) await(holds func() bool) { s.awaitFor(3*time.Minute, holds) }

func (s *sweep) awaitFor(most time.Duration, holds func() bool) {
	for until := time.Now().Add(most); time.Now().Before(until); {
		s.mu.Lock()
		ok := s.broken != "" || holds()
		s.mu.Unlock()
		if ok {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *sweep) call(what string, change func(r *engine.Run, now envelope.Time) bool) {
	s.operatorCall(s.newProc("op"), sweepID, what, change)
}

// answer answers the letter of the run, if one opens, by what is true.
func (s *sweep) answer() {
	s.await(func() bool {
		st := s.runs[sweepID]
		return st != nil && st.run.End != nil && len(s.letters) > 0 && !s.open(sweepID, "s1")
	})
	s.call("answer", func(r *engine.Run, now envelope.Time) bool {
		if r.Letter == nil || !r.Letter.Open {
			return false
		}
		call := engine.Call{Letter: r.Letter.ID, By: "alice", Reason: "looked into it", At: now}
		if slices.Contains(r.BuildLetter().AllowedActions, deadletter.Replay) {
			_, refused := r.Replay(call, engine.ReplayWith{})
			return refused == nil
		}
		res := engine.Resolution{CommitState: envelope.NotCommitted}
		s.mu.Lock()
		if s.ledger(sweepID, "s1") > 0 {
			res = engine.Resolution{CommitState: envelope.Committed, Result: json.RawMessage(`{"id":"c"}`), EvidenceRef: "c"}
		}
		s.mu.Unlock()
		call.Step = "s1"
		_, refused := r.Resolve(call, res, s.world)
		return refused == nil
	})
}

// TestSweep: the scenario alone first, with its end; then each fault at each seam call.
func TestSweep(t *testing.T) {
	t.Parallel()
	began, runs := time.Now(), 0
	for i := range scenarios {
		sc := &scenarios[i]
		n := 0
		for _, f := range []fault{none, crashBefore, crashAfter, failBefore, failAfter, failLate, hang} {
			for k := 1; ; k++ {
				calls, ops, failed := sc.play(t, map[int]fault{k: f}, "")
				runs++
				if failed != "" {
					t.Fatalf("%s, call %d (%s), %s: %s", sc.name, k, at(ops, k), f, failed)
				}
				if k >= calls || f == none {
					n = max(n, calls)
					break
				}
			}
		}
		t.Logf("%s: %d seam calls", sc.name, n)
	}
	t.Logf("%d runs in %s", runs, time.Since(began).Round(time.Millisecond))
}

func at(ops []string, k int) string {
	if k < 1 || k > len(ops) {
		return "none"
	}
	return ops[k-1]
}

// TestSweepEnds: what each scenario comes to if nothing befalls it.
func TestSweepEnds(t *testing.T) {
	for i := range scenarios {
		sc := &scenarios[i]
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 7)
			s := &sweep{world: w, sc: sc, closed: make(chan struct{})}
			w.ackWait, w.plan = 2*lease, s.fate
			w.behave = func(d *engine.Dispatch) conduct { return sc.behave(w, d) }
			w.executors = []*executor{{w: w, name: "x1", lease: lease, disk: newMemory(w, "x1")}}
			w.recons = []*reconciler{{w: w, name: "r1", lease: lease}}
			s.run()
			if r := w.runs[sweepID].run; w.broken != "" || r.End == nil || r.End.Outcome != sc.ends {
				t.Errorf("%s ends %+v, not %s: %s", sc.name, r.End, sc.ends, w.report())
			}
		})
	}
}

// TestSweepPairs: two crashes, the second at most -sim.pairs seam calls after the first (make sim has every pair).
func TestSweepPairs(t *testing.T) {
	if raced {
		t.Skip("under the race detector TestSweep alone runs: this repeats its interleavings")
	}
	if testing.Short() {
		t.Skip("-short: thousands of pairs take a minute")
	}
	t.Parallel()
	began, runs := time.Now(), 0
	for i := range scenarios {
		sc := &scenarios[i]
		for k := 1; ; k++ {
			calls := 0
			for _, f := range []fault{crashBefore, crashAfter} {
				for d := 1; *pairsFlag == 0 || d <= *pairsFlag; d++ {
					n, ops, failed := sc.play(t, map[int]fault{k: f, k + d: crashAfter}, "")
					runs++
					if failed != "" {
						t.Fatalf("%s, calls %d (%s) %s and %d (%s): %s", sc.name, k, at(ops, k), f, k+d, at(ops, k+d), failed)
					}
					if calls = max(calls, n); k+d >= n {
						break
					}
				}
			}
			if k >= calls {
				break
			}
		}
	}
	t.Logf("%d pairs in %s", runs, time.Since(began).Round(time.Millisecond))
}

// TestSweepBolt: each crash again with a real journal.
func TestSweepBolt(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a journal of its own for each of a thousand crashes takes half a minute")
	}
	if raced {
		t.Skip("under the race detector TestSweep alone runs: this repeats its interleavings")
	}
	t.Parallel()
	began, runs := time.Now(), 0
	for i := range scenarios {
		sc := &scenarios[i]
		for _, f := range []fault{crashBefore, crashAfter} {
			for k := 1; ; k++ {
				calls, ops, failed := sc.play(t, map[int]fault{k: f}, t.TempDir())
				runs++
				if failed != "" {
					t.Fatalf("%s with bbolt, call %d (%s), %s: %s", sc.name, k, at(ops, k), f, failed)
				}
				if k >= calls {
					break
				}
			}
		}
	}
	t.Logf("%d runs in %s", runs, time.Since(began).Round(time.Millisecond))
}
