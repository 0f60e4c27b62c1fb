package worker

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/internal/fair"
	"github.com/agentrun/executor/pkg/envelope"
)

func failed(code envelope.Code, retryAfter time.Duration) *envelope.Reply {
	return &envelope.Reply{Row: envelope.RowFor(code, envelope.Read), RetryAfter: retryAfter.Milliseconds()}
}

func alike(string) fair.Limit { return fair.Limit{} }

// telling is what a breaker has told; it tells from the goroutines of timers, too.
type telling struct {
	mu  sync.Mutex
	was []bool
}

func (t *telling) tell(_ string, open bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.was = append(t.was, open)
}

func (t *telling) all() []bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.was)
}

func newGate(t *testing.T, l Limits) (*gate, *telling) {
	t.Helper()
	told := &telling{}
	g := newGates(func(string) (Limits, bool) { return l, true }, alike, told.tell)
	return g.of("tool"), told
}

func TestGateLetsInInOrderAndNeverTooMany(t *testing.T) {
	g, _ := newGate(t, Limits{Concurrency: 2})
	a, b, c, d := g.enter("acme"), g.enter("acme"), g.enter("acme"), g.enter("acme")
	if !isClosed(a) || !isClosed(b) || isClosed(c) || isClosed(d) {
		t.Fatal("two of four may enter, the first two")
	}
	g.leave("acme", d) // gives up waiting
	g.leave("acme", a)
	if !isClosed(c) || isClosed(d) {
		t.Fatal("the one that waits is next, not the one that gave up")
	}
	if g.inside != 2 {
		t.Fatalf("%d inside, wanted 2", g.inside)
	}
}

func TestGateKeepsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGate(t, Limits{PerSecond: 10, Burst: 2})
		began := time.Now()
		for range 12 {
			ch := g.enter("acme")
			<-ch
			g.leave("acme", ch)
		}
		if took := time.Since(began); took < time.Second || took > 1100*time.Millisecond {
			t.Fatalf("12 calls with a burst of 2 at 10 per second took %s, wanted about 1s", took)
		}
	})
}

// A tool that says how long it wants to be left alone is left alone by everyone, then probed by one.
func TestRateLimitSlowsTheToolForEveryone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, told := newGate(t, Limits{RetryDelay: time.Minute})
		first := g.enter("acme")
		g.learn(first, failed(envelope.CodeUpstreamRateLimited, 5*time.Second), 1, 0)
		g.leave("acme", first)
		a, b := g.enter("acme"), g.enter("acme")
		if isClosed(a) || isClosed(b) {
			t.Fatal("a call was let in inside Retry-After")
		}
		began := time.Now()
		<-a
		if got := time.Since(began); got != 5*time.Second {
			t.Fatalf("the probe went out after %s, Retry-After was 5s", got)
		}
		if isClosed(b) {
			t.Fatal("a second call went out beside the probe")
		}
		g.learn(a, &envelope.Reply{OK: true}, 1, 0)
		g.leave("acme", a)
		if !isClosed(b) {
			t.Fatal("the tool answers again, and the next one still waits")
		}
		g.leave("acme", b)
		if len(told.all()) != 2 || !told.all()[0] || told.all()[1] {
			t.Fatalf("told %v, wanted open and closed", told.all())
		}
	})
}

// The metric of an idle tool does not wait for its next call.
func TestABreakerThatHoldsNobodyUpIsNotShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, told := newGate(t, Limits{RetryDelay: time.Minute})
		first := g.enter("acme")
		g.learn(first, failed(envelope.CodeUpstreamRateLimited, 2*time.Second), 1, time.Second)
		g.leave("acme", first)
		time.Sleep(2*time.Second - time.Millisecond)
		synctest.Wait()
		if len(told.all()) != 1 || !told.all()[0] {
			t.Fatalf("told %v while it is left alone", told.all())
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if len(told.all()) != 2 || told.all()[1] {
			t.Fatalf("told %v after its time, and nobody has called it", told.all())
		}
		probe := g.enter("acme")
		second := g.enter("acme")
		if !isClosed(probe) || isClosed(second) || len(told.all()) != 3 || !told.all()[2] {
			t.Fatalf("told %v while one call probes and another waits", told.all())
		}
		g.learn(probe, &envelope.Reply{OK: true}, 1, time.Second)
		if g.leave("acme", probe); !isClosed(second) || len(told.all()) != 4 || told.all()[3] {
			t.Fatalf("told %v after the probe", told.all())
		}
	})
}

func TestOneLongRetryAfterHoldsTheOthersForABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGate(t, Limits{RetryDelay: time.Minute})
		first := g.enter("acme")
		g.learn(first, failed(envelope.CodeUpstreamRateLimited, time.Hour), 1, 0)
		g.leave("acme", first)
		began, probe := time.Now(), g.enter("acme")
		<-probe
		if got := time.Since(began); got != breakerMost {
			t.Errorf("the probe went out after %s, wanted %s", got, breakerMost)
		}
		g.learn(probe, &envelope.Reply{OK: true}, 1, 0)
		g.leave("acme", probe)
	})
}

