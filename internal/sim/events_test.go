package sim

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// event lets something befall somebody.
func (p *player) event() {
	d := p.dice
	e := p.executors[d.n("who", len(p.executors))]
	r := p.recons[d.n("whom", len(p.recons))]
	id := p.wires[d.n("run", len(p.wires))]
	switch n := d.n("event", 21); {
	case n < 4:
		p.crash(e, d.chance("lost", 200))
	case n < 7:
		p.rest(p.living(&e.life), e.name, d.between("pause", time.Second, 20*time.Second))
	case n < 8:
		p.living(&r.life).die("killed")
	case n < 9:
		p.rest(p.living(&r.life), r.name, d.between("pause", time.Second, 20*time.Second))
	case n < 11:
		go p.redeploy(e)
	case n < 12:
		p.repeat(id)
	case n < 13:
		if jobs := p.jobs[id]; len(jobs) > 0 {
			p.publish(id, jobs[d.n("which", len(jobs))])
		}
	case n < 14:
		go p.cancel(id)
	case n < 16:
		go p.tell(id)
	case n < 17:
		p.startAnew()
	default:
		go p.answer(id)
	}
}

func (p *player) rest(who *proc, name string, d time.Duration) {
	p.say("%s is paused for %s", name, d)
	who.pause()
	time.AfterFunc(d, func() {
		p.say("%s goes on", name)
		who.resume()
	})
}

// crash kills an executor, with or without its disk; its supervisor starts it again.
func (p *player) crash(e *executor, disk bool) {
	p.mu.Lock()
	e.lost = disk
	p.mu.Unlock()
	p.living(&e.life).die("killed")
}

// living reads which life a process has now.
func (p *player) living(life **proc) *proc {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *life
}

// redeploy ends an executor as a deploy does.
func (p *player) redeploy(e *executor) { e.drain() }

func (p *player) cancel(id run.ID) {
	p.operatorCall(p.newProc("op"), id, "cancel", func(r *engine.Run, now envelope.Time) bool {
		return r.CancelRun("alice", "stop", now) == engine.Applied
	})
}

// tell is a program's report of what really became of a request.
func (p *player) tell(id run.ID) {
	p.mu.Lock()
	var known []*flight
	for _, f := range p.flights {
		if f.id == id && f.Effect == envelope.Write && f.decided {
			known = append(known, f)
		}
	}
	p.mu.Unlock()
	if len(known) == 0 {
		return
	}
	f := known[p.dice.n("report", len(known))]
	res := engine.Resolution{CommitState: envelope.NotCommitted, EvidenceRef: f.Ref}
	attempt := f.Attempt
	if f.committed {
		res.CommitState = envelope.Committed
		if p.dice.chance("result", 500) {
			res.Result = json.RawMessage(`{"id":"c"}`)
		}
		attempt *= p.dice.n("attempt", 2)
	}
	p.operatorCall(p.newProc("op"), id, "report", func(r *engine.Run, now envelope.Time) bool {
		_, refused := r.Report(f.Step, attempt, "webhook", res, p.world, now)
		return refused == nil
	})
}

// answer is a person who deals with an open letter, truthfully.
func (p *player) answer(id run.ID) {
	k := p.dice.n("answer", 4)
	p.operatorCall(p.newProc("op"), id, "answer", func(r *engine.Run, now envelope.Time) bool {
		if r.Letter == nil || !r.Letter.Open {
			return false
		}
		l := r.BuildLetter()
		call := engine.Call{Letter: l.ID, By: "alice", Reason: "looked into it", At: now}
		if to := [...]string{"platform", "billing"}[p.dice.n("owner", 2)]; p.dice.n("assign", 4) == 0 && to != l.Owner {
			changed, refused := r.Assign(call, to) // the letter stays open, and is answered another time
			return changed && refused == nil
		}
		switch {
		case slices.Contains(l.AllowedActions, deadletter.Resolve) && k > 0:
			call.Step = l.Open[p.dice.n("open", len(l.Open))].Step
			p.mu.Lock()
			undecided, done := p.open(id, call.Step), p.ledger(id, call.Step) > 0
			p.mu.Unlock()
			if undecided {
				return false // nobody can know yet
			}
			res := engine.Resolution{CommitState: envelope.NotCommitted}
			if done {
				res = engine.Resolution{CommitState: envelope.Committed, Result: json.RawMessage(`{"id":"c"}`), EvidenceRef: r.Ref(call.Step)}
			}
			_, refused := r.Resolve(call, res, p.world)
			return refused == nil
		case slices.Contains(l.AllowedActions, deadletter.Replay) && k > 1:
			_, refused := r.Replay(call, engine.ReplayWith{})
			return refused == nil
		}
		_, refused := r.Discard(call)
		return refused == nil
	})
}

// supervise starts a process again whenever its life has ended.
func (p *player) supervise(name string, down func() chan struct{}, start func()) {
	for {
		select {
		case <-down():
		case <-p.closed:
			return
		}
		t := time.NewTimer(p.dice.between("restart"+name, 50*time.Millisecond, 15*time.Second))
		select {
		case <-t.C:
		case <-p.closed:
			t.Stop()
			return
		}
		start()
	}
}

func (p *player) run() {
	for _, e := range p.executors {
		e.start()
		go p.supervise(e.name, func() chan struct{} { return p.ending(&e.down) }, func() {
			p.mu.Lock()
			if e.lost {
				p.sayLocked("%s has lost its journal", e.name)
				e.disk.wipe()
				e.lost = false
			}
			p.mu.Unlock()
			e.start()
		})
	}
	for _, r := range p.recons {
		r.start()
		go p.supervise(r.name, func() chan struct{} { return p.ending(&r.down) }, r.start)
	}
}

// settle stops the faults and waits until nothing is owed any more.
func (p *player) settle() {
	p.mu.Lock()
	p.calm = true
	p.sayLocked("no more faults")
	procs := slices.Clone(p.procs)
	p.mu.Unlock()
	for _, who := range procs {
		who.resume()
	}
	for until := time.Now().Add(calmFor); time.Now().Before(until); {
		if p.sleepUntil(time.Since(p.zero) + 500*time.Millisecond) {
			return
		}
		p.mu.Lock()
		over := p.settled()
		p.mu.Unlock()
		if over {
			break
		}
	}
	p.mu.Lock()
	p.checkEnd()
	p.mu.Unlock()
}

// end stops every process; all of their code must come to an end.
func (p *player) end() {
	close(p.closed)
	p.mu.Lock()
	procs := slices.Clone(p.procs)
	p.mu.Unlock()
	for _, who := range procs {
		who.die("the world ends")
	}
	for _, e := range p.executors {
		p.downIn(e.name, p.ending(&e.down))
	}
	for _, r := range p.recons {
		p.downIn(r.name, p.ending(&r.down))
	}
	time.Sleep(time.Minute) // for what is still on the wire: nothing waits in a bubble that is left
}

// ending reads which channel tells of the present life's end.
func (p *player) ending(down *chan struct{}) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *down
}

func (p *player) downIn(name string, down chan struct{}) {
	t := time.NewTimer(5 * time.Minute)
	defer t.Stop()
	select {
	case <-down:
	case <-t.C:
		p.mu.Lock()
		p.violated("end", "the code of %s does not end", name)
		p.mu.Unlock()
	}
}
