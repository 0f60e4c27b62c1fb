package engine

import (
	"encoding/json"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// ReplayWith is what a replay may change.
type ReplayWith struct {
	Args json.RawMessage // nil: as they were
	Add  *budget.Request
	Max  *budget.Ceiling
}

// Replay continues after the last proven step, with attempts and elapsed time anew. It is refused while the outcome of any
// step is unknown.
func (r *Run) Replay(c Call, w ReplayWith) (*Answer, *Refusal) {
	if first, err := r.admit(EventReplay, c); first != nil || err != nil {
		return first, err
	}
	if err := w.Add.Validate(); err != nil {
		return nil, refusal(run.BadRequest, "%s", err)
	}
	limits := budget.Add(r.Budget, w.Add)
	if name := budget.Exceeds(limits, w.Max); name != "" && w.Add != nil {
		return nil, refusal(run.BadRequest, "add_budget would raise %s above what the config allows", name)
	}
	if err := r.mayReplay(limits); err != nil {
		return nil, err
	}
	target := r.Step(r.End.Step)
	var args *strictjson.Args
	if w.Args != nil {
		if target == nil || target.State == run.OK || target.State == run.Ready && target.Attempt > 0 {
			return nil, refusal(run.BadRequest, "args: the dead letter has no step to change")
		}
		var err error
		args, err = strictjson.ParseArgs(w.Args, strictjson.Bounds{MaxBytes: run.MaxArgsBytes, MaxDepth: run.MaxArgsDepth})
		if err != nil || args.Text()[0] != '{' {
			return nil, refusal(run.BadRequest, "args must be an object of at most %d bytes, nested at most %d deep", run.MaxArgsBytes, run.MaxArgsDepth)
		}
	}
	a := r.answer(EventReplay, c, "", r.Episode+1)
	r.Budget = limits
	open := r.openSteps()
	r.Cancel = nil
	r.reopen(c.At)
	r.Replays++
	for _, s := range open {
		if r.More && s.State == run.Fatal && s != target {
			continue // an open run's fatal step still waits for its amendment
		}
		s.again()
	}
	for _, s := range r.Steps {
		if s.State == run.Cancelled {
			s.to(run.Ready)
		}
	}
	if args != nil && digest(target.Tool, args) != target.Digest {
		target.propose(args)
		target.Proposals = 1
	}
	if target != nil && target.State == run.Ready {
		r.unstop(target)
	}
	r.conclude(c.At)
	return a, nil
}

// unstop lets the steps start that a replayed step had stopped: they wait for it in order anyway.
func (r *Run) unstop(by *Step) {
	for _, s := range r.Steps {
		if s.StoppedBy == by.Name {
			s.StoppedBy = ""
		}
	}
}

// mayReplay is the rule of contract §7 for replay, with the sentence that says why not.
func (r *Run) mayReplay(limits budget.Limits) *Refusal {
	if !actionsOf(r.situation()).allows(deadletter.Replay) {
		switch {
		case r.Invalid != nil:
			return refusal(run.NotAllowed, "the job cannot be read; it can only be discarded")
		case r.Replays >= deadletter.MaxReplays:
			return refusal(run.NotAllowed, "the run has been replayed %d times", r.Replays)
		}
		return refusal(run.NotAllowed, "a step of the run may have been done; resolve it first")
	}
	code := r.End.Row.Code
	calls := code == envelope.CodeToolCallsExhausted && r.Spent.ToolCalls >= limits.MaxToolCalls
	if needsBudget(code) && (calls || budget.Over(r.Spent, limits) != "") {
		return refusal(run.NotAllowed, "the run has used up its budget (%s); replay needs add_budget", r.End.Row.ReasonCode)
	}
	return nil
}
