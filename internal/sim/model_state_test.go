package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// changed takes a new record in and holds it against the rules.
func (s *mState) changed(m *model, r *engine.Run) {
	s.r = r
	s.key = m.fingerprint(r)
	s.rev++
	if r.Lease == nil {
		s.alive = 0
	}
	for _, v := range r.Violations() {
		s.breaks(v.Rule + ": " + v.What)
	}
}

func (s *mState) breaks(what string) {
	if s.bad == "" {
		s.bad = what
	}
}

// event applies an event of the core to a copy of the record. A panic of the core is a rule that it enforced.
func (s *mState) event(m *model, fn func(r *engine.Run) bool) (ch bool) {
	r := copyRun(s.r)
	defer func() {
		if p := recover(); p != nil {
			s.breaks("core: " + strings.SplitN(fmt.Sprint(p), "{", 2)[0])
			ch = false
		}
	}()
	if !fn(r) {
		return false
	}
	s.changed(m, r)
	return true
}

func (s *mState) mayCommit(d uint8) bool {
	c := &s.calls[d]
	return c.done == 1 || c.done == 0 && (c.phase == running || c.phase == cutShort)
}

// dispatch sends a request; no-blind-repeat is checked here, against the truth.
func (s *mState) dispatch(by, d uint8) {
	c := &s.calls[d]
	if s.known {
		s.breaks(heldProof)
	}
	for e := uint8(1); e <= s.nd; e++ {
		if e != d && s.calls[e].step == c.step && s.mayCommit(e) {
			s.breaks(engine.RuleNoBlindRepeat)
		}
	}
	c.phase, c.by = running, by
}

func (s *mState) mint(by, step uint8) uint8 {
	s.nd++
	attempt := uint8(1)
	if s.r != nil {
		attempt = uint8(s.r.Steps[step].Attempt) + 1
	}
	s.calls[s.nd] = mCall{step: step, attempt: attempt, by: by}
	return s.nd
}

func (s *mState) step(i uint8) *engine.Step { return s.r.Steps[i] }

// lease is the dispatch with which the present lease began, 0 for none.
func (s *mState) lease() uint8 {
	if s.r == nil || s.r.Lease == nil {
		return 0
	}
	return number(s.r.Lease.ID)
}

func (s *mState) active() bool {
	for _, st := range s.r.Steps {
		if st.State == run.Executing || st.State == run.Unknown {
			return true
		}
	}
	return false
}

// ready is the step whose turn has come, -1 for none.
func (s *mState) ready(m *model) int {
	if s.r == nil {
		return 0
	}
	if need := s.r.Next(m.now); len(need.Ready) > 0 {
		return int(number(need.Ready[0]))
	}
	return -1
}

// start is line 1: the record with the step executing. It reports whether it may be so.
func (s *mState) start(m *model, by, step, d uint8) bool {
	if s.r == nil {
		s.changed(m, m.create())
		s.rev-- // one write
	}
	if s.ready(m) < 0 || !slices.Contains(s.r.Next(m.now).Ready, stepName(step)) {
		return false
	}
	holder := xNames[by*2-2]
	if s.r.Lease != nil && s.r.Lease.Holder != holder {
		return false
	}
	ch := s.event(m, func(r *engine.Run) bool {
		return r.Begin(stepName(step), m, engine.Start{
			Dispatch: dispatchID(d), LeaseID: "l" + string(dispatchID(d))[1:], Holder: holder, Seconds: 30, Worker: holder,
		}, m.now) != nil
	})
	if ch && s.lease() == d {
		s.alive = 1
	}
	return ch
}

// learn applies what a call came to; it reports whether the record changed.
func (s *mState) learn(m *model, step, d, value uint8) (ch bool) {
	if s.r == nil {
		return false
	}
	to := d
	if cur := s.step(step); !m.bindEvidence && cur.Dispatch != "" && cur.Attempt == int(s.calls[d].attempt) {
		to = number(string(cur.Dispatch)) // by step and attempt
	}
	before := s.step(step).State
	switch {
	case value == said && before == run.Ready && !m.lateReady:
	case value == said:
		ch = s.reply(m, to, envelope.Reply{OK: true, Result: []byte("{}"), EvidenceRef: "e"})
	case value == refusal:
		ch = s.reply(m, to, envelope.Reply{Row: envelope.RowFor(envelope.CodeUpstreamUnavailable, envelope.Write)})
	default:
		ch = s.reply(m, to, envelope.Reply{NoReply: true, Row: envelope.RowFor(envelope.CodeOutcomeUnknown, envelope.Write)})
	}
	if value == said && !ch && before == run.Ready {
		s.known = true
	}
	if ch && !m.drainEnd {
		s.endAtOnce(m)
	}
	return ch
}

