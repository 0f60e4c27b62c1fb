// Package queue takes jobs and wakes from NATS, only for slots that are free, and looks ahead of a backlog for those whose turn
// it is (internal/fair).
package queue

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/fair"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
)

const (
	// pullExpiry is how long the server keeps a pull request that it cannot fill. With pullGrace it bounds how long a
	// request that was lost without a word (a leader that died) goes unnoticed.
	pullExpiry = 5 * time.Second
	pullGrace  = time.Second
	// parkAfter is when a request that is not filled yet is taken for one that waits at an empty queue: from then on
	// the slots it stands for are offered to the other queues too.
	parkAfter = 10 * time.Millisecond
	// excessDelay keeps a message that nobody has a slot for from going round in circles.
	excessDelay = 250 * time.Millisecond
	// waryMost bounds how long a look ahead is waited for before more is pulled for a tenant at its cap.
	waryMost = time.Second
	// probeEvery is how often something is pulled while all that is known to wait is of tenants at their cap.
	probeEvery = time.Second
)

// Puller takes deliveries from the jobs and wakes of some queues, only for slots that are free. Each of them has at
// most one pull request out, so that it is always known how much was asked for. Slots are divided among the queues that
// have something; while all are empty each waits with as many requests as there are slots, and what arrives beyond
// that is given back at once, and handed on without a slot when it comes again: nothing else is held that has no slot.
//
// A consumer delivers in the order of arrival. Behind a backlog the puller therefore looks ahead, and takes a job whose turn
// it is before those that came earlier: see pick.
type Puller struct {
	conn    *bus.Conn
	deliver func(port.Delivery)
	turns   Turns
	kick    chan struct{}
	behind  chan struct{} // signals that there is a backlog
	stopped chan struct{}
	done    chan struct{}
	picks   sync.WaitGroup // and the scout

	mu      sync.Mutex
	free    int
	paused  bool
	ended   bool
	sources []*source
	next    int // where the next round begins
}

// Turns say whose turn it is when there is more to do than slots. The zero value treats all tenants alike.
type Turns struct {
	Shares *fair.Shares
	// Executors is among how many the looking ahead is divided.
	Executors func() int
	// Picks remembers what is taken out of its order; nil: nothing is remembered.
	Picks *Picks
	// Unused is called, from any goroutine, when what a slot was offered for may be gone: see Puller.Waits.
	Unused func()
}

// source is one consumer.
type source struct {
	wake     bool // of the two streams of its queue it is that of wakes
	queue    string
	stream   string
	prefix   string // of the stream's subjects
	subject  string // of pull requests
	inbox    string // and dot; the rest is the number of the request
	sub      *nats.Subscription
	asked    uint64 // number of the latest request
	left     int    // of the latest request; 0: none is out
	since    time.Time
	failures int
	retryAt  time.Time

	pending  uint64   // not delivered yet, by the latest delivery or look
	ahead    *ahead   // what is known of those
	promised []string // tenants whose messages the request that is out should be answered with
	looked   time.Time
	wary     time.Time // when a delivery last brought a tenant to its cap
	probed   time.Time // when something was last pulled although all that is known is of tenants at their cap
}

// New subscribes; nothing is pulled before Want. deliver is called from one goroutine for each queue and kind,
// or from one of its own for a message that is taken out of its order, and must hand the delivery on without waiting.
func New(c *bus.Conn, queues []string, turns Turns, deliver func(port.Delivery)) (*Puller, error) {
	if turns.Shares == nil {
		turns.Shares = fair.New(nil)
	}
	if turns.Executors == nil {
		turns.Executors = func() int { return 1 }
	}
	if turns.Unused == nil {
		turns.Unused = func() {}
	}
	p := &Puller{
		conn: c, deliver: deliver, turns: turns,
		kick: make(chan struct{}, 1), behind: make(chan struct{}, 1), stopped: make(chan struct{}), done: make(chan struct{}),
	}
	for _, queue := range queues {
		for _, wake := range []bool{true, false} {
			if err := p.addSource(wake, queue); err != nil {
				p.unsubscribe()
				return nil, err
			}
		}
	}
	go p.loop()
	p.picks.Go(p.scout)
	return p, nil
}

