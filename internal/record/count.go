package record

import (
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Observer is told of what the records have stored, once in the whole fleet: only the process whose write it was is told.
// A process that ends between the write and the count loses that count; none is ever made twice. All methods are safe for
// concurrent use and return at once.
type Observer interface {
	// Outcome: an outcome is in its stream. reason is "" on ok.
	Outcome(scope, outcome, reason string)
	// Refusal: the outcome refused a job or a step.
	Refusal(code string)
	// Escalation: a run has ended for a person. tool is "" where no step is to blame.
	Escalation(tool, reason string)
	// UnknownResolved: a stored record does not have a write as unknown any more.
	UnknownResolved(tool, verdict string)
	SettleTime(took time.Duration)
}

// countStored counts those owed outcomes whose publication was newly stored.
func (rs *Records) countStored(r *engine.Run, out []port.Outgoing) {
	if rs.Observe == nil {
		return
	}
	for i := range out {
		if !out[i].New {
			continue
		}
		o, reason := &r.Owed[i], ""
		if o.Row != nil {
			reason = o.Row.ReasonCode
			if o.Scope == envelope.StepScope && isRefusal(o.Row.Code) {
				rs.Observe.Refusal(string(o.Row.Code))
			}
		}
		rs.Observe.Outcome(string(o.Scope), string(o.Outcome), reason)
		if o.Scope == envelope.RunScope && o.Outcome == envelope.NeedsHuman {
			rs.Observe.Escalation(o.Tool, reason)
		}
	}
}

func isRefusal(c envelope.Code) bool {
	switch c {
	case envelope.CodeIdenticalRetry, envelope.CodeStepConflict, envelope.CodeRunClosed, envelope.CodeJobInvalid:
		return true
	}
	return false
}

// doubt is a write that the stored record has as unknown.
type doubt struct {
	step, tool string
	since      envelope.Time
}

// unknown: nobody knows whether the write happened. One that is sent again under its key within idempotent_for still is.
func unknown(s *engine.Step) bool {
	return s.State == run.Unknown || s.Unsettled && s.State != run.OK && s.State != run.NeedsHuman
}

func doubtsOf(r *engine.Run) (out []doubt) {
	for _, s := range r.Steps {
		if !unknown(s) {
			continue
		}
		d := doubt{s.Name, s.Tool, s.FirstSent}
		if s.Doubt != nil {
			d.since = s.Doubt.Since
		}
		out = append(out, d)
	}
	return out
}

// countSettled counts what the revision that was just stored has settled of the one before: by whatever lookup, reply,
// report or escalation.
func (rs *Records) countSettled(h *Handle) {
	before := h.doubts
	h.doubts = doubtsOf(h.Run)
	if rs.Observe == nil {
		return
	}
	for _, d := range before {
		s, verdict := h.Run.Step(d.step), "absent"
		switch {
		case s == nil || unknown(s):
			continue
		case s.State == run.OK:
			verdict = "found"
		case s.State == run.NeedsHuman:
			verdict = "escalated"
		case s.State == run.Fatal:
			verdict = "failed"
		}
		rs.Observe.UnknownResolved(d.tool, verdict)
		rs.Observe.SettleTime(rs.Now().Sub(d.since))
	}
}
