package app

import (
	"context"
	"os"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/trace"
	"github.com/agentrun/executor/internal/worker"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// traceGrace bounds the hand-over of the last spans when the process ends.
const traceGrace = 3 * time.Second

// traced lets the tools' calls be seen in traces, if they are asked for. Call end when the work has ended.
func (p *process) traced(ctx context.Context, service string, c *Process, t *live) (end func()) {
	if c.Tracer != nil {
		t.tracer = c.Tracer
		return func() {}
	}
	if c.Guest {
		return func() {}
	}
	tracer, err := trace.FromEnvironment(ctx, os.Getenv, service, c.ID, p.log)
	if err != nil {
		p.log.Warn("no traces", "error", err)
	}
	if tracer == nil {
		return func() {}
	}
	t.tracer = tracer
	p.log.Info("traces are exported")
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceGrace)
		defer cancel()
		if err := tracer.Close(ctx); err != nil {
			p.log.Warn("the last traces are not exported")
		}
	}
}

// call calls a tool within a span of the run's trace.
func (t *live) call(ctx context.Context, tool *connector.Tool, d *engine.Dispatch, info worker.CallInfo, c *connector.Call) envelope.Reply {
	ctx, span := t.tracer.Call(ctx, trace.Operation{
		ID: info.ID, Step: d.Step, Tool: d.Tool, Ref: d.Ref, Effect: d.Effect, Attempt: d.Attempt, Traceparent: info.Trace,
	})
	c.Traceparent = span.Traceparent()
	reply := tool.Caller.Call(ctx, c)
	span.Replied(&reply)
	return reply
}

// lookup asks a tool within a span of the run's trace.
func (t *live) lookup(ctx context.Context, tool *connector.Tool, id run.ID, l *engine.Lookup, c *connector.Call) envelope.Lookup {
	ctx, span := t.tracer.Lookup(ctx, trace.Operation{
		ID: id, Step: l.Step, Tool: l.Tool, Ref: l.Ref, Effect: envelope.Write, Attempt: l.Attempt, Traceparent: c.Traceparent,
	})
	c.Traceparent = span.Traceparent()
	answer := tool.Looker.Lookup(ctx, c)
	span.Answered(&answer, l.Proves)
	return answer
}
