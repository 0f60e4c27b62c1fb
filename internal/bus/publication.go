package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/port"
)

// The server's error codes that mean something here.
const (
	codeAccountFull    = 10002
	codeNoResources    = 10023
	codeNoMessage      = 10037
	codeNoSequence     = 10043
	codeNoStorage      = 10047
	codeMessageSize    = 10054
	codeDeleteFailed   = 10057
	codeStreamNotFound = 10059
	codeWrongSequence  = 10071
	codeStoreFailed    = 10077
	codeInFlight       = 10164 // R3: another write to the subject is in flight, its result unknown
)

const (
	pauseMin = 5 * time.Millisecond
	pauseMax = 250 * time.Millisecond
)

// errAnotherServer: what is to be written follows from what another process of the server has shown.
var errAnotherServer = fmt.Errorf("%w: the server was started anew, or is another, since the record was read", port.ErrConflict)

// publication is one message on its way: it is sent again, always under the same reply subject, until it is answered.
// Whoever publishes must make sure that a second copy does nothing: all writes here are compare-and-set.
type publication struct {
	conn     *Conn
	msg      *nats.Msg
	call     *call
	began    time.Time
	attempts int
	// unsettled: a copy was handed to the connection and may be stored although no answer to it is known.
	unsettled bool
	question  bool // nothing is stored
	bound     bool // it goes to one process of the server only:
	server    string
	answered  bool // the server has said what became of it
	fatal     error
}

// publish sends msg for the first time. The caller awaits and closes the publication.
func (c *Conn) publish(msg *nats.Msg) *publication {
	return (&publication{conn: c, msg: msg, began: time.Now()}).start()
}

// publishTo is publish to one process of the server: port.ErrConflict as soon as another is connected.
func (c *Conn) publishTo(server string, msg *nats.Msg) *publication {
	return (&publication{conn: c, msg: msg, began: time.Now(), bound: true, server: server}).start()
}

// ask sends a request of the JetStream API, for example DIRECT.GET.AGENTRUN_RUNS. The caller awaits and closes the publication.
func (c *Conn) ask(request string, body []byte) *publication {
	return (&publication{conn: c, msg: &nats.Msg{Subject: c.opts.API.Subject(request), Data: body}, question: true}).start()
}

func (p *publication) start() *publication {
	p.open()
	p.send()
	return p
}

func (p *publication) open() {
	write := p.msg
	if p.question {
		write = nil
	}
	p.call = p.conn.mux.open(write, p.began)
	p.msg.Reply = p.conn.mux.replySubject(p.call)
}

func (p *publication) close() {
	p.conn.mux.close(p.call)
	if p.unsettled && !p.question && !p.answered {
		p.conn.stalls.failed(p.msg.Subject, p.began, time.Now(), p.call.said(""))
	}
}

// said notes what the server has said to an attempt that was not stored, and returns the latest that it said.
func (c *call) said(words string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if words != "" {
		c.words = words
	}
	return c.words
}

// renew makes p a new message with another expectation: answers to the former copies must not be taken for its own.
func (p *publication) renew() {
	p.conn.mux.close(p.call)
	p.open()
	p.attempts = 0
	p.send()
}

func (p *publication) send() {
	p.attempts++
	p.answered = false
	p.call.sending(time.Now())
	if p.bound {
		switch p.conn.Server() {
		case p.server:
		case "":
			p.call.lose(time.Time{})
			return
		default:
			p.fatal = errAnotherServer
			p.call.wake()
			return
		}
	}
	switch err := p.conn.nc.PublishMsg(p.msg); {
	case err == nil:
		p.unsettled = true
	case errors.Is(err, nats.ErrMaxPayload):
		p.fatal = ErrTooLarge
		p.call.wake()
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		p.fatal = ErrClosed
		p.call.wake()
	case errors.Is(err, nats.ErrReconnectBufExceeded):
		p.call.lose(time.Time{})
	default:
		p.unsettled = true
		p.call.lose(time.Time{})
	}
}

// await returns the next answer, sending the message again as often as an attempt is lost. It fails only when the
// context or the connection ends, or the message is too large.
func (p *publication) await(ctx context.Context) (*nats.Msg, error) {
	for {
		select {
		case <-p.call.signal:
		case <-ctx.Done():
			if reply, _ := p.call.take(); reply != nil && !noResponders(reply) {
				return reply, nil // it came in time after all
			}
			return nil, p.abandoned(ctx.Err())
		case <-p.conn.closed:
			return nil, p.abandoned(ErrClosed)
		}
		reply, lost := p.call.take()
		switch {
		case p.fatal != nil:
			return nil, p.abandoned(p.fatal)
		case reply != nil && noResponders(reply):
			// No stream or no leader: certainly not stored, and perhaps the stream must be made again.
			p.conn.CheckStreams()
		case reply != nil:
			return reply, nil
		case !lost:
			continue
		}
		if err := p.pause(ctx); err != nil {
			return nil, err
		}
		if !p.call.answered() {
			p.send()
		}
	}
}

