package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/generation"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// store gives the records their NATS: it only translates between two packages that do not know each other.
type store struct{ conn *bus.Conn }

var _ record.Store = store{}

// headerLetterID is a letter's id beside its body.
const headerLetterID = "Agentrun-Letter-Id"

// said says in the records' words how a call of the bus ended. Errors that have no word there pass as they are.
func said(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bus.ErrNotFound):
		return fmt.Errorf("%w: %w", record.ErrNotFound, err)
	case errors.Is(err, bus.ErrConflict):
		return fmt.Errorf("%w: %w", record.ErrConflict, err)
	case errors.Is(err, bus.ErrStoreFull):
		return fmt.Errorf("%w: %w", record.ErrFull, err)
	case errors.Is(err, bus.ErrTooLarge), errors.Is(err, bus.ErrDenied):
		return fmt.Errorf("%w: %w", record.ErrRefused, err)
	}
	var refused *bus.Refusal
	if errors.As(err, &refused) {
		return fmt.Errorf("%w: %w", record.ErrRefused, err)
	}
	return err
}

func (s store) Load(ctx context.Context, id run.ID) (record.Stored, error) {
	r, err := s.conn.Runs().Load(ctx, id)
	return record.Stored{Data: r.Data, Seq: r.Seq, Time: r.Time}, said(err)
}

func (s store) Save(ctx context.Context, id run.ID, data []byte, h record.Header, expect uint64) (uint64, error) {
	seq, err := s.conn.Runs().Save(ctx, id, data, bus.RecordHeader{
		State: h.State, Due: h.Due, Lease: h.Lease, Workflow: h.Workflow, Episode: h.Episode, Letter: h.Letter, TTL: h.TTL,
	}, expect)
	return seq, said(err)
}

func (s store) Append(ctx context.Context, out []record.Outgoing) ([]uint64, error) {
	msgs := make([]bus.Outgoing, len(out))
	for i, o := range out {
		scope := bus.ScopeStep
		if o.Scope == envelope.RunScope {
			scope = bus.ScopeRun
		}
		msgs[i] = bus.Outgoing{
			ID: o.ID, Scope: scope, N: o.N, First: o.First, Last: o.Last, PublishedBefore: o.PublishedBefore,
			Traceparent: o.Traceparent, Data: o.Data,
		}
	}
	seqs, err := s.conn.Results().Append(ctx, msgs)
	for i := range msgs {
		out[i].New = msgs[i].New
	}
	return seqs, said(err)
}

func (s store) LastOutcome(ctx context.Context, id run.ID, scope envelope.Scope) (n int, seq, first uint64, err error) {
	last, err := s.conn.Results().Last(ctx, id, string(scope))
	return last.N, last.Seq, last.Run, said(err)
}

func (s store) ReadOutcome(ctx context.Context, seq uint64) ([]byte, error) {
	data, err := s.conn.Results().Read(ctx, seq)
	return data, said(err)
}

func (s store) PutLetter(ctx context.Context, id run.ID, owner string, data []byte, letterID string, expect uint64) (uint64, error) {
	h := map[string][]string{headerLetterID: {letterID}}
	seq, err := s.conn.Letters().Put(ctx, bus.LetterSubject(id.Tenant, owner, id.Run), data, h, expect)
	return seq, said(err)
}

func (s store) GetLetter(ctx context.Context, id run.ID, owner string) (record.Stored, string, error) {
	l, err := s.conn.Letters().Get(ctx, bus.LetterSubject(id.Tenant, owner, id.Run))
	letterID := ""
	if v := l.Headers[headerLetterID]; len(v) > 0 {
		letterID = v[0]
	}
	return record.Stored{Data: l.Data, Seq: l.Seq, Time: l.Time}, letterID, said(err)
}

func (s store) PutAlert(ctx context.Context, tenant, owner, reason string, data []byte, id string) error {
	return said(s.conn.Alert(ctx, bus.AlertSubject(tenant, owner, reason), data, id))
}

func (s store) PutObject(ctx context.Context, name string, data []byte) error {
	return said(s.conn.PutObject(ctx, name, data))
}

func (s store) GetObject(ctx context.Context, name string) ([]byte, error) {
	data, err := s.conn.GetObject(ctx, name)
	return data, said(err)
}

func (s store) DeleteLetter(ctx context.Context, seq uint64) error {
	err := s.conn.Letters().Delete(ctx, seq)
	if errors.Is(err, bus.ErrNotFound) {
		return nil
	}
	return said(err)
}

// newRecords are the records of a process on this connection.
func newRecords(conn *bus.Conn, p *process, c *Process, t *live) *record.Records {
	t.messageMax = conn.MessageMax
	return &record.Records{
		Store: store{conn}, Clock: conn.Clock(), Retention: c.RunRetention, MessageMax: conn.MessageMax, Secrets: t.secrets, Observe: p.observer,
	}
}

// streams is what the process wants of the streams; queues are those that it makes consumers for.
func streams(c *Process, queues ...string) bus.Config {
	return bus.Config{
		Replicas: c.Replicas, RunRetention: c.RunRetention, MaxRuns: c.MaxRuns, MaxJobs: c.MaxJobs, MaxLetters: c.MaxLetters,
		Queues: queues, AckWait: 2 * c.Lease,
	}
}

// busOptions are those of a process's connection.
func busOptions(c *Process, p *process, name string, seen uint64, fleet ...string) bus.Options {
	o := c.Connection.bus(name + " " + c.ID)
	o.Logger, o.Fleet, o.Seen, o.Extra = p.log, append(fleet, generation.StateName), seen, c.NATSOptions
	return o
}

// connect begins to connect, for ever: a server that is away is a matter of readiness, not an error.
// fleet names the records of the fleet that are followed, seen is the highest sequence of AGENTRUN_RUNS known from before.
func connect(c *Process, p *process, name string, seen uint64, fleet ...string) (*bus.Conn, error) {
	conn, err := bus.Connect(busOptions(c, p, name, seen, fleet...))
	if err != nil {
		return nil, err
	}
	p.observer.Unstored(func() time.Duration { return conn.Unstored().Age })
	conn.OnClockSet(func(by time.Duration) {
		p.log.Warn("the NATS server's clock was set", "by", by.Round(time.Millisecond))
		p.observer.ClockJump(by)
	})
	p.ready.Check("nats", func() string {
		if err := conn.Healthy(); err != nil {
			return err.Error()
		}
		return ""
	})
	return conn, nil
}

func isNotFound(err error) bool { return errors.Is(err, record.ErrNotFound) }

// awayEvery is how often the log says that a process still waits for its NATS server.
const awayEvery = 30 * time.Second

// setup makes or checks the streams, and says in the log while there is no server to do it on: a process that waits in
// silence looks like one that works.
func (p *process) setup(ctx context.Context, conn *bus.Conn, url string, want bus.Config) error {
	done := make(chan struct{})
	defer close(done)
	go func() {
		for wait := time.Second; ; wait = awayEvery {
			select {
			case <-done:
				return
			case <-time.After(wait):
			}
			if !conn.Connected() {
				p.log.Warn("waiting for a NATS server; /readyz stays 503", "url", withoutPassword(url))
			}
		}
	}()
	return conn.Setup(ctx, want)
}