func TestRepeatedFailuresOpenTheBreakerAndRefusalsCloseIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGate(t, Limits{RetryDelay: time.Minute})
		call := func(r *envelope.Reply) time.Duration {
			began := time.Now()
			ch := g.enter("acme")
			<-ch
			waited := time.Since(began)
			g.learn(ch, r, 1, 0)
			g.leave("acme", ch)
			return waited
		}
		down := failed(envelope.CodeUpstreamUnavailable, 0)
		for i := range breakerAfter {
			if w := call(down); w != 0 {
				t.Fatalf("failure %d waited %s", i+1, w)
			}
		}
		for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second, 30 * time.Second} {
			if w := call(down); w != want {
				t.Fatalf("probe %d waited %s, wanted %s", i+1, w, want)
			}
		}
		if w := call(failed(envelope.CodeResourceNotFound, 0)); w != 30*time.Second {
			t.Fatalf("the probe waited %s", w)
		}
		if w := call(down); w != 0 {
			t.Fatalf("a refusal is a sign of life; the next call waited %s", w)
		}
	})
}

// Many of one tenant's wait for a tool: another's next call waits for one of them at most.
func TestGateServesTenantsInTurn(t *testing.T) {
	g, _ := newGate(t, Limits{Concurrency: 1})
	inside := g.enter("acme")
	var acme []chan struct{}
	for range 100 {
		acme = append(acme, g.enter("acme"))
	}
	other := g.enter("globex")
	g.leave("acme", inside)
	if !isClosed(other) {
		g.leave("acme", acme[0])
	}
	if !isClosed(other) {
		t.Fatal("two of the first tenant's went before the other's only one")
	}
}

// The last runs to be done may be those whose requests never succeed: their retries say nothing about the tool.
func TestFailedRetriesDoNotOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, opened := newGate(t, Limits{RetryDelay: time.Minute})
		began := time.Now()
		for attempt := range 10 * breakerAfter {
			ch := g.enter("acme")
			<-ch
			g.learn(ch, failed(envelope.CodeUpstreamUnavailable, 0), attempt+2, 0)
			g.leave("acme", ch)
		}
		if waited := time.Since(began); waited != 0 || len(opened.all()) != 0 {
			t.Errorf("they waited %s, the breaker changed %v", waited, opened.all())
		}
	})
}

// A tool is not left alone for longer than its own config lets a run wait before it asks again.
func TestBreakerKeepsToTheRetryDelay(t *testing.T) {
	for _, c := range []struct{ delay, want time.Duration }{
		{0, breakerLeast},
		{400 * time.Millisecond, 400 * time.Millisecond},
		{time.Hour, breakerMost},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, _ := newGate(t, Limits{RetryDelay: c.delay})
			var waited time.Duration
			for range breakerAfter + 10 {
				began := time.Now()
				ch := g.enter("acme")
				<-ch
				waited = time.Since(began)
				g.learn(ch, failed(envelope.CodeUpstreamUnavailable, 0), 1, 0)
				g.leave("acme", ch)
			}
			if waited != c.want {
				t.Errorf("with a retry delay of %s a probe waited %s, wanted %s", c.delay, waited, c.want)
			}
		})
	}
}

// Calls that were in flight when the breaker opened all fail: that is one opening, not one for each.
func TestFailuresInFlightOpenTheBreakerOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGate(t, Limits{RetryDelay: time.Minute})
		var inside []chan struct{}
		for range 4 * breakerAfter {
			inside = append(inside, g.enter("acme"))
		}
		for _, ch := range inside {
			g.learn(ch, failed(envelope.CodeUpstreamUnavailable, 0), 1, 0)
			g.leave("acme", ch)
		}
		began := time.Now()
		probe := g.enter("acme")
		<-probe
		if got := time.Since(began); got != breakerFirst {
			t.Fatalf("the first probe went out after %s, wanted %s", got, breakerFirst)
		}
		g.learn(probe, failed(envelope.CodeUpstreamUnavailable, 0), 1, 0)
		g.leave("acme", probe)
		began = time.Now()
		<-g.enter("acme")
		if got := time.Since(began); got != 2*breakerFirst {
			t.Fatalf("the second probe went out after %s, wanted %s", got, 2*breakerFirst)
		}
	})
}

