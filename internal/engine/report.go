package engine

import (
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// MaxEvidenceBytes is how long an evidence_ref that a person or a program gives may be.
const MaxEvidenceBytes = 1 << 10

// Report is what a program learned about a write: a webhook, a callback (contract §9). attempt 0 means that it names none.
func (r *Run) Report(step string, attempt int, by string, res Resolution, tools run.Tools, now run.Time) (Verdict, *Refusal) {
	s := r.Step(step)
	switch {
	case by == "":
		return Dropped, refusal(run.BadRequest, "by is missing")
	case s == nil:
		return Dropped, refusal(run.NotFound, "run %s has no step %s", r.RunID, step)
	case res.CommitState != envelope.Committed && res.CommitState != envelope.NotCommitted:
		return Dropped, refusal(run.BadRequest, "commit_state must be committed or not_committed")
	case res.EvidenceRef == "":
		return Dropped, refusal(run.BadRequest, "evidence_ref is missing")
	case s.Effect != envelope.Write || s.Attempt == 0:
		return Dropped, refusal(run.BadRequest, "step %s is no write that was started", step)
	case attempt < 0 || attempt > s.Attempt:
		return Dropped, refusal(run.BadRequest, "step %s has had %d attempts", step, s.Attempt)
	case len(by) > run.MaxActorBytes || len(res.EvidenceRef) > MaxEvidenceBytes:
		return Dropped, refusal(run.BadRequest, "by and evidence_ref must be at most %d and %d bytes", run.MaxActorBytes, MaxEvidenceBytes)
	}
	if err := r.checkResult(s, res, tools, false); err != nil {
		return Dropped, err
	}
	defer r.conclude(now)
	r.note(Event{At: now, Kind: EventReport, By: by, Step: step, Attempt: attempt, CommitState: res.CommitState})
	src := Source{By: by, At: now}
	if res.CommitState == envelope.NotCommitted {
		return r.reportAbsent(s, attempt, tools, src), nil
	}
	c := committed{result: res.Result, omitted: res.Result == nil, evidRef: res.EvidenceRef, proof: "report"}
	d := s.Dispatch
	if attempt != 0 && attempt != s.Attempt {
		d = r.dispatchOf(step, attempt) // an earlier one: the evidence table decides
	}
	if d == s.Dispatch && r.End == nil && (s.State == run.Executing || s.State == run.Unknown) && !s.Disputed {
		r.closeAttempt(d, now, "", envelope.Committed)
		r.done(s, c, now)
		return Applied, nil
	}
	if v := r.lateCommit(s, d, c, src); v != Dropped {
		return v, nil
	}
	return Noted, nil
}

// dispatchOf maps an attempt of a step to its dispatch, "" if the history has dropped it.
func (r *Run) dispatchOf(step string, attempt int) DispatchID {
	for i := range r.History {
		if e := &r.History[i]; e.Kind == EventDispatch && e.Step == step && e.Attempt == attempt {
			return e.Dispatch
		}
	}
	return ""
}

// reportAbsent: "nothing was done" counts only for the unknown attempt that it names, after its window.
func (r *Run) reportAbsent(s *Step, attempt int, tools run.Tools, src Source) Verdict {
	if s.State == run.OK || r.End != nil {
		r.keep(s, s.Dispatch, envelope.NotCommitted, "", src)
		if s.State == run.OK || s.commitState() == envelope.Committed {
			r.alarm(envelope.CodeOutcomeDisputed, s, src.At)
		}
		return Noted
	}
	if s.State != run.Unknown || s.Doubt.Resend {
		return Noted
	}
	if attempt == s.Attempt && s.Doubt.WindowOver {
		tool, _ := tools.Tool(s.Tool)
		r.absent(s, tool, src)
		return Applied
	}
	s.Doubt.askSoon(src.At)
	return Applied
}
