package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

type message = envelope.Outcome

// Told is one outcome as it lies in AGENTRUN_RESULTS.
type Told struct {
	message
	Seq    uint64
	Stored time.Time
}

// Results are all outcomes so far, by run, in stream order. Safe for concurrent use.
type Results struct {
	mu    sync.Mutex
	steps map[run.ID][]Told
	runs  map[run.ID][]Told
	odd   []string   // messages that cannot be read
	epoch int        // of the stream, which may begin anew
	turn  sync.Mutex // held while a message is taken in and told of
	last  time.Time
}

func newResults() *Results {
	return &Results{steps: map[run.ID][]Told{}, runs: map[run.ID][]Told{}}
}

// Of are the outcomes of one run.
func (r *Results) Of(id run.ID) (steps, runs []Told) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Told(nil), r.steps[id]...), append([]Told(nil), r.runs[id]...)
}

// Quiet is how long no outcome has come.
func (r *Results) Quiet() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.last)
}

// Follow reads the stream from its beginning until ctx ends, through restarts of the server.
func (r *Results) Follow(ctx context.Context, js jetstream.JetStream, heard func(run.ID, *envelope.Outcome)) {
	epoch := 0
	for next := uint64(1); ctx.Err() == nil; {
		if now := r.now(); now != epoch {
			epoch, next = now, 1
		}
		m, err := nextMessage(ctx, js, topology.ResultsStream, next)
		if err != nil {
			pause.For(ctx, 10*time.Millisecond)
			continue
		}
		r.turn.Lock()
		if r.now() == epoch {
			next = m.Sequence + 1
			if id, o := r.add(m); o != nil && heard != nil {
				heard(id, o)
			}
		}
		r.turn.Unlock()
	}
}

func (r *Results) now() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.epoch
}

// Restart forgets everything: the stream is read again from its beginning, as another one. Nothing of the earlier one is told
// of once then has begun.
func (r *Results) Restart(then func()) {
	r.turn.Lock()
	defer r.turn.Unlock()
	r.mu.Lock()
	r.epoch++
	r.steps, r.runs, r.odd = map[run.ID][]Told{}, map[run.ID][]Told{}, nil
	r.mu.Unlock()
	then()
}

func noMessage(err error) bool { return errors.Is(err, jetstream.ErrMsgNotFound) }

// nextMessage reads the first message at or after a sequence.
func nextMessage(ctx context.Context, js jetstream.JetStream, stream string, seq uint64) (*jetstream.RawStreamMsg, error) {
	octx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s, err := stored(octx, js, stream)
	if err != nil {
		return nil, err
	}
	return s.GetMsg(octx, seq, jetstream.WithGetMsgSubject(">"))
}

var handles sync.Map // stream handles, which cost a request each

func stored(ctx context.Context, js jetstream.JetStream, name string) (jetstream.Stream, error) {
	type key struct {
		js   jetstream.JetStream
		name string
	}
	if s, ok := handles.Load(key{js, name}); ok {
		return s.(jetstream.Stream), nil
	}
	s, err := js.Stream(ctx, name)
	if err == nil {
		handles.Store(key{js, name}, s)
	}
	return s, err
}

func (r *Results) add(m *jetstream.RawStreamMsg) (run.ID, *envelope.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = time.Now()
	id, scope, ok := topology.ParseResultSubject(m.Subject)
	t := Told{Seq: m.Sequence, Stored: m.Time}
	if err := json.Unmarshal(m.Data, &t.message); err != nil || !ok || t.Scope != scope || t.RunID != id.Run || t.Tenant != id.Tenant {
		r.odd = append(r.odd, fmt.Sprintf("message %d on %s: %v: %.200s", m.Sequence, m.Subject, err, m.Data))
		return id, nil
	}
	if scope == envelope.RunScope {
		r.runs[id] = append(r.runs[id], t)
	} else {
		r.steps[id] = append(r.steps[id], t)
	}
	return id, &t.message
}

// all reads every message of a stream.
func all(ctx context.Context, js jetstream.JetStream, stream string, each func(*jetstream.RawStreamMsg)) error {
	for next := uint64(1); ; {
		m, err := nextMessage(ctx, js, stream, next)
		switch {
		case noMessage(err):
			return nil
		case err != nil:
			return fmt.Errorf("reading %s: %w", stream, err)
		}
		each(m)
		next = m.Sequence + 1
	}
}

// left is how many messages a stream has.
func left(ctx context.Context, js jetstream.JetStream, stream string) (uint64, error) {
	octx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s, err := stored(octx, js, stream)
	if err != nil {
		return 0, err
	}
	info, err := s.Info(octx)
	if err != nil {
		return 0, err
	}
	return info.State.Msgs, nil
}

// State is what lies in the streams at the end.
type State struct {
	Records map[run.ID]*engine.Run
	Letters map[run.ID][]deadletter.Letter
	Alerts  map[string]int // by reason
	Odd     []string
}

// readState reads records, letters and alerts.
func readState(ctx context.Context, js jetstream.JetStream) (*State, error) {
	s := &State{Records: map[run.ID]*engine.Run{}, Letters: map[run.ID][]deadletter.Letter{}, Alerts: map[string]int{}}
	err := all(ctx, js, topology.RunsStream, func(m *jetstream.RawStreamMsg) {
		id, ok := topology.ParseRunSubject(m.Subject)
		if !ok || id == port.ActiveID {
			return
		}
		r, err := engine.Decode(m.Data)
		if err != nil {
			s.Odd = append(s.Odd, fmt.Sprintf("record on %s: %v", m.Subject, err))
			return
		}
		s.Records[id] = r
	})
	if err != nil {
		return nil, err
	}
	err = all(ctx, js, topology.LettersStream, func(m *jetstream.RawStreamMsg) {
		t, _, r, _ := topology.ParseLetterSubject(m.Subject)
		var l deadletter.Letter
		if err := json.Unmarshal(m.Data, &l); err != nil {
			s.Odd = append(s.Odd, fmt.Sprintf("letter on %s: %v", m.Subject, err))
		}
		id := run.ID{Tenant: t, Run: r}
		s.Letters[id] = append(s.Letters[id], l)
	})
	if err != nil {
		return nil, err
	}
	err = all(ctx, js, topology.AlertsStream, func(m *jetstream.RawStreamMsg) {
		var a deadletter.Alert
		if json.Unmarshal(m.Data, &a) == nil {
			s.Alerts[a.ReasonCode]++
		}
	})
	return s, err
}
