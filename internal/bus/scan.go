package bus

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/run"
)

// ErrRemade: the stream was made anew while it was read.
var ErrRemade = errors.New("the stream was made anew while it was read")

// scan reads what a stream holds and returns when all that was there has been reported.
func (c *Conn) scan(ctx context.Context, w watch) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	all := errors.New("everything was reported")
	w.conn = c
	w.mark = func(k port.Report) {
		if k == port.Reset {
			cancel(ErrRemade)
			return
		}
		cancel(all)
	}
	err := w.run(ctx)
	switch cause := context.Cause(ctx); cause {
	case all:
		return nil
	case ErrRemade:
		return cause
	}
	return err
}

// ScanRuns is port.Scan's; fn is called from one goroutine.
func (c *Conn) ScanRuns(ctx context.Context, from uint64, fn func(id run.ID, seq uint64, data []byte)) error {
	return c.scan(ctx, watch{
		stream: topology.RunsStream, filter: topology.Runs + ">", first: from,
		report: func(m *nats.Msg, meta Meta) {
			if id, ok := topology.ParseRunSubject(m.Subject); ok && id != port.ActiveID {
				fn(id, meta.Stream, m.Data)
			}
		},
	})
}

// ScanOutcomes is port.Scan's.
func (c *Conn) ScanOutcomes(ctx context.Context, fn func(port.Outcome)) error {
	return c.scan(ctx, watch{
		stream: topology.ResultsStream, filter: topology.Results + ">", headersOnly: true,
		report: func(m *nats.Msg, meta Meta) {
			if id, scope, ok := topology.ParseResultSubject(m.Subject); ok {
				fn(outcomeOf(id, scope, meta.Stream, meta.At, m.Header))
			}
		},
	})
}

// ScanLetters is port.Scan's.
func (c *Conn) ScanLetters(ctx context.Context, fn func(port.Letter)) error {
	return c.scan(ctx, watch{
		stream: topology.LettersStream, filter: topology.Letters + ">",
		report: func(m *nats.Msg, meta Meta) { fn(letterOf(m.Subject, meta.Stream, meta.At, m.Header, m.Data)) },
	})
}
