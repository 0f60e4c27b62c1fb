package deadletter

import (
	"slices"

	"github.com/agentrun/executor/pkg/envelope"
)

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

// Situation is what the rules about actions look at.
type Situation struct {
	ReasonCode string     // the letter's
	Readable   bool       // the request of the run is there and can be read, if not in the letter then in the record
	Replays    int        // made so far
	Open       []Open     // step, reason and commit state matter
	Evidence   []Evidence // kept in the letter; step and commit state matter
}

// Resolvable is an open step that a person may settle.
type Resolvable struct {
	Step       string
	ResultOnly bool // it is committed and its result was refused: only committed, and only with a result
}

// Allowed says which actions a letter allows, and for which steps.
type Allowed struct {
	Actions []Action // in the order replay, resolve, approve, discard
	Resolve []Resolvable
	Approve []string
}

// Allows reports whether the action is allowed for some step.
func (a Allowed) Allows(what Action) bool { return slices.Contains(a.Actions, what) }

// Actions applies the rule of contract §7. An open step that is committed is one whose result was refused: nothing else
// keeps a committed step open.
func Actions(s Situation) Allowed {
	if s.ReasonCode == ReasonInvalidJob {
		return Allowed{Actions: []Action{Discard}}
	}
	var a Allowed
	replay := s.Readable && s.Replays < MaxReplays
	for _, o := range s.Open {
		replay = replay && o.CommitState == envelope.NotCommitted
		switch {
		case o.CommitState == envelope.Unknown || contradicted(o, s.Evidence):
			a.Resolve = append(a.Resolve, Resolvable{Step: o.Step})
		case o.CommitState == envelope.Committed:
			a.Resolve = append(a.Resolve, Resolvable{Step: o.Step, ResultOnly: true})
		}
		if o.ReasonCode == ReasonApprovalRequired {
			a.Approve = append(a.Approve, o.Step)
		}
	}
	for _, e := range s.Evidence {
		replay = replay && e.CommitState == envelope.NotCommitted
	}
	if replay {
		a.Actions = append(a.Actions, Replay)
	}
	if len(a.Resolve) > 0 {
		a.Actions = append(a.Actions, Resolve)
	}
	if len(a.Approve) > 0 {
		a.Actions = append(a.Actions, Approve)
	}
	a.Actions = append(a.Actions, Discard)
	return a
}

// contradicted reports whether kept evidence says something else than what the step ended with. That a step was done is not
// contradicted by a dispatch of which nobody knows.
func contradicted(o Open, kept []Evidence) bool {
	return slices.ContainsFunc(kept, func(e Evidence) bool {
		return e.Step == o.Step && e.CommitState != o.CommitState &&
			(e.CommitState != envelope.Unknown || o.CommitState == envelope.NotCommitted)
	})
}

// Situation is the letter's own; readable says whether the run's request can be read.
func (l *Letter) Situation(readable bool) Situation {
	return Situation{ReasonCode: l.ReasonCode, Readable: readable, Replays: l.Replays, Open: l.Open, Evidence: l.Evidence}
}

// NeedsBudget reports whether a replay of a run that ended with this code must add budget: elapsed time and attempts
// start again with the episode, the other budgets go on.
func NeedsBudget(c envelope.Code) bool {
	switch c {
	case envelope.CodeTurnsExhausted, envelope.CodeToolCallsExhausted, envelope.CodeInputTokensExhausted,
		envelope.CodeOutputTokensExhausted, envelope.CodeCostExhausted:
		return true
	}
	return false
}

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
