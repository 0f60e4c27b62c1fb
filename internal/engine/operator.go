package engine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Refusal is why an operator's call changes nothing (contract §9): a code and a sentence.
type Refusal struct {
	Code    string
	Message string
}

func (e *Refusal) Error() string { return e.Code + ": " + e.Message }

func refusal(code, format string, args ...any) *Refusal {
	return &Refusal{code, fmt.Sprintf(format, args...)}
}

// Call is who answers which letter, and why.
type Call struct {
	Letter string // "" where the call may leave it out
	Step   string
	By     string
	Reason string
	At     run.Time
}

// admit checks a call against the open letter. first is the first answer, where this is the same call again.
func (r *Run) admit(kind string, c Call) (first *Answer, err *Refusal) {
	if c.By == "" {
		return nil, refusal(run.BadRequest, "by is missing")
	}
	if c.Reason == "" {
		return nil, refusal(run.BadRequest, "reason is missing")
	}
	if len(c.By) > run.MaxActorBytes || len(c.Reason) > maxReason {
		return nil, refusal(run.BadRequest, "by and reason must be at most %d and %d bytes", run.MaxActorBytes, maxReason)
	}
	if r.Letter == nil {
		return nil, refusal(run.NotFound, "run %s has no dead letter", r.RunID)
	}
	open := r.Letter.Open
	if !open || c.Letter != "" && c.Letter != r.Letter.ID {
		for i := len(r.Answers) - 1; i >= 0; i-- {
			a := &r.Answers[i]
			if a.Kind == kind && a.By == c.By && (c.Letter == a.Letter || c.Letter == "" && a.Letter == r.Letter.ID) && (c.Step == "" || c.Step == a.Step) {
				return a, nil
			}
		}
	}
	if !open {
		return nil, refusal(run.NotFound, "the dead letter of run %s is settled", r.RunID)
	}
	if cl := r.Letter.Claim; cl.heldAgainst(c.By, c.At) {
		return nil, refusal(run.Claimed, claimedUntil, cl.By, cl.Until)
	}
	if c.Letter != "" && c.Letter != r.Letter.ID {
		return nil, refusal(run.Conflict, "the open dead letter is %s", r.Letter.ID)
	}
	return nil, nil
}

// maxReason bounds what a person may write into the history, in bytes.
const maxReason = 4 << 10

// answer settles the open letter.
func (r *Run) answer(kind string, c Call, commit envelope.CommitState, episode int) *Answer {
	r.Letter.Open, r.Letter.Claim, r.Letter.Settled = false, nil, c.At
	a := Answer{Letter: r.Letter.ID, Kind: kind, By: c.By, Step: c.Step, Episode: episode, At: c.At}
	r.Answers = append(r.Answers, a)
	r.note(Event{At: c.At, Kind: kind, By: c.By, Step: c.Step, CommitState: commit, Reason: c.Reason})
	return &r.Answers[len(r.Answers)-1]
}

// reopen begins the next episode: attempts and elapsed time start again, the other budgets go on.
func (r *Run) reopen(now run.Time) {
	r.Episode++
	r.Deadline = now.Add(r.Budget.Elapsed())
	r.End, r.Decided = nil, nil
	if r.Cancel != nil {
		// A run that was cancelled still ends cancelled once its unknown write is settled; a replay goes on.
		r.decide(Decision{Why: ByCancel, At: now})
	}
	for _, s := range r.Steps {
		s.Used, s.Failures, s.Losses, s.Proposals = 0, 0, 0, min(s.Proposals, 1)
		s.Unchecked = s.State != run.OK // the config may have changed since
	}
	r.Losses = 0
}

const claimedUntil = "the dead letter is claimed by %s until %s"

// heldAgainst reports whether the claim keeps this person from acting at this time. A nil claim keeps nobody.
func (c *Claim) heldAgainst(by string, now run.Time) bool {
	return c != nil && c.By != by && now < c.Until
}

// ClaimLetter keeps other operators out until a time.
func (r *Run) ClaimLetter(by string, until, now run.Time) *Refusal {
	switch {
	case by == "":
		return refusal(run.BadRequest, "by is missing")
	case r.Letter == nil || !r.Letter.Open:
		return refusal(run.NotFound, "run %s has no open dead letter", r.RunID)
	case r.Letter.Claim.heldAgainst(by, now):
		return refusal(run.Claimed, claimedUntil, r.Letter.Claim.By, r.Letter.Claim.Until)
	}
	r.Letter.Claim = &Claim{By: by, Until: until}
	r.note(Event{At: now, Kind: EventClaim, By: by})
	r.UpdatedAt = now
	return nil
}

