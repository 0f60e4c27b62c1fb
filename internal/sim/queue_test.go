package sim

import (
	"errors"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/worker"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// queue is the fake of the jobs and wakes streams and their consumers: it redelivers what is not acknowledged in time, and
// answers are not fenced, as in the real one.
type queue struct {
	w        *world
	jobSeq   uint64
	messages []*message
	ackWait  time.Duration
}

type message struct {
	port.Delivery
	times    int // delivered so far
	token    int // of the present delivery; 0: it lies in the queue
	claimed  bool
	deadline time.Time
	gone     bool
}

func (q *queue) init(w *world) { q.w, q.ackWait = w, 10*time.Second }

// publish stores a job.
func (w *world) publish(id run.ID, data []byte) {
	w.mu.Lock()
	w.jobSeq++
	m := &message{Delivery: port.Delivery{
		Message: engine.Message{Seq: w.jobSeq, Time: envelope.TimeOf(time.Now()), Queue: "default", Data: data},
		ID:      id, Valid: true, Subject: "agentrun.jobs.default." + id.Tenant + "." + id.Run,
	}}
	w.messages = append(w.messages, m)
	w.sayLocked("job %d is published: %s", m.Seq, data)
	w.mu.Unlock()
	w.pump()
}

func (w *world) wake(queue string, id run.ID) (fresh bool) {
	w.mu.Lock()
	for _, m := range w.messages {
		if m.Wake && !m.gone && m.ID == id {
			w.mu.Unlock()
			return false // refused: one per subject
		}
	}
	w.messages = append(w.messages, &message{Delivery: port.Delivery{
		Message: engine.Message{Time: envelope.TimeOf(time.Now()), Queue: queue},
		Wake:    true, ID: id, Valid: true, Subject: "agentrun.wakes." + queue + "." + id.Tenant + "." + id.Run,
	}})
	w.sayLocked("%s is woken", id.Run)
	w.mu.Unlock()
	w.pump()
	return true
}

// pump delivers what lies in the queue to whoever wants it.
func (w *world) pump() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.messages = compact(w.messages)
	for _, m := range w.messages {
		if m.token != 0 {
			continue
		}
		to := w.taker(m)
		if to == nil {
			continue
		}
		if to.want--; to.want <= 0 {
			w.full = time.Now()
		}
		if !m.claimed && w.dice.n("claim"+m.ID.Run, 8) == 0 {
			w.claim(m, to)
			continue
		}
		w.deliver(m, to)
	}
}

// claim hands a message to a puller that takes it out of its order: the queue does not know, and delivers it too unless
// it is gone by then; w.mu is held.
func (w *world) claim(m *message, to *puller) {
	m.claimed = true
	d := m.Delivery
	d.Acker = &claimed{ack{p: to.p, m: m}}
	to.inFlight++
	w.sayLocked("%s claims %s", to.p.name, describe(m))
	go to.carry(d, m, -1)
	time.AfterFunc(w.dice.between("claimed"+m.ID.Run, 0, w.ackWait/2), w.pump)
}

// claimed answers a claim: only the acknowledgement means something.
type claimed struct{ ack }

func (*claimed) InProgress() error           { return nil }
func (*claimed) Release(time.Duration) error { return nil }

func compact(all []*message) []*message {
	keep := all[:0]
	for _, m := range all {
		if !m.gone {
			keep = append(keep, m)
		}
	}
	clear(all[len(keep):])
	return keep
}

// taker picks one of the pullers that want something; w.mu is held.
func (w *world) taker(m *message) *puller {
	var want []*puller
	for _, e := range w.executors {
		if p := e.puller; p != nil && p.want > 0 && !p.ended && !p.p.isDead() {
			want = append(want, p)
		}
	}
	if len(want) == 0 {
		return nil
	}
	return want[w.dice.n("taker"+m.ID.Run, len(want))]
}

// deliver sends a message to a puller; w.mu is held.
func (w *world) deliver(m *message, to *puller) {
	m.times++
	m.token = m.times
	w.arm(m, w.ackWait)
	d := m.Delivery
	d.Redelivered = m.times > 1
	d.Acker = &ack{p: to.p, m: m}
	to.inFlight++
	token := m.token
	w.sayLocked("%s gets %s (delivery %d)", to.p.name, describe(m), m.times)
	go to.carry(d, m, token)
}

func describe(m *message) string {
	if m.Wake {
		return "the wake of " + m.ID.Run
	}
	return "job " + itoa(m.Seq) + " of " + m.ID.Run
}

