package engine

import (
	"encoding/json"
	"fmt"

	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// The nine rules. Each is cited by this name where it is checked, where it is tested, and at the line whose order matters.
const (
	RuleOneLease         = "one-lease"
	RuleIntentFirst      = "intent-first"
	RuleNoBlindRepeat    = "no-blind-repeat"
	RuleBlockedByUnknown = "blocked-by-unknown"
	RuleSameRef          = "same-ref"
	RuleBudgetBeforeWork = "budget-before-work"
	RuleOneEnd           = "one-end"
	RuleProvenOK         = "proven-ok"
	RuleNothingVanishes  = "nothing-vanishes"
)

// defaultPoison is poison_after where the config does not say.
const defaultPoison = 3

// Violation is a broken rule.
type Violation struct {
	Rule string
	What string
}

func (v Violation) Error() string { return v.Rule + ": " + v.What }

// check panics on a broken rule, in production too: a crash costs one lease, going on could cost a second write. What was
// read was whole (see Decode), so that it is this process's own event that broke it.
func (r *Run) check() {
	if v := r.Violations(); len(v) > 0 {
		panic("run: " + v[0].Error() + ": " + r.dump())
	}
}

// Violations lists the rules that the record by itself breaks; intent-first and no-blind-repeat across machines need the
// journals and the tool too and are checked where those are at hand.
func (r *Run) Violations() []Violation {
	var out []Violation
	bad := func(rule, format string, args ...any) {
		out = append(out, Violation{rule, fmt.Sprintf(format, args...)})
	}
	executing := 0
	for _, s := range r.Steps {
		r.checkStep(s, bad)
		if s.State == run.Executing {
			executing++
		}
	}
	if (r.Lease != nil) != (executing > 0) {
		bad(RuleOneLease, "lease %v, %d steps executing", r.Lease != nil, executing)
	}
	if r.Spent.ToolCalls > r.Budget.MaxToolCalls {
		bad(RuleBudgetBeforeWork, "%d tool calls, the limit is %d", r.Spent.ToolCalls, r.Budget.MaxToolCalls)
	}
	r.checkEnd(bad)
	return out
}

func (r *Run) checkStep(s *Step, bad func(string, string, ...any)) {
	if (s.Doubt != nil) != (s.State == run.Unknown) {
		bad(RuleBlockedByUnknown, "step %s is %s, doubt %v", s.Name, s.State, s.Doubt != nil)
	}
	if (s.State == run.Executing || s.State == run.Unknown) && s.Dispatch == "" {
		bad(RuleIntentFirst, "step %s is %s without a dispatch id", s.Name, s.State)
	}
	if s.State == run.Unknown && s.Effect != envelope.Write {
		bad(RuleBlockedByUnknown, "read step %s is unknown", s.Name)
	}
	if s.Proposal < 1 || s.Proposal < s.Proposals {
		bad(RuleSameRef, "step %s has proposal %d of %d in this episode", s.Name, s.Proposal, s.Proposals)
	}
	if int64(s.Used) > r.Budget.MaxAttemptsPerStep {
		bad(RuleBudgetBeforeWork, "step %s has used %d attempts, the limit is %d", s.Name, s.Used, r.Budget.MaxAttemptsPerStep)
	}
	if s.State == run.OK && s.Proof == "" {
		bad(RuleProvenOK, "step %s is ok without a proof", s.Name)
	}
	if (s.State == run.Fatal || s.State == run.NeedsHuman) && s.Fail == nil {
		bad(RuleNothingVanishes, "step %s is %s without a reason", s.Name, s.State)
	}
}

func (r *Run) checkEnd(bad func(string, string, ...any)) {
	if r.End == nil {
		if r.Deadline == 0 {
			bad(RuleNothingVanishes, "the run goes on without a deadline")
		}
		if r.Letter != nil && r.Letter.Open {
			bad(RuleNothingVanishes, "the run goes on with an open letter")
		}
		return
	}
	if r.active() {
		bad(RuleOneEnd, "ended %s with a step in flight or unknown", r.End.Outcome)
	}
	switch r.End.Outcome {
	case envelope.OK:
		for _, s := range r.Steps {
			if s.State != run.OK && !s.forgiven() && !(s.Optional && s.State == run.Cancelled) {
				bad(RuleProvenOK, "the run is ok, step %s is %s", s.Name, s.State)
			}
		}
	case envelope.Fatal, envelope.NeedsHuman:
		if r.Letter == nil || r.Letter.ID != r.letterID() {
			bad(RuleNothingVanishes, "ended %s without its letter", r.End.Outcome)
		} else if r.Letter.Owner == "" {
			bad(RuleNothingVanishes, "the letter has no owner")
		}
	}
}

// dump is the record without args and results, for a panic.
func (r *Run) dump() string {
	c := *r
	c.Steps = nil
	for _, s := range r.Steps {
		t := *s
		t.Args, t.Result, t.Asked = nil, nil, nil
		c.Steps = append(c.Steps, &t)
	}
	c.Intent, c.Invalid = "", nil
	b, err := json.Marshal(&c)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
