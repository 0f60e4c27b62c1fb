package sim

import (
	"fmt"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

var (
	xNames    = [slots]string{"A/1", "A/2", "B"}
	wordsOf   = []string{"", "done", "nothing was done", "no reply", "the lookup fails"}
	againText = map[bool]string{true: " again", false: ""}
)

// owner is the executor (1 or 2) of a slot, as an index from 0.
func owner(xi uint8) uint8 { return xi / 2 }

// emit takes one transition: its words, whether it is a fault (what settles a run must not need one), and where it leads.
type emit func(label string, fault bool, n mState)

func (m *model) next(s mState, em emit) {
	for xi := range uint8(slots) {
		if xi != 1 || m.parallel { // one run of steps in order needs one slot of each executor
			m.executor(s, xi, em)
		}
	}
	for ci := range m.recons {
		m.reconciler(s, ci, em)
	}
	m.world(s, em)
}

func (m *model) crashes(s0 mState, xi uint8, em emit) {
	x0 := s0.slot[xi]
	if x0.at == atDead || x0.at == atIdle || s0.crash == 0 || xi == 1 && s0.slot[0].at != atIdle {
		return
	}
	for loss := range 2 {
		s := s0
		if loss == 1 {
			if s.lost == 0 {
				return
			}
			s.lost--
			s.journal[owner(xi)] = [dispatches]uint8{}
		}
		s.crash--
		for d := uint8(1); d <= s.nd; d++ {
			if c := &s.calls[d]; c.by == owner(xi)+1 && c.phase == running {
				c.phase = cutShort
			}
		}
		for k := range uint8(slots) {
			if owner(k) == owner(xi) {
				s.slot[k] = mSlot{at: atDead}
			}
		}
		em(xNames[xi]+" crashes"+[]string{"", " and its journal is lost"}[loss], true, s)
	}
}

// executor is one slot's next line of the one order.
func (m *model) executor(s0 mState, xi uint8, em emit) {
	m.crashes(s0, xi, em)
	x0, nm, ji, me := s0.slot[xi], xNames[xi], owner(xi), owner(xi)+1
	s := s0
	x := &s.slot[xi]
	switch x0.at {
	case atIdle:
		m.deliveries(s0, xi, em)
	case atRead:
		x.rev = s.rev
		n := s.ready(m)
		free := s.r == nil || s.r.End == nil && (s.r.Lease == nil && !s.active() || m.parallel && s.r.Lease != nil && s.r.Lease.Holder == xNames[ji*2] && x.lease == s.lease() && x.lease != 0)
		if !free || n < 0 {
			x.at = atPublish
			em(nm+" reads the record: nothing for it to start", false, s)
			return
		}
		if s.nd+1 >= dispatches {
			s.bad = "bound"
			em("(bound)", false, s)
			return
		}
		x.step, x.d, x.intent, x.stored, x.at = uint8(n), s.mint(me, uint8(n)), 0, 0, atStart
		em(fmt.Sprintf("%s reads the record and decides: start step %d, dispatch d%d", nm, n+1, x.d), false, s)
	case atStart:
		m.starting(s0, xi, em)
	case atUnsureStart:
		if s.r != nil && s.step(x.step).Dispatch == dispatchID(x.d) && s.step(x.step).State == run.Executing {
			x.stored, x.lease, x.rev, x.at = 1, s.lease(), s.rev, atStart
			if x.intent == 1 {
				x.at = atCheck
			}
			em(nm+" reads back: its own start is there, goes on", false, s)
			return
		}
		x.at, x.d, x.intent, x.stored = atRead, 0, 0, 0
		em(nm+" reads back: its start is not there, gives the attempt up", false, s)
	case atCheck:
		if s.lease() == x.lease && s.alive == 1 || m.goesOnRefused {
			s.dispatch(me, x.d)
			x.at = atWait
			em(fmt.Sprintf("%s checks its lease and sends d%d", nm, x.d), false, s)
			if s0.gap > 0 {
				z := s0
				z.gap--
				z.slot[xi].at = atSend
				em(nm+" checks its lease (good) and is paused before the request leaves", true, z)
			}
			return
		}
		x.value, x.at = refusal, atEffect
		em(fmt.Sprintf("%s finds its lease gone, does not send d%d", nm, x.d), false, s)
	case atSend:
		late := s.lease() != x.lease || s.alive == 0
		s.dispatch(me, x.d)
		s.calls[x.d].late = late
		x.at = atWait
		em(fmt.Sprintf("%s: the request of d%d leaves the machine (lease gone: %v)", nm, x.d, late), false, s)
	case atWait:
		m.replies(s0, xi, em)
	case atEffect:
		switch x.value {
		case said:
			s.journal[ji][x.d] = 2
		case refusal:
			s.journal[ji][x.d] = 3
		}
		x.at = atRecord
		em(fmt.Sprintf("%s journals the effect of d%d", nm, x.d), false, s)
	case atRecord:
		m.recording(s0, xi, em)
	case atUnsureRecord:
		if st := s.step(x.step); st.Dispatch == dispatchID(x.d) && (st.State == run.Executing || st.State == run.Unknown && x.value != silence) {
			x.rev, x.next, x.at = s.rev, 0, atRecord
			em(nm+" reads back: not there, writes again", false, s)
			return
		}
		if x.next != 0 && s.lease() != x.next {
			x.next = 0
		}
		s.onward(xi)
		em(nm+" reads back: the record has it", false, s)
	default:
		m.publishing(s0, xi, em)
	}
}

func (m *model) deliveries(s0 mState, xi uint8, em emit) {
	nm := xNames[xi]
	me := xNames[owner(xi)*2]
	if s0.r != nil && m.parallel && s0.r.Lease != nil && s0.r.Lease.Holder == me && s0.slot[xi].has == 0 && s0.ready(m) >= 0 {
		for k := range uint8(slots) {
			if k != xi && owner(k) == owner(xi) && s0.slot[k].lease == s0.lease() && s0.slot[k].lease != 0 {
				s := s0
				s.slot[xi] = mSlot{at: atRead, lease: s0.lease()}
				em(nm+" joins the run its executor holds", false, s)
			}
		}
	}
	has := func(bit uint8) bool {
		for i := range s0.slot {
			if s0.slot[i].has&bit != 0 {
				return true
			}
		}
		return false
	}
	for j := range uint8(2) {
		if s0.job[j] == 0 || s0.slot[xi].has != 0 {
			continue
		}
		held := has(1 << j)
		if held && s0.del == 0 {
			continue
		}
		s := s0
		if held {
			s.del--
		}
		s.slot[xi] = mSlot{at: atRead, has: 1 << j}
		if m.acksEarly {
			s.job[j] = 0
		}
		em(fmt.Sprintf("%s gets job message %d%s", nm, j+1, againText[held]), held, s)
	}
	if s0.wake == 1 && !has(4) {
		s := s0
		s.slot[xi] = mSlot{at: atRead, has: 4}
		em(nm+" gets a wake", false, s)
	}
}

// starting is line 2: the intent beside the compare-and-set.
func (m *model) starting(s0 mState, xi uint8, em emit) {
	x0, nm, me := s0.slot[xi], xNames[xi], owner(xi)+1
	if x0.intent == 0 {
		s := s0
		s.journal[owner(xi)][x0.d] = 1
		s.slot[xi].intent = 1
		if x0.stored == 1 {
			s.slot[xi].at = atCheck
		}
		em(fmt.Sprintf("%s journals the intent of d%d", nm, x0.d), false, s)
	}
	if x0.stored == 1 {
		return
	}
	s := s0
	x := &s.slot[xi]
	if s.rev != x.rev || !s.start(m, me, x.step, x.d) {
		if s.bad != "" {
			em(nm+" may not start", false, s)
			return
		}
		if m.goesOnRefused {
			x.stored = 1
			if x.intent == 1 {
				x.at = atCheck
			}
			em(nm+" is refused and goes on all the same (planted)", false, s)
			return
		}
		s = s0
		x = &s.slot[xi]
		x.at, x.d, x.intent, x.stored = atRead, 0, 0, 0
		em(nm+" is refused, reads again", false, s)
		return
	}
	land := s
	l := &land.slot[xi]
	l.rev, l.stored, l.lease = s.rev, 1, s.lease()
	if x0.intent == 1 {
		l.at = atCheck
	}
	what := fmt.Sprintf("%s writes the record: step %d executing, d%d", nm, x0.step+1, x0.d)
	em(what, false, land)
	m.unsurely(s0, s, xi, atUnsureStart, [5]uint8{1, me, x0.step, x0.d, x0.rev}, what, em)
}

// unsurely emits the three ways in which a write's answer can be lost.
func (m *model) unsurely(before, after mState, xi, at uint8, pend [5]uint8, what string, em emit) {
	if before.unsure == 0 {
		return
	}
	a := after
	a.unsure--
	a.slot[xi].at = at
	em(what+", the answer is lost", true, a)
	b := before
	b.unsure--
	b.slot[xi].at = at
	em(what+": error, nothing landed", true, b)
	if before.pend[0] == 0 && pend[0] != 0 {
		c := b
		c.pend = pend
		em(what+": error, it lands later", true, c)
	}
}

func (m *model) replies(s0 mState, xi uint8, em emit) {
	d, nm := s0.slot[xi].d, xNames[xi]
	if c := s0.calls[d]; c.reply == said || c.reply == refusal {
		s := s0
		s.slot[xi].value, s.slot[xi].at = c.reply, atEffect
		if c.reply == refusal || c.done == 1 {
			s.calls[d].phase = closed
		}
		em(fmt.Sprintf("%s gets the reply of d%d: %s", nm, d, wordsOf[c.reply]), false, s)
	}
	s := s0
	if s.calls[d].phase == running {
		s.calls[d].phase = cutShort
	}
	s.slot[xi].value, s.slot[xi].at = silence, atEffect
	em(fmt.Sprintf("%s: d%d times out, no reply", nm, d), s0.calls[d].phase == running, s)
}

// recording is lines 6 and 7: the step's end and the next step's start in one write.
func (m *model) recording(s0 mState, xi uint8, em emit) {
	nm, me := xNames[xi], owner(xi)+1
	s := s0
	x := &s.slot[xi]
	if s.rev != x.rev {
		if m.reread {
			x.rev = s.rev
			em(nm+" is refused, reads again (applies what it knows to the new record)", false, s)
			return
		}
		if s.lease() == x.lease && s.alive == 1 {
			s.killed = true
			s.breaks("a rightful holder gave up what it knows after a harmless change of the record")
		}
		x.at = atAck
		em(nm+" is refused, takes its lease for lost", false, s)
		return
	}
	mine := s.lease() == x.lease
	if !s.learn(m, x.step, x.d, x.value) {
		x.at = atPublish
		em(nm+": the record needs nothing of what it knows", false, s)
		return
	}
	x.next = 0
	if n := s.ready(m); n >= 0 && n != int(x.step) && !m.parallel && s.r.Lease == nil && !s.active() && s.nd+1 < dispatches && mine {
		d := s.mint(me, uint8(n))
		rev := s.rev
		s.start(m, me, uint8(n), d)
		s.rev = rev
		x.next, x.nextStep = d, uint8(n)
	}
	land := s
	land.onward(xi)
	what := fmt.Sprintf("%s writes the record: d%d: %s", nm, x.d, wordsOf[x.value])
	em(what, false, land)
	pend := [5]uint8{2, x.step, x.d, x.value, s0.slot[xi].rev}
	if x.next != 0 {
		pend[0] = 0
	}
	m.unsurely(s0, s, xi, atUnsureRecord, pend, what, em)
}

// onward goes to the step that was started in the same write, or to publishing.
func (s *mState) onward(xi uint8) {
	x := &s.slot[xi]
	s.journal[owner(xi)][x.d] = 4
	if x.next == 0 {
		x.at = atPublish
		return
	}
	x.step, x.d, x.intent, x.stored, x.rev, x.value, x.lease = x.nextStep, x.next, 0, 1, s.rev, 0, s.lease()
	x.next, x.at = 0, atStart
}

// publishing is lines 8 and 9, a death and a restart.
func (m *model) publishing(s0 mState, xi uint8, em emit) {
	s, nm, ji := s0, xNames[xi], owner(xi)
	x := &s.slot[xi]
	switch x.at {
	case atPublish:
		if !m.fine {
			if s.r != nil {
				s.publishAll(m)
			}
			if x.d != 0 {
				s.journal[ji][x.d] = 4
			}
			x.at = atAck
			em(nm+" publishes what is owed", false, s)
			return
		}
		if s.r == nil || !s.publishOne(m, envelope.StepScope) {
			x.at = atLetter
			em(nm+" has nothing more for the step subject", false, s)
			return
		}
		em(nm+" publishes a step outcome", false, s)
	case atLetter:
		ep := s.openLetter()
		switch {
		case x.letter != 0:
			s.putLetter(m, x.letter)
			x.letter, x.at = 0, atPublishRun
			em(nm+" publishes the letter (create only)", false, s)
		case ep != 0 && s.message != ep:
			x.letter = ep
			em(fmt.Sprintf("%s is about to publish the letter of episode %d", nm, ep), false, s)
		default:
			x.at = atPublishRun
			em(nm+" owes no letter", false, s)
		}
	case atPublishRun:
		if s.r == nil || !s.publishOne(m, envelope.RunScope) {
			x.at = atSettle
			em(nm+" has nothing more for the run subject", false, s)
			return
		}
		em(nm+" publishes a run outcome", false, s)
	case atSettle:
		if x.d != 0 {
			s.journal[ji][x.d] = 4
		}
		x.at = atAck
		em(nm+" settles its journal", false, s)
	case atAck:
		for j := range uint8(2) {
			if x.has&(1<<j) != 0 {
				s.job[j] = 0
			}
		}
		if x.has&4 != 0 {
			s.wake = 0
		}
		*x = mSlot{}
		em(nm+" acknowledges", false, s)
	case atDead:
		if xi == 1 {
			return
		}
		x.at = atRestart
		em(nm+" restarts", s0.slot[2-xi].at != atDead, s)
	case atRestart:
		m.restart(s0, xi, em)
	}
}

// restart settles the journal: effects as evidence, an intent that the record carries as the end of the lease.
func (m *model) restart(s0 mState, xi uint8, em emit) {
	s, nm, ji := s0, xNames[xi], owner(xi)
	for d := uint8(1); d < dispatches; d++ {
		v := s.journal[ji][d]
		if v == 0 || v == 4 {
			continue
		}
		if v == 1 && s.r != nil && m.bindEvidence {
			s.event(m, func(r *engine.Run) bool {
				st := r.Carrying(dispatchID(d))
				return st != nil && st.State == run.Executing && r.LeaseEnded(m, m.source(nm)) == engine.Applied
			})
		} else {
			s.learn(m, s.calls[d].step, d, []uint8{0, silence, said, refusal}[v])
		}
		s.journal[ji][d] = 4
		em(fmt.Sprintf("%s settles its journal: d%d %s", nm, d, []string{"", "intent without effect", "effect: done", "effect: nothing done"}[v]), false, s)
		return
	}
	s.slot[xi] = mSlot{}
	if xi == 0 {
		s.slot[1] = mSlot{}
	}
	em(nm+" is up", false, s)
}
