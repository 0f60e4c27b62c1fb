package worker

import (
	"slices"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// grant is a step's permission to be dispatched: the tool's slot and token first, then the executor's slot. Nothing is
// leased or executing while it is waited for (line 0).
type grant struct {
	step  string
	gate  *gate
	entry chan struct{} // the tool's
	slot  chan struct{} // the executor's; nil until the tool's has come
	has   bool          // both are there
	told  bool          // the record says that the step waits
	over  chan struct{} // closed when it is given back: nobody waits for it any more
}

func (g *grant) ready() bool { return g.has }

// grant returns the step's permission as far as it has come, and asks for the rest.
func (l *loop) grant(s *engine.Step, c *change) *grant {
	g := l.grants[s.Name]
	if g == nil {
		g = &grant{step: s.Name, gate: l.w.gates.of(s.Tool), over: make(chan struct{})}
		g.entry = g.gate.enter(l.id.Tenant)
		l.grants[s.Name] = g
		l.watch(g, g.entry)
	}
	if g.has || !isClosed(g.entry) {
		return g
	}
	if g.slot == nil {
		if l.held > l.busy(c)+l.granted() {
			g.has = true
			return g
		}
		g.slot = l.w.slots.acquire(l.id.Tenant)
		l.watch(g, g.slot)
	}
	if isClosed(g.slot) {
		g.has = true
		g.slot = nil
		l.held++
	}
	return g
}

// busy are the slots in use by calls that go on after this change.
func (l *loop) busy(c *change) int { return max(0, len(l.calls)-len(c.ended)) }

func (l *loop) granted() int {
	n := 0
	for _, g := range l.grants {
		if g.has {
			n++
		}
	}
	return n
}

// drop gives a step's permission back: it did not start.
func (l *loop) drop(step string) {
	g := l.grants[step]
	if g == nil {
		return
	}
	delete(l.grants, step)
	g.giveUp(l.w, l.id.Tenant)
}

// dropAll gives every permission back: nothing will be started here.
func (l *loop) dropAll() {
	for step := range l.grants {
		l.drop(step)
	}
}

func (g *grant) giveUp(w *Worker, tenant string) {
	close(g.over)
	g.gate.leave(tenant, g.entry)
	if g.slot != nil {
		w.slots.abandon(tenant, g.slot)
	}
}

// watch wakes the loop when a channel that is still open closes. One that is given back never does.
func (l *loop) watch(g *grant, ch chan struct{}) {
	if isClosed(ch) {
		return
	}
	go func() {
		select {
		case <-ch:
		case <-g.over:
			return
		case <-l.w.ctx.Done():
		}
		l.poke()
	}()
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// postpone drops grants of steps whose turn is over or has not come: a loop that kept one would wait for a change of the
// record that nobody tells it of. Of a later step whose turn has come it says in the record that it waits for its tool:
// before the first step nothing is recorded, the job message is held instead.
func (l *loop) postpone(c *change, need engine.Need, now envelope.Time) {
	r := l.h.Run
	room := l.parks(c)
	for name, g := range l.grants {
		if slices.ContainsFunc(c.starts, func(d *engine.Dispatch) bool { return d.Step == name }) {
			continue
		}
		s := r.Step(name)
		turn := slices.Contains(need.Ready, name)
		told := g.told && slices.Contains(need.Postponed, name) // its time comes, or its slot
		if r.End != nil || r.Decided != nil || !turn && !told {
			l.drop(name)
			if g.told && s != nil && s.Postponed && r.Postpone(name, now, now) == engine.Applied {
				c.changed = true // nobody here will start it any more: whoever may start it next need not wait
			}
			continue
		}
		if g.has {
			continue
		}
		if !room {
			// Waiting in memory is bounded: this run is handed over, and is due again when its turn may have come.
			gate := g.gate
			l.drop(name)
			if r.Postpone(name, now.Add(gate.handOver(l.w.Random())), now) == engine.Applied {
				c.changed = true
			}
			continue
		}
		if g.told || s.State == run.Unknown || l.h.Seq == 0 && !c.changed {
			continue
		}
		if r.Postpone(name, now.Add(l.w.Lease), now) == engine.Applied {
			g.told = true
			c.changed = true
		}
	}
}

// waitingHere are those of the steps that wait for a slot in this loop: it may start them as soon as they have it.
func (l *loop) waitingHere(postponed []string) (names []string) {
	for _, name := range postponed {
		if g := l.grants[name]; g != nil && g.told {
			names = append(names, name)
		}
	}
	return names
}

// parks reports whether the run may wait here without a slot, if that is what it is about to do.
func (l *loop) parks(c *change) bool {
	if l.busy(c)+len(c.starts)+l.granted() > 0 || len(l.grants) == 0 {
		l.w.gates.unpark(l)
		return true
	}
	return l.w.gates.park(l, l.w.Concurrency)
}
