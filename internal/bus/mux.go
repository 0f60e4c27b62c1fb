package bus

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// mux gives every write and request its own reply subject below one inbox, so that one subscription serves all of
// them. It costs a map entry per call: no timer, no goroutine, no subscription (nats.go's PublishMsgAsync spends
// about twice as much).
type mux struct {
	prefix  string // inbox and dot
	timeout time.Duration
	next    atomic.Uint64
	stopped chan struct{}
	once    sync.Once

	mu    sync.Mutex
	calls map[uint64]*call
}

// call is one exchange, whose message may be sent several times under the same reply subject.
type call struct {
	token  uint64
	signal chan struct{}
	write  *nats.Msg // what must be stored; nil: a question
	began  time.Time // when the write was first sent

	mu       sync.Mutex
	reply    *nats.Msg // a reply not taken yet
	lost     bool      // the latest attempt will not be answered, as far as we can tell
	sent     time.Time // zero: no attempt is waiting for its answer
	patience time.Duration
	words    string // the server's, to the latest attempt that was not stored
}

func newMux(timeout time.Duration) *mux {
	m := &mux{timeout: timeout, stopped: make(chan struct{}), calls: make(map[uint64]*call)}
	go m.sweep()
	return m
}

func (m *mux) attach(nc *nats.Conn) error {
	m.prefix = nc.NewInbox() + "."
	sub, err := nc.Subscribe(m.prefix+"*", m.receive)
	if err != nil {
		return err
	}
	return sub.SetPendingLimits(-1, -1)
}

func (m *mux) stop() { m.once.Do(func() { close(m.stopped) }) }

// open begins an exchange. write is what must be stored, and since when that is tried; nil for a question.
func (m *mux) open(write *nats.Msg, began time.Time) *call {
	c := &call{token: m.next.Add(1), signal: make(chan struct{}, 1), patience: m.timeout, write: write, began: began}
	m.mu.Lock()
	m.calls[c.token] = c
	m.mu.Unlock()
	return c
}

func (m *mux) close(c *call) {
	m.mu.Lock()
	delete(m.calls, c.token)
	m.mu.Unlock()
}

func (m *mux) replySubject(c *call) string {
	b := make([]byte, 0, len(m.prefix)+12)
	return string(strconv.AppendUint(append(b, m.prefix...), c.token, 36))
}

func (m *mux) receive(msg *nats.Msg) {
	token, err := strconv.ParseUint(msg.Subject[len(m.prefix):], 36, 64)
	if err != nil {
		return
	}
	m.mu.Lock()
	c := m.calls[token]
	m.mu.Unlock()
	if c != nil {
		c.answer(msg)
	}
}

// sweep ends the patience of attempts that were not answered in time. One ticker for all is far cheaper than a timer
// for each.
func (m *mux) sweep() {
	ticker := time.NewTicker(max(m.timeout/8, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-m.stopped:
			return
		case now := <-ticker.C:
			m.lose(now)
		}
	}
}

func (m *mux) lose(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.calls {
		c.lose(now)
	}
}

// oldestWrite is the write that has waited longest, with what the server has said to it; a zero time if none waits.
func (m *mux) oldestWrite() (began time.Time, subject, words string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var oldest *call
	for _, c := range m.calls {
		if c.write != nil && (oldest == nil || c.began.Before(oldest.began)) {
			oldest = c
		}
	}
	if oldest == nil {
		return time.Time{}, "", ""
	}
	oldest.mu.Lock()
	defer oldest.mu.Unlock()
	return oldest.began, oldest.write.Subject, oldest.words
}

// refused notes the server's words at the writes that they name the subject of: it answers none that is not permitted.
func (m *mux) refused(words string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.calls {
		if c.write != nil && strings.Contains(words, `"`+c.write.Subject+`"`) {
			c.said(words)
		}
	}
}

// loseAll tells every waiting call that its answer will not come: the connection it was sent on is gone.
func (m *mux) loseAll() { m.lose(time.Time{}) }

var errorKey = []byte(`"error"`)

// answer keeps the better of two replies that were not taken yet: a success is final, a refusal of a second attempt
// must not hide it.
func (c *call) answer(msg *nats.Msg) {
	c.mu.Lock()
	if c.reply == nil || bytes.Contains(c.reply.Data, errorKey) || len(c.reply.Data) == 0 {
		c.reply = msg
	}
	c.sent = time.Time{}
	c.mu.Unlock()
	c.wake()
}

// lose marks the attempt as lost if it has waited too long; a zero now always does.
func (c *call) lose(now time.Time) {
	c.mu.Lock()
	lost := !c.sent.IsZero() && (now.IsZero() || now.Sub(c.sent) > c.patience)
	if lost {
		c.lost = true
		c.sent = time.Time{}
		c.patience = min(2*c.patience, max(c.patience, 10*time.Second))
	}
	c.mu.Unlock()
	if lost {
		c.wake()
	}
}

func (c *call) sending(now time.Time) {
	c.mu.Lock()
	c.sent = now
	c.lost = false
	c.mu.Unlock()
}

func (c *call) wake() {
	select {
	case c.signal <- struct{}{}:
	default:
	}
}

// take returns what has come since the last take; a reply goes before a loss.
func (c *call) take() (reply *nats.Msg, lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reply, lost = c.reply, c.lost
	c.reply, c.lost = nil, false
	return reply, lost
}
