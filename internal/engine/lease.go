package engine

import (
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Renew counts the lease up for its holder: a write of the record by the holder that goes on is a renewal, and whoever
// watches starts to count anew. It reports whether the lease is still this one.
func (r *Run) Renew(id string) bool {
	if r.Lease == nil || r.Lease.ID != id {
		return false
	}
	r.Lease.Renewal++
	return true
}

// LeaseEnded ends a lease whose holder is gone: its reads are ready again, its writes unknown. Each executing step has
// lost one worker, and the attempt costs nothing.
func (r *Run) LeaseEnded(tools run.Tools, src Source) Verdict {
	if r.Lease == nil {
		return Dropped
	}
	for _, s := range r.Steps {
		if s.State == run.Executing {
			r.lost(s, tools, src)
		}
	}
	r.conclude(src.At)
	return Applied
}

// lost: the worker of an executing step is gone, and nothing is known of the call.
func (r *Run) lost(s *Step, tools run.Tools, src Source) {
	tool, _ := tools.Tool(s.Tool)
	s.Losses++
	s.Used = max(0, s.Used-1)
	commit := envelope.NotCommitted
	if s.Effect == envelope.Write {
		commit = envelope.Unknown
	}
	r.closeAttempt(s.Dispatch, src.At, envelope.CodeWorkerLost, commit)
	switch {
	case s.Effect == envelope.Write:
		r.doubt(s, Fail{Row: envelope.RowFor(envelope.CodeWorkerLost, envelope.Write)}, tool, src, false)
	case s.Losses >= poisonAfter(tool):
		r.fail(s, *failure(envelope.CodePoisonJob, nil), src.At)
	default:
		r.again(s, Fail{Row: envelope.RowFor(envelope.CodeWorkerLost, envelope.Read)}, tool, 0, src)
	}
}

// GiveBack is the holder's own word at the end of its drain time about a call that it has cut off: a read is ready again,
// a write unknown, or ready where it provably was never sent. It costs no attempt and counts as no loss.
func (r *Run) GiveBack(d DispatchID, sent bool, tools run.Tools, src Source) Verdict {
	s := r.Carrying(d)
	if s == nil || s.State != run.Executing {
		return Dropped
	}
	defer r.conclude(src.At)
	tool, _ := tools.Tool(s.Tool)
	s.Used = max(0, s.Used-1)
	if s.Effect == envelope.Write && (sent || s.Unsettled || s.Disputed) {
		if !sent {
			r.Spent.ReleaseCall()
		}
		r.closeAttempt(d, src.At, envelope.CodeOutcomeUnknown, envelope.Unknown)
		r.doubt(s, Fail{Row: envelope.RowFor(envelope.CodeOutcomeUnknown, envelope.Write)}, tool, src, false)
		return Applied
	}
	if !sent {
		r.Spent.ReleaseCall()
	}
	r.closeAttempt(d, src.At, envelope.CodeUpstreamUnavailable, envelope.NotCommitted)
	if r.ending() {
		r.cut(s, src.At)
		return Applied
	}
	s.to(run.Ready)
	s.NotBefore = 0
	return Applied
}

// Postpone lets a step wait whose tool has no slot or token free. Nothing was dispatched: no outcome, no attempt.
func (r *Run) Postpone(name string, until, now run.Time) Verdict {
	s := r.Step(name)
	if s == nil || !s.waits() || r.closed() || s.NotBefore > now && !s.Postponed {
		return Dropped // one that waits for a time has no turn yet
	}
	defer r.conclude(now)
	s.to(run.Waiting)
	s.NotBefore, s.WaitFrom, s.Postponed = until, now, true
	return Applied
}

// Expire decides the end by the deadline: what waits is cut off at once; reads in flight are cut off by their holder; a
// write in flight is given up and verified without regard to the deadline.
func (r *Run) Expire(now run.Time) Verdict {
	if r.End != nil || r.Decided != nil || now < r.Deadline {
		return Dropped
	}
	r.decide(Decision{Why: ByTime, Code: envelope.CodeTimeExhausted, At: now})
	r.cutOff(now)
	r.conclude(now)
	return Applied
}

// CutRead ends a read in flight that its holder has cancelled because the deadline or a cancellation decided the end.
func (r *Run) CutRead(d DispatchID, now run.Time) Verdict {
	s := r.Carrying(d)
	if s == nil || s.State != run.Executing || s.Effect != envelope.Read || !r.cutting() {
		return Dropped
	}
	defer r.conclude(now)
	code := r.Decided.Code
	if r.Decided.Why == ByCancel {
		code = envelope.CodeCancelled
	}
	r.closeAttempt(d, now, code, envelope.NotCommitted)
	r.cut(s, now)
	return Applied
}

// Cutting reports whether reads in flight are to be cut off now.
func (r *Run) Cutting() bool { return r.cutting() }

// CancelRun records the request to stop (contract §9): undispatched work stops, what is in flight settles by its own
// evidence. It reports whether the record changed; a run that has ended, or whose end is decided, keeps its end.
func (r *Run) CancelRun(by, reason string, now run.Time) Verdict {
	if r.End != nil || r.Cancel != nil {
		return Dropped
	}
	r.Cancel = &Note{By: by, Reason: reason, At: now}
	r.note(Event{At: now, Kind: EventCancel, By: by, Reason: reason})
	if r.Decided == nil {
		r.decide(Decision{Why: ByCancel, At: now})
		r.cutOff(now)
	}
	r.conclude(now)
	return Applied
}

// CreateCancelled makes the record of a run whose job still waits in a queue, ended cancelled.
func CreateCancelled(id run.ID, m Message, d Defaults, by, reason string, now run.Time) *Run {
	r := Create(id, m, d, now)
	// The job stays in the queue and must be answered RUN_CLOSED, not be taken for the message seen here.
	r.Jobs = nil
	r.CancelRun(by, reason, now)
	return r
}
