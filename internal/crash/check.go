package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Finding is a broken promise.
type Finding struct {
	ID   run.ID // zero: of the whole world
	Rule string
	What string
}

// The promises, as the report counts them.
const (
	RuleDuplicate = "duplicate"
	RuleLoss      = "loss"
	RuleOutcome   = "outcome"
	RuleEffects   = "effects"
	RuleBudget    = "budget"
	RuleLetter    = "letter"
	RuleRecord    = "record"
	RuleProcess   = "process"
)

// Verdict is what the comparison came to.
type Verdict struct {
	Findings []Finding
	Ends     map[string]int // by outcome and reason
	Gaps     int            // a request that left a paused machine after its lease committed twice
	Rows     int
}

func (v *Verdict) count(rule string) (n int) {
	for _, f := range v.Findings {
		if f.Rule == rule {
			n++
		}
	}
	return n
}

// judge compares the provider's ledger with the outcomes and the records.
type judge struct {
	provider *Provider
	faults   *Chronicle
	lease    time.Duration
	results  *Results
	state    *State
	verdict  *Verdict
}

func (j *judge) bad(id run.ID, rule, format string, args ...any) {
	j.verdict.Findings = append(j.verdict.Findings, Finding{id, rule, fmt.Sprintf(format, args...)})
}

// run checks every run and everything that was ever asked of the provider.
func (j *judge) run(plans []*Plan) *Verdict {
	j.verdict = &Verdict{Ends: map[string]int{}}
	for _, p := range plans {
		j.one(p)
	}
	known := map[string]bool{}
	for _, p := range plans {
		known[p.ID.Tenant+"/"+p.ID.Run] = true
	}
	for _, ref := range j.provider.Operations() {
		owner := ref[:max(strings.LastIndexByte(ref, '/'), 0)]
		if !known[owner] {
			j.bad(run.ID{}, RuleOutcome, "the provider was asked for %q, which nobody ordered", ref)
		}
	}
	for id := range j.state.Letters {
		if !known[id.String()] {
			j.bad(id, RuleLetter, "a letter of a run that nobody ordered")
		}
	}
	for _, odd := range append(j.results.odd, j.state.Odd...) {
		j.bad(run.ID{}, RuleOutcome, "%s", odd)
	}
	return j.verdict
}

func (j *judge) one(p *Plan) {
	if p.Accepted.IsZero() {
		return // the stream never said that it has the job
	}
	steps, ends := j.results.Of(p.ID)
	j.numbering(p.ID, envelope.StepScope, steps)
	j.numbering(p.ID, envelope.RunScope, ends)
	if len(ends) != 1 {
		j.bad(p.ID, RuleLoss, "%d terminal run outcomes, there must be exactly one", len(ends))
		if len(ends) == 0 {
			return
		}
	}
	end := ends[0]
	j.verdict.Ends[strings.TrimSuffix(string(end.Outcome)+" "+end.ReasonCode, " ")]++
	gap := j.ledger(p)
	j.steps(p, steps, &end)
	j.effects(p, &end, gap)
	j.reason(p, &end, gap)
	j.record(p, &end)
	j.letter(p, &end)
	j.answer(p, gap)
}

// numbering: n counts the messages of one subject from 1 without gaps or repeats.
func (j *judge) numbering(id run.ID, scope envelope.Scope, told []Told) {
	for i, o := range told {
		want := fmt.Sprintf("%s/%s/%d", id, scope, i+1)
		if o.N != i+1 || o.ID != want {
			j.bad(id, RuleOutcome, "message %d on its %s subject has n %d and id %s", i+1, scope, o.N, o.ID)
		}
	}
}

// ledger: no write is committed twice, and none is asked for again once it is committed. gap says that a step's second
// commit came from a machine that was paused past its lease.
func (j *judge) ledger(p *Plan) (gap map[string]bool) {
	gap = map[string]bool{}
	for _, step := range j.stepsOf(p) {
		requests, rows, _ := j.provider.Of(p.ID.String() + "/" + step.Step)
		tool := toolNamed(step.Tool)
		j.verdict.Rows += len(rows)
		if !tool.Write {
			continue
		}
		keys := map[string]int{}
		for _, q := range requests {
			keys[q.Key]++
			if q.After && !tool.Keyed && !j.late(requests) {
				j.bad(p.ID, RuleDuplicate, "step %s was asked for again (%s, request %d) although it was committed", step.Step, q.Worker, q.Nth)
			}
		}
		if !tool.PerTry && len(keys) > 1 {
			j.bad(p.ID, RuleDuplicate, "step %s was sent under %d keys", step.Step, len(keys))
		}
		switch {
		case len(rows) < 2:
		case j.late(requests):
			gap[step.Step] = true
			j.verdict.Gaps++
		default:
			j.bad(p.ID, RuleDuplicate, "step %s was committed %d times", step.Step, len(rows))
		}
	}
	return gap
}

