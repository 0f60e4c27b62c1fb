package engine

import (
	"time"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Lookup is one lookup that is due.
type Lookup struct {
	Step, Tool string
	Dispatch   DispatchID
	Ref, Key   string
	Attempt    int
	Args       *strictjson.Args // resolved, as they were sent; nil if they cannot be had any more (see Fetch)
	// Proves: the record said that the window is over before this lookup was asked for, so absence counts.
	Proves bool
	Since  run.Time
}

// Lookups lists the unknown writes whose next lookup is due.
func (r *Run) Lookups(now run.Time) []Lookup {
	var out []Lookup
	for i, s := range r.Steps {
		if s.State != run.Unknown || s.Doubt.Resend || s.Doubt.Next > now {
			continue
		}
		args, _, err := r.resolve(i)
		if err != nil || args.Digest(s.Tool) != s.SentArgs {
			args = nil // a lookup for other args than were sent could prove the wrong thing
		}
		out = append(out, Lookup{
			Step: s.Name, Tool: s.Tool, Dispatch: s.Dispatch, Ref: r.Ref(s.Name), Key: s.Key, Attempt: s.Attempt, Args: args,
			Proves: s.Doubt.WindowOver, Since: s.Doubt.Since,
		})
	}
	return out
}

// Doubts lists the dispatches that are unknown and whose window has not been recorded as over: the reconciler times them on
// its own clock.
func (r *Run) Doubts() []DispatchID {
	var out []DispatchID
	for _, s := range r.Steps {
		if s.State == run.Unknown && !s.Doubt.Resend && !s.Doubt.WindowOver {
			out = append(out, s.Dispatch)
		}
	}
	return out
}

// WindowOver records that the consistency window of an unknown dispatch has passed: only a lookup sent after reading this
// proves absence. One is due now, and the spacing starts anew.
func (r *Run) WindowOver(d DispatchID, now run.Time) Verdict {
	s := r.Carrying(d)
	if s == nil || s.State != run.Unknown || s.Doubt.WindowOver || s.Doubt.Resend {
		return Dropped
	}
	defer r.conclude(now)
	s.Doubt.WindowOver, s.Doubt.Asked = true, 0
	s.Doubt.askSoon(now)
	return Applied
}

// askSoon makes the next lookup due at once, or as soon as the far side wants to be asked again.
func (d *Doubt) askSoon(now run.Time) { d.Next = max(now, d.NotBefore) }

// Looked applies a lookup's answer to the dispatch it asked about. proves is Lookup.Proves as it was when the lookup was
// sent.
func (r *Run) Looked(d DispatchID, l envelope.Lookup, proves bool, tools run.Tools, src Source) Verdict {
	s := r.Carrying(d)
	if s == nil || s.State != run.Unknown {
		return r.lookedLate(s, d, l, src)
	}
	if l.Invalid == "" && !r.fits(len(l.Result)) {
		l.Result, l.Invalid = nil, envelope.CodeResultTooLarge
	}
	defer r.conclude(src.At)
	tool, _ := tools.Tool(s.Tool)
	e := Event{At: src.At, Started: src.Start, Kind: EventVerify, By: src.By, Step: s.Name, Attempt: s.Attempt, Dispatch: d}
	e.see(l.Seen)
	switch {
	case l.Answer == envelope.Found:
		e.CommitState = envelope.Committed
		r.note(e)
		if s.Disputed {
			r.effect(s, found(l), src.At)
			r.fail(s, *failure(envelope.CodeOutcomeDisputed, nil), src.At)
			return Applied
		}
		r.done(s, found(l), src.At)
	case l.Answer == envelope.Disputed:
		e.Code, e.CommitState = envelope.CodeOutcomeDisputed, envelope.Unknown
		r.note(e)
		r.fail(s, *failure(envelope.CodeOutcomeDisputed, nil), src.At)
	case l.Answer == envelope.Absent && proves && hasWindow(tool):
		e.Code, e.CommitState = envelope.CodeVerifiedAbsent, envelope.NotCommitted
		r.note(e)
		r.absent(s, tool, src)
	case l.Answer == envelope.Failed && (proves && hasWindow(tool) || r.onlyOne(s)):
		// Where the far side may have got an earlier dispatch of the operation too, it may be telling of that one until the
		// window is over.
		row := endedRow(l.Row)
		e.Code, e.CommitState = row.Code, envelope.NotCommitted
		r.note(e)
		r.gaveUp(s, row, src.At)
	case (l.Answer == envelope.Absent || l.Answer == envelope.Failed) && hasWindow(tool):
		// Sent inside the window: absence proves nothing and does not count. One that is answered after the window has
		// been recorded as over changes nothing: the next one is due already.
		if s.Doubt.WindowOver {
			return Dropped
		}
		r.askAgain(s, tool, 0, src)
	case l.Answer == envelope.Later || l.Answer == envelope.Pending:
		r.comeAgain(s, tool, l, e, src)
	default:
		e.Code, e.CommitState = envelope.CodeVerificationUnavailable, envelope.Unknown
		r.note(e)
		r.undecided(s, tool, s.Doubt.Row.Code, 0, src)
	}
	return Applied
}

// lookedLate is a lookup's answer about a dispatch that is not unknown any more; s is the step if it is its last one.
func (r *Run) lookedLate(s *Step, d DispatchID, l envelope.Lookup, src Source) Verdict {
	last := s != nil
	if !last {
		s = r.dispatched(d)
	}
	if s == nil || last && s.State == run.Executing || l.Answer != envelope.Found && l.Answer != envelope.Pending {
		return Dropped
	}
	defer r.conclude(src.At)
	if l.Answer == envelope.Pending {
		return r.latePending(s, d, src)
	}
	if l.Invalid == "" && !r.fits(len(l.Result)) {
		l.Result, l.Invalid = nil, envelope.CodeResultTooLarge
	}
	return r.lateCommit(s, d, found(l), src)
}

func found(l envelope.Lookup) committed {
	return committed{result: l.Result, ref: l.Ref, evidRef: l.EvidenceRef, invalid: l.Invalid, proof: "lookup"}
}

// absent: a lookup sent after the window proved that the write was not done.
func (r *Run) absent(s *Step, tool *run.Tool, src Source) {
	switch {
	case s.Doubt.Said || s.Disputed:
		r.fail(s, *failure(envelope.CodeOutcomeDisputed, nil), src.At)
	case s.Losses >= poisonAfter(tool):
		r.fail(s, *failure(envelope.CodePoisonJob, nil), src.At)
	default:
		r.again(s, Fail{Row: envelope.RowFor(envelope.CodeVerifiedAbsent, envelope.Write)}, tool, 0, src)
	}
}

// gaveUp: the far side had the operation and ended it for good without having done it. It is not sent again by itself.
func (r *Run) gaveUp(s *Step, row envelope.Row, now run.Time) {
	if s.Disputed {
		r.fail(s, *failure(envelope.CodeOutcomeDisputed, nil), now)
		return
	}
	f := Fail{Row: row}
	if s.Fail != nil {
		f.Details = s.Fail.Details // they name what the far side made of the request
	}
	r.fail(s, f, now)
}

// onlyOne: the earlier dispatches of the step were all refused by their own replies or never left, so that what the far side
// has of the operation is the last one's.
func (r *Run) onlyOne(s *Step) bool {
	refused := 0
	for i := range r.History {
		if e := &r.History[i]; e.Kind == EventDispatch && e.Step == s.Name && e.Dispatch != s.Dispatch && e.CommitState == envelope.NotCommitted {
			refused++
		}
	}
	return refused == s.Attempt-1
}

// endedRow is how an operation that the far side has given up reads: nothing was done, and another attempt cannot help.
func endedRow(row envelope.Row) envelope.Row {
	if row.Code == "" {
		row = envelope.RowFor(envelope.CodeUpstreamError, envelope.Read)
	}
	row.CommitState = envelope.NotCommitted
	if row.Outcome != envelope.Fatal && row.Outcome != envelope.NeedsHuman {
		row = row.NeverRetried()
	}
	return row
}

// undecided: the lookup failed, its answer fits no rule, or the run has no time left to wait for another. They are bounded
// and never read as "not done". last is what is known of why nobody knows more.
func (r *Run) undecided(s *Step, tool *run.Tool, last envelope.Code, told time.Duration, src Source) {
	s.Doubt.Lookups++
	if tool == nil || tool.Verify == nil || s.Doubt.Lookups >= tool.Verify.MaxAttempts {
		r.unverifiable(s, last, src.At)
		return
	}
	r.askAgain(s, tool, told, src)
}

// comeAgain: the far side has the operation and is not through with it, or has not looked and wants to be asked later. As
// long as the run has time that is no failed lookup. l.RetryAfter may be longer than a time.Duration.
func (r *Run) comeAgain(s *Step, tool *run.Tool, l envelope.Lookup, e Event, src Source) {
	row := l.Row
	switch {
	case l.Answer == envelope.Pending:
		row = envelope.RowFor(envelope.CodeOperationPending, envelope.Write)
		s.Doubt.Said = true
		if s.Fail != nil {
			s.Fail.Row = row
		}
	case row.Code == "":
		row = envelope.RowFor(envelope.CodeUpstreamUnavailable, envelope.Read)
	}
	e.Code, e.CommitState = row.Code, envelope.Unknown
	r.noteOnce(e)
	if tool == nil || tool.Verify == nil {
		r.undecided(s, tool, row.Code, 0, src)
		return
	}
	most := tool.Retry.MaxRetryAfter.Milliseconds()
	left := int64(r.Deadline - src.At)
	if left > 0 {
		most = min(most, left)
	} else {
		most = min(most, tool.Retry.MaxDelay.Milliseconds()) // a person waits
	}
	told := time.Duration(max(0, min(l.RetryAfter, most))) * time.Millisecond
	if left <= 0 {
		r.undecided(s, tool, row.Code, told, src)
		return
	}
	r.askAgain(s, tool, told, src)
	s.Doubt.Next = min(s.Doubt.Next, r.Deadline)
	if l.Answer == envelope.Later {
		s.Doubt.NotBefore = s.Doubt.Next
	}
}

// askAgain spaces the lookups by the tool's backoff, or by what the far side has told where that is longer.
func (r *Run) askAgain(s *Step, tool *run.Tool, told time.Duration, src Source) {
	d := s.Doubt
	d.Asked++
	d.Next, d.NotBefore, d.WaitFrom = src.At.Add(max(told, tool.Retry.Delay(d.Asked, src.Random))), 0, src.At
	if told > 0 {
		d.NotBefore = src.At.Add(told)
	}
}

func poisonAfter(t *run.Tool) int {
	if t == nil || t.PoisonAfter <= 0 {
		return defaultPoison
	}
	return t.PoisonAfter
}

// Escalate hands the unknown writes to a person that can be neither looked up nor sent again: a resend that may not happen
// any more, or a tool that has lost its lookup. It is due whenever Next and Lookups have nothing for an unknown step.
func (r *Run) Escalate(tools run.Tools, src Source) Verdict {
	v := Dropped
	for _, s := range r.Steps {
		if s.State != run.Unknown {
			continue
		}
		tool, ok := tools.Tool(s.Tool)
		if !ok {
			continue // this process does not know the tool; another may
		}
		if s.Doubt.Resend && !r.mayResend(s, tool, src.At) || !s.Doubt.Resend && tool.Verify == nil {
			r.unverifiable(s, s.Doubt.Row.Code, src.At)
			v = Applied
		}
	}
	if v == Applied {
		r.conclude(src.At)
	}
	return v
}

// hasWindow: a lookup of the tool can prove absence.
func hasWindow(t *run.Tool) bool { return t != nil && t.Verify != nil && t.Verify.HasWindow }
