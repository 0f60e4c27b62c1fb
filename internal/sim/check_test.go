package sim

import (
	"encoding/json"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// The checks compare what the processes wrote and sent with the truth that the world keeps. w.mu is held in all of them.

// checkSave holds every revision of a record against its predecessor and against the ledger.
func (w *world) checkSave(who string, id run.ID, old, st *storedRun) {
	r, err := engine.Decode(st.Data)
	if err != nil {
		w.violated(engine.RuleNothingVanishes, "%s wrote a record that cannot be read: %v", who, err)
		return
	}
	st.run = r
	w.sayLocked("%s writes %s at %d: %s", who, id.Run, st.Seq, w.brief(r))
	for _, v := range r.Violations() {
		w.violated(v.Rule, "%s", v.What)
	}
	if r.End == nil && r.Lease == nil && r.Due(envelope.TimeOf(time.Now())) == 0 {
		w.violated(engine.RuleNothingVanishes, "%s goes on, is not leased and never due", id.Run)
	}
	var before *engine.Run
	if old != nil {
		before = old.run
	}
	w.checkStarts(id, before, r)
	w.checkPrompt(id, old, st)
	w.checkDoubts(before, r)
	w.checkEpisode(id, before, r)
	if r.End != nil {
		for _, s := range r.Steps {
			if s.State == run.Executing || s.State == run.Unknown || s.Unsettled && (s.State == run.Ready || s.State == run.Waiting) {
				w.violated(engine.RuleOneEnd, "%s ended %s while %s is %s (unsettled %v)", id.Run, r.End.Outcome, s.Name, s.State, s.Unsettled)
			}
		}
	}
	for _, e := range r.Effects {
		if w.ledger(id, e.Step) == 0 {
			w.violated(engine.RuleProvenOK, "completed effects have %s, the provider did not do it", e.Step)
		}
	}
	for _, s := range r.Steps {
		if s.State == run.OK && s.Effect == envelope.Write && w.ledger(id, s.Name) == 0 {
			w.violated(engine.RuleProvenOK, "%s is ok, the provider did not do it", s.Name)
		}
	}
}

// checkStarts: nothing starts while something is unknown, or after the end is decided.
func (w *world) checkStarts(id run.ID, old, r *engine.Run) {
	if old == nil {
		return
	}
	for _, s := range r.Steps {
		o := old.Step(s.Name)
		if o == nil || o.Dispatch == s.Dispatch || s.State != run.Executing {
			continue
		}
		if old.End != nil || old.Decided != nil && !undone(old) {
			w.violated(engine.RuleOneEnd, "%s of %s starts after the end was decided", s.Name, id.Run)
		}
		if o.State == run.Executing && s.Effect == envelope.Write && w.mayBeDone(o.Dispatch) {
			w.violated(engine.RuleNoBlindRepeat, "%s of %s starts again while %s executes", s.Name, id.Run, w.name(o.Dispatch))
		}
		if o.State == run.Unknown && !o.Doubt.Resend {
			w.violated(engine.RuleNoBlindRepeat, "%s of %s starts again while %s is unknown", s.Name, id.Run, w.name(o.Dispatch))
		}
		for _, other := range r.Steps {
			if other.State == run.Unknown && !s.Unsettled {
				w.violated(engine.RuleBlockedByUnknown, "%s of %s starts while %s is unknown", s.Name, id.Run, other.Name)
			}
		}
	}
}

// mayBeDone: the dispatch was sent, and it is done or may still be.
func (w *world) mayBeDone(d engine.DispatchID) bool {
	for _, f := range w.flights {
		if f.ID == d && (f.committed || f.mayCommit()) && w.tools[f.Tool].IdempotentFor == 0 {
			return true
		}
	}
	return false
}

// undone: the step that decided the end has been proven done before the end: the run is as open as before.
func undone(r *engine.Run) bool {
	s := r.Step(r.Decided.Step)
	return r.Decided.Why == engine.ByStep && s != nil && s.State == run.OK
}

// checkDoubts: a write becomes unknown only when its call has been cut off, or the window would be counted too early. A
// paused machine cuts nothing off: there the provider has to keep to the window by itself.
func (w *world) checkDoubts(old, r *engine.Run) {
	for _, s := range r.Steps {
		if s.State != run.Unknown {
			continue
		}
		if old != nil {
			if o := old.Step(s.Name); o != nil && o.State == run.Unknown {
				continue
			}
		}
		for _, f := range w.flights {
			if f.ID != s.Dispatch || f.cut {
				continue
			}
			if !f.by.isPaused() {
				w.violated(engine.RuleNoBlindRepeat, "%s is unknown while its call still runs", w.name(f.ID))
			}
			w.cutOff(f)
		}
	}
}

// checkEpisode: an end stays, and episodes follow each other.
func (w *world) checkEpisode(id run.ID, old, r *engine.Run) {
	if old == nil {
		if r.Episode != 1 {
			w.violated(engine.RuleOneEnd, "%s begins with episode %d", id.Run, r.Episode)
		}
		return
	}
	switch {
	case r.Episode == old.Episode:
		if old.End != nil && (r.End == nil || r.End.Outcome != old.End.Outcome || r.End.At != old.End.At) {
			w.violated(engine.RuleOneEnd, "the end of %s changes", id.Run)
		}
	case r.Episode != old.Episode+1 || old.End == nil:
		w.violated(engine.RuleOneEnd, "%s goes from episode %d to %d", id.Run, old.Episode, r.Episode)
	}
	if r.StepN < old.StepN {
		w.violated(engine.RuleOneEnd, "the outcomes of %s are numbered down from %d to %d", id.Run, old.StepN, r.StepN)
	}
}

// checkArrival is the heart: what arrives at the provider was intended, is recorded, and repeats nothing that may be done.
func (w *world) checkArrival(f *flight) {
	st := w.runs[f.id]
	if st == nil {
		w.violated(engine.RuleIntentFirst, "%s of %s is sent without a record", w.name(f.ID), f.id.Run)
		return
	}
	s := st.run.Carrying(f.ID)
	if s != nil && s.State == run.OK && w.tools[f.Tool].IdempotentFor > 0 {
		return // an earlier dispatch was reported done while this one, with the same key, was on its way to the wire
	}
	if s == nil || s.State != run.Executing {
		w.violated(engine.RuleIntentFirst, "%s of %s is sent, the record does not say that it executes", w.name(f.ID), f.id.Run)
		return
	}
	if n := w.spent[f.id] + 1; int64(n) > st.run.Budget.MaxToolCalls {
		w.violated(engine.RuleBudgetBeforeWork, "%s has %d calls, the limit is %d", f.id.Run, n, st.run.Budget.MaxToolCalls)
	}
	if f.Ref != f.id.Tenant+"/"+f.id.Run+"/"+f.Step {
		w.violated(engine.RuleSameRef, "%s is sent as %s", f.Step, f.Ref)
	}
	if f.Effect != envelope.Write {
		return
	}
	for _, e := range w.executors {
		if e.life == f.by && !e.disk.intended(f.ID) {
			w.violated(engine.RuleIntentFirst, "%s of %s is sent, its intent is not in the journal", w.name(f.ID), f.id.Run)
		}
	}
	if w.tools[f.Tool].IdempotentFor > 0 {
		return
	}
	for _, e := range w.flights {
		if e.Ref != f.Ref {
			continue
		}
		if e.ID == f.ID {
			w.violated(engine.RuleNoBlindRepeat, "%s is sent twice", w.name(f.ID))
		}
		if e.committed || e.mayCommit() {
			w.violated(engine.RuleNoBlindRepeat, "%s is sent as %s, %s may have done it (done %v)", f.Ref, w.name(f.ID), w.name(e.ID), e.committed)
		}
	}
}

func (w *world) checkCommit(f *flight) {
	if n := w.ledger(f.id, f.Step); n > 1 {
		w.violated(engine.RuleNoBlindRepeat, "%s is done %d times", f.Ref, n)
	}
}

// checkPosted: the numbers have no gaps, and what an outcome claims is true.
func (w *world) checkPosted(who string, o *port.Outgoing) {
	all := w.results[resultSubject{o.Run(), o.Scope}]
	w.sayLocked("%s publishes %s outcome %d of %s", who, o.Scope, o.N, o.RunID)
	if o.N != len(all) {
		w.violated(engine.RuleOneEnd, "%s outcome %d of %s is message %d", o.Scope, o.N, o.RunID, len(all))
	}
	var out envelope.Outcome
	if err := json.Unmarshal(o.Data, &out); err != nil {
		w.violated(engine.RuleOneEnd, "an outcome cannot be read: %v", err)
		return
	}
	if out.N != o.N || out.Scope != o.Scope {
		w.violated(engine.RuleOneEnd, "outcome %s/%d says %s/%d", o.Scope, o.N, out.Scope, out.N)
	}
	for _, e := range out.CompletedEffects {
		if w.ledger(o.Run(), e.Step) == 0 {
			w.violated(engine.RuleProvenOK, "outcome %s/%d of %s claims %s, the provider did not do it", o.Scope, o.N, o.RunID, e.Step)
		}
	}
	if o.Scope == envelope.RunScope && !out.Terminal {
		w.violated(engine.RuleOneEnd, "run outcome %d of %s is not terminal", o.N, o.RunID)
	}
}

// checkAck: a job may only go when its record is there.
func (w *world) checkAck(p *proc, m *message) {
	if m.Wake {
		return
	}
	st := w.runs[m.ID]
	if st == nil || !takenIn(st.run, m) {
		w.violated(engine.RuleNothingVanishes, "%s acknowledges %s, which no record knows", p.name, describe(m))
	}
}

// takenIn: the record remembers the message (accepted, or refused with an outcome), or has every step of it.
func takenIn(r *engine.Run, m *message) bool {
	for _, ref := range r.Jobs {
		if ref.Seq == m.Seq {
			return true
		}
	}
	var job struct {
		Steps []struct {
			Step string `json:"step"`
		} `json:"steps"`
	}
	if json.Unmarshal(m.Data, &job) != nil || r.End != nil || r.Decided != nil {
		return true
	}
	for _, s := range job.Steps {
		if r.Step(s.Step) == nil {
			return false
		}
	}
	return true
}

// settled reports whether nothing is owed by anybody any more.
func (w *world) settled() bool {
	for _, e := range w.executors {
		if e.puller == nil || e.life.isDead() {
			return false // it has not settled its journal
		}
	}
	for _, m := range w.messages {
		if !m.gone {
			return false
		}
	}
	for id, st := range w.runs {
		if st.run.End == nil || w.owing(id, st.run) != "" {
			return false
		}
	}
	return true
}

// owing says what an ended run still owes.
func (w *world) owing(id run.ID, r *engine.Run) string {
	if n := len(w.results[resultSubject{id, envelope.StepScope}]); n != r.StepN {
		return "step outcomes: " + itoa(uint64(n)) + " of " + itoa(uint64(r.StepN))
	}
	if n := len(w.results[resultSubject{id, envelope.RunScope}]); n != r.Episode {
		return "run outcomes: " + itoa(uint64(n)) + " of " + itoa(uint64(r.Episode))
	}
	open := ""
	if r.Letter != nil && r.Letter.Open {
		open = r.Letter.ID
	}
	there := ""
	for sub, l := range w.letters {
		if sub.id != id {
			continue
		}
		if there != "" {
			return "two letters"
		}
		if there = l.LetterID; open != "" && sub.owner != r.Letter.Owner {
			return "letter of " + r.Letter.Owner + " at " + sub.owner
		}
	}
	if open != there {
		return "letter open " + open + ", there " + there
	}
	return ""
}

// checkEnd holds the settled world against the ledger.
func (w *world) checkEnd() {
	for id, st := range w.runs {
		r := st.run
		if r.End == nil {
			w.violated(engine.RuleNothingVanishes, "%s does not come to an end: %s", id.Run, w.brief(r))
			continue
		}
		if owed := w.owing(id, r); owed != "" {
			w.violated(engine.RuleNothingVanishes, "%s ended and owes %s", id.Run, owed)
		}
		for _, s := range r.Steps {
			w.checkStepEnd(id, r, s)
		}
	}
	for _, e := range w.executors {
		for _, f := range e.disk.known() {
			w.checkKnown(f)
		}
	}
	for _, m := range w.messages {
		if !m.gone {
			w.violated(engine.RuleNothingVanishes, "%s stays in the queue", describe(m))
		}
	}
}

// checkKnown: what a journal that was not lost has as done has reached its record. (A tool under verify.always is not taken
// at its word.)
func (w *world) checkKnown(f engine.Fact) {
	st := w.runs[run.ID{Tenant: f.Intent.Tenant, Run: f.Intent.RunID}]
	if f.Effect == nil || !f.Effect.Reply.OK || st == nil {
		return
	}
	s := st.run.Step(f.Intent.Step)
	if v := w.tools[f.Intent.Tool].Verify; s == nil || s.State == run.OK || v != nil && v.Always {
		return
	}
	for _, e := range st.run.Effects {
		if e.Step == s.Name {
			return
		}
	}
	for _, k := range st.run.Evidence {
		if k.Dispatch == f.Intent.Dispatch {
			return
		}
	}
	w.violated(engine.RuleNothingVanishes, "a journal knows that %s did %s, its record does not", w.name(f.Intent.Dispatch), s.Name)
}

func (w *world) checkStepEnd(id run.ID, r *engine.Run, s *engine.Step) {
	done := w.ledger(id, s.Name)
	listed := false
	for _, e := range r.Effects {
		listed = listed || e.Step == s.Name
	}
	established := s.State == run.OK || s.Fail == nil || s.Fail.Row.CommitState == envelope.NotCommitted
	kept := false
	for _, k := range r.Evidence {
		kept = kept || k.Step == s.Name && k.CommitState == envelope.Committed
	}
	if s.Effect == envelope.Write && established && !kept && (done > 0) != listed {
		w.violated(engine.RuleProvenOK, "%s of %s ended %s, listed as effect %v, done %d times", s.Name, id.Run, s.State, listed, done)
	}
}

// brief is a record in one line.
func (w *world) brief(r *engine.Run) string {
	out := ""
	for _, s := range r.Steps {
		out += s.Name + "=" + string(s.State) + "/" + w.name(s.Dispatch) + " "
	}
	if r.Lease != nil {
		out += "lease " + r.Lease.Holder + "+" + itoa(uint64(r.Lease.Renewal)) + " "
	}
	if r.Decided != nil {
		out += "decided " + string(r.Decided.Why) + " "
	}
	if r.End != nil {
		out += "END " + string(r.End.Outcome) + " "
		if r.End.Row != nil {
			out += string(r.End.Row.Code) + " "
		}
	}
	if len(r.Owed) > 0 {
		out += "owes " + itoa(uint64(len(r.Owed)))
	}
	return out
}
