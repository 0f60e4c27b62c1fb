package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
)

func TestActions(t *testing.T) {
	const (
		absent    = envelope.NotCommitted
		committed = envelope.Committed
		unknown   = envelope.Unknown
	)
	open := func(step, reason string, c envelope.CommitState) deadletter.Open {
		return deadletter.Open{Step: step, ReasonCode: reason, CommitState: c}
	}
	says := func(step string, c envelope.CommitState) deadletter.Evidence {
		return deadletter.Evidence{Step: step, CommitState: c}
	}
	tests := []struct {
		name string
		in   situation
		want string // actions, steps to resolve (! with a result only), steps to approve
	}{
		{"failed, nothing done", situation{Readable: true, Open: []deadletter.Open{open("a", "provider_denied", absent)}}, "[replay discard] [] []"},
		{"a budget ended it between steps", situation{Readable: true}, "[replay discard] [] []"},
		{"unknown", situation{Readable: true, Open: []deadletter.Open{open("a", "external_outcome_unknown", unknown)}}, "[resolve discard] [{a false}] []"},
		{
			"two unknown",
			situation{Readable: true, Open: []deadletter.Open{open("a", "external_outcome_unknown", unknown), open("b", "external_outcome_disputed", unknown)}},
			"[resolve discard] [{a false} {b false}] []",
		},
		{
			"one unknown beside one that failed",
			situation{Readable: true, Open: []deadletter.Open{open("a", "external_outcome_unknown", unknown), open("b", "provider_denied", absent)}},
			"[resolve discard] [{a false}] []",
		},
		{"committed, result refused", situation{Readable: true, Open: []deadletter.Open{open("a", "invalid_result", committed)}}, "[resolve discard] [{a true}] []"},
		{
			"committed and contradicted",
			situation{Readable: true, Open: []deadletter.Open{open("a", "invalid_result", committed)}, Evidence: []deadletter.Evidence{says("a", absent)}},
			"[resolve discard] [{a false}] []",
		},
		{
			"late proof of a commit",
			situation{Readable: true, Open: []deadletter.Open{open("a", "provider_error", absent)}, Evidence: []deadletter.Evidence{says("a", committed)}},
			"[resolve discard] [{a false}] []",
		},
		{
			"late proof about another step",
			situation{Readable: true, Open: []deadletter.Open{open("a", "provider_error", absent)}, Evidence: []deadletter.Evidence{says("b", committed)}},
			"[discard] [] []",
		},
		{
			"late word that agrees",
			situation{Readable: true, Open: []deadletter.Open{open("a", "provider_error", absent)}, Evidence: []deadletter.Evidence{says("a", absent)}},
			"[replay discard] [] []",
		},
		{
			"a dispatch of which nobody knows",
			situation{Readable: true, Open: []deadletter.Open{open("a", "provider_error", absent)}, Evidence: []deadletter.Evidence{says("a", unknown)}},
			"[resolve discard] [{a false}] []",
		},
		{
			"a dispatch of which nobody knows, of what is done",
			situation{Readable: true, Open: []deadletter.Open{open("a", "invalid_result", committed)}, Evidence: []deadletter.Evidence{says("a", unknown)}},
			"[resolve discard] [{a true}] []",
		},
		{
			"approval",
			situation{ReasonCode: deadletter.ReasonApprovalRequired, Readable: true, Open: []deadletter.Open{open("a", deadletter.ReasonApprovalRequired, absent)}},
			"[replay approve discard] [] [a]",
		},
		{"approval beside an unknown", situation{
			ReasonCode: "external_outcome_unknown", Readable: true,
			Open: []deadletter.Open{open("a", "external_outcome_unknown", unknown), open("b", deadletter.ReasonApprovalRequired, absent)},
		}, "[resolve approve discard] [{a false}] [b]"},
		{"nine replays", situation{Readable: true, Replays: 9, Open: []deadletter.Open{open("a", "x", absent)}}, "[replay discard] [] []"},
		{"ten replays", situation{Readable: true, Replays: 10, Open: []deadletter.Open{open("a", "x", absent)}}, "[discard] [] []"},
		{"ten replays, approval", situation{Readable: true, Replays: 10, Open: []deadletter.Open{open("a", deadletter.ReasonApprovalRequired, absent)}}, "[approve discard] [] [a]"},
		{"request not readable", situation{Open: []deadletter.Open{open("a", "x", absent)}}, "[discard] [] []"},
		{"request not readable, unknown", situation{Open: []deadletter.Open{open("a", "x", unknown)}}, "[resolve discard] [{a false}] []"},
		{"a job that cannot be read", situation{ReasonCode: deadletter.ReasonInvalidJob, Readable: true}, "[discard] [] []"},
		{
			"a job that cannot be read, whatever is open",
			situation{ReasonCode: deadletter.ReasonInvalidJob, Readable: true, Open: []deadletter.Open{open("a", deadletter.ReasonApprovalRequired, unknown)}},
			"[discard] [] []",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := actionsOf(tt.in)
			if s := fmt.Sprint(got.Actions, got.Resolve, got.Approve); s != tt.want {
				t.Errorf("got %s, want %s", s, tt.want)
			}
			for _, a := range []deadletter.Action{deadletter.Replay, deadletter.Resolve, deadletter.Approve, deadletter.Discard} {
				if got.allows(a) != slices.Contains(got.Actions, a) {
					t.Errorf("allows(%s) disagrees", a)
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
				in := situation{
					Readable: true, Open: []deadletter.Open{{Step: "a", CommitState: a}, {Step: "b", CommitState: b}},
					Evidence: []deadletter.Evidence{{Step: "a", CommitState: kept}},
				}
				got := actionsOf(in)
				undone := a == envelope.NotCommitted && b == envelope.NotCommitted && kept == envelope.NotCommitted
				if got.allows(deadletter.Replay) != undone {
					t.Errorf("%s, %s, evidence %s: replay %v", a, b, kept, !undone)
				}
				if !undone && !got.allows(deadletter.Resolve) {
					t.Errorf("%s, %s, evidence %s: no way on but discard", a, b, kept)
				}
			}
		}
	}
}

func TestNeedsBudget(t *testing.T) {
	needs := []envelope.Code{
		envelope.CodeTurnsExhausted, envelope.CodeToolCallsExhausted, envelope.CodeInputTokensExhausted,
		envelope.CodeOutputTokensExhausted, envelope.CodeCostExhausted,
	}
	for _, row := range envelope.Codes() {
		if got := needsBudget(row.Code); got != slices.Contains(needs, row.Code) {
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
		l := deadletter.Summary{Code: c.code, Spent: c.spent, Budget: budgetOf(limits), RemainingSteps: []string{"b", "c"}, Open: []deadletter.Open{{Step: "a"}}}
		key, add, ok := l.Addition()
		if key != c.key || add != c.add || ok != needsBudget(c.code) {
			t.Errorf("%s: %q %d %v, wanted %q %d", c.code, key, add, ok, c.key, c.add)
		}
	}
}