func (p *Puller) addSource(wake bool, queue string) error {
	stream, prefix := topology.JobsStream, topology.Jobs
	if wake {
		stream, prefix = topology.WakesStream, topology.Wakes
	}
	s := &source{
		wake: wake, queue: queue, stream: stream, prefix: prefix, ahead: newAhead(),
		subject: p.conn.API().Subject("CONSUMER.MSG.NEXT." + stream + "." + topology.ConsumerName(queue)),
		inbox:   p.conn.NATS().NewInbox() + ".",
	}
	sub, err := p.conn.NATS().Subscribe(s.inbox+"*", func(m *nats.Msg) { p.receive(s, m) })
	if err != nil {
		return fmt.Errorf("queue: pull from %s of %s: %w", stream, queue, err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return fmt.Errorf("queue: pull from %s of %s: %w", stream, queue, err)
	}
	s.sub = sub
	p.sources = append(p.sources, s)
	return nil
}

// Want says that n more slots are free. Each delivery takes one.
func (p *Puller) Want(n int) {
	p.mu.Lock()
	p.free += n
	p.mu.Unlock()
	p.poke()
}

// Pause stops taking jobs (true), or goes on (false). Wakes still come: what runs must be able to finish. Jobs that
// arrive on a request that is still out are given back.
func (p *Puller) Pause(paused bool) {
	p.mu.Lock()
	p.paused = paused
	p.mu.Unlock()
	p.poke()
}

// Stop ends pulling. When it returns deliver is not called any more, and what was on its way has been given back.
func (p *Puller) Stop() {
	p.mu.Lock()
	if p.ended {
		p.mu.Unlock()
		<-p.done
		return
	}
	p.ended = true
	p.mu.Unlock()
	close(p.stopped)
	<-p.done
	p.picks.Wait()
	p.unsubscribe()
}

// unsubscribe drains: the server may have sent messages on requests that still wait, and a client that just
// unsubscribed would drop them, to be missed until their ack wait ends.
func (p *Puller) unsubscribe() {
	for _, s := range p.sources {
		drained := s.sub.StatusChanged(nats.SubscriptionClosed)
		if s.sub.Drain() != nil || !p.conn.NATS().IsConnected() {
			continue
		}
		timer := time.NewTimer(2 * time.Second)
		select {
		case <-drained:
		case <-timer.C:
		case <-p.conn.Closed():
		}
		timer.Stop()
	}
}

func (p *Puller) poke() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

func (p *Puller) loop() {
	defer close(p.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	changed := p.conn.Changed()
	for {
		select {
		case <-p.stopped:
			return
		case <-p.conn.Closed():
			return
		case <-changed:
			changed = p.conn.Changed()
			p.forget()
		case <-p.kick:
		case <-timer.C:
		}
		timer.Reset(p.ask(time.Now()))
	}
}

// forget drops what was asked for on a connection that is gone. If the server still has a request and fills it, the
// surplus is given back.
func (p *Puller) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sources {
		s.left, s.failures, s.retryAt = 0, 0, time.Time{}
		p.unpromise(s, len(s.promised))
	}
}

// pull is one request to send.
type pull struct {
	source *source
	reply  string
	batch  int
}

// ask divides the free slots among the sources that have no request out, and returns when to look again.
func (p *Puller) ask(now time.Time) time.Duration {
	wait := time.Second
	if !p.conn.NATS().IsConnected() {
		return wait
	}
	p.mu.Lock()
	var idle []*source
	available := p.free
	for i := range p.sources {
		s := p.sources[(p.next+i)%len(p.sources)]
		age := now.Sub(s.since)
		if s.left > 0 && age > pullExpiry+pullGrace {
			s.left = 0 // lost without a word
			p.unpromise(s, len(s.promised))
		}
		switch {
		case s.left == 0 && p.paused && !s.wake:
		case s.left == 0 && now.Before(s.retryAt):
			wait = min(wait, s.retryAt.Sub(now))
		case s.left == 0:
			idle = append(idle, s)
		case age < parkAfter:
			available -= s.left
			wait = min(wait, parkAfter-age)
		}
	}
	pulls := p.divide(idle, available, now)
	p.mu.Unlock()
	if len(pulls) > 0 {
		wait = min(wait, parkAfter)
	}
	for _, r := range pulls {
		body := fmt.Appendf(nil, `{"batch":%d,"expires":%d}`, r.batch, pullExpiry.Nanoseconds())
		msg := nats.Msg{Subject: r.source.subject, Reply: r.reply, Data: body}
		if err := p.conn.NATS().PublishMsg(&msg); err != nil {
			p.failed(r.source, now)
		}
	}
	return wait
}

func (p *Puller) divide(idle []*source, available int, now time.Time) []pull {
	var pulls []pull
	asked := false
	for i, s := range idle {
		if available <= 0 {
			break
		}
		share := (available + len(idle) - i - 1) / (len(idle) - i)
		batch, picked := p.choose(s, share)
		if asked = asked || batch+picked > 0; batch+picked < share {
			share = batch + picked // the rest is for the others
		}
		available -= share
		if batch == 0 {
			continue
		}
		s.asked++
		s.left, s.since = batch, now
		pulls = append(pulls, pull{s, s.inbox + strconv.FormatUint(s.asked, 36), batch})
	}
	if asked {
		p.next = (p.next + 1) % len(p.sources)
	}
	return pulls
}

func (p *Puller) failed(s *source, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.left = 0
	p.unpromise(s, len(s.promised))
	s.failures++
	s.retryAt = now.Add(min(25*time.Millisecond<<min(s.failures-1, 5), 500*time.Millisecond))
}

func (p *Puller) receive(s *source, m *nats.Msg) {
	meta, ok := bus.ParseReply(m.Reply)
	if !ok { // no message of the stream, whatever its headers say: the server about the request
		p.status(s, m)
		return
	}
	p.conn.Clock().Heard(meta.At) // whoever wakes a run has seen it due: so does who is woken
	d := s.delivery(bus.MessageOf(s.queue, meta.Stream, meta.At, m.Header, m.Data), m.Subject, &answer{conn: p.conn, reply: m.Reply})
	d.Redelivered = meta.Delivered > 1
	tenant := d.ID.Tenant
	if !d.Valid {
		tenant = port.InvalidTenant
	}
	p.mu.Lock()
	s.failures = 0
	if s.left > 0 {
		s.left--
	}
	s.pending = meta.Pending
	s.ahead.delivered(d.Seq)
	if meta.Pending == 0 {
		s.ahead = newAhead()
	}
	refill := s.left == 0
	held := p.paused && !s.wake
	room := p.free > 0 && !p.ended && !held
	if room {
		p.free--
	} else if d.Redelivered && !p.ended && !held {
		// It has met no slot before. Given back again and again it would get one only by luck: it waits for its turn here.
		room = true
	}
	promised := ""
	if len(s.promised) > 0 {
		promised, s.promised = s.promised[0], s.promised[1:]
	}
	p.mu.Unlock()
	if meta.Pending > 0 {
		select {
		case p.behind <- struct{}{}:
		default:
		}
	}
	if promised != "" {
		p.turns.Shares.Unpromise(promised) // it is this one, which counts by itself from now on
	}
	if room {
		p.deliver(d)
	}
	if p.turns.Shares.Full(tenant) {
		p.mu.Lock()
		s.wary = time.Now()
		p.mu.Unlock()
	}
	if refill {
		p.poke()
	}
	if room {
		return
	}
	delay := time.Duration(0)
	if d.Redelivered || held {
		delay = excessDelay
	}
	if err := d.Release(delay); err != nil {
		p.conn.Log().Debug("delivery not given back", "subject", d.Subject, "error", err)
	}
}

// status ends the request that it names. The end of an empty wait is ordinary; everything else is tried again after a
// pause, with a look at whether the consumer still exists.
func (p *Puller) status(s *source, m *nats.Msg) {
	code := m.Header.Get("Status")
	number, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, s.inbox), 36, 64)
	p.mu.Lock()
	current := err == nil && number == s.asked
	p.mu.Unlock()
	if !current || code == "100" {
		return
	}
	if code == "408" || code == "404" {
		p.mu.Lock()
		s.left, s.failures = 0, 0
		p.unpromise(s, len(s.promised))
		p.mu.Unlock()
		p.poke()
		return
	}
	p.conn.Log().Debug("pull ended", "queue", s.queue, "stream", s.stream, "status", code, "description", m.Header.Get("Description"))
	p.failed(s, time.Now())
	p.conn.CheckStreams()
	p.poke()
}
