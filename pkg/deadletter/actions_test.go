package deadletter

import (
	"fmt"
	"slices"
	"testing"

	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
)

func TestActions(t *testing.T) {
	const (
		absent    = envelope.NotCommitted
		committed = envelope.Committed
		unknown   = envelope.Unknown
	)
	open := func(step, reason string, c envelope.CommitState) Open {
		return Open{Step: step, ReasonCode: reason, CommitState: c}
	}
	says := func(step string, c envelope.CommitState) Evidence { return Evidence{Step: step, CommitState: c} }
	tests := []struct {
		name string
		in   Situation
		want string // actions, steps to resolve (! with a result only), steps to approve
	}{
		{"failed, nothing done", Situation{Readable: true, Open: []Open{open("a", "provider_denied", absent)}}, "[replay discard] [] []"},
		{"a budget ended it between steps", Situation{Readable: true}, "[replay discard] [] []"},
		{"unknown", Situation{Readable: true, Open: []Open{open("a", "external_outcome_unknown", unknown)}}, "[resolve discard] [{a false}] []"},
		{
			"two unknown",
			Situation{Readable: true, Open: []Open{open("a", "external_outcome_unknown", unknown), open("b", "external_outcome_disputed", unknown)}},
			"[resolve discard] [{a false} {b false}] []",
		},
		{
			"one unknown beside one that failed",
			Situation{Readable: true, Open: []Open{open("a", "external_outcome_unknown", unknown), open("b", "provider_denied", absent)}},
			"[resolve discard] [{a false}] []",
		},
		{"committed, result refused", Situation{Readable: true, Open: []Open{open("a", "invalid_result", committed)}}, "[resolve discard] [{a true}] []"},
		{
			"committed and contradicted",
			Situation{Readable: true, Open: []Open{open("a", "invalid_result", committed)}, Evidence: []Evidence{says("a", absent)}},
			"[resolve discard] [{a false}] []",
		},
		{
			"late proof of a commit",
			Situation{Readable: true, Open: []Open{open("a", "provider_error", absent)}, Evidence: []Evidence{says("a", committed)}},
			"[resolve discard] [{a false}] []",
		},
		{
			"late proof about another step",
			Situation{Readable: true, Open: []Open{open("a", "provider_error", absent)}, Evidence: []Evidence{says("b", committed)}},
			"[discard] [] []",
		},
		{
			"late word that agrees",
			Situation{Readable: true, Open: []Open{open("a", "provider_error", absent)}, Evidence: []Evidence{says("a", absent)}},
			"[replay discard] [] []",
		},
		{
			"a dispatch of which nobody knows",
			Situation{Readable: true, Open: []Open{open("a", "provider_error", absent)}, Evidence: []Evidence{says("a", unknown)}},
			"[resolve discard] [{a false}] []",
		},
		{
			"a dispatch of which nobody knows, of what is done",
			Situation{Readable: true, Open: []Open{open("a", "invalid_result", committed)}, Evidence: []Evidence{says("a", unknown)}},
			"[resolve discard] [{a true}] []",
		},
		{
			"approval",
			Situation{ReasonCode: ReasonApprovalRequired, Readable: true, Open: []Open{open("a", ReasonApprovalRequired, absent)}},
			"[replay approve discard] [] [a]",
		},
		{"approval beside an unknown", Situation{
			ReasonCode: "external_outcome_unknown", Readable: true,
			Open: []Open{open("a", "external_outcome_unknown", unknown), open("b", ReasonApprovalRequired, absent)},
		}, "[resolve approve discard] [{a false}] [b]"},
		{"nine replays", Situation{Readable: true, Replays: 9, Open: []Open{open("a", "x", absent)}}, "[replay discard] [] []"},
		{"ten replays", Situation{Readable: true, Replays: 10, Open: []Open{open("a", "x", absent)}}, "[discard] [] []"},
		{"ten replays, approval", Situation{Readable: true, Replays: 10, Open: []Open{open("a", ReasonApprovalRequired, absent)}}, "[approve discard] [] [a]"},
		{"request not readable", Situation{Open: []Open{open("a", "x", absent)}}, "[discard] [] []"},
		{"request not readable, unknown", Situation{Open: []Open{open("a", "x", unknown)}}, "[resolve discard] [{a false}] []"},
		{"a job that cannot be read", Situation{ReasonCode: ReasonInvalidJob, Readable: true}, "[discard] [] []"},
		{
			"a job that cannot be read, whatever is open",
			Situation{ReasonCode: ReasonInvalidJob, Readable: true, Open: []Open{open("a", ReasonApprovalRequired, unknown)}},
			"[discard] [] []",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Actions(tt.in)
			if s := fmt.Sprint(got.Actions, got.Resolve, got.Approve); s != tt.want {
				t.Errorf("got %s, want %s", s, tt.want)
			}
			for _, a := range []Action{Replay, Resolve, Approve, Discard} {
				if got.Allows(a) != slices.Contains(got.Actions, a) {
					t.Errorf("Allows(%s) disagrees", a)
				}
			}
		})
	}
}