// late says whether one of the requests may have left a paused machine after its lease.
func (j *judge) late(requests []Request) bool {
	return slices.ContainsFunc(requests, func(q Request) bool { return j.faults.PausedBefore(q.Worker, q.At, j.lease) })
}

func (j *judge) stepsOf(p *Plan) (out []run.JobStep) {
	for _, job := range p.Jobs {
		out = append(out, job.Steps...)
	}
	return out
}

// steps: a terminal outcome once per step, and a run is ok only if every step that was not waived is.
func (j *judge) steps(p *Plan, told []Told, end *Told) {
	terminal := map[string]int{}
	last := map[string]envelope.Word{}
	for _, o := range told {
		if o.Envelope != nil && !o.Envelope.OK && refusal(o.Envelope.Code) {
			continue
		}
		if o.Terminal {
			terminal[o.Step]++
		}
		last[o.Step] = o.Outcome
		if o.Seq > end.Seq {
			j.bad(p.ID, RuleOutcome, "step outcome %d was published after the run's end", o.N)
		}
	}
	for step, n := range terminal {
		if n > 1 {
			j.bad(p.ID, RuleOutcome, "step %s has %d terminal outcomes", step, n)
		}
	}
	if end.Outcome != envelope.OK {
		return
	}
	for step, word := range last {
		if word != envelope.OK && (p.Shape != "open run" || word != envelope.Fatal) && p.Shape != gatewayCall {
			j.bad(p.ID, RuleOutcome, "the run is ok, and its step %s is %s", step, word)
		}
	}
	if p.Shape != "open run" && p.Shape != gatewayCall { // whose step is optional: its agent is told
		for _, s := range j.stepsOf(p) {
			if last[s.Step] != envelope.OK {
				j.bad(p.ID, RuleOutcome, "the run is ok, and its step %s has no ok outcome", s.Step)
			}
		}
	}
}

func refusal(c envelope.Code) bool {
	switch c {
	case envelope.CodeIdenticalRetry, envelope.CodeStepConflict, envelope.CodeRunClosed, envelope.CodeJobInvalid:
		return true
	}
	return false
}

// effects: completed_effects is what the ledger has. A write that a letter holds as unknown may be in the ledger or not.
func (j *judge) effects(p *Plan, end *Told, gap map[string]bool) {
	claimed := map[string]string{}
	for _, e := range end.CompletedEffects {
		if _, twice := claimed[e.Step]; twice {
			j.bad(p.ID, RuleEffects, "effect of step %s is listed twice", e.Step)
		}
		claimed[e.Step] = e.EvidenceRef
	}
	doubtful := map[string]bool{}
	for _, l := range j.state.Letters[p.ID] {
		for _, o := range l.Open {
			doubtful[o.Step] = doubtful[o.Step] || o.CommitState == envelope.Unknown
		}
	}
	for _, s := range j.stepsOf(p) {
		_, rows, _ := j.provider.Of(p.ID.String() + "/" + s.Step)
		evidence, done := claimed[s.Step]
		delete(claimed, s.Step)
		switch {
		case done && len(rows) == 0:
			j.bad(p.ID, RuleEffects, "step %s is a completed effect, and the ledger has nothing", s.Step)
		case done && evidence != rows[0].ID && !gap[s.Step]:
			j.bad(p.ID, RuleEffects, "step %s has evidence %s, the ledger %s", s.Step, evidence, rows[0].ID)
		case !done && len(rows) > 0 && !doubtful[s.Step]:
			j.bad(p.ID, RuleEffects, "step %s is in the ledger, and no completed effect", s.Step)
		}
	}
	for step := range claimed {
		j.bad(p.ID, RuleEffects, "effect of a step %s that nobody ordered", step)
	}
}

