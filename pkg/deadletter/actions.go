package deadletter

import "github.com/agentrun/executor/pkg/envelope"

// Action is what an operator may do with a letter.
type Action string

const (
	Replay  Action = "replay"
	Resolve Action = "resolve"
	Approve Action = "approve"
	Discard Action = "discard"
)

// The reason codes that decide about actions.
const (
	ReasonInvalidJob       = "invalid_job"
	ReasonApprovalRequired = "approval_required"
)

// Addition is the least that a replay of this letter should add to the run's budget, as the key and number of a job's
// budget: what is spent above the limit, and room to go on. ok is false where a replay needs no budget.
func (s *Summary) Addition() (key string, add int64, ok bool) {
	var limit *int64
	var spent int64
	room := func() int64 { return (*limit + 3) / 4 }
	switch s.Code {
	case envelope.CodeTurnsExhausted:
		key, limit, spent = "max_turns", s.Budget.MaxTurns, s.Spent.Turns
	case envelope.CodeToolCallsExhausted:
		key, limit, spent = "max_tool_calls", s.Budget.MaxToolCalls, s.Spent.ToolCalls
		room = func() int64 { return int64(len(s.RemainingSteps) + len(s.Open)) }
	case envelope.CodeInputTokensExhausted:
		key, limit, spent = "max_input_tokens", s.Budget.MaxInputTokens, s.Spent.InputTokens
	case envelope.CodeOutputTokensExhausted:
		key, limit, spent = "max_output_tokens", s.Budget.MaxOutputTokens, s.Spent.OutputTokens
	case envelope.CodeCostExhausted:
		key, limit, spent = "max_estimated_cost_minor_units", s.Budget.MaxEstimatedCostMinorUnits, s.Spent.EstimatedCostMinorUnits
	}
	if limit == nil {
		return "", 0, false
	}
	return key, max(spent-*limit, 0) + max(room(), 1), true
}
