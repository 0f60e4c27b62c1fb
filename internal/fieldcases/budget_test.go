package fieldcases

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
)

// Whatever ceiling a run reaches, its end names that ceiling and is no success.
func TestCase22ACeilingIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5*time.Second, tool{name: "read"}, tool{name: "fails", attempts: 9}, tool{name: "pay", write: true})
	w.both()
	w.provider.script(func(c call) plan {
		if c.Tool == "fails" {
			return refuse(503)
		}
		return done()
	})
	loop := func(run string, budget, usage map[string]any) {
		for i := range 4 { // an agent that never comes to its end
			w.publish(run, map[string]any{"more": true, "budget": budget, "usage": usage}, do(fmt.Sprintf("s%d", i), "read"))
		}
	}
	loop("turns", map[string]any{"max_turns": 2}, nil)
	loop("calls", map[string]any{"max_tool_calls": 2}, nil)
	loop("input", map[string]any{"max_input_tokens": 25}, map[string]any{"input_tokens": 10})
	loop("output", map[string]any{"max_output_tokens": 25}, map[string]any{"output_tokens": 10})
	loop("cost", map[string]any{"max_estimated_cost_minor_units": 25}, map[string]any{"estimated_cost_minor_units": 10})
	w.publish("time", map[string]any{"more": true, "budget": map[string]any{"max_elapsed_seconds": 1}}, do("s0", "read"))
	w.publish("attempts", map[string]any{"budget": map[string]any{"max_attempts_per_step": 3}}, do("pay", "pay"), do("s0", "fails"))
	for run, reason := range map[string]string{
		"turns": "turn_budget_exhausted", "calls": "tool_call_budget_exhausted", "input": "input_token_budget_exhausted",
		"output": "output_token_budget_exhausted", "cost": "cost_budget_exhausted", "time": "elapsed_budget_exhausted",
		"attempts": "attempt_budget_exhausted",
	} {
		end := w.mustEnd(run, envelope.NeedsHuman, reason)
		if end.Envelope == nil || end.Envelope.OK {
			t.Errorf("%s: envelope %+v", run, end.Envelope)
		}
		most := map[string]int{"turns": 2, "calls": 2, "input": 2, "output": 2, "cost": 2, "time": 1, "attempts": 4}[run]
		if n := int(end.Spent.ToolCalls); n > most {
			t.Errorf("%s: %d tool calls, at most %d were allowed", run, n, most)
		}
	}
	if end := w.end("attempts", 1); !lists(end, "pay") {
		t.Errorf("what was done is not listed: %+v", end.CompletedEffects)
	}
	mustLetters(w, 7)
	w.balanced()
}

// mustLetters waits until there are n dead letters.
func mustLetters(w *world, n uint64) {
	w.t.Helper()
	w.until(fmt.Sprintf("there are %d letters", n), func() bool { return w.waiting(topology.LettersStream) == n })
}

// A read that always answers 503: the gaps between the requests, as the tool sees them, grow by the policy up to its
// longest, and the attempts end.
func TestCase25GapsGrowAndEnd(t *testing.T) {
	t.Parallel()
	first, most := 200*time.Millisecond, 900*time.Millisecond
	if full() {
		first, most = time.Second, 5*time.Second
	}
	w := newWorld(t, 5*time.Second, tool{name: "down", attempts: 6, delay: first, delayMax: most})
	w.both()
	w.provider.script(func(call) plan { return refuse(503) })
	w.publish("r", nil, do("s", "down"))
	end := w.mustEnd("r", envelope.NeedsHuman, "attempt_budget_exhausted")
	calls := w.provider.callsOf("")
	if len(calls) != 6 || end.Attempt == nil || *end.Attempt != 6 {
		t.Fatalf("%d requests, attempt %v, wanted 6", len(calls), end.Attempt)
	}
	outcomes := w.outcomes("r", envelope.StepScope)
	want := first
	for i := 1; i < len(calls); i++ {
		if gap := calls[i].At.Sub(calls[i-1].At); gap < want-5*time.Millisecond {
			t.Errorf("request %d came %s after the one before, wanted at least %s", i+1, gap, want)
		}
		if o := outcomes[i-1]; o.Outcome != envelope.Retryable || calls[i].At.Before(o.NotBefore.Time()) {
			t.Errorf("request %d came at %s, the outcome %s says not before %s", i+1, calls[i].At, o.Outcome, o.NotBefore.Time())
		}
		want = min(2*want, most)
	}
	// What the policy says is said to the caller too.
	gaps := []float64{}
	for _, o := range outcomes[:5] {
		gaps = append(gaps, *o.RetryAfterSeconds)
	}
	if !slices.IsSorted(gaps) || gaps[0] < first.Seconds() || gaps[4] > most.Seconds()+0.1 {
		t.Errorf("retry_after_seconds %v", gaps)
	}
	w.balanced()
}

// A tool is away while many jobs need it, with attempts enough: they are held back, nobody is called a person for, all end
// well, and the jobs of another tool do not wait for any of it.
func TestCase20AToolIsDown(t *testing.T) {
	t.Parallel()
	jobs, away := sized(500, 150), 3*time.Second
	if full() {
		away = time.Minute
	}
	w := newWorld(t, 5*time.Second,
		tool{name: "down", attempts: 30, delay: 200 * time.Millisecond, delayMax: 2 * time.Second},
		tool{name: "downwrite", write: true, attempts: 30, delay: 200 * time.Millisecond, delayMax: 2 * time.Second}, tool{name: "up"})
	w.both("--concurrency", "16")
	back := time.Now().Add(away)
	w.provider.script(func(c call) plan {
		if c.Tool != "up" && time.Now().Before(back) {
			return refuse(503)
		}
		return done()
	})
	for i := range jobs {
		w.publish(fmt.Sprintf("down%d", i), nil, do("s", []string{"down", "downwrite"}[i%2]))
	}
	var worst time.Duration
	others := 0
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(back) {
		<-tick.C
		run := fmt.Sprintf("up%d", others)
		others++
		began := time.Now()
		w.publish(run, nil, do("s", "up"))
		w.mustEnd(run, envelope.OK, "")
		worst = max(worst, time.Since(began))
	}
	if worst > 2*time.Second {
		t.Errorf("a job of another tool took %s while the tool was down", worst)
	}
	for i := range jobs {
		w.mustEnd(fmt.Sprintf("down%d", i), envelope.OK, "")
	}
	if n := w.waiting(topology.LettersStream); n > 0 {
		t.Errorf("%d dead letters", n)
	}
	// Held by not_before, not hammered: far fewer requests than attempts times jobs.
	if n := len(w.provider.callsOf("")); n > jobs*12+others {
		t.Errorf("%d requests for %d jobs", n, jobs)
	}
	t.Logf("%d jobs held over %s, %d requests; %d jobs of another tool beside them, the slowest %s", jobs, away, len(w.provider.callsOf("")), others, worst)
	w.balanced()
}
