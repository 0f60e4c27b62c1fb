package engine

import (
	"slices"

	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
)

// situation is what the rules about actions look at.
type situation struct {
	ReasonCode string                // the letter's
	Readable   bool                  // the request of the run is there and can be read, if not in the letter then in the record
	Replays    int                   // made so far
	Open       []deadletter.Open     // step, reason and commit state matter
	Evidence   []deadletter.Evidence // kept in the letter; step and commit state matter
}

// resolvableStep is an open step that a person may settle.
type resolvableStep struct {
	Step       string
	ResultOnly bool // it is committed and its result was refused: only committed, and only with a result
}

// letterActions says which actions a letter allows, and for which steps.
type letterActions struct {
	Actions []deadletter.Action // in the order replay, resolve, approve, discard
	Resolve []resolvableStep
	Approve []string
}

// allows reports whether the action is allowed for some step.
func (a letterActions) allows(what deadletter.Action) bool { return slices.Contains(a.Actions, what) }

// actionsOf applies the rule of contract §7. An open step that is committed is one whose result was refused: nothing else
// keeps a committed step open.
func actionsOf(s situation) letterActions {
	if s.ReasonCode == deadletter.ReasonInvalidJob {
		return letterActions{Actions: []deadletter.Action{deadletter.Discard}}
	}
	var a letterActions
	replay := s.Readable && s.Replays < deadletter.MaxReplays
	for _, o := range s.Open {
		replay = replay && o.CommitState == envelope.NotCommitted
		switch {
		case o.CommitState == envelope.Unknown || contradictedBy(o, s.Evidence):
			a.Resolve = append(a.Resolve, resolvableStep{Step: o.Step})
		case o.CommitState == envelope.Committed:
			a.Resolve = append(a.Resolve, resolvableStep{Step: o.Step, ResultOnly: true})
		}
		if o.ReasonCode == deadletter.ReasonApprovalRequired {
			a.Approve = append(a.Approve, o.Step)
		}
	}
	for _, e := range s.Evidence {
		replay = replay && e.CommitState == envelope.NotCommitted
	}
	if replay {
		a.Actions = append(a.Actions, deadletter.Replay)
	}
	if len(a.Resolve) > 0 {
		a.Actions = append(a.Actions, deadletter.Resolve)
	}
	if len(a.Approve) > 0 {
		a.Actions = append(a.Actions, deadletter.Approve)
	}
	a.Actions = append(a.Actions, deadletter.Discard)
	return a
}

// contradictedBy reports whether kept evidence says something else than what the step ended with. That a step was done is not
// contradictedBy by a dispatch of which nobody knows.
func contradictedBy(o deadletter.Open, kept []deadletter.Evidence) bool {
	return slices.ContainsFunc(kept, func(e deadletter.Evidence) bool {
		return e.Step == o.Step && e.CommitState != o.CommitState &&
			(e.CommitState != envelope.Unknown || o.CommitState == envelope.NotCommitted)
	})
}

// needsBudget reports whether a replay of a run that ended with this code must add budget: elapsed time and attempts
// start again with the episode, the other budgets go on.
func needsBudget(c envelope.Code) bool {
	switch c {
	case envelope.CodeTurnsExhausted, envelope.CodeToolCallsExhausted, envelope.CodeInputTokensExhausted,
		envelope.CodeOutputTokensExhausted, envelope.CodeCostExhausted:
		return true
	}
	return false
}
