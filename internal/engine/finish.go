package engine

import (
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// active: something is in flight or unknown, so the episode cannot end (one-end).
func (r *Run) active() bool {
	for _, s := range r.Steps {
		if s.State == run.Executing || s.State == run.Unknown {
			return true
		}
	}
	return false
}

func (r *Run) executing() bool {
	for _, s := range r.Steps {
		if s.State == run.Executing {
			return true
		}
	}
	return false
}

func (r *Run) inDoubt() bool {
	for _, s := range r.Steps {
		if s.State == run.Unknown {
			return true
		}
	}
	return false
}

// forgiven: an optional step's failure does not stop the run: fatal, or its attempts exhausted (contract §3).
func (s *Step) forgiven() bool {
	if s.Waived {
		return true
	}
	return s.Optional && (s.State == run.Fatal || s.State == run.NeedsHuman && s.Fail != nil && s.Fail.Row.Code == envelope.CodeAttemptsExhausted)
}

// failedHard: the step ended without success and nobody has forgiven it.
func (s *Step) failedHard() bool {
	return (s.State == run.Fatal || s.State == run.NeedsHuman) && !s.forgiven()
}

// allDone: every step that is not optional is proven done, or waived.
func (r *Run) allDone() bool {
	for _, s := range r.Steps {
		if s.State == run.OK || s.forgiven() {
			continue
		}
		if s.Optional && s.State == run.Cancelled {
			continue
		}
		return false
	}
	return true
}

// decide fixes the reason of the end; the first one stays.
func (r *Run) decide(d Decision) {
	if r.Decided == nil && r.End == nil {
		r.Decided = &d
	}
}

// conclude is the last part of every event: it decides the end if the steps do, and ends the episode once nothing is in
// flight or unknown.
func (r *Run) conclude(now run.Time) {
	r.UpdatedAt = now
	if r.merging {
		return
	}
	if !r.executing() {
		r.Lease = nil
	}
	if r.End != nil {
		return
	}
	if r.Decided == nil {
		if s := r.decider(); s != nil {
			r.decide(Decision{Why: ByStep, Step: s.Name, At: now})
		}
	}
	if r.Decided != nil {
		r.endResends(now)
	}
	if r.active() {
		return
	}
	switch {
	case r.Decided != nil:
		r.finish(now)
	case !r.More && r.allDone():
		r.end(End{Outcome: envelope.OK, At: now})
	}
}

// endResends hands the unknown writes to a person that wait to be sent again: nothing is sent once the end is decided, and
// nothing else comes by to settle them soon.
func (r *Run) endResends(now run.Time) {
	for _, s := range r.Steps {
		if s.State == run.Unknown && s.Doubt.Resend {
			r.unverifiable(s, s.Doubt.Row.Code, now)
		}
	}
}

// decider is the first step that ends the episode by itself: one for a person, or a fatal one in a run that wants no more
// jobs.
func (r *Run) decider() *Step {
	for _, s := range r.Steps {
		if s.failedHard() && (s.State == run.NeedsHuman || !r.More) {
			return s
		}
	}
	return nil
}

// finish ends an episode whose end is decided and in which nothing is in flight any more.
func (r *Run) finish(now run.Time) {
	d := r.Decided
	if d.Why == ByStep && r.decider() == nil {
		// The step that decided the end has been proven done meanwhile (late proof): the run is as open as before.
		r.Decided = nil
		switch {
		case r.Cancel != nil:
			r.decide(Decision{Why: ByCancel, At: now})
			r.finish(now)
		case !r.More && r.allDone():
			r.end(End{Outcome: envelope.OK, At: now})
		}
		return
	}
	if d.Why != ByStep {
		r.cutOff(now)
	}
	r.handUnsettled(now)
	worst := r.worst()
	// A write that nobody could establish goes to a person whatever else had been decided (contract §6, §8).
	open := worst != nil && worst.State == run.NeedsHuman && worst.Fail.Row.CommitState != envelope.NotCommitted
	switch {
	case open || d.Why == ByStep && worst != nil:
		row := worst.Fail.Row
		r.end(End{Outcome: row.Outcome, Row: &row, Details: worst.Fail.Details, Step: worst.Name, At: now})
	case (d.Why == ByTime || d.Why == ByCancel) && !r.More && r.allDone():
		r.end(End{Outcome: envelope.OK, At: now})
	default:
		code := d.Code
		if d.Why == ByCancel {
			code = envelope.CodeCancelled
		}
		row := envelope.RowFor(code, envelope.Read)
		r.end(End{Outcome: row.Outcome, Row: &row, Step: r.cutStep(d), At: now})
	}
}

// handUnsettled hands to a person what waits for its next attempt while an earlier dispatch of it is still unknown: an
// episode does not end with an unknown write that nobody looks at (one-end).
func (r *Run) handUnsettled(now run.Time) {
	for _, s := range r.Steps {
		if s.waits() && s.Unsettled {
			last := envelope.Code("")
			if s.Fail != nil {
				last = s.Fail.Row.Code
			}
			r.unverifiable(s, last, now)
		}
	}
}

// worst is the step that speaks for a failed run: the first in the jobs' order among those for a person, before those that
// are fatal. A step that is unknown or disputed comes before all.
func (r *Run) worst() *Step {
	var best *Step
	rank := func(s *Step) int {
		switch {
		case s.State == run.NeedsHuman && s.Fail.Row.CommitState != envelope.NotCommitted:
			return 3
		case s.State == run.NeedsHuman:
			return 2
		}
		return 1
	}
	for _, s := range r.Steps {
		if s.failedHard() && (best == nil || rank(s) > rank(best)) {
			best = s
		}
	}
	return best
}

// cutStep names the step at which a budget, the deadline or a cancellation ended the run: the one that was cut off, else
// the first that had not started.
func (r *Run) cutStep(d *Decision) string {
	code := d.Code
	if d.Why == ByCancel {
		code = envelope.CodeCancelled
	}
	for _, s := range r.Steps {
		if (s.State == run.NeedsHuman || s.State == run.Cancelled) && s.Fail != nil && s.Fail.Row.Code == code {
			return s.Name
		}
	}
	if d.Step != "" {
		return d.Step
	}
	for _, s := range r.Steps {
		if s.notStarted() {
			return s.Name
		}
	}
	return ""
}

// cutOff ends the steps that a cancellation, the deadline or a budget keeps from going on. Those that were dispatched
// before get an outcome; those that never started get none (contract §6).
func (r *Run) cutOff(now run.Time) {
	for _, s := range r.Steps {
		switch {
		case !s.waits():
		case s.Attempt > 0:
			r.cut(s, now)
		case r.Decided.Why == ByCancel:
			s.to(run.Cancelled)
			s.NotBefore = 0
		case s.State == run.Waiting:
			s.to(run.Ready)
			s.NotBefore = 0
		}
	}
}

// cut ends one dispatched step by the decision's own code.
func (r *Run) cut(s *Step, now run.Time) {
	code, state := r.Decided.Code, run.NeedsHuman
	if r.Decided.Why == ByCancel {
		code, state = envelope.CodeCancelled, run.Cancelled
	}
	row := envelope.RowFor(code, envelope.Read)
	if s.Unsettled {
		r.unverifiable(s, code, now) // an earlier dispatch is still unknown
		return
	}
	s.to(state)
	s.Fail, s.NotBefore, s.Doubt = &Fail{Row: row}, 0, nil
	r.owe(s, row.Outcome, now)
}

// ending: no step gets another attempt, because something other than a step has decided the end.
func (r *Run) ending() bool { return r.Decided != nil && r.Decided.Why != ByStep }

// cutting: reads in flight are cut off too, because a cancellation or the deadline has decided the end.
func (r *Run) cutting() bool {
	return r.Decided != nil && (r.Decided.Why == ByCancel || r.Decided.Why == ByTime)
}

// end writes the terminal outcome of the episode, once (one-end), and opens the dead letter where one is due.
func (r *Run) end(e End) {
	if r.End != nil || r.active() {
		panic("run: one-end: " + r.dump())
	}
	r.End = &e
	r.Decided = nil
	r.Lease = nil
	o := Owed{
		N: r.Episode, Scope: envelope.RunScope, Outcome: e.Outcome, Effects: len(r.Effects), Remaining: r.remaining(nil),
		Spent: r.Spent, ElapsedMS: r.elapsed(e.At), At: e.At,
	}
	if e.Outcome != envelope.OK {
		o.Row, o.Details, o.Step, o.Failed = e.Row, e.Details, e.Step, e.Step
		if s := r.Step(e.Step); s != nil {
			o.Attempt, o.Tool, o.NotBefore = s.Attempt, s.Tool, s.NotBefore
			if e.Row.Directive == envelope.AfterInputFix {
				o.Left = r.proposalsLeft(s)
			}
		}
	}
	r.Owed = append(r.Owed, o)
	if e.Outcome == envelope.Fatal || e.Outcome == envelope.NeedsHuman {
		r.Letter = &Letter{ID: r.letterID(), Owner: r.letterOwner(), Open: true, At: e.At}
	}
}

func (r *Run) letterID() string { return letterID(r.ID(), r.Episode) }

// letterOwner is the owner of the failed step's tool, else the run's.
func (r *Run) letterOwner() string {
	if s := r.Step(r.End.Step); s != nil && s.Owner != "" {
		return s.Owner
	}
	return r.Owner
}
