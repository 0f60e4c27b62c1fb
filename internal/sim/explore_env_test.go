package sim

import (
	"fmt"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

func (m *model) reconciler(s0 mState, ci int, em emit) {
	c0 := s0.recon[ci]
	nm := fmt.Sprintf("reconciler%d", ci+1)
	if s0.r == nil {
		return
	}
	switch c0.at {
	case 0:
		m.tends(s0, nm, em)
		m.lookups(s0, ci, nm, em)
	case 1:
		s := s0
		c := &s.recon[ci]
		c.verdict, c.at = refusal, 2
		if s.ledger[c.step] > 0 {
			c.verdict = said
		}
		em(fmt.Sprintf("the tool answers %s's lookup: %s", nm, []string{"", "found", "not found"}[c.verdict]), false, s)
	case 2:
		m.verdict(s0, ci, nm, em)
	case 3:
		s := s0
		s.putLetter(m, c0.letter)
		s.recon[ci] = mRecon{}
		em(nm+" publishes the letter (create only)", false, s)
	}
}

// tends is what a reconciler does without asking a tool.
func (m *model) tends(s0 mState, nm string, em emit) {
	if s0.r.Lease != nil && s0.alive == 0 {
		s := s0
		if s.event(m, func(r *engine.Run) bool { return r.LeaseEnded(m, m.source(nm)) == engine.Applied }) {
			if !m.drainEnd {
				s.endAtOnce(m)
			}
			em(nm+" ends the lease that ran out", false, s)
		}
	}
	if s0.r.End == nil && s0.r.Lease == nil && !s0.active() && s0.ready(m) >= 0 && s0.wake == 0 {
		s := s0
		s.wake = 1
		em(nm+" wakes the run", false, s)
	}
	ep := s0.openLetter()
	if !m.fine && (len(s0.r.Owed) > 0 || ep != 0 && s0.message == 0) {
		s := s0
		s.publishAll(m)
		em(nm+" publishes what is owed", false, s)
	}
	if m.fine {
		if s := s0; s.publishOne(m, envelope.StepScope) {
			em(nm+" publishes an owed step outcome", false, s)
		}
		if s := s0; (ep == 0 || s.message != 0) && s.publishOne(m, envelope.RunScope) {
			em(nm+" publishes an owed run outcome", false, s)
		}
		if ep != 0 && s0.message == 0 {
			s := s0
			for i := range m.recons {
				if s.recon[i].at == 0 {
					s.recon[i] = mRecon{at: 3, letter: ep}
					em(nm+" is about to publish an owed letter", false, s)
					break
				}
			}
		}
	}
	if m.letterTruth && s0.message != 0 && ep != s0.message {
		s := s0
		s.message = 0
		em(nm+" removes a letter that the record does not have open", false, s)
	}
}

func (m *model) lookups(s0 mState, ci int, nm string, em emit) {
	if m.noVerify {
		s := s0
		if s.event(m, func(r *engine.Run) bool { return r.Escalate(m, m.source(nm)) == engine.Applied }) {
			em(nm+": no lookup for this tool, held for a person", false, s)
		}
		return
	}
	for i, st := range s0.r.Steps {
		if st.State != run.Unknown {
			continue
		}
		d := number(string(st.Dispatch))
		// The reconciler counts from the write that made the step unknown, and takes the call for ended by then.
		over := s0.calls[d].phase != cutShort || !m.windowEnd
		if over && !st.Doubt.WindowOver {
			s := s0
			s.event(m, func(r *engine.Run) bool { return r.WindowOver(dispatchID(d), m.now) == engine.Applied })
			em(fmt.Sprintf("%s records that the window of d%d is over", nm, d), false, s)
		}
		s := s0
		s.recon[ci] = mRecon{at: 1, d: d, step: uint8(i), proves: st.Doubt.WindowOver}
		em(fmt.Sprintf("%s sends a lookup for d%d (window over: %v)", nm, d, st.Doubt.WindowOver), false, s)
		if s0.fail > 0 {
			f := s0
			f.fail--
			f.recon[ci] = mRecon{at: 2, d: d, step: uint8(i), verdict: noLookup}
			em(nm+"'s lookup fails", true, f)
		}
	}
}

// verdict records what a lookup said, bound to its dispatch.
func (m *model) verdict(s0 mState, ci int, nm string, em emit) {
	s := s0
	c := s.recon[ci]
	s.recon[ci] = mRecon{}
	d := c.d
	cur := s.step(c.step)
	if !m.bindVerdict && cur.State == run.Unknown {
		d = number(string(cur.Dispatch))
	}
	overByNow := !m.sendAfter && s.calls[c.d].phase != cutShort
	l := envelope.Lookup{Answer: envelope.Absent}
	switch c.verdict {
	case said:
		l = envelope.Lookup{Answer: envelope.Found, Result: []byte("{}"), EvidenceRef: "e"}
	case noLookup:
		l = envelope.Lookup{Answer: envelope.Undecided}
	}
	before := cur.State
	ch := s.event(m, func(r *engine.Run) bool {
		if overByNow { // the looser reading: what counts is when the answer is recorded
			r.WindowOver(dispatchID(d), m.now)
		}
		return r.Looked(dispatchID(d), l, c.proves || overByNow, m, m.source(nm)) != engine.Dropped
	})
	if c.verdict == said && !ch && before == run.Ready {
		s.known = true
	}
	em(fmt.Sprintf("%s records the verdict on d%d: %s (looked up for d%d, proves %v)", nm, d, l.Answer, c.d, c.proves), false, s)
}

// world is the lease's end, the tool, a write that lands late, and people.
func (m *model) world(s0 mState, em emit) {
	m.leaseEnds(s0, em)
	for d := uint8(1); d <= s0.nd; d++ {
		m.tool(s0, d, em)
	}
	if s0.pend[0] != 0 {
		s := s0
		p := s.pend
		s.pend = [5]uint8{}
		what := "a late write arrives and is refused"
		if s.rev == p[4] {
			if p[0] == 1 {
				if s.start(m, p[1], p[2], p[3]) {
					what = fmt.Sprintf("a late write lands: start d%d", p[3])
				} else {
					s = s0
					s.pend = [5]uint8{}
				}
			} else if s.learn(m, p[1], p[2], p[3]) {
				what = fmt.Sprintf("a late write lands: evidence on d%d", p[2])
			}
		}
		em(what, false, s)
	}
	if s0.r == nil {
		return
	}
	if s0.cancel > 0 && s0.r.End == nil {
		s := s0
		s.cancel--
		if s.event(m, func(r *engine.Run) bool { return r.CancelRun("alice", "stop", m.now) == engine.Applied }) {
			em("cancel is recorded", true, s)
		}
	}
	m.operators(s0, em)
	m.reporter(s0, em)
}

func (m *model) leaseEnds(s0 mState, em emit) {
	if s0.r == nil || s0.r.Lease == nil || s0.alive == 0 {
		return
	}
	working := false
	for k := range uint8(slots) {
		x := &s0.slot[k]
		if xNames[owner(k)*2] == s0.r.Lease.Holder && x.at >= atStart && x.at <= atUnsureRecord && (x.lease == s0.lease() || x.at == atUnsureStart || x.at == atUnsureRecord) {
			working = true
		}
	}
	if working && s0.expire == 0 {
		return
	}
	s := s0
	if working {
		s.expire--
	}
	s.alive = 0
	for _, st := range s.r.Steps {
		if d := number(string(st.Dispatch)); st.State == run.Executing && s.calls[d].phase == running {
			s.calls[d].phase = cutShort
		}
	}
	em(fmt.Sprintf("the lease of %s runs out (its holder is at work: %v)", s.r.Lease.Holder, working), working, s)
}

func (m *model) tool(s0 mState, d uint8, em emit) {
	c0 := s0.calls[d]
	if c0.done == 0 && (c0.phase == running || c0.phase == cutShort) {
		s := s0
		s.calls[d].done = 1
		s.ledger[c0.step]++
		if s.ledger[c0.step] > 1 {
			s.breaks(engine.RuleNoBlindRepeat + ": done twice")
		}
		em(fmt.Sprintf("the tool commits d%d (the caller has gone: %v)", d, c0.phase == cutShort), c0.phase == cutShort, s)
	}
	if c0.done == 0 && c0.phase == running {
		s := s0
		s.calls[d].done, s.calls[d].reply = 2, refusal
		em(fmt.Sprintf("the tool refuses d%d", d), true, s)
	}
	if c0.done == 1 && c0.phase == running && c0.reply == 0 {
		s := s0
		s.calls[d].reply = said
		em(fmt.Sprintf("the tool answers d%d", d), false, s)
	}
	if c0.phase == cutShort {
		s := s0
		s.calls[d].phase = closed
		if c0.done == 0 {
			s.calls[d].done = 2
		}
		em(fmt.Sprintf("the consistency window of d%d is over (committed: %v)", d, c0.done == 1), false, s)
	}
}

// established is what a person can find out about a step: nothing while a call may still be done.
func (s *mState) established(step int) (says uint8, ok bool) {
	for d := uint8(1); d <= s.nd; d++ {
		if c := &s.calls[d]; int(c.step) == step && (c.phase == running || c.phase == cutShort) {
			return 0, false
		}
	}
	if s.ledger[step] > 0 {
		return said, true
	}
	return refusal, true
}

func (s *mState) resolve(m *model, step int, letter string, says uint8, by string) bool {
	res := engine.Resolution{CommitState: envelope.NotCommitted}
	if says == said {
		res = engine.Resolution{CommitState: envelope.Committed, Result: []byte("{}"), EvidenceRef: "e"}
	}
	ep := s.r.Episode
	return s.event(m, func(r *engine.Run) bool {
		_, refused := r.Resolve(engine.Call{Letter: letter, Step: stepName(uint8(step)), By: by, Reason: "r", At: m.now}, res, m)
		return refused == nil && r.Episode != ep
	})
}

// operators: B reads and acts at once; A reads, and acts later.
func (m *model) operators(s0 mState, em emit) {
	held := -1
	for i, st := range s0.r.Steps {
		if st.State == run.NeedsHuman {
			held = i
		}
	}
	open := s0.openLetter()
	if s0.op > 0 && held >= 0 && open != 0 && s0.message == open {
		if says, ok := s0.established(held); ok {
			s := s0
			s.op--
			if s.resolve(m, held, s.r.Letter.ID, says, "b") {
				s.message = 0
				em(fmt.Sprintf("operator B resolves the letter of episode %d: %s", open, wordsOf[says]), true, s)
			}
			if s0.opSaw == 0 && s0.op > 1 {
				s := s0
				s.op--
				s.opSaw, s.opSays = open, says
				em(fmt.Sprintf("operator A reads the letter of episode %d and establishes: %s", open, wordsOf[says]), true, s)
			}
		}
	}
	if s0.opSaw == 0 || s0.opSaw == 99 {
		return
	}
	s := s0
	s.opSaw = 99
	letter := fmt.Sprintf("acme/r/%d", s0.opSaw)
	if !m.opNames && open != 0 {
		letter = s0.r.Letter.ID // a call that names only the run
	}
	if held >= 0 && s.resolve(m, held, letter, s0.opSays, "a") {
		s.message = 0
		em(fmt.Sprintf("operator A's resolve (%s) is applied, the open letter is of episode %d", wordsOf[s0.opSays], open), false, s)
		return
	}
	em("operator A is refused", false, s)
}

// reporter is a program that learns what became of a dispatch and says so, late.
func (m *model) reporter(s0 mState, em emit) {
	if s0.report > 0 && s0.repSays == 0 {
		for d := uint8(1); d <= s0.nd; d++ {
			if c := &s0.calls[d]; c.done != 0 && c.phase != unsent {
				s := s0
				s.report--
				s.repSays, s.repD = c.done, d
				em(fmt.Sprintf("a program learns what became of d%d and reports: %s", d, wordsOf[c.done]), true, s)
			}
		}
	}
	if s0.repSays == 0 {
		return
	}
	s := s0
	says, d := s0.repSays, s0.repD
	s.repSays, s.repD = 0, 0
	step := s.calls[d].step
	res := engine.Resolution{CommitState: envelope.Committed, Result: []byte("{}"), EvidenceRef: "e"}
	if says == refusal {
		res = engine.Resolution{CommitState: envelope.NotCommitted, EvidenceRef: "e"}
	}
	ch := false
	if says == refusal && !m.reportRule {
		ch = s.event(m, func(r *engine.Run) bool { // whatever attempt is out, whatever its window
			st := r.Steps[step]
			if st.State == run.Unknown {
				return r.Looked(st.Dispatch, envelope.Lookup{Answer: envelope.Absent}, true, m, m.source("p")) != engine.Dropped
			}
			return st.State == run.Executing &&
				r.Reply(st.Dispatch, envelope.Reply{Row: envelope.RowFor(envelope.CodeUpstreamUnavailable, envelope.Write)}, m, m.source("p")) != engine.Dropped
		})
	} else {
		before := s.step(step).State
		ch = s.event(m, func(r *engine.Run) bool {
			attempt := int(s0.calls[d].attempt)
			if says == said {
				attempt = 0
			}
			v, refused := r.Report(stepName(step), attempt, "p", res, m, m.now)
			return refused == nil && v != engine.Dropped
		})
		if says == said && !ch && before == run.Ready {
			s.known = true
		}
	}
	em(fmt.Sprintf("the report on d%d (%s) arrives: changes the record %v", d, wordsOf[says], ch), false, s)
}
