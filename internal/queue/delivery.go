package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
)

// answer is how a delivery is answered. Acknowledgements are not fenced and may be lost.
type answer struct {
	conn    *bus.Conn
	seq     uint64
	subject string
	reply   string
	picked  string // the stream, of a message that was taken out of its order
	picks   *Picks
}

var (
	ackBody        = []byte("+ACK")
	inProgressBody = []byte("+WPI")
)

// Ack is port.Acker's.
func (a *answer) Ack() error {
	if a.picked != "" {
		a.picks.finish(a.seq)
		go a.remove()
		return nil
	}
	return a.say(ackBody)
}

// remove deletes a message that was taken out of its order. If that fails it is delivered in its order.
func (a *answer) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), askWait)
	defer cancel()
	if err := a.conn.Remove(ctx, a.picked, a.seq); err != nil && !errors.Is(err, port.ErrNotFound) {
		a.conn.Log().Debug("job not removed, it will come again", "subject", a.subject, "error", err)
	}
}

// InProgress is port.Acker's. Nobody waits for a message that was taken out of its order: it is in the stream until Ack,
// and Release leaves it there.
func (a *answer) InProgress() error { return a.say(inProgressBody) }

// Release is port.Acker's.
func (a *answer) Release(delay time.Duration) error {
	a.picks.finish(a.seq)
	if delay <= 0 {
		return a.say([]byte("-NAK"))
	}
	return a.say(fmt.Appendf(nil, `-NAK {"delay": %d}`, delay.Nanoseconds()))
}

func (a *answer) say(body []byte) error {
	if a.picked != "" {
		return nil
	}
	if err := a.conn.NATS().Publish(a.reply, body); err != nil {
		return fmt.Errorf("queue: answer %s: %w", a.subject, err)
	}
	return nil
}

// delivery makes of a message of a source what its taker gets.
func (s *source) delivery(m engine.Message, subject string, a *answer) port.Delivery {
	tokens := topology.ParseQueueSubject(s.prefix, subject)
	a.seq, a.subject = m.Seq, subject
	return port.Delivery{Message: m, Wake: s.wake, ID: tokens.ID, Valid: tokens.Valid, Subject: subject, Acker: a}
}