// again sends the message once more after a pause.
func (p *publication) again(ctx context.Context) error {
	if err := p.pause(ctx); err != nil {
		return err
	}
	p.send()
	return nil
}

func (c *call) answered() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reply != nil
}

func (p *publication) abandoned(cause error) error {
	if p.unsettled && !p.question && !errors.Is(cause, ErrTooLarge) {
		return fmt.Errorf("%w: %w", ErrUnsettled, cause)
	}
	return cause
}

// pause waits 5–250 ms with jitter, and then for a connection.
func (p *publication) pause(ctx context.Context) error {
	d := min(pauseMin<<min(p.attempts-1, 10), pauseMax)
	timer := time.NewTimer(d/2 + rand.N(d/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return p.abandoned(ctx.Err())
	case <-p.conn.closed:
		return p.abandoned(ErrClosed)
	}
	for {
		changed := p.conn.next(&p.conn.changed)
		if p.conn.nc.IsConnected() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return p.abandoned(ctx.Err())
		case <-p.conn.closed:
			return p.abandoned(ErrClosed)
		}
	}
}

func noResponders(m *nats.Msg) bool {
	return len(m.Data) == 0 && m.Header.Get("Status") == "503"
}

// refusal is a definite error of the server.
type refusal struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

// last is the sequence that a refused compare-and-set found; ok is false if the text has none.
func (r *refusal) last() (seq uint64, ok bool) {
	s, ok := strings.CutPrefix(r.Description, "wrong last sequence: ")
	if !ok {
		return 0, false
	}
	seq, err := strconv.ParseUint(s, 10, 64)
	return seq, err == nil
}

func (r *refusal) wrongSequence() bool {
	return r.ErrCode == codeWrongSequence || r.ErrCode == codeInFlight
}

// noRoom: it is not the stream's limit that is reached, but what the server or the account has for all streams.
func (r *refusal) noRoom() bool {
	return r.ErrCode == codeAccountFull || r.ErrCode == codeNoResources || r.ErrCode == codeNoStorage
}

// passing reports whether the same message may be accepted a moment later without anyone doing anything.
func (r *refusal) passing() bool {
	if r.ErrCode == codeStoreFailed {
		return !strings.HasPrefix(r.Description, "maximum ")
	}
	return r.asError() == nil && (r.Code == 503 || r.Code == 429 || r.Code == 500)
}

// asError maps the refusals that have a sentinel; nil for the others.
func (r *refusal) asError() error {
	switch r.ErrCode {
	case codeAccountFull, codeNoResources, codeNoStorage, codeStoreFailed:
		return port.ErrFull
	case codeMessageSize:
		return ErrTooLarge
	case codeNoMessage, codeNoSequence:
		return port.ErrNotFound
	}
	return nil
}

func (r *refusal) err() error {
	if err := r.asError(); err != nil {
		return fmt.Errorf("%w: %s", err, r.Description)
	}
	return &Refusal{Code: r.ErrCode, Description: r.Description}
}

var seqKey = []byte(`"seq":`)

// parseAck reads a publish acknowledgement: {"stream":"…","seq":12} without unmarshalling.
func parseAck(data []byte) (seq uint64, refused *refusal, ok bool) {
	if !bytes.Contains(data, errorKey) {
		_, rest, found := bytes.Cut(data, seqKey)
		if !found {
			return 0, nil, false
		}
		n := 0
		for _, b := range rest {
			if b == ' ' && n == 0 {
				continue
			}
			if b < '0' || b > '9' {
				break
			}
			seq = seq*10 + uint64(b-'0')
			n++
		}
		return seq, nil, n > 0
	}
	var reply struct {
		Error *refusal `json:"error"`
	}
	if json.Unmarshal(data, &reply) != nil || reply.Error == nil {
		return 0, nil, false
	}
	return 0, reply.Error, true
}

// stored waits until the message is stored or refused for good; passing refusals are met by sending it again.
func (p *publication) stored(ctx context.Context) (seq uint64, refused *refusal, err error) {
	for {
		reply, err := p.await(ctx)
		if err != nil {
			return 0, nil, err
		}
		seq, refused, ok := parseAck(reply.Data)
		switch {
		case ok && refused == nil:
			p.answered = true
			p.conn.stalls.stored(p.msg.Subject)
			return seq, nil, nil
		case ok && !refused.passing():
			if p.answered = !refused.noRoom(); !p.answered {
				p.call.said(refused.Description)
			}
			return 0, refused, nil
		case ok:
			p.call.said(refused.Description)
		}
		if err := p.again(ctx); err != nil {
			return 0, nil, err
		}
	}
}
