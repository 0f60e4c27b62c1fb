package run

import (
	"encoding/json"

	"github.com/agentrun/executor/pkg/envelope"
)

// Lookup is one lookup that is due.
type Lookup struct {
	Step, Tool string
	Dispatch   DispatchID
	Ref, Key   string
	Attempt    int
	Args       json.RawMessage // resolved, as they were sent; nil if they cannot be had any more (see Fetch)
	// Proves: the record said that the window is over before this lookup was asked for, so absence counts.
	Proves bool
	Since  Time
}

// Lookups lists the unknown writes whose next lookup is due.
func (r *Run) Lookups(now Time) []Lookup {
	var out []Lookup
	for i, s := range r.Steps {
		if s.State != InDoubt || s.Doubt.Resend || s.Doubt.Next > now {
			continue
		}
		args, _, err := r.resolve(i)
		if err != nil || envelope.ArgsDigest(s.Tool, args) != s.SentArgs {
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
		if s.State == InDoubt && !s.Doubt.Resend && !s.Doubt.WindowOver {
			out = append(out, s.Dispatch)
		}
	}
	return out
}

// WindowOver records that the consistency window of an unknown dispatch has passed: only a lookup sent after reading this
// proves absence. One is due now, and the spacing starts anew.
func (r *Run) WindowOver(d DispatchID, now Time) Verdict {
	s := r.Carrying(d)
	if s == nil || s.State != InDoubt || s.Doubt.WindowOver || s.Doubt.Resend {
		return Dropped
	}
	defer r.settle(now)
	s.Doubt.WindowOver, s.Doubt.Next, s.Doubt.Asked = true, now, 0
	return Applied
}

// Looked applies a lookup's answer to the dispatch it asked about. proves is Lookup.Proves as it was when the lookup was
// sent.
func (r *Run) Looked(d DispatchID, l envelope.Lookup, proves bool, tools Tools, src Source) Verdict {
	s := r.Carrying(d)
	if s == nil {
		if s = r.dispatched(d); s == nil || l.Answer != envelope.Found {
			return Dropped
		}
		defer r.settle(src.At)
		return r.lateCommit(s, d, found(l), src)
	}
	if l.Invalid == "" && !r.fits(len(l.Result)) {
		l.Result, l.Invalid = nil, envelope.CodeResultTooLarge
	}
	if s.State != InDoubt {
		if l.Answer != envelope.Found || s.State == Executing {
			return Dropped
		}
		defer r.settle(src.At)
		return r.lateCommit(s, d, found(l), src)
	}
	defer r.settle(src.At)
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
	case l.Answer == envelope.Absent && proves && tool != nil && tool.Verify != nil && tool.Verify.HasWindow:
		e.Code, e.CommitState = envelope.CodeVerifiedAbsent, envelope.NotCommitted
		r.note(e)
		r.absent(s, tool, src)
	case l.Answer == envelope.Absent && tool != nil && tool.Verify != nil && tool.Verify.HasWindow:
		// Sent inside the window: absence proves nothing and does not count. One that is answered after the window has
		// been recorded as over changes nothing: the next one is due already.
		if s.Doubt.WindowOver {
			return Dropped
		}
		s.Doubt.Asked++
		s.Doubt.Next = src.At.Add(tool.Retry.Delay(s.Doubt.Asked, src.Random))
	default:
		e.Code, e.CommitState = envelope.CodeVerificationUnavailable, envelope.Unknown
		r.note(e)
		r.undecided(s, tool, src)
	}
	return Applied
}

func found(l envelope.Lookup) committed {
	return committed{result: l.Result, ref: l.Ref, evidRef: l.EvidenceRef, invalid: l.Invalid, proof: "lookup"}
}

// absent: a lookup sent after the window proved that the write was not done.
func (r *Run) absent(s *Step, tool *Tool, src Source) {
	switch {
	case s.Doubt.Said || s.Disputed:
		r.fail(s, *failure(envelope.CodeOutcomeDisputed, nil), src.At)
	case s.Losses >= poisonAfter(tool):
		r.fail(s, *failure(envelope.CodePoisonJob, nil), src.At)
	default:
		r.again(s, Fail{Row: envelope.RowFor(envelope.CodeVerifiedAbsent, envelope.Write)}, tool, 0, src)
	}
}

// undecided: the lookup failed, or its answer fits neither rule. They are bounded and never read as "not done".
func (r *Run) undecided(s *Step, tool *Tool, src Source) {
	s.Doubt.Lookups++
	s.Doubt.Asked++
	if tool == nil || tool.Verify == nil || s.Doubt.Lookups >= tool.Verify.MaxAttempts {
		r.unverifiable(s, s.Doubt.Row.Code, src.At)
		return
	}
	s.Doubt.Next = src.At.Add(tool.Retry.Delay(s.Doubt.Asked, src.Random))
}

func poisonAfter(t *Tool) int {
	if t == nil || t.PoisonAfter <= 0 {
		return defaultPoison
	}
	return t.PoisonAfter
}

// Escalate hands the unknown writes to a person that can be neither looked up nor sent again: a resend that may not happen
// any more, or a tool that has lost its lookup. It is due whenever Next and Lookups have nothing for an unknown step.
func (r *Run) Escalate(tools Tools, src Source) Verdict {
	v := Dropped
	for _, s := range r.Steps {
		if s.State != InDoubt {
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
		r.settle(src.At)
	}
	return v
}
