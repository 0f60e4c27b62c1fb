package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/run"
)

const (
	// lookEvery is how often a queue with a backlog is looked at; lookBatch and lookBytes bound one request of that.
	lookEvery = 50 * time.Millisecond
	lookBatch = 256
	lookBytes = 1 << 20
	// lookRate is how many messages a second all executors together look at ahead of their delivery.
	lookRate = 10_000
	// lookAgain is after how long one tries again whose question was not answered: it may not look, or a server is away.
	lookAgain = 5 * time.Second
	askWait   = 2 * time.Second
)

var errCannotLook = errors.New("no answer to a direct get: this user may not make it, or a server of the stream does not answer")

// look finds out what of a source's backlog has not been delivered yet, as far as budget messages reach; it returns how
// many it read. Nothing is decided by what it finds but whose turn it is: every pick is decided by the run's record.
func (p *Puller) look(ctx context.Context, s *source, budget int) (read int, err error) {
	var info struct {
		Delivered struct {
			Stream uint64 `json:"stream_seq"`
		} `json:"delivered"`
		Pending uint64 `json:"num_pending"`
	}
	if err := p.conn.Ask(ctx, "CONSUMER.INFO."+s.stream+"."+topology.ConsumerName(s.queue), nil, &info); err != nil {
		return 0, err
	}
	p.mu.Lock()
	if info.Pending == 0 {
		s.pending, s.ahead = 0, newAhead()
		p.mu.Unlock()
		return 0, nil
	}
	s.ahead.delivered(info.Delivered.Stream)
	s.ahead.prune()
	from, room := max(s.ahead.next, s.ahead.floor+1), min(budget, aheadMost-s.ahead.n)
	p.mu.Unlock()
	for read < room {
		batch, err := listNext(ctx, p.conn, s.stream, topology.InQueue(s.prefix, s.queue), from, min(lookBatch, room-read))
		if err != nil {
			return read, err
		}
		if len(batch) == 0 {
			break
		}
		p.mu.Lock()
		for _, m := range batch {
			tokens := topology.ParseQueueSubject(s.prefix, m.Subject)
			tenant, priority := tokens.ID.Tenant, run.DefaultPriority
			if !s.wake && p.turns.Picks.avoided(m.Seq) {
				s.ahead.see(m.Seq, tenant, tokens.ID.Run)
				continue
			}
			if !tokens.Valid {
				tenant = port.InvalidTenant
			} else if !s.wake {
				priority = run.PriorityOf(m.Data)
			}
			s.ahead.add(m.Seq, tenant, tokens.ID.Run, priority)
		}
		p.mu.Unlock()
		read += len(batch)
		from = batch[len(batch)-1].Seq + 1
	}
	return read, nil
}

// listNext reads the first messages of a filter from a sequence on, at most n of them, by the direct API: it may be behind.
func listNext(ctx context.Context, c *bus.Conn, stream, filter string, from uint64, n int) ([]*bus.Stored, error) {
	ask, err := json.Marshal(struct {
		Seq   uint64 `json:"seq"`
		Next  string `json:"next_by_subj"`
		Batch int    `json:"batch"`
		Bytes int    `json:"max_bytes"`
	}{from, filter, n, lookBytes})
	if err != nil {
		return nil, err
	}
	inbox := c.NATS().NewInbox()
	sub, err := c.NATS().SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := c.NATS().PublishRequest(c.API().Subject("DIRECT.GET."+stream), inbox, ask); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	var out []*bus.Stored
	for {
		m, err := sub.NextMsgWithContext(ctx)
		switch {
		case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded) && len(out) == 0:
			return nil, errCannotLook
		case err != nil:
			return out, err
		}
		switch status := m.Header.Get("Status"); status {
		case "":
		case "204", "404": // the end
			return out, nil
		default:
			return out, fmt.Errorf("direct get of %s: %s %s", stream, status, m.Header.Get("Description"))
		}
		stored, err := bus.DirectMessage(m)
		if err != nil {
			return out, err
		}
		out = append(out, stored)
	}
}

// pick takes one message out of its order. It stays in the stream until it is acknowledged, and its consumer may deliver
// it too, to this executor or another: like any second delivery it meets the run's record then, which knows it.
func (p *Puller) pick(s *source, seq uint64, tenant string) {
	ctx, cancel := context.WithTimeout(context.Background(), askWait)
	defer cancel()
	m, err := p.conn.DirectGet(ctx, s.stream, seq, "")
	p.mu.Lock()
	ok := err == nil && !p.ended
	if !ok {
		p.free++
	}
	p.mu.Unlock()
	p.turns.Shares.Unpromise(tenant)
	if !ok {
		if err != nil && !errors.Is(err, port.ErrNotFound) {
			p.conn.Log().Debug("job not picked", "queue", s.queue, "seq", seq, "error", err)
		}
		p.turns.Unused()
		p.poke()
		return
	}
	if !s.wake {
		p.turns.Picks.begin(seq)
	}
	p.conn.Clock().Heard(m.Time)
	p.deliver(s.delivery(bus.MessageOf(s.queue, m.Seq, m.Time, m.Header, m.Data), m.Subject, &answer{conn: p.conn, picked: s.stream, picks: p.turns.Picks}))
}

// scout looks ahead while there is a backlog, until the puller ends.
func (p *Puller) scout() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-p.stopped:
		case <-p.conn.Closed():
		case <-ctx.Done():
		}
		cancel()
	}()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var blind time.Time // until when nothing is looked at
	var told bool
	for {
		select {
		case <-p.stopped:
			return
		case <-p.conn.Closed():
			return
		case <-p.behind:
		}
		for p.backlog() {
			if time.Now().After(blind) && p.conn.NATS().IsConnected() {
				err := p.lookAll(ctx)
				if errors.Is(err, errCannotLook) {
					if blind = time.Now().Add(lookAgain); !told {
						told = true
						p.conn.Log().Warn("waiting jobs are taken first come, first served: whose turn it is cannot be seen", "error", err)
					}
					p.forgetAhead()
				} else if err != nil && ctx.Err() == nil {
					p.conn.Log().Debug("waiting jobs not looked at", "error", err)
				}
				p.turns.Unused()
				p.poke()
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}
}

// lookAll looks at each source that has a backlog.
func (p *Puller) lookAll(ctx context.Context) error {
	budget := max(int(float64(lookRate)*lookEvery.Seconds())/max(p.turns.Executors(), 1), 1)
	delivered := uint64(math.MaxUint64) // of all queues
	for _, s := range p.sources {
		p.mu.Lock()
		skip := s.pending == 0
		began := time.Now()
		p.mu.Unlock()
		if skip {
			continue
		}
		each, cancel := context.WithTimeout(ctx, askWait+time.Second)
		n, err := p.look(each, s, budget)
		cancel()
		if err != nil {
			return err
		}
		budget = max(budget-n, 1)
		p.mu.Lock()
		s.looked = began
		if !s.wake && s.pending > 0 {
			delivered = min(delivered, s.ahead.floor)
		}
		p.mu.Unlock()
	}
	p.turns.Picks.passed(delivered)
	return nil
}

// backlog reports whether a queue has more than was delivered at its last delivery.
func (p *Puller) backlog() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sources {
		if s.pending > 0 {
			return true
		}
	}
	return false
}

func (p *Puller) forgetAhead() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sources {
		s.ahead, s.looked = newAhead(), time.Now().Add(lookAgain)
	}
}