// Discard settles the letter and lets the run keep its end.
func (r *Run) Discard(c Call) (*Answer, *Refusal) {
	if first, err := r.admit(EventDiscard, c); first != nil || err != nil {
		return first, err
	}
	a := r.answer(EventDiscard, c, "", 0)
	r.conclude(c.At)
	return a, nil
}

// openSteps are the required steps that were started or refused and did not end ok: what the letter waits for.
func (r *Run) openSteps() []*Step {
	var out []*Step
	for _, s := range r.Steps {
		if s.State == run.OK || s.forgiven() || s.Waived {
			continue
		}
		started := s.Attempt > 0 || s.Fail != nil
		if !started || s.Optional && s.State != run.NeedsHuman {
			continue
		}
		out = append(out, s)
	}
	return out
}

// commitState is what is established about a step that did not end ok.
func (s *Step) commitState() envelope.CommitState {
	if s.Fail != nil {
		return s.Fail.Row.CommitState
	}
	return envelope.NotCommitted
}

// resolvable: a person may say what became of this step; or only with which result it was done.
func (r *Run) resolvable(s *Step) (may, resultOnly bool) {
	for _, v := range actionsOf(r.situation()).Resolve {
		if v.Step == s.Name {
			return true, v.ResultOnly
		}
	}
	return false, false
}

// pick finds the step that a resolve or approve is about.
func (r *Run) pick(name string, may func(*Step) bool) (*Step, *Refusal) {
	open := r.openSteps()
	if name == "" {
		var fit []*Step
		for _, s := range open {
			if may(s) {
				fit = append(fit, s)
			}
		}
		switch len(fit) {
		case 0:
			return nil, refusal(run.NotAllowed, "the dead letter has no step for this action")
		case 1:
			return fit[0], nil
		}
		return nil, refusal(run.BadRequest, "step is missing: %d steps are open", len(fit))
	}
	for _, s := range open {
		if s.Name == name {
			if may(s) {
				return s, nil
			}
			return nil, refusal(run.NotAllowed, "step %s is not for this action", name)
		}
	}
	return nil, refusal(run.BadRequest, "step %s is not open", name)
}

// Resolution is what a person or a program established about a write.
type Resolution struct {
	CommitState envelope.CommitState
	Result      json.RawMessage // nil: none was given
	EvidenceRef string
}

// Resolve records what a person established: committed makes the step ok, not_committed makes it ready again; the run goes
// on in a new episode.
func (r *Run) Resolve(c Call, res Resolution, tools run.Tools) (*Answer, *Refusal) {
	if c.Letter == "" {
		return nil, refusal(run.BadRequest, "letter is missing")
	}
	if res.CommitState != envelope.Committed && res.CommitState != envelope.NotCommitted {
		return nil, refusal(run.BadRequest, "commit_state must be committed or not_committed")
	}
	if first, err := r.admit(EventResolve, c); first != nil || err != nil {
		return first, err
	}
	s, err := r.pick(c.Step, func(s *Step) bool {
		may, _ := r.resolvable(s)
		return may
	})
	if err != nil {
		return nil, err
	}
	_, resultOnly := r.resolvable(s)
	if resultOnly && res.CommitState != envelope.Committed {
		return nil, refusal(run.BadRequest, "step %s is committed, only its result is missing", s.Name)
	}
	if err := r.checkResult(s, res, tools, resultOnly); err != nil {
		return nil, err
	}
	if err := r.checkNeeded(s, res); err != nil {
		return nil, err
	}
	c.Step = s.Name
	a := r.answer(EventResolve, c, res.CommitState, r.Episode+1)
	r.reopen(c.At)
	s.Disputed = false
	r.forget(s)
	if res.CommitState == envelope.Committed {
		r.done(s, committed{result: res.Result, omitted: res.Result == nil, evidRef: res.EvidenceRef, proof: "person"}, c.At)
	} else {
		r.dropEffect(s)
		s.again()
		s.Unsettled = false
	}
	r.conclude(c.At)
	return a, nil
}

// forget drops the kept evidence about a step that a person has now decided about; the history keeps it.
func (r *Run) forget(s *Step) {
	keep := r.Evidence[:0]
	for _, k := range r.Evidence {
		if k.Step != s.Name {
			keep = append(keep, k)
		}
	}
	r.Evidence = keep
}

