package app

import (
	"context"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/fleet"
	"github.com/agentrun/executor/internal/worker"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

var _ worker.Tools = (*live)(nil)

// Tool finds a tool of the config as it stands.
func (t *live) Tool(name string) (*run.Tool, bool) { return t.box().Registry.Tool(name) }

func (t *live) get(name string) (*connector.Tool, bool) { return t.box().Registry.Get(name) }

func (t *live) Call(ctx context.Context, d *engine.Dispatch, info worker.CallInfo) envelope.Reply {
	tool, ok := t.get(d.Tool)
	if !ok {
		// A reload has taken the tool away since the step began: nothing was sent.
		return envelope.Reply{NotSent: true, Row: envelope.RowFor(envelope.CodeUnknownTool, d.Effect)}
	}
	c := &connector.Call{
		Tenant: info.ID.Tenant, RunID: info.ID.Run, Step: d.Step, OperationRef: d.Ref, IdempotencyKey: d.Key,
		Attempt: d.Attempt, Args: d.Args.Text(), Checked: d.Args, Traceparent: info.Trace, Last: info.Last,
	}
	if t.tracer != nil {
		return t.call(ctx, tool, d, info, c)
	}
	return tool.Caller.Call(ctx, c)
}

func (t *live) Lookup(ctx context.Context, id run.ID, l *engine.Lookup, trace string) (envelope.Lookup, bool) {
	tool, ok := t.get(l.Tool)
	if !ok || tool.Looker == nil {
		return envelope.Lookup{}, false
	}
	c := &connector.Call{
		Tenant: id.Tenant, RunID: id.Run, Step: l.Step, OperationRef: l.Ref, IdempotencyKey: l.Key,
		Attempt: l.Attempt, Args: l.Args.Text(), Checked: l.Args, Traceparent: trace,
	}
	if t.tracer != nil {
		return t.lookup(ctx, tool, id, l, c), true
	}
	return tool.Looker.Lookup(ctx, c), true
}

func (t *live) ReadyWithin(name string) time.Duration {
	tool, ok := t.get(name)
	if !ok {
		return 0
	}
	return tool.ReadyWithin
}

func (t *live) Limits(name string) worker.Limits {
	tool, ok := t.get(name)
	if !ok {
		return worker.Limits{}
	}
	limits := worker.Limits{Concurrency: tool.Concurrency, RetryDelay: tool.Retry.MaxDelay}
	if r := tool.Rate; r != nil {
		limits.PerSecond, limits.Burst = r.PerSecond, r.Burst
		if r.Scope == fleet.Scope {
			limits.Shared = true
			n := t.executors()
			limits.PerSecond, limits.Burst = r.PerSecond/float64(n), max(1, r.Burst/n)
		}
	}
	return limits
}
