package worker

import (
	"context"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// noTools is a config whose reload has taken every tool away.
type noTools struct{ Tools }

func (noTools) Tool(string) (*run.Tool, bool)    { return nil, false }
func (noTools) Limits(string) Limits             { return Limits{} }
func (noTools) ReadyWithin(string) time.Duration { return 0 }
func (noTools) Call(context.Context, *engine.Dispatch, CallInfo) envelope.Reply {
	return envelope.Reply{NotSent: true, Row: envelope.RowFor(envelope.CodeUnknownTool, envelope.Write)}
}

type deaf struct{ Observer }

func (deaf) ToolCall(string, envelope.Effect, envelope.Code, time.Duration) {}
func (deaf) Breaker(string, bool)                                           {}
func (deaf) RetryLate(time.Duration)                                        {}
func (deaf) PassedOn(string)                                                {}

type wallClock struct{}

func (wallClock) Lower() time.Time { return time.Now() }
func (wallClock) Upper() time.Time { return time.Now() }

// Between a step's start and its request lies a write of the record. A reload that takes the tool away meanwhile costs
// that one call, which was not sent, and nothing else that this process has in flight.
func TestReloadTakesTheToolAwayBeforeTheRequestLeaves(t *testing.T) {
	began := time.Now()
	w := New(Config{
		Lease: time.Minute, Concurrency: 1, Boot: func() time.Duration { return time.Since(began) },
		Tools: noTools{}, Observe: deaf{}, Records: &record.Records{Clock: wallClock{}},
	})
	defer w.stop()
	l := newLoop(w, run.ID{Tenant: "acme", Run: "r"})
	l.h = &record.Handle{ID: l.id, Run: &engine.Run{}}
	l.hold(time.Since(began)+w.Lease, began)
	defer l.letGo()
	l.launch(&engine.Dispatch{
		Step: "s", Tool: "gone", Effect: envelope.Write, ID: "d", Attempt: 1, Deadline: envelope.TimeOf(began.Add(time.Hour)), Timeout: time.Second,
	})
	<-l.kick
	l.collect()
	if len(l.ended) != 1 || !l.ended[0].reply.NotSent || l.ended[0].reply.Row.Code != envelope.CodeUnknownTool {
		t.Fatalf("ended %+v", l.ended)
	}
}
