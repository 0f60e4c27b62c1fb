package engine

import (
	"encoding/json"
	"time"

	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Source says who learned something about a dispatch.
type Source struct {
	By     string   // worker, reconciler or person, for the history
	Random float64  // in [0, 1), for jitter
	At     run.Time // now
	Start  run.Time // when a lookup was sent; zero otherwise
}

// committed is proof that a dispatch took effect.
type committed struct {
	result  json.RawMessage
	ref     *envelope.ObjectRef
	omitted bool
	invalid envelope.Code // proven done, but what came back does not fit
	evidRef string
	proof   string // reply, lookup, report or person
}

// Verdict says what an event made of a piece of evidence.
type Verdict string

const (
	Applied Verdict = "applied" // the record has changed
	Noted   Verdict = "noted"   // kept in the history or as late evidence; no state changed
	Dropped Verdict = "dropped" // changes nothing; the record need not be written
)

// Reply applies a call's end as its living holder, or the holder's own journal, knows it. It is the first row group of the
// evidence table: the dispatch id decides whether it may change a step.
func (r *Run) Reply(d DispatchID, reply envelope.Reply, tools run.Tools, src Source) Verdict {
	defer r.conclude(src.At)
	s := r.Carrying(d)
	if s == nil {
		return r.late(d, reply, src)
	}
	tool, _ := tools.Tool(s.Tool)
	if s.State != run.Executing && s.State != run.Unknown {
		return r.afterwards(s, d, reply, tool, src)
	}
	if reply.OK && !r.fits(len(reply.Result)) {
		reply = envelope.Reply{Row: envelope.RowFor(envelope.CodeResultTooLarge, s.Effect), Seen: reply.Seen}
	}
	if !reply.OK {
		reply.Row = rowOfReply(reply, s.Effect)
	}
	r.closeAttempt(d, src.At, replyCode(reply), replyCommit(reply, s.Effect))
	r.see(d, reply.Seen)
	switch {
	case reply.OK && s.mustLookUp(reply, tool):
		if s.State == run.Unknown {
			if s.Doubt.Said {
				return Dropped
			}
			s.Doubt.Said = true // it is being looked up already, and absence is a dispute from now on
			return Applied
		}
		r.doubt(s, doubtful(reply), tool, src, true)
	case reply.OK:
		r.done(s, committed{result: reply.Result, ref: reply.Ref, evidRef: reply.EvidenceRef, proof: "reply"}, src.At)
	case s.Effect == envelope.Read:
		r.failed(s, reply, tool, src)
	case reply.NoReply || reply.Row.CommitState == envelope.Unknown:
		if s.State == run.Unknown {
			return Dropped // no reply tells nothing new about an unknown write
		}
		r.doubt(s, Fail{Row: unknownRow(reply.Row), Details: reply.Details}, tool, src, false)
	case s.State == run.Unknown && s.Doubt.Said:
		return Dropped // the far side has been seen to have the operation: what it refused of it settles nothing
	case s.Unsettled && reply.NotSent || s.provesNothing(d, reply.Row.Category):
		if s.State == run.Unknown {
			return Dropped
		}
		r.doubt(s, doubtful(reply), tool, src, false)
	default:
		r.failed(s, reply, tool, src)
	}
	return Applied
}

// doubtful is a reply that proves nothing about a write.
func doubtful(reply envelope.Reply) Fail {
	return Fail{Row: envelope.RowFor(envelope.CodeOutcomeUnknown, envelope.Write), Details: reply.Details}
}

// mustLookUp: the tool's own word is not enough for this write.
func (s *Step) mustLookUp(reply envelope.Reply, tool *run.Tool) bool {
	if s.Effect != envelope.Write || tool == nil || tool.Verify == nil {
		return false
	}
	return reply.LookUp || tool.Verify.Always
}

// provesNothing: an earlier dispatch of the operation was unknown, so "already done" or "unknown parameter" says nothing
// about the operation. A dispatch's own refusal does settle that dispatch.
func (s *Step) provesNothing(d DispatchID, c envelope.Category) bool {
	return s.Doubted != "" && s.Doubted != d && (c == envelope.Conflict || c == envelope.Validation)
}

// rowOfReply is the row of a failure as it reads for the tool's effect: a call without a reply may come without one, and
// a read is never unknown.
func rowOfReply(reply envelope.Reply, effect envelope.Effect) envelope.Row {
	switch {
	case effect == envelope.Write && reply.Row.Code == "":
		return envelope.RowFor(envelope.CodeOutcomeUnknown, envelope.Write)
	case effect == envelope.Read && (reply.Row.Code == "" || reply.Row.Code == envelope.CodeOutcomeUnknown):
		return envelope.RowFor(envelope.CodeUpstreamTimeout, envelope.Read)
	case effect == envelope.Read && reply.Row.CommitState != envelope.NotCommitted:
		return envelope.Custom(reply.Row.Code, reply.Row.Category, envelope.NotCommitted, envelope.Read)
	}
	return reply.Row
}

// unknownRow is the row with which a write becomes unknown: it behaves like OUTCOME_UNKNOWN whatever its code.
func unknownRow(row envelope.Row) envelope.Row {
	as := envelope.RowFor(envelope.CodeOutcomeUnknown, envelope.Write)
	if row.CommitState == envelope.Unknown {
		row.Directive, row.NextAction, row.Outcome = as.Directive, as.NextAction, as.Outcome
		return row
	}
	return as
}

func replyCode(reply envelope.Reply) envelope.Code {
	if reply.OK {
		return ""
	}
	return reply.Row.Code
}

func replyCommit(reply envelope.Reply, effect envelope.Effect) envelope.CommitState {
	switch {
	case reply.OK:
		return envelope.Committed
	case effect == envelope.Read:
		return envelope.NotCommitted
	}
	return reply.Row.CommitState
}

// closeAttempt completes the history's line of a dispatch.
func (r *Run) closeAttempt(d DispatchID, at run.Time, code envelope.Code, commit envelope.CommitState) {
	for i := len(r.History) - 1; i >= 0; i-- {
		if e := &r.History[i]; e.Kind == EventDispatch && e.Dispatch == d {
			if e.CommitState == "" {
				e.At, e.Code, e.CommitState = at, code, commit
			}
			return
		}
	}
}

// see notes what was seen of an attempt. Who does not know when it left leaves what is known of that.
func (e *Event) see(s envelope.Seen) {
	if s.SentAt == 0 {
		s.SentAt = e.SentAt
	}
	e.SentAt, e.AnsweredAt, e.HTTPStatus, e.MCPCode = s.SentAt, s.AnsweredAt, s.HTTPStatus, s.MCPCode
}

// see completes the line of a dispatch by what was seen of it, also where its end was established without that.
func (r *Run) see(d DispatchID, s envelope.Seen) {
	for i := len(r.History) - 1; i >= 0 && s != (envelope.Seen{}); i-- {
		if e := &r.History[i]; e.Kind == EventDispatch && e.Dispatch == d {
			e.see(s)
			return
		}
	}
}

// done makes a step ok: proven committed (a read: proven done).
func (r *Run) done(s *Step, c committed, now run.Time) {
	if c.invalid == envelope.CodeResultInvalid {
		// Committed for certain, but what came back does not fit: a person must give the result.
		row := envelope.RowFor(envelope.CodeResultInvalid, envelope.Read).Escalated()
		row.CommitState = envelope.Committed
		r.effect(s, c, now)
		r.fail(s, Fail{Row: row}, now)
		return
	}
	if s.Disputed && s.State == run.Executing {
		// Two dispatches of one operation are proven: no third, and a person decides.
		r.effect(s, c, now)
		r.fail(s, *failure(envelope.CodeOutcomeDisputed, nil), now)
		return
	}
	s.to(run.OK)
	s.Doubt, s.Fail, s.NotBefore, s.Unsettled, s.Unchecked = nil, nil, 0, false, false
	s.Result, s.ResultRef, s.Omitted = c.result, c.ref, c.omitted || c.invalid != ""
	if s.Omitted {
		s.Result = nil
	}
	s.Proof, s.ProvenAt, s.EvidRef = c.proof, now, c.evidRef
	if len(s.Result) == 0 && !s.Omitted && s.ResultRef == nil {
		s.Result = json.RawMessage("null")
	}
	r.size += len(s.Result) // until the next encoding says what it is
	r.effect(s, c, now)
	r.owe(s, envelope.OK, now)
	r.restart()
}

// effect enters a proven write into the list of completed effects, once.
func (r *Run) effect(s *Step, c committed, now run.Time) {
	if s.Effect != envelope.Write {
		return
	}
	for i := range r.Effects {
		if r.Effects[i].Step == s.Name {
			if r.Effects[i].EvidenceRef == "" {
				r.Effects[i].EvidenceRef = c.evidRef
			}
			return
		}
	}
	r.Effects = append(r.Effects, Effect{Step: s.Name, At: now, EvidenceRef: c.evidRef})
}

// doubt makes a write unknown: what follows depends on what the tool offers.
func (r *Run) doubt(s *Step, f Fail, tool *run.Tool, src Source, said bool) {
	row := f.Row
	if s.Doubted == "" {
		s.Doubted = s.Dispatch
	}
	switch {
	case s.Disputed:
		r.fail(s, *failure(envelope.CodeOutcomeDisputed, nil), src.At)
	case (tool == nil || tool.Verify == nil) && s.Losses >= poisonAfter(tool):
		// It loses every worker and cannot be looked up: no more of them, and what is known of it is nothing.
		f := failure(envelope.CodePoisonJob, nil)
		f.Row.CommitState = envelope.Unknown
		r.fail(s, *f, src.At)
	case tool != nil && tool.Verify != nil:
		s.to(run.Unknown)
		s.Fail, s.NotBefore = &f, 0
		s.Doubt = &Doubt{Since: src.At, Said: said, Next: src.At, Row: row}
		r.owe(s, envelope.UnknownNow, src.At)
	case r.mayResend(s, tool, src.At):
		next := src.At.Add(tool.Retry.Delay(s.Used, src.Random))
		s.to(run.Unknown)
		s.Fail, s.NotBefore = &f, 0
		s.Doubt = &Doubt{Since: src.At, Next: next, Resend: true, Row: row}
		r.owe(s, envelope.UnknownNow, src.At)
	default:
		s.Fail = &f
		r.unverifiable(s, row.Code, src.At)
	}
}

// mayResend: the tool promises idempotent_for, the time is not over, and neither attempts nor the run's end forbid it.
func (r *Run) mayResend(s *Step, tool *run.Tool, now run.Time) bool {
	return tool != nil && tool.IdempotentFor > 0 && r.Decided == nil && s.Used < r.attempts(tool) &&
		now < s.FirstSent.Add(tool.IdempotentFor) && r.Spent.ToolCalls < r.Budget.MaxToolCalls
}

// unverifiable hands an unknown write to a person, with what is known of how it failed last.
func (r *Run) unverifiable(s *Step, last envelope.Code, now run.Time) {
	f := failure(envelope.CodeVerificationUnavailable, nil)
	if s.Fail != nil {
		f.Details = s.Fail.Details
	}
	if last != "" && last != envelope.CodeOutcomeUnknown {
		f.Details = with(f.Details, "last_code", string(last))
	}
	r.fail(s, *f, now)
}

// failed applies an established "nothing was done": by its directive.
func (r *Run) failed(s *Step, reply envelope.Reply, tool *run.Tool, src Source) {
	row := reply.Row
	if s.Disputed {
		r.fail(s, *failure(envelope.CodeOutcomeDisputed, nil), src.At)
		return
	}
	if row.Outcome != envelope.Retryable {
		r.fail(s, Fail{Row: row, Details: reply.Details}, src.At)
		return
	}
	s.Failures++
	r.again(s, Fail{Row: row, Details: reply.Details}, tool, reply.RetryAfter, src)
}

// again schedules the next attempt, or ends the step where none may follow. retryAfter is in milliseconds and may be
// longer than a time.Duration.
func (r *Run) again(s *Step, f Fail, tool *run.Tool, retryAfter int64, src Source) {
	now := src.At
	s.Doubt = nil
	if r.ending() {
		r.cut(s, now)
		return
	}
	limit := r.attempts(tool)
	if s.Used >= limit && s.Unsettled {
		s.Fail = &f
		r.unverifiable(s, f.Row.Code, now)
		return
	}
	if s.Used >= limit {
		r.fail(s, *r.exhausted(f), now)
		return
	}
	var wait time.Duration
	if tool != nil && f.Row.Code != envelope.CodeVerifiedAbsent && f.Row.Code != envelope.CodeWorkerLost {
		if retryAfter > tool.Retry.MaxRetryAfter.Milliseconds() || retryAfter > 0 && retryAfter > int64(r.Deadline-now) {
			s.NotBefore = safeAdd(now, retryAfter)
			if s.Unsettled {
				s.Fail = &f
				r.unverifiable(s, f.Row.Code, now) // an earlier dispatch is still unknown
				return
			}
			f.Row = f.Row.Escalated()
			r.fail(s, f, now)
			return
		}
		wait = max(tool.Retry.Delay(max(s.Failures, 1), src.Random), time.Duration(retryAfter)*time.Millisecond)
	}
	s.Fail = &f
	s.NotBefore = envelope.Time(int64(now) + (int64(wait)+int64(time.Millisecond)-1)/int64(time.Millisecond))
	if wait == 0 {
		s.to(run.Ready)
	} else {
		s.to(run.Waiting)
		s.WaitFrom = now
	}
	o := r.owe(s, envelope.Retryable, now)
	o.NotBefore, o.WaitMS, o.Left = s.NotBefore, int64(s.NotBefore-now), limit-s.Used
}

// safeAdd leaves a time out that cannot be written as RFC 3339 with four digits of year.
func safeAdd(t run.Time, millis int64) run.Time {
	const last = run.Time(253402300799999) // 9999-12-31T23:59:59.999Z
	if sum := t + run.Time(millis); sum <= last && sum >= t {
		return sum
	}
	return 0
}