// reason: an end that is not ok has a cause that the provider knows of.
func (j *judge) reason(p *Plan, end *Told, gap map[string]bool) {
	requests, _, _ := j.provider.Of(p.ID.String() + "/" + end.Step)
	tool := toolNamed(end.Tool)
	met := func(plan string) bool {
		return slices.ContainsFunc(requests, func(q Request) bool { return strings.HasSuffix(q.Plan, plan) })
	}
	legal := false
	switch r := j.state.Records[p.ID]; end.Outcome {
	case envelope.OK:
		legal = true
	case envelope.Fatal:
		legal = end.ReasonCode == "state_conflict" && met("409") || end.ReasonCode == "provider_rejected_input" && met("400")
	case envelope.NeedsHuman:
		switch end.ReasonCode {
		case "external_outcome_unknown":
			legal = tool != nil && tool.Window == 0 // without a lookup only a person can tell
		case "external_outcome_disputed":
			legal = gap[end.Step]
		case "attempt_budget_exhausted":
			legal = len(requests) >= MaxAttempts
		case "tool_call_budget_exhausted":
			legal = p.Shape == tightBudget && end.Spent != nil && end.Spent.ToolCalls == fewCalls
		case "provider_rate_limited": // its Retry-After leads past the deadline: the step ends at once
			legal = p.Shape == shortTime && met("429") && r != nil && r.Step(end.Step) != nil && r.Step(end.Step).NotBefore > r.Deadline
		case "elapsed_budget_exhausted":
			legal = p.Shape == shortTime && r != nil && end.At.Sub(r.CreatedAt) >= littleTime*time.Second
		}
	}
	if !legal {
		j.bad(p.ID, RuleOutcome, "the run ended %s %s at step %s, and nothing that happened explains it", end.Outcome, end.ReasonCode, end.Step)
	}
	for step := range gap {
		if end.ReasonCode != "external_outcome_disputed" && j.state.Alerts["external_outcome_disputed"] == 0 {
			j.bad(p.ID, RuleDuplicate, "step %s was committed twice, and the run does not say so", step)
		}
	}
}

// record: it has come to its end, says the same as the outcome, breaks no rule, and its budgets are kept.
func (j *judge) record(p *Plan, end *Told) {
	r := j.state.Records[p.ID]
	if r == nil {
		j.bad(p.ID, RuleRecord, "there is no record")
		return
	}
	if r.End == nil || r.End.Outcome != end.Outcome || r.Lease != nil || r.Episode != 1 {
		j.bad(p.ID, RuleRecord, "the record is at %s in episode %d, the outcome says %s", r.State(), r.Episode, end.Outcome)
	}
	for _, v := range r.Violations() {
		j.bad(p.ID, RuleRecord, "%s", v.Error())
	}
	if p.reopened {
		return // the record was made again, of what the journals know: what was spent on reads is with the lost one
	}
	wire := int64(0)
	for _, s := range j.stepsOf(p) {
		requests, _, _ := j.provider.Of(p.ID.String() + "/" + s.Step)
		wire += int64(len(requests))
		rs := r.Step(s.Step)
		if rs == nil {
			if len(requests) > 0 {
				j.bad(p.ID, RuleBudget, "step %s was sent, and the record does not have it", s.Step)
			}
			continue
		}
		if len(requests) > rs.Attempt || rs.Used > MaxAttempts {
			j.bad(p.ID, RuleBudget, "step %s: %d requests, %d attempts recorded, %d of them count", s.Step, len(requests), rs.Attempt, rs.Used)
		}
	}
	most := int64(MaxCalls)
	if p.Shape == tightBudget {
		most = fewCalls
	}
	if wire > r.Spent.ToolCalls || r.Spent.ToolCalls > most || end.Spent == nil || end.Spent.ToolCalls != r.Spent.ToolCalls {
		j.bad(p.ID, RuleBudget, "%d requests, %d tool calls in the record", wire, r.Spent.ToolCalls)
	}
}

// letter: every end that is not ok or cancelled has exactly one.
func (j *judge) letter(p *Plan, end *Told) {
	letters := j.state.Letters[p.ID]
	want := 0
	if end.Outcome == envelope.Fatal || end.Outcome == envelope.NeedsHuman {
		want = 1
	}
	if len(letters) != want {
		j.bad(p.ID, RuleLetter, "the run ended %s and has %d letters", end.Outcome, len(letters))
		return
	}
	if want == 1 && (letters[0].Outcome != end.Outcome || letters[0].ReasonCode != end.ReasonCode) {
		j.bad(p.ID, RuleLetter, "the letter says %s %s, the outcome %s %s", letters[0].Outcome, letters[0].ReasonCode, end.Outcome, end.ReasonCode)
	}
}