// again makes a step ready whose last failure a person has answered.
func (s *Step) again() {
	if s.State != run.Ready {
		s.to(run.Ready)
	}
	s.Fail, s.Doubt, s.Asked, s.NotBefore = nil, nil, nil, 0
}

func (r *Run) dropEffect(s *Step) {
	for i := range r.Effects {
		if r.Effects[i].Step == s.Name {
			r.Effects = append(r.Effects[:i], r.Effects[i+1:]...)
			for k := range r.Owed {
				if r.Owed[k].Effects > i {
					r.Owed[k].Effects-- // it lists the first so many
				}
			}
			return
		}
	}
}

func (r *Run) checkResult(s *Step, res Resolution, tools run.Tools, needed bool) *Refusal {
	if res.CommitState != envelope.Committed {
		return nil
	}
	if res.Result == nil {
		if needed {
			return refusal(run.BadRequest, "result is missing: step %s is committed and needs one", s.Name)
		}
		return nil
	}
	if len(res.Result) > run.MaxArgsBytes || r.size+len(res.Result) > r.recordMax() {
		return refusal(run.BadRequest, "result is too large")
	}
	tool, ok := tools.Tool(s.Tool)
	if !ok {
		return refusal(run.BadRequest, "the config has no tool for step %s any more", s.Name)
	}
	if tool.CheckResult != nil && !tool.CheckResult(res.Result) {
		return refusal(run.BadRequest, "result does not fit the tool's output_schema")
	}
	return nil
}

// checkNeeded: a run that goes on after the step needs of its result what later required steps refer to. Without it the
// first of them would end the run again, after the letter that could have brought the result is settled.
func (r *Run) checkNeeded(s *Step, res Resolution) *Refusal {
	if res.CommitState != envelope.Committed || r.Cancel != nil {
		return nil // a run that was cancelled starts nothing any more
	}
	var needs []string
	for _, later := range r.after(s) {
		if later.Optional || later.Waived || later.State == run.OK || !later.mayRefer() {
			continue
		}
		for _, ref := range strictjson.References(later.Args.Text()) {
			name, ptr, ok := strictjson.ParseReference(ref)
			if !ok || name != s.Name {
				continue
			}
			if _, there := strictjson.Pointer(res.Result, ptr); res.Result == nil || !there {
				needs = append(needs, fmt.Sprintf("step %s needs %q of it", later.Name, ptr))
			}
		}
	}
	if len(needs) == 0 {
		return nil
	}
	slices.Sort(needs)
	needs = slices.Compact(needs)
	what := "result is missing"
	if res.Result != nil {
		what = "result does not have what later steps refer to"
	}
	const shown = 8
	more := ""
	if len(needs) > shown {
		more = fmt.Sprintf(", and %d more", len(needs)-shown)
	}
	return refusal(run.BadRequest, "%s: %s%s", what, strings.Join(needs[:min(len(needs), shown)], ", "), more)
}

// after are the steps behind s in the run's order.
func (r *Run) after(s *Step) []*Step {
	return r.Steps[slices.Index(r.Steps, s)+1:]
}

// Approve covers exactly the args that were refused.
func (r *Run) Approve(c Call) (*Answer, *Refusal) {
	if c.Letter == "" {
		return nil, refusal(run.BadRequest, "letter is missing")
	}
	if first, err := r.admit(EventApprove, c); first != nil || err != nil {
		return first, err
	}
	s, err := r.pick(c.Step, func(s *Step) bool {
		return s.State == run.NeedsHuman && s.Fail.Row.Code == envelope.CodeMissingApproval
	})
	if err != nil {
		return nil, err
	}
	c.Step = s.Name
	a := r.answer(EventApprove, c, "", r.Episode+1)
	r.reopen(c.At)
	s.Approved = s.AskedSum
	s.again()
	s.AskedSum = ""
	r.conclude(c.At)
	return a, nil
}

// RemembersUntil is when the record of an ended run may go: the retention after its end or after its letter was settled,
// whichever is later; zero while it must stay.
func (r *Run) RemembersUntil(retention time.Duration) run.Time {
	if r.End == nil || r.Letter != nil && r.Letter.Open {
		return 0
	}
	at := r.End.At
	if r.Letter != nil {
		at = max(at, r.Letter.Settled)
	}
	return at.Add(retention)
}
