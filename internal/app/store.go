package app

import (
	"context"
	"time"

	"github.com/agentrun/executor/internal/generation"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/worker"
)

// NewRecords are the records on a connection.
func NewRecords(conn *streams.Conn, retention time.Duration) *record.Records {
	return &record.Records{Store: conn, Clock: conn.Clock(), Retention: retention}
}

// NewStore tells the worker which store of records the connection has; it believes that the store keeps what it is given.
func NewStore(conn *streams.Conn) worker.Store { return streamStore{conn} }

type streamStore struct{ conn *streams.Conn }

// Current is known only while the streams have been looked at since the last reconnect.
func (s streamStore) Current() (token string, ok bool) {
	st := s.conn.Status()
	return st.Created.String(), !st.Observed.IsZero()
}

func (streamStore) Vanished(string) {}
func (streamStore) Sent()           {}

// newRecords are the records of a process on this connection.
func newRecords(conn *streams.Conn, p *process, c *Process, t *live) *record.Records {
	t.messageMax = conn.MessageMax
	rs := NewRecords(conn, c.RunRetention)
	rs.MessageMax, rs.Secrets, rs.Observe = conn.MessageMax, t.secrets, p.observer
	return rs
}

// wanted is what the process wants of the streams; queues are those that it makes consumers for.
func wanted(c *Process, queues ...string) streams.Config {
	return streams.Config{
		Replicas: c.Replicas, RunRetention: c.RunRetention, MaxRuns: c.MaxRuns, MaxJobs: c.MaxJobs, MaxLetters: c.MaxLetters,
		Queues: queues, AckWait: 2 * c.Lease,
	}
}

// busOptions are those of a process's connection.
func busOptions(c *Process, p *process, name string, seen uint64, fleet ...string) streams.Options {
	o := c.Connection.bus(name + " " + c.ID)
	o.Logger, o.Fleet, o.Seen, o.Extra = p.log, append(fleet, generation.StateName), seen, c.NATSOptions
	return o
}

// connect begins to connect, for ever: a server that is away is a matter of readiness, not an error.
// fleet names the records of the fleet that are followed, seen is the highest sequence of AGENTRUN_RUNS known from before.
func connect(c *Process, p *process, name string, seen uint64, fleet ...string) (*streams.Conn, error) {
	conn, err := streams.Connect(busOptions(c, p, name, seen, fleet...))
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

// awayEvery is how often the log says that a process still waits for its NATS server.
const awayEvery = 30 * time.Second

// setup makes or checks the streams, and says in the log while there is no server to do it on: a process that waits in
// silence looks like one that works.
func (p *process) setup(ctx context.Context, conn *streams.Conn, url string, want streams.Config) error {
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
