package bus

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentrun/executor/internal/topology"
)

const (
	// stalledAfter is how old the oldest write that the server has not acknowledged may become before the process is not
	// ready; with the writes of a fleet that is at work it is found within ten seconds.
	stalledAfter = 8 * time.Second
	// stallKept is how long a write that was given up counts as one that waits: whoever needs it sends it again.
	stallKept = 30 * time.Second
)

// stalls knows since when a stream has stored nothing of what it was given. A server whose disk is full goes on answering:
// it says what its streams are, refuses what must be refused, and leaves without an answer what it would have to store.
// nats-server stays like that, stream by stream, after there is room again, until it is started anew.
type stalls struct {
	some atomic.Bool // by is not empty

	mu    sync.Mutex
	by    map[string]*stall
	since time.Time // of the connection: what was lost before is no sign of this server
}

// stall is what became of a stream's writes that were given up, or refused for want of room on the server.
type stall struct {
	since, last time.Time
	words       string
}

// failed notes a write that was not stored, and since when it was tried.
func (s *stalls) failed(subject string, began, now time.Time, words string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stream := streamOf(subject)
	was := s.by[stream]
	if was == nil {
		was = &stall{since: began}
		s.by[stream] = was
		s.some.Store(true)
	}
	if began.Before(was.since) {
		was.since = began
	}
	was.last = now
	if words != "" {
		was.words = words
	}
}

// stored notes that a stream has stored something.
func (s *stalls) stored(subject string) {
	if !s.some.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.by, streamOf(subject))
	s.some.Store(len(s.by) > 0)
}

// connected: another server may be at the other end, or the same one anew.
func (s *stalls) connected(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since, s.by = now, map[string]*stall{}
	s.some.Store(false)
}

// Unstored is the oldest write that waits for its acknowledgement: its stream, for how long it has waited on this
// connection, and what the server has said to it, "" if nothing. A zero age means that none waits.
type Unstored struct {
	Stream string
	Age    time.Duration
	Words  string
}

// Unstored returns the oldest write that waits, without asking anybody.
func (c *Conn) Unstored() Unstored {
	now := time.Now()
	began, subject, words := c.mux.oldestWrite()
	out := Unstored{Words: words}
	if !began.IsZero() {
		out.Stream = streamOf(subject)
	}
	s := &c.stalls
	s.mu.Lock()
	defer s.mu.Unlock()
	for stream, was := range s.by {
		if now.Sub(was.last) > stallKept {
			delete(s.by, stream)
			continue
		}
		if began.IsZero() || was.since.Before(began) {
			began, out.Stream, out.Words = was.since, stream, was.words
		}
	}
	s.some.Store(len(s.by) > 0)
	if began.IsZero() {
		return Unstored{}
	}
	if began.Before(s.since) {
		began = s.since
	}
	out.Age = max(now.Sub(began), 0)
	return out
}

// Stalled is nil unless writes wait for longer than they may.
func (c *Conn) Stalled() error {
	u := c.Unstored()
	if u.Age < c.opts.StalledAfter {
		return nil
	}
	said := "the server says nothing to it"
	if u.Words != "" {
		said = "the server says: " + u.Words
	}
	return fmt.Errorf("%s stores nothing: a write has waited for %s, and %s; see the server's /healthz: after a full disk it must be started anew",
		u.Stream, u.Age.Round(time.Second), said)
}

// streamOf is the stream that stores a subject of ours.
func streamOf(subject string) string {
	for prefix, stream := range map[string]string{
		topology.Runs: topology.RunsStream, topology.Results: topology.ResultsStream, topology.Letters: topology.LettersStream, topology.Alerts: topology.AlertsStream,
		topology.Wakes: topology.WakesStream, topology.Jobs: topology.JobsStream,
	} {
		if strings.HasPrefix(subject, prefix) {
			return stream
		}
	}
	return "the stream of " + subject
}
