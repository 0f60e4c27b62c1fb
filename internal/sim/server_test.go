package sim

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// server is the fake NATS server: streams with compare-and-set, as internal/bus shows them to the drivers.
type server struct {
	w       *world
	starts  int // how often it was started anew
	runSeq  uint64
	runs    map[run.ID]*storedRun
	fleet   *storedRun
	resSeq  uint64
	results map[resultSubject][]port.Outcome
	bodies  map[uint64][]byte
	letSeq  uint64
	letters map[letterSubject]*port.Letter
	alerts  map[string]int
	objects map[string][]byte
	moved   chan struct{} // closed and made anew whenever something a watch shows has changed

	runLog    []port.Change
	resultLog []port.Outcome
	letterLog []port.Letter

	queue
}

type storedRun struct {
	port.Record
	run *engine.Run
	due map[string]time.Time // since or from when each step whose turn it is may be started
}

type resultSubject struct {
	id    run.ID
	scope envelope.Scope
}

type letterSubject struct {
	id    run.ID
	owner string
}

func (s *server) init(w *world) {
	s.w = w
	s.runs, s.results, s.bodies = map[run.ID]*storedRun{}, map[resultSubject][]port.Outcome{}, map[uint64][]byte{}
	s.objects = map[string][]byte{}
	s.letters, s.alerts, s.moved = map[letterSubject]*port.Letter{}, map[string]int{}, make(chan struct{})
	s.queue.init(w)
}

// process names the server's process of now; w.mu is held.
func (s *server) process() string { return strconv.Itoa(s.starts) }

func (s *server) serverName() string {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.process()
}

// startAnew is a restart that loses nothing. What a client had in flight may still arrive, as from one that sends it again.
func (s *server) startAnew() {
	s.w.mu.Lock()
	s.starts++
	s.w.mu.Unlock()
	s.w.disturb()
	s.w.say("the server is started anew")
}

func (s *server) changed() {
	close(s.moved)
	s.moved = make(chan struct{})
}

// load, save and the like are the server's side of a call: they take effect at once and are called under no lock.

func (s *server) load(id run.ID) (port.Record, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	st := s.runs[id]
	if st == nil {
		return port.Record{}, port.ErrNotFound
	}
	return st.Record, nil
}

// save has the semantics of bus.Conn.Save: refused by a newer revision, unless that holds the very same bytes.
func (s *server) save(who string, id run.ID, data []byte, h port.Header, expect uint64) (uint64, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	old := s.runs[id]
	last := uint64(0)
	if old != nil {
		last = old.Seq
	}
	if last != expect {
		if last > expect && bytes.Equal(old.Data, data) {
			return last, nil
		}
		s.w.sayLocked("%s is refused: %s is at %d, not %d", who, id.Run, last, expect)
		return 0, port.ErrConflict
	}
	s.runSeq++
	st := &storedRun{Record: port.Record{Data: bytes.Clone(data), Seq: s.runSeq, Time: time.Now(), Header: h}}
	s.runs[id] = st
	s.runLog = append(s.runLog, port.Change{ID: id, Seq: s.runSeq, Header: h})
	s.w.checkSave(who, id, old, st)
	s.changed()
	return s.runSeq, nil
}

// post has the semantics of bus.Conn.Append for one message.
func (s *server) post(who, process string, o *port.Outgoing) (uint64, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if process != s.process() {
		return 0, port.ErrConflict
	}
	sub := resultSubject{o.Run(), o.Scope}
	there := s.results[sub]
	var last port.Outcome
	if len(there) > 0 {
		last = there[len(there)-1]
	}
	before := last.N
	if last.First != o.First {
		before = 0 // another run's of the same name
	}
	switch {
	case last.Seq != 0 && before == o.N:
		return last.Seq, nil
	case before > o.N:
		return 0, nil
	case before != 0 && before < o.N-1, before == 0 && o.N > 1 && !o.PublishedBefore:
		return 0, errGap
	}
	s.resSeq++
	stored := port.Outcome{ID: sub.id, Scope: o.Scope, N: o.N, First: o.First, Seq: s.resSeq, Time: time.Now()}
	s.results[sub] = append(there, stored)
	s.bodies[s.resSeq] = bytes.Clone(o.Data)
	if o.Scope == envelope.RunScope {
		s.resultLog = append(s.resultLog, stored)
	}
	s.w.checkPosted(who, o)
	s.changed()
	return s.resSeq, nil
}

var errGap = fmt.Errorf("an earlier outcome is missing")

func (s *server) lastOutcome(id run.ID, scope envelope.Scope) (port.Outcome, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	there := s.results[resultSubject{id, scope}]
	if len(there) == 0 {
		return port.Outcome{}, port.ErrNotFound
	}
	return there[len(there)-1], nil
}

func (s *server) putLetter(who string, id run.ID, owner string, data []byte, letterID string, expect uint64) (uint64, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	sub := letterSubject{id, owner}
	last := uint64(0)
	if l := s.letters[sub]; l != nil {
		last = l.Seq
		if last > expect && bytes.Equal(l.Data, data) {
			return last, nil
		}
	}
	if last != expect {
		return 0, port.ErrConflict
	}
	s.letSeq++
	l := &port.Letter{ID: id, Owner: owner, LetterID: letterID, Data: bytes.Clone(data), Seq: s.letSeq, Time: time.Now()}
	s.letters[sub] = l
	s.letterLog = append(s.letterLog, *l)
	s.w.sayLocked("%s puts letter %s", who, letterID)
	s.changed()
	return s.letSeq, nil
}

func (s *server) getLetter(id run.ID, owner string) (port.Letter, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	l := s.letters[letterSubject{id, owner}]
	if l == nil {
		return port.Letter{}, port.ErrNotFound
	}
	return *l, nil
}

func (s *server) deleteLetter(who string, seq uint64) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	for sub, l := range s.letters {
		if l.Seq == seq {
			delete(s.letters, sub)
			s.w.sayLocked("%s removes letter %s", who, l.LetterID)
		}
	}
}