// A replay goes on after the last proven step: it may never be allowed where something is not known to be undone.
func TestReplayNeedsEverythingUndone(t *testing.T) {
	states := []envelope.CommitState{envelope.NotCommitted, envelope.Committed, envelope.Unknown}
	for _, a := range states {
		for _, b := range states {
			for _, kept := range states {
				in := Situation{
					Readable: true, Open: []Open{{Step: "a", CommitState: a}, {Step: "b", CommitState: b}},
					Evidence: []Evidence{{Step: "a", CommitState: kept}},
				}
				got := Actions(in)
				undone := a == envelope.NotCommitted && b == envelope.NotCommitted && kept == envelope.NotCommitted
				if got.Allows(Replay) != undone {
					t.Errorf("%s, %s, evidence %s: replay %v", a, b, kept, !undone)
				}
				if !undone && !got.Allows(Resolve) {
					t.Errorf("%s, %s, evidence %s: no way on but discard", a, b, kept)
				}
			}
		}
	}
}

func TestLetterSituation(t *testing.T) {
	l := Letter{Summary: Summary{
		ReasonCode: "provider_error", Replays: 10, Open: []Open{{Step: "a", CommitState: envelope.NotCommitted}},
		Evidence: []Evidence{{Step: "a", CommitState: envelope.Committed}},
	}}
	if got := fmt.Sprint(Actions(l.Situation(true))); got != "{[resolve discard] [{a false}] []}" {
		t.Error(got)
	}
	l.Evidence, l.Replays = nil, 0
	if !Actions(l.Situation(true)).Allows(Replay) || Actions(l.Situation(false)).Allows(Replay) {
		t.Error("a replay needs a readable request")
	}
}

func TestNeedsBudget(t *testing.T) {
	needs := []envelope.Code{
		envelope.CodeTurnsExhausted, envelope.CodeToolCallsExhausted, envelope.CodeInputTokensExhausted,
		envelope.CodeOutputTokensExhausted, envelope.CodeCostExhausted,
	}
	for _, row := range envelope.Codes() {
		if got := NeedsBudget(row.Code); got != slices.Contains(needs, row.Code) {
			t.Errorf("%s: %v", row.Code, got)
		}
	}
}

// What is printed for a replay suffices: it lifts the limit above what is spent, and leaves room.
func TestAdditionSuffices(t *testing.T) {
	limits := budget.Limits{MaxTurns: 4, MaxToolCalls: 8, MaxInputTokens: 1000, MaxOutputTokens: 100, MaxEstimatedCostMinorUnits: 0}
	for _, c := range []struct {
		code  envelope.Code
		spent envelope.Spent
		key   string
		add   int64
	}{
		{envelope.CodeTurnsExhausted, envelope.Spent{Turns: 6}, "max_turns", 3},
		{envelope.CodeToolCallsExhausted, envelope.Spent{ToolCalls: 8}, "max_tool_calls", 3},
		{envelope.CodeInputTokensExhausted, envelope.Spent{InputTokens: 1001}, "max_input_tokens", 251},
		{envelope.CodeOutputTokensExhausted, envelope.Spent{OutputTokens: 350}, "max_output_tokens", 275},
		{envelope.CodeCostExhausted, envelope.Spent{EstimatedCostMinorUnits: 7}, "max_estimated_cost_minor_units", 8},
		{envelope.CodeTimeExhausted, envelope.Spent{}, "", 0},
		{envelope.CodeAttemptsExhausted, envelope.Spent{}, "", 0},
	} {
		l := Summary{Code: c.code, Spent: c.spent, Budget: BudgetOf(limits), RemainingSteps: []string{"b", "c"}, Open: []Open{{Step: "a"}}}
		key, add, ok := l.Addition()
		if key != c.key || add != c.add || ok != NeedsBudget(c.code) {
			t.Errorf("%s: %q %d %v, wanted %q %d", c.code, key, add, ok, c.key, c.add)
		}
	}
}
