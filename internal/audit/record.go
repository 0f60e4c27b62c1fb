// Package audit holds what is stored against the nine rules: the records by themselves, and records, letters and outcomes
// against one another. It changes nothing.
package audit

import (
	"fmt"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Finding is something that is broken.
type Finding struct {
	Run  run.ID
	Rule string // of the nine, see internal/engine
	What string
}

func (f Finding) String() string { return fmt.Sprintf("%s: %s: %s", f.Run, f.Rule, f.What) }

// overdueAfter is how far a run may be past its deadline: an unknown write is verified without regard to it.
const overdueAfter = 5 * time.Minute

// Flags are the findings that the reconciler's metrics show.
type Flags struct {
	OKWithoutResult        bool
	BudgetEndWithoutLetter bool
}

// FlagsOf looks at one record by itself.
func FlagsOf(r *engine.Run) Flags {
	return Flags{OKWithoutResult: unproven(r) != "", BudgetEndWithoutLetter: EndedByBudget(r) && !lettered(r)}
}

// unproven names a step without proof that a run that is ok needs; "" for none. The result itself is dropped from a record
// that has ended ok, once it is published.
func unproven(r *engine.Run) string {
	if r.End == nil || r.End.Outcome != envelope.OK {
		return ""
	}
	for _, s := range r.Steps {
		if s.State == run.OK && s.Proof == "" || s.State != run.OK && !s.Optional && !s.Waived {
			return s.Name
		}
	}
	return ""
}

// EndedByBudget reports whether a budget ended the run.
func EndedByBudget(r *engine.Run) bool {
	if r.End == nil || r.End.Row == nil {
		return false
	}
	switch r.End.Row.Code {
	case envelope.CodeTurnsExhausted, envelope.CodeToolCallsExhausted, envelope.CodeTimeExhausted, envelope.CodeInputTokensExhausted,
		envelope.CodeOutputTokensExhausted, envelope.CodeCostExhausted, envelope.CodeAttemptsExhausted:
		return true
	}
	return false
}

// lettered: the record has, or had, the letter of its end.
func lettered(r *engine.Run) bool {
	return r.Letter != nil && r.Letter.ID == fmt.Sprintf("%s/%s/%d", r.Tenant, r.RunID, r.Episode)
}

// Record checks one record by itself.
func Record(id run.ID, data []byte, now envelope.Time) (r *engine.Run, found []Finding) {
	bad := func(rule, format string, args ...any) {
		found = append(found, Finding{id, rule, fmt.Sprintf(format, args...)})
	}
	r, err := engine.DecodeAsIs(data)
	if err != nil {
		bad(engine.RuleNothingVanishes, "the record cannot be read: %v", err)
		return nil, found
	}
	if r.ID() != id {
		bad(engine.RuleNothingVanishes, "the record says that it is %s", r.ID())
	}
	for _, v := range r.Violations() {
		bad(v.Rule, "%s", v.What)
	}
	if step := unproven(r); step != "" {
		bad(engine.RuleProvenOK, "the run is ok without a proof of step %s", step)
	}
	if EndedByBudget(r) && !lettered(r) {
		bad(engine.RuleNothingVanishes, "a budget ended the run without a dead letter")
	}
	if r.End == nil && now.Sub(r.Deadline) > overdueAfter {
		bad(engine.RuleNothingVanishes, "%s past its deadline without an end", now.Sub(r.Deadline).Round(time.Second))
	}
	for i := range r.Owed {
		o := &r.Owed[i]
		if before := r.PublishedBefore(o.Scope); o.N <= before.N {
			bad(engine.RuleOneEnd, "owes outcome %s/%d, which it knows to be published", o.Scope, o.N)
		}
	}
	return r, found
}

// Unaddressed: a job on a subject that names no run has a letter and no outcomes.
func Unaddressed(r *engine.Run) bool {
	return r.Invalid != nil && len(r.Owed) == 0 && r.RunPub.N == 0 && strings.HasPrefix(r.RunID, "invalid-")
}