// A call that was let in before the tool asked to be left alone says how the tool was then: neither its success nor a
// refusal ends what the tool asked for, also not beside the probe.
func TestAStragglerDoesNotCloseTheBreaker(t *testing.T) {
	for name, end := range map[string]*envelope.Reply{"success": {OK: true}, "refusal": failed(envelope.CodeResourceNotFound, 0)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, told := newGate(t, Limits{RetryDelay: time.Minute})
				first, early, late := g.enter("acme"), g.enter("acme"), g.enter("acme")
				g.learn(first, failed(envelope.CodeUpstreamRateLimited, 5*time.Second), 1, 0)
				g.leave("acme", first)
				g.learn(early, end, 1, 0)
				g.leave("acme", early)
				began, probe, next := time.Now(), g.enter("acme"), g.enter("acme")
				<-probe
				if got := time.Since(began); got != 5*time.Second {
					t.Fatalf("let in after %s, Retry-After was 5s", got)
				}
				g.learn(late, end, 1, 0)
				g.leave("acme", late)
				if isClosed(next) {
					t.Fatal("a second call went out beside the probe, because an older one ended well")
				}
				g.learn(probe, end, 1, 0)
				g.leave("acme", probe)
				if !isClosed(next) || len(told.all()) != 2 {
					t.Fatalf("the probe says that the tool answers; told %v", told.all())
				}
			})
		})
	}
}

// A probe that was let in and never made its call must not keep the tool closed for ever.
func TestProbeThatIsGivenUpMakesRoomForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGate(t, Limits{RetryDelay: time.Minute})
		first := g.enter("acme")
		g.learn(first, failed(envelope.CodeUpstreamRateLimited, time.Second), 1, 0)
		g.leave("acme", first)
		probe, next := g.enter("acme"), g.enter("acme")
		<-probe
		g.leave("acme", probe)
		if !isClosed(next) {
			t.Fatal("nobody may probe any more")
		}
	})
}

// Runs that wait for a tool without a slot are bounded; those beyond are handed over, spread over the time that all who
// wait will take.
func TestParkingIsBounded(t *testing.T) {
	g := newGates(func(string) (Limits, bool) { return Limits{Concurrency: 1}, true }, alike, func(string, bool) {})
	a, b, c := &loop{}, &loop{}, &loop{}
	if !g.park(a, 2) || !g.park(b, 2) || g.park(c, 2) || !g.park(a, 2) {
		t.Fatal("two of three may wait, and who waits already may go on")
	}
	g.unpark(a)
	if !g.park(c, 2) {
		t.Fatal("a place that was left is free")
	}
	tool := g.of("tool")
	tool.learn(nil, &envelope.Reply{OK: true}, 1, time.Second)
	last := time.Duration(0)
	for range 100 {
		d := tool.handOver(1)
		if d < last || d < againSoonest || d > againLatest {
			t.Fatalf("due again after %s, before it %s", d, last)
		}
		last = d
	}
	if want := 100 * time.Second; last != want {
		t.Fatalf("the hundredth is due after %s, calls of 1s one at a time take %s", last, want)
	}
	for range 100 {
		tool.back()
	}
	if d := tool.handOver(1); d != time.Second {
		t.Fatalf("when all are back the next is due after %s", d)
	}
}

// Names of tools come from publishers: those that are no tools here leave nothing behind, and a reload forgets the gates of
// the tools that it took away, with what their breakers have told.
func TestGatesAreOfTheToolsThatAreThere(t *testing.T) {
	have := map[string]Limits{"acme": {Concurrency: 1, RetryDelay: time.Minute}}
	var told []bool
	g := newGates(func(name string) (Limits, bool) { l, ok := have[name]; return l, ok }, alike, func(_ string, open bool) { told = append(told, open) })
	for _, name := range []string{"nosuch1", "nosuch2", "nosuch3"} {
		entry := g.of(name).enter("t")
		if !isClosed(entry) {
			t.Fatalf("%s: a step of no tool waits, and would never be refused", name)
		}
		g.of(name).learn(nil, failed(envelope.CodeUpstreamRateLimited, time.Minute), 1, 0)
		g.of(name).leave("t", entry)
	}
	if len(g.byTool) != 0 || len(told) != 0 {
		t.Fatalf("%d gates kept, breakers told %v, for names that are no tools", len(g.byTool), told)
	}
	gate := g.of("acme")
	inside, waits := gate.enter("t"), gate.enter("t")
	gate.learn(nil, failed(envelope.CodeUpstreamRateLimited, time.Minute), 1, 0)
	delete(have, "acme")
	g.refresh()
	if len(g.byTool) != 0 || len(told) != 2 || told[1] {
		t.Fatalf("after the reload %d gates, breaker told %v", len(g.byTool), told)
	}
	if !isClosed(waits) {
		t.Fatal("who waited for the tool that is gone waits on, and would never be refused")
	}
	gate.learn(nil, failed(envelope.CodeUpstreamRateLimited, time.Minute), 1, 0)
	gate.leave("t", inside)
	gate.leave("t", waits)
	if len(told) != 2 {
		t.Fatalf("the gate of a tool that is gone tells %v", told)
	}
}
