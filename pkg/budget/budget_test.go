package budget_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
)

func n(v int64) *int64 { return &v }

func s(v float64) *float64 { return &v }

// fields sets each limit of a request by itself.
var fields = []struct {
	name string
	set  func(*budget.Request, int64)
	get  func(budget.Limits) int64
}{
	{"max_turns", func(r *budget.Request, v int64) { r.MaxTurns = &v }, func(l budget.Limits) int64 { return l.MaxTurns }},
	{"max_tool_calls", func(r *budget.Request, v int64) { r.MaxToolCalls = &v }, func(l budget.Limits) int64 { return l.MaxToolCalls }},
	{"max_attempts_per_step", func(r *budget.Request, v int64) { r.MaxAttemptsPerStep = &v }, func(l budget.Limits) int64 { return l.MaxAttemptsPerStep }},
	{"max_elapsed_seconds", func(r *budget.Request, v int64) { r.MaxElapsedSeconds = s(float64(v)) }, func(l budget.Limits) int64 { return l.MaxElapsedMillis / 1000 }},
	{"max_input_tokens", func(r *budget.Request, v int64) { r.MaxInputTokens = &v }, func(l budget.Limits) int64 { return l.MaxInputTokens }},
	{"max_output_tokens", func(r *budget.Request, v int64) { r.MaxOutputTokens = &v }, func(l budget.Limits) int64 { return l.MaxOutputTokens }},
	{"max_estimated_cost_minor_units", func(r *budget.Request, v int64) { r.MaxEstimatedCostMinorUnits = &v }, func(l budget.Limits) int64 { return l.MaxEstimatedCostMinorUnits }},
}

var base = budget.Limits{
	MaxTurns: 12, MaxToolCalls: 32, MaxAttemptsPerStep: 3, MaxElapsedMillis: 60_000, MaxInputTokens: 1000, MaxOutputTokens: 500,
	MaxEstimatedCostMinorUnits: 25,
}

// For every limit: a job names it, the others keep the config's default; zero is a limit of zero; a replay adds to it; the
// ceiling holds it.
func TestEveryLimit(t *testing.T) {
	for _, f := range fields {
		t.Run(f.name, func(t *testing.T) {
			for _, v := range []int64{0, 7} {
				var r budget.Request
				f.set(&r, v)
				if got := f.get(budget.Fill(&r, base)); got != v {
					t.Errorf("filled: %d, want %d", got, v)
				}
				for _, other := range fields {
					if other.name != f.name && other.get(budget.Fill(&r, base)) != other.get(base) {
						t.Errorf("%s changes with it", other.name)
					}
				}
				if got := f.get(budget.Add(base, &r)); got != f.get(base)+v {
					t.Errorf("added: %d", got)
				}
			}
			var top budget.Request
			f.set(&top, f.get(base))
			if got := budget.Exceeds(base, &top); got != "" {
				t.Errorf("at the ceiling: %s exceeds", got)
			}
			f.set(&top, f.get(base)-1)
			if got := budget.Exceeds(base, &top); got != f.name {
				t.Errorf("above the ceiling: %q", got)
			}
			var bad budget.Request
			f.set(&bad, -1)
			if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), f.name) {
				t.Errorf("-1: %v", err)
			}
			var large budget.Request
			f.set(&large, budget.MaxNumber)
			if err := large.Validate(); err != nil {
				t.Errorf("2^53-1: %v", err)
			}
			f.set(&large, budget.MaxNumber+1)
			if err := large.Validate(); err == nil {
				t.Error("2^53 is accepted")
			}
			if got := budget.Add(budget.Add(base, &large), &large); f.get(got) < f.get(base) || f.get(got) > budget.MaxNumber {
				t.Errorf("adding does not saturate: %d", f.get(got))
			}
		})
	}
}

func TestNothingNamed(t *testing.T) {
	var none *budget.Request
	if none.Validate() != nil || budget.Fill(nil, base) != base || budget.Add(base, nil) != base || budget.Exceeds(base, nil) != "" {
		t.Error("a budget that names nothing changes something")
	}
	var usage *budget.Usage
	if usage.Validate() != nil {
		t.Error("no usage is refused")
	}
}

