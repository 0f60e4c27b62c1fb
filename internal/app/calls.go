package app

import (
	"context"

	"github.com/agentrun/executor/internal/worker"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// tools gives the worker the config's tools.
type tools struct{ *connector.Registry }

var _ worker.Tools = tools{}

func (t tools) Call(ctx context.Context, d *run.Dispatch, info worker.CallInfo) envelope.Reply {
	tool, ok := t.Get(d.Tool)
	if !ok {
		// The config that began the step has the tool, and it does not change while the process lives.
		return envelope.Reply{NotSent: true, Row: envelope.RowFor(envelope.CodeUnknownTool, d.Effect)}
	}
	return tool.Caller.Call(ctx, &connector.Call{
		Tenant: info.ID.Tenant, RunID: info.ID.Run, Step: d.Step, OperationRef: d.Ref, IdempotencyKey: d.Key,
		Attempt: d.Attempt, Args: d.Args, Traceparent: info.Trace, Last: info.Last,
	})
}

func (t tools) Lookup(ctx context.Context, id run.ID, l *run.Lookup, trace string) (envelope.Lookup, bool) {
	tool, ok := t.Get(l.Tool)
	if !ok || tool.Looker == nil {
		return envelope.Lookup{}, false
	}
	return tool.Looker.Lookup(ctx, &connector.Call{
		Tenant: id.Tenant, RunID: id.Run, Step: l.Step, OperationRef: l.Ref, IdempotencyKey: l.Key,
		Attempt: l.Attempt, Args: l.Args, Traceparent: trace,
	}), true
}

func (t tools) Limits(name string) worker.Limits {
	tool, ok := t.Get(name)
	if !ok {
		return worker.Limits{}
	}
	limits := worker.Limits{Concurrency: tool.Concurrency}
	if tool.Rate != nil {
		limits.PerSecond, limits.Burst = tool.Rate.PerSecond, tool.Rate.Burst
	}
	return limits
}
