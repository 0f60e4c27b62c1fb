package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// answer is how a delivery is answered. Acknowledgements are not fenced and may be lost.
type answer struct {
	conn    *Conn
	seq     uint64
	subject string
	reply   string
	claimed string // the stream, of a message that was taken out of its order
	claims  *Claims
}

var (
	ackBody        = []byte("+ACK")
	inProgressBody = []byte("+WPI")
)

// Ack is port.Acker's.
func (a *answer) Ack() error {
	if a.claimed != "" {
		a.claims.finish(a.seq)
		go a.remove()
		return nil
	}
	return a.say(ackBody)
}

// remove deletes a message that was taken out of its order. If that fails it is delivered in its order.
func (a *answer) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), askWait)
	defer cancel()
	if err := a.conn.deleteMessage(ctx, a.claimed, a.seq); err != nil && !errors.Is(err, port.ErrNotFound) {
		a.conn.log.Debug("job not removed, it will come again", "subject", a.subject, "error", err)
	}
}

// InProgress is port.Acker's. Nobody waits for a message that was taken out of its order: it is in the stream until Ack,
// and Release leaves it there.
func (a *answer) InProgress() error { return a.say(inProgressBody) }

// Release is port.Acker's.
func (a *answer) Release(delay time.Duration) error {
	a.claims.finish(a.seq)
	if delay <= 0 {
		return a.say([]byte("-NAK"))
	}
	return a.say(fmt.Appendf(nil, `-NAK {"delay": %d}`, delay.Nanoseconds()))
}

func (a *answer) say(body []byte) error {
	if a.claimed != "" {
		return nil
	}
	if err := a.conn.nc.Publish(a.reply, body); err != nil {
		return fmt.Errorf("bus: answer %s: %w", a.subject, err)
	}
	return nil
}

// delivery makes of a message of a source what its taker gets.
func (s *source) delivery(m run.Message, subject string, a *answer) port.Delivery {
	tokens := parseQueueSubject(s.prefix, subject)
	a.seq, a.subject = m.Seq, subject
	return port.Delivery{Message: m, Wake: s.wake, ID: tokens.ID, Valid: tokens.Valid, Subject: subject, Acker: a}
}

// message is a job or a wake in the run's words.
func message(queue string, seq uint64, at time.Time, h nats.Header, data []byte) run.Message {
	return run.Message{Seq: seq, Time: envelope.TimeOf(at), Queue: queue, Trace: h.Get(headerTraceparent), Data: data}
}

// replyMeta is what the server says about a delivery in its reply subject.
type replyMeta struct {
	delivered, stream, consumer, pending uint64
	at                                   time.Time
}

// parseReply reads $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<ns>.<pending>, and the form
// with a domain and an account hash after $JS.ACK (and possibly a last random token).
func parseReply(reply string) (m replyMeta, ok bool) {
	rest, ok := strings.CutPrefix(reply, "$JS.ACK.")
	if !ok {
		return m, false
	}
	skip := 2
	if strings.Count(rest, ".") >= 8 {
		skip = 4
	}
	for range skip {
		if _, rest, ok = strings.Cut(rest, "."); !ok {
			return m, false
		}
	}
	var values [5]uint64
	for i := range values {
		var token string
		token, rest, _ = strings.Cut(rest, ".")
		v, err := strconv.ParseUint(token, 10, 64)
		if err != nil {
			return m, false
		}
		values[i] = v
	}
	return replyMeta{
		delivered: values[0], stream: values[1], consumer: values[2],
		at: time.Unix(0, int64(values[3])).UTC(), pending: values[4],
	}, true
}