// arm makes the message come again unless it is answered in time; w.mu is held.
func (w *world) arm(m *message, after time.Duration) {
	m.deadline = time.Now().Add(after)
	token := m.token
	time.AfterFunc(after, func() {
		w.mu.Lock()
		lapsed := !m.gone && m.token == token && !time.Now().Before(m.deadline)
		if lapsed {
			m.token = 0
		}
		w.mu.Unlock()
		if lapsed {
			w.pump()
		}
	})
}

// repeat delivers a message once more although somebody may have it already.
func (w *world) repeat(id run.ID) {
	w.mu.Lock()
	for _, m := range w.messages {
		if !m.gone && m.ID == id && m.token != 0 {
			w.sayLocked("%s is lost sight of by the queue", describe(m))
			w.disturb()
			m.token = 0
			break
		}
	}
	w.mu.Unlock()
	w.pump()
}

// ack answers a delivery: sent and forgotten.
type ack struct {
	p *proc
	m *message
}

var errNoAck = errors.New("not answered")

func (a *ack) answer(op string, effect func(w *world)) error {
	w := a.p.w
	if !a.p.gate() {
		return errDead
	}
	f := w.befall(a.p, op, a.m.ID.Run)
	switch f {
	case crashBefore:
		a.p.die("before " + op)
		return errDead
	case failBefore, failLate:
		w.say("%s %s %s is lost", a.p.name, op, describe(a.m))
		return errNoAck
	}
	w.mu.Lock()
	w.sayLocked("%s %s %s", a.p.name, op, describe(a.m))
	effect(w)
	w.mu.Unlock()
	if f == crashAfter {
		a.p.die("after " + op)
		return errDead
	}
	w.pump()
	return nil
}

func (a *ack) Ack() error {
	return a.answer("jobs.ack", func(w *world) {
		w.checkAck(a.p, a.m)
		a.m.gone = true
	})
}

func (a *ack) InProgress() error {
	return a.answer("jobs.progress", func(w *world) {
		if !a.m.gone && a.m.token != 0 {
			w.arm(a.m, w.ackWait)
		}
	})
}

func (a *ack) Release(delay time.Duration) error {
	return a.answer("jobs.release", func(w *world) {
		if a.m.gone || a.m.token == 0 {
			return
		}
		if delay <= 0 {
			a.m.token = 0
			return
		}
		w.arm(a.m, delay)
	})
}

// puller is what an executor pulls with.
type puller struct {
	p        *proc
	give     func(port.Delivery)
	want     int
	ended    bool
	inFlight int
	idle     chan struct{} // closed when it has ended and nothing is on its way
}

func (p *puller) Want(n int) {
	p.p.w.mu.Lock()
	if p.want += n; p.want <= 0 || p.want-n <= 0 {
		p.p.w.full = time.Now()
	}
	p.p.w.mu.Unlock()
	go p.p.w.pump() // the caller holds a lock
}

func (p *puller) Waits() (string, bool) { return "", false }

func (p *puller) Stop() {
	w := p.p.w
	w.mu.Lock()
	p.ended = true
	if p.inFlight == 0 {
		close(p.idle)
	}
	w.mu.Unlock()
	<-p.idle
}

// carry brings a delivery to the worker, unless the process dies or stops meanwhile.
func (p *puller) carry(d port.Delivery, m *message, token int) {
	w := p.p.w
	_ = p.p.travel(p.p.ctx, "jobs.deliver", false)
	alive := p.p.gate()
	w.mu.Lock()
	ended := p.ended
	w.mu.Unlock()
	switch {
	case !alive:
	case ended:
		w.mu.Lock()
		if m.token == token {
			m.token = 0
		}
		w.mu.Unlock()
		w.pump()
	default:
		p.give(d)
	}
	w.mu.Lock()
	p.inFlight--
	if p.ended && p.inFlight == 0 {
		close(p.idle)
	}
	w.mu.Unlock()
}

// hinted brings a hint to the executor that has this holder's name.
func (w *world) hinted(holder string, id run.ID) {
	time.Sleep(w.dice.between("hint"+id.Run, 100*time.Microsecond, 2*time.Millisecond))
	w.mu.Lock()
	var life *proc
	var to *worker.Worker
	for _, e := range w.executors {
		if e.holder == holder && e.worker != nil {
			life, to = e.life, e.worker
		}
	}
	w.mu.Unlock()
	if to != nil && life.gate() {
		to.Hinted(id)
	}
}

func itoa(n uint64) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + string(rune('0'+n%10))
}
