package bus

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
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
)

// Puller takes deliveries from the jobs and wakes of some queues, only for slots that are free. Each of them has at
// most one pull request out, so that it is always known how much was asked for. Slots are divided among the queues that
// have something; while all are empty each waits with as many requests as there are slots, and what arrives beyond
// that is given back at once: nothing is held that has no slot.
type Puller struct {
	conn    *Conn
	deliver func(Delivery)
	kick    chan struct{}
	stopped chan struct{}
	done    chan struct{}

	mu      sync.Mutex
	free    int
	paused  bool
	ended   bool
	sources []*source
	next    int // where the next round begins
}

// source is one consumer.
type source struct {
	kind     Kind
	queue    string
	subject  string // of pull requests
	inbox    string // and dot; the rest is the number of the request
	sub      *nats.Subscription
	asked    uint64 // number of the latest request
	left     int    // of the latest request; 0: none is out
	since    time.Time
	failures int
	retryAt  time.Time
}

// NewPuller subscribes; nothing is pulled before Want. deliver is called from one goroutine for each queue and kind,
// and must hand the delivery on without waiting.
func (c *Conn) NewPuller(queues []string, deliver func(Delivery)) (*Puller, error) {
	p := &Puller{
		conn: c, deliver: deliver,
		kick: make(chan struct{}, 1), stopped: make(chan struct{}), done: make(chan struct{}),
	}
	for _, queue := range queues {
		for _, kind := range []Kind{Wake, Job} {
			if err := p.addSource(kind, queue); err != nil {
				p.unsubscribe()
				return nil, err
			}
		}
	}
	go p.loop()
	return p, nil
}

func (p *Puller) addSource(kind Kind, queue string) error {
	stream := JobsStream
	if kind == Wake {
		stream = WakesStream
	}
	s := &source{
		kind: kind, queue: queue,
		subject: "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + ConsumerName(queue),
		inbox:   p.conn.nc.NewInbox() + ".",
	}
	sub, err := p.conn.nc.Subscribe(s.inbox+"*", func(m *nats.Msg) { p.receive(s, m) })
	if err != nil {
		return fmt.Errorf("bus: pull %ss of %s: %w", kind, queue, err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return fmt.Errorf("bus: pull %ss of %s: %w", kind, queue, err)
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
	p.unsubscribe()
}

// unsubscribe drains: the server may have sent messages on requests that still wait, and a client that just
// unsubscribed would drop them, to be missed until their ack wait ends.
func (p *Puller) unsubscribe() {
	for _, s := range p.sources {
		drained := s.sub.StatusChanged(nats.SubscriptionClosed)
		if s.sub.Drain() != nil || !p.conn.nc.IsConnected() {
			continue
		}
		timer := time.NewTimer(2 * time.Second)
		select {
		case <-drained:
		case <-timer.C:
		case <-p.conn.closed:
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
	changed := p.conn.next(&p.conn.changed)
	for {
		select {
		case <-p.stopped:
			return
		case <-p.conn.closed:
			return
		case <-changed:
			changed = p.conn.next(&p.conn.changed)
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
	if !p.conn.nc.IsConnected() {
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
		}
		switch {
		case s.left == 0 && p.paused && s.kind == Job:
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
		if err := p.conn.nc.PublishMsg(&msg); err != nil {
			p.failed(r.source, now)
		}
	}
	return wait
}

func (p *Puller) divide(idle []*source, available int, now time.Time) []pull {
	var pulls []pull
	for i, s := range idle {
		if available <= 0 {
			break
		}
		share := (available + len(idle) - i - 1) / (len(idle) - i)
		available -= share
		s.asked++
		s.left, s.since = share, now
		pulls = append(pulls, pull{s, s.inbox + strconv.FormatUint(s.asked, 36), share})
	}
	if len(pulls) > 0 {
		p.next = (p.next + 1) % len(p.sources)
	}
	return pulls
}

func (p *Puller) failed(s *source, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.left = 0
	s.failures++
	s.retryAt = now.Add(min(25*time.Millisecond<<min(s.failures-1, 5), 500*time.Millisecond))
}

func (p *Puller) receive(s *source, m *nats.Msg) {
	d, ok := p.conn.deliveryOf(s.kind, s.queue, m)
	if !ok { // no message of the stream, whatever its headers say: the server about the request
		p.status(s, m)
		return
	}
	p.mu.Lock()
	s.failures = 0
	if s.left > 0 {
		s.left--
	}
	refill := s.left == 0
	held := p.paused && s.kind == Job
	room := p.free > 0 && !p.ended && !held
	if room {
		p.free--
	}
	p.mu.Unlock()
	if refill {
		p.poke()
	}
	if room {
		p.deliver(d)
		return
	}
	delay := time.Duration(0)
	if d.Redelivered || held {
		delay = excessDelay
	}
	if err := d.Release(delay); err != nil {
		p.conn.log.Debug("delivery not given back", "subject", d.Subject, "error", err)
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
		p.mu.Unlock()
		p.poke()
		return
	}
	p.conn.log.Debug("pull ended", "queue", s.queue, "kind", s.kind.String(), "status", code, "description", m.Header.Get("Description"))
	p.failed(s, time.Now())
	p.conn.keeper.check()
	p.poke()
}