func TestElapsed(t *testing.T) {
	for _, bad := range []float64{0.5, -1, math.Inf(1), math.NaN(), 1 << 53} {
		if (&budget.Request{MaxElapsedSeconds: &bad}).Validate() == nil {
			t.Errorf("%v seconds are accepted", bad)
		}
	}
	l := budget.Fill(&budget.Request{MaxElapsedSeconds: s(budget.MaxNumber)}, base)
	if l.Elapsed() <= 0 || l.Elapsed() < 99*365*24*time.Hour {
		t.Errorf("the longest limit is %s", l.Elapsed())
	}
	if got := budget.Fill(&budget.Request{MaxElapsedSeconds: s(45)}, base).Elapsed(); got != 45*time.Second {
		t.Errorf("%s", got)
	}
}

func TestUsage(t *testing.T) {
	for name, u := range map[string]*budget.Usage{
		"turns": {Turns: n(-1)}, "input_tokens": {InputTokens: n(budget.MaxNumber + 1)}, "output_tokens": {OutputTokens: n(-1)},
		"estimated_cost_minor_units": {EstimatedCostMinorUnits: n(-5)},
	} {
		if err := u.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var spent budget.Spent
	spent.Charge(nil, 1)
	spent.Charge(&budget.Usage{InputTokens: n(10), OutputTokens: n(3), EstimatedCostMinorUnits: n(2)}, 1)
	spent.Charge(&budget.Usage{Turns: n(0)}, 1)
	spent.Charge(&budget.Usage{Turns: n(5)}, 0)
	if want := (budget.Spent{Turns: 7, InputTokens: 10, OutputTokens: 3, EstimatedCostMinorUnits: 2}); spent != want {
		t.Errorf("%+v, want %+v", spent, want)
	}
	spent.Charge(&budget.Usage{Turns: n(budget.MaxNumber)}, 0)
	if spent.Turns != budget.MaxNumber {
		t.Errorf("charging does not saturate: %d", spent.Turns)
	}
}

// Usage may be seen at its limit, and above it names its own code; of several the first.
func TestOver(t *testing.T) {
	at := budget.Spent{Turns: 12, ToolCalls: 32, InputTokens: 1000, OutputTokens: 500, EstimatedCostMinorUnits: 25}
	if got := budget.Over(at, base); got != "" {
		t.Errorf("at the limit: %s", got)
	}
	for code, over := range map[envelope.Code]budget.Spent{
		envelope.CodeTurnsExhausted:        {Turns: 13, InputTokens: 1001},
		envelope.CodeInputTokensExhausted:  {InputTokens: 1001, OutputTokens: 501},
		envelope.CodeOutputTokensExhausted: {OutputTokens: 501, EstimatedCostMinorUnits: 26},
		envelope.CodeCostExhausted:         {EstimatedCostMinorUnits: 26},
	} {
		if got := budget.Over(over, base); got != code {
			t.Errorf("%+v: %q, want %s", over, got, code)
		}
	}
}

func TestCalls(t *testing.T) {
	var spent budget.Spent
	limits := budget.Limits{MaxToolCalls: 2}
	for i, want := range []bool{true, true, false, false} {
		if got := spent.ReserveCall(limits); got != want {
			t.Errorf("call %d: %v", i+1, got)
		}
	}
	if spent.ToolCalls != 2 {
		t.Errorf("%d calls are booked", spent.ToolCalls)
	}
	spent.ReleaseCall()
	if !spent.ReserveCall(limits) {
		t.Error("a call that was given back is not there")
	}
	var nothing budget.Spent
	if nothing.ReleaseCall(); nothing.ToolCalls != 0 {
		t.Error("a release without a call")
	}
}

func TestSpentOfAnOutcome(t *testing.T) {
	spent := budget.Spent{Turns: 1, ToolCalls: 3, InputTokens: 1200, OutputTokens: 300, EstimatedCostMinorUnits: 2}
	got, err := json.Marshal(spent.Outcome(3200 * time.Millisecond))
	want := `{"turns":1,"tool_calls":3,"input_tokens":1200,"output_tokens":300,"estimated_cost_minor_units":2,"elapsed_seconds":3.2}`
	if err != nil || string(got) != want {
		t.Errorf("%s (%v)", got, err)
	}
}
