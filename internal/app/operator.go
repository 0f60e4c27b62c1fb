package app

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/operator"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/run"
)

// newIndex makes the operator calls' index of this process, which counts the open letters.
func newIndex(p *process, conn *bus.Conn) *operator.Index {
	return operator.NewIndex(p.observer, func() time.Time { return conn.Clock().Lower() })
}

// newOperator makes the operator calls of this process.
func newOperator(conn *bus.Conn, p *process, records *record.Records, tools *live, index *operator.Index, lines queues) *operator.Operator {
	return operator.New(operator.Config{
		Records: records, Streams: operatorStreams{conn}, Queues: lines, Tools: tools, Defaults: tools.defaults, Index: index,
		Random: rand.Float64, Observe: p.observer, Log: p.log,
	})
}

// operatorStreams gives the operator calls what they need of NATS beside the records.
type operatorStreams struct{ conn *bus.Conn }

var _ operator.Streams = operatorStreams{}

func (s operatorStreams) FindJob(ctx context.Context, id run.ID) (operator.Job, error) {
	j, err := s.conn.FindJob(ctx, id, 0)
	if err != nil {
		return operator.Job{}, said(err)
	}
	return operator.Job{Queue: j.Queue, Seq: j.Seq, Trace: nats.Header(j.Headers).Get("traceparent"), Data: j.Data}, nil
}

func (s operatorStreams) Wake(ctx context.Context, queue string, id run.ID) error {
	_, err := s.conn.Wake(ctx, queue, id)
	return err
}

func (s operatorStreams) Hint(holder string, id run.ID) error { return s.conn.Hint(holder, id) }

func (s operatorStreams) LastLetter(ctx context.Context, tenant string) (uint64, error) {
	filter := bus.LetterSubject(tenant, ">", "")
	return s.last(ctx, bus.LettersStream, tenant, filter[:len(filter)-1])
}

func (s operatorStreams) LastRun(ctx context.Context, tenant string) (uint64, error) {
	return s.last(ctx, bus.RunsStream, tenant, bus.RunSubject(run.ID{Tenant: tenant, Run: ">"}))
}

// last is the sequence of the last message that matches filter, said by the leader; 0 for none. With no tenant it is that
// of the whole stream.
func (s operatorStreams) last(ctx context.Context, stream, tenant, filter string) (uint64, error) {
	if tenant == "" {
		filter = map[string]string{bus.LettersStream: "agentrun.deadletters.>", bus.RunsStream: "agentrun.runs.>"}[stream]
	}
	return s.conn.LastSequence(ctx, stream, filter)
}

// tellIndex hands what a watch of the records reports to the operator calls' index.
func tellIndexOfRun(index *operator.Index, c bus.Change) {
	index.Run(operator.RunChange{Kind: indexKind(c.Kind), ID: c.ID, Seq: c.Seq, Time: c.Time, Header: headerOf(c.Header)})
}

func tellIndexOfLetter(index *operator.Index, l bus.LetterChange) {
	index.Letter(operator.LetterChange{
		Kind: indexKind(l.Kind), ID: run.ID{Tenant: l.Tenant, Run: l.RunID}, Owner: l.Owner, Seq: l.Seq, Data: l.Data,
	})
}

func indexKind(k bus.ChangeKind) operator.Kind {
	switch k {
	case bus.Current:
		return operator.Current
	case bus.Reset:
		return operator.Reset
	}
	return operator.Stored
}