func (s *mState) reply(m *model, d uint8, reply envelope.Reply) bool {
	return s.event(m, func(r *engine.Run) bool { return r.Reply(dispatchID(d), reply, m, m.source("x")) != engine.Dropped })
}

// endAtOnce is the reading that a step for a person ends the episode whatever is in flight.
func (s *mState) endAtOnce(m *model) {
	if s.r.End != nil {
		return
	}
	for _, st := range s.r.Steps {
		if st.State == run.NeedsHuman {
			r := copyRun(s.r)
			row := st.Fail.Row
			r.End, r.Decided, r.Lease = &engine.End{Outcome: row.Outcome, Row: &row, Step: st.Name, At: m.now}, nil, nil
			s.changed(m, r)
			return
		}
	}
}

func (s *mState) publishAll(m *model) {
	if len(s.r.Owed) > 0 {
		r := copyRun(s.r)
		for _, scope := range []envelope.Scope{envelope.StepScope, envelope.RunScope} {
			n := 0
			for i := range r.Owed {
				if r.Owed[i].Scope == scope {
					n = r.Owed[i].N
				}
			}
			if n > 0 {
				r.Published(scope, n, uint64(n))
			}
		}
		s.r, s.key = r, m.fingerprint(r) // no revision: nothing is decided by it
	}
	if ep := s.openLetter(); ep != 0 && s.message == 0 {
		s.message = ep
	}
}

// publishOne publishes the next outcome of a scope.
func (s *mState) publishOne(m *model, scope envelope.Scope) bool {
	for i := range s.r.Owed {
		if s.r.Owed[i].Scope == scope {
			r := copyRun(s.r)
			r.Published(scope, r.Owed[i].N, uint64(r.Owed[i].N))
			s.r, s.key = r, m.fingerprint(r)
			return true
		}
	}
	return false
}

// openLetter is the episode of the letter that the record has open, 0 for none.
func (s *mState) openLetter() uint8 {
	if s.r == nil || s.r.Letter == nil || !s.r.Letter.Open {
		return 0
	}
	return uint8(s.r.Episode)
}

func (s *mState) putLetter(m *model, ep uint8) {
	if s.message == 0 {
		s.message = ep
		if s.openLetter() != ep && !m.letterTruth {
			s.breaks("a letter is there for a run that has settled it")
		}
	}
}

// check holds the whole state against the truth.
func (s *mState) check(m *model) {
	if s.bad != "" || s.r == nil {
		return
	}
	for i, st := range s.r.Steps {
		if s.ledger[i] > 1 {
			s.breaks(engine.RuleNoBlindRepeat + ": done twice")
		}
		if st.State == run.OK && s.ledger[i] == 0 {
			s.breaks(engine.RuleProvenOK)
		}
		if s.r.End != nil && s.r.End.Outcome == envelope.Cancelled && st.State != run.OK {
			if s.ledger[i] > 0 {
				s.breaks(engine.RuleProvenOK + ": completed effects are incomplete")
			}
			for d := uint8(1); d <= s.nd; d++ {
				if c := &s.calls[d]; int(c.step) == i && !c.late && c.done == 0 && (c.phase == running || c.phase == cutShort) {
					s.breaks(engine.RuleOneEnd + ": cancelled with a call that may still be done")
				}
			}
		}
		if d := number(string(st.Dispatch)); st.State == run.Unknown && m.bindEvidence && m.report == 0 && s.calls[d].phase == running && !s.calls[d].late {
			s.breaks("unknown while the call still runs: the window would be counted too early")
		}
	}
}

// canon drops what cannot matter any more, so that equal situations are one state.
func (s *mState) canon() {
	for i := range s.slot {
		x := &s.slot[i]
		switch x.at {
		case atStart, atRecord, atCheck, atSend, atWait, atEffect:
			if x.rev == s.rev {
				x.rev = 1
			} else {
				x.rev = 0
			}
		case atIdle, atDead, atRestart, atRead:
			*x = mSlot{at: x.at, has: x.has, lease: x.lease}
		default:
			x.rev = 0
		}
	}
	if s.pend[0] != 0 {
		if s.pend[4] == s.rev {
			s.pend[4] = 1
		} else {
			s.pend[4] = 0
		}
	}
	s.rev = 1
	for d := uint8(1); d <= s.nd; d++ {
		if c := &s.calls[d]; c.phase != running {
			c.by = 0
		}
	}
}

// good: the run is settled and nothing is owed by anybody.
func (s *mState) good() bool {
	return s.r != nil && s.r.End != nil && len(s.r.Owed) == 0 && s.job == [2]uint8{} && s.wake == 0 && s.message == s.openLetter()
}
