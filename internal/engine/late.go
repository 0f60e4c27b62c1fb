package engine

import (
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Evidence that comes when the step does not wait for it: the columns of the evidence table from "ready/waiting" on.

// afterwards is evidence about a step's last dispatch when the step is neither executing nor unknown any more.
func (r *Run) afterwards(s *Step, d DispatchID, reply envelope.Reply, tool *run.Tool, src Source) Verdict {
	if s.Effect != envelope.Write {
		return Dropped
	}
	switch {
	case reply.OK:
		return r.lateCommit(s, d, committed{result: reply.Result, ref: reply.Ref, evidRef: reply.EvidenceRef, proof: "reply"}, src)
	case reply.NoReply || reply.Row.CommitState != envelope.NotCommitted:
		return Dropped
	case s.State == run.OK:
		if reply.NotSent && s.Proof == "reply" {
			return Dropped
		}
		if !r.keep(s, d, envelope.NotCommitted, "", src) {
			return Dropped
		}
		r.alarm(envelope.CodeOutcomeDisputed, s, src.At)
		return Noted
	case r.End != nil:
		if s.Fail != nil && s.Fail.Row.Code == reply.Row.Code || !r.keep(s, d, envelope.NotCommitted, "", src) {
			return Dropped // it is what the step ended with
		}
		if s.commitState() == envelope.Committed {
			r.alarm(envelope.CodeOutcomeDisputed, s, src.At)
		}
		return Noted
	}
	return Dropped
}

// late is evidence about a dispatch that is no step's last one.
func (r *Run) late(d DispatchID, reply envelope.Reply, src Source) Verdict {
	if !reply.OK {
		return Dropped
	}
	s := r.dispatched(d)
	if s == nil || s.Effect != envelope.Write {
		return Dropped
	}
	return r.lateCommit(s, d, committed{result: reply.Result, ref: reply.Ref, evidRef: reply.EvidenceRef, proof: "reply"}, src)
}

// dispatched finds the step of an earlier dispatch in the history.
func (r *Run) dispatched(d DispatchID) *Step {
	for i := range r.History {
		if r.History[i].Dispatch == d {
			return r.Step(r.History[i].Step)
		}
	}
	return nil
}

// lateCommit is proof of a commit that comes when the step does not wait for it: the columns of the evidence table from
// "ready/waiting" on.
func (r *Run) lateCommit(s *Step, d DispatchID, c committed, src Source) Verdict {
	last := s.Dispatch == d
	switch {
	case s.State == run.OK:
		if c.evidRef == "" || c.evidRef == s.EvidRef || !r.keep(s, d, envelope.Committed, c.evidRef, src) {
			return Dropped
		}
		r.alarm(envelope.CodeOutcomeDisputed, s, src.At)
		return Noted
	case r.End != nil:
		if !r.keep(s, d, envelope.Committed, c.evidRef, src) {
			return Dropped
		}
		if s.Fail == nil || s.Fail.Row.CommitState == envelope.NotCommitted {
			r.alarm(envelope.CodeOutcomeDisputed, s, src.At) // it contradicts the end
		}
		return Noted
	case s.Unsettled && s.State == run.Executing || s.State == run.Unknown && s.Doubt.Resend:
		// The same key and bytes were sent again because the tool promises that it is one operation: proof of any of
		// its dispatches is proof of the operation.
		r.note(Event{At: src.At, Kind: EventEvidence, By: src.By, Step: s.Name, Attempt: s.Attempt, CommitState: envelope.Committed, Dispatch: d})
		r.closeAttempt(s.Dispatch, src.At, "", envelope.Committed)
		r.done(s, c, src.At)
		return Applied
	case s.State == run.Executing || s.State == run.Unknown:
		// A later dispatch is out: two may have been done. The one in flight settles, then a person decides.
		if s.Disputed {
			return Dropped
		}
		s.Disputed = true
		r.keep(s, d, envelope.Committed, c.evidRef, src)
		if s.State == run.Unknown {
			r.fail(s, *failure(envelope.CodeOutcomeDisputed, nil), src.At)
		}
		return Applied
	case (s.State == run.Ready || s.State == run.Waiting) && (last || s.Attempt > 0):
		// Absent was believed, and it was done after all: no new dispatch; the history keeps the absent.
		r.note(Event{At: src.At, Kind: EventEvidence, By: src.By, Step: s.Name, Attempt: s.Attempt, CommitState: envelope.Committed, Dispatch: d})
		r.done(s, c, src.At)
		return Applied
	}
	if s.State != run.NeedsHuman || c.invalid == envelope.CodeResultInvalid {
		if !r.keep(s, d, envelope.Committed, c.evidRef, src) {
			return Dropped
		}
		r.alarm(envelope.CodeOutcomeDisputed, s, src.At)
		return Noted
	}
	// Held while the episode goes on: what is proven done is done.
	r.note(Event{At: src.At, Kind: EventEvidence, By: src.By, Step: s.Name, Attempt: s.Attempt, CommitState: envelope.Committed, Dispatch: d})
	r.done(s, c, src.At)
	return Applied
}

// latePending is the far side's word that it is at work on a dispatch that was taken for settled as not done: nothing of the
// operation goes out any more, and a person decides.
func (r *Run) latePending(s *Step, d DispatchID, src Source) Verdict {
	if r.End != nil || s.Disputed || !s.waits() && s.State != run.Executing && s.State != run.Unknown {
		return Dropped
	}
	r.note(Event{At: src.At, Started: src.Start, Kind: EventVerify, By: src.By, Step: s.Name, Attempt: s.Attempt, Code: envelope.CodeOperationPending, CommitState: envelope.Unknown, Dispatch: d})
	if s.State == run.Executing {
		s.Disputed = true // what is in flight settles first
		return Applied
	}
	r.fail(s, *failure(envelope.CodeOutcomeDisputed, nil), src.At)
	return Applied
}

// keep holds on to evidence that changes no state, once.
func (r *Run) keep(s *Step, d DispatchID, c envelope.CommitState, ref string, src Source) bool {
	for _, k := range r.Evidence {
		if k.Step == s.Name && k.Dispatch == d && k.CommitState == c && k.EvidenceRef == ref {
			return false
		}
	}
	if len(r.Evidence) < 64 {
		r.Evidence = append(r.Evidence, Kept{Step: s.Name, Dispatch: d, Attempt: s.Attempt, CommitState: c, EvidenceRef: ref, By: src.By, At: src.At})
	}
	r.note(Event{At: src.At, Kind: EventEvidence, By: src.By, Step: s.Name, Attempt: s.Attempt, CommitState: c, Dispatch: d})
	return true
}

// alarm owes an alert that does not follow from the run's end.
func (r *Run) alarm(code envelope.Code, s *Step, now run.Time) {
	reason := envelope.RowFor(code, envelope.Read).ReasonCode
	for _, a := range r.Alarms {
		if a.Reason == reason && a.Step == s.Name {
			return
		}
	}
	r.Alarms = append(r.Alarms, Alarm{N: len(r.Alarms) + 1, Reason: reason, Step: s.Name, At: now})
}
