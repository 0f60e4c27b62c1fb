package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

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
	w.mark = func(k ChangeKind) {
		if k == Reset {
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

// ScanRuns calls fn with every record whose revision is from or later, whole, in the order of their revisions, and returns
// when all that were there have been reported; a few that are stored meanwhile may come too. fn is called from one
// goroutine and may take its time: the server waits for it.
func (c *Conn) ScanRuns(ctx context.Context, from uint64, fn func(id run.ID, seq uint64, data []byte)) error {
	return c.scan(ctx, watch{
		stream: RunsStream, filter: runsPrefix + ">", start: StartAt{Seq: from},
		report: func(m *nats.Msg, meta replyMeta) {
			if id, ok := ParseRunSubject(m.Subject); ok && id != FleetRecord {
				fn(id, meta.stream, m.Data)
			}
		},
	})
}

// ScanResults is ScanRuns for what is known of every outcome without its body.
func (c *Conn) ScanResults(ctx context.Context, fn func(id run.ID, scope string, p Posted, at time.Time)) error {
	return c.scan(ctx, watch{
		stream: ResultsStream, filter: resultsPrefix + ">", headersOnly: true,
		report: func(m *nats.Msg, meta replyMeta) {
			if id, scope, ok := ParseResultSubject(m.Subject); ok {
				fn(id, scope, postedOf(meta.stream, m.Header), meta.at)
			}
		},
	})
}

// ScanLetters is ScanRuns for the letters.
func (c *Conn) ScanLetters(ctx context.Context, fn func(Letter)) error {
	return c.scan(ctx, watch{
		stream: LettersStream, filter: lettersPrefix + ">",
		report: func(m *nats.Msg, meta replyMeta) { fn(letterOf(m.Subject, meta.stream, meta.at, m.Header, m.Data)) },
	})
}
