package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/pkg/run"
)

// Kind says which of a queue's two streams a delivery is from.
type Kind int

// The two kinds of deliveries.
const (
	Job Kind = iota
	Wake
)

func (k Kind) String() string {
	if k == Wake {
		return "wake"
	}
	return "job"
}

// Delivery is a job or a wake in this process's hands until it is acknowledged, released, or the ack wait passes
// without InProgress. Acknowledgements are not fenced and may be lost: a delivery can come again at any time.
type Delivery struct {
	Kind    Kind
	Queue   string // of the consumer, so always an identifier
	ID      run.ID // as in the subject; not identifiers unless Valid
	Valid   bool   // the subject's tokens are identifiers of contract §1
	Subject string
	Data    []byte
	Headers map[string][]string

	Seq         uint64    // in the stream; with Time it names the message
	Time        time.Time // when the server stored it
	Redelivered bool      // a hint only: the server forgets under a crash

	conn    *Conn
	reply   string
	pending uint64 // not delivered yet, behind this one
	claimed string // the stream, of a message that was taken out of its order
	claims  *Claims
}

var (
	ackBody        = []byte("+ACK")
	inProgressBody = []byte("+WPI")
)

// Ack removes the message from its stream. Plain: nil says only that it was handed to the connection.
func (d *Delivery) Ack() error {
	if d.claimed != "" {
		d.claims.finish(d.Seq)
		go d.remove()
		return nil
	}
	return d.answer(ackBody)
}

// remove deletes a message that was taken out of its order. If that fails it is delivered in its order.
func (d *Delivery) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), askWait)
	defer cancel()
	if err := d.conn.deleteMessage(ctx, d.claimed, d.Seq); err != nil && !errors.Is(err, ErrNotFound) {
		d.conn.log.Debug("job not removed, it will come again", "subject", d.Subject, "error", err)
	}
}

// InProgress starts the ack wait anew. Plain, like Ack. Nobody waits for a message that was taken out of its order: it is
// in the stream until Ack, and Release leaves it there.
func (d *Delivery) InProgress() error { return d.answer(inProgressBody) }

// Release gives the message back, to be delivered again after delay, which the server may forget in a crash.
func (d *Delivery) Release(delay time.Duration) error {
	d.claims.finish(d.Seq)
	if delay <= 0 {
		return d.answer([]byte("-NAK"))
	}
	return d.answer(fmt.Appendf(nil, `-NAK {"delay": %d}`, delay.Nanoseconds()))
}

func (d *Delivery) answer(body []byte) error {
	if d.claimed != "" {
		return nil
	}
	if err := d.conn.nc.Publish(d.reply, body); err != nil {
		return fmt.Errorf("bus: answer %s: %w", d.Subject, err)
	}
	return nil
}

// Traceparent is the trace context that came with the message, if any.
func (d *Delivery) Traceparent() string { return nats.Header(d.Headers).Get(headerTraceparent) }

func (c *Conn) deliveryOf(kind Kind, queue string, m *nats.Msg) (Delivery, bool) {
	meta, ok := parseReply(m.Reply)
	if !ok {
		return Delivery{}, false
	}
	c.clock.heard(meta.at) // whoever wakes a run has seen it due: so does who is woken
	tokens := ParseJobSubject(m.Subject)
	if kind == Wake {
		tokens = ParseWakeSubject(m.Subject)
	}
	return Delivery{
		Kind: kind, Queue: queue, ID: tokens.ID, Valid: tokens.Valid, Subject: m.Subject, Data: m.Data, Headers: m.Header,
		Seq: meta.stream, Time: meta.at, Redelivered: meta.delivered > 1, conn: c, reply: m.Reply, pending: meta.pending,
	}, true
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
