package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/boottime"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/observe"
	"github.com/agentrun/executor/internal/port"
	pulling "github.com/agentrun/executor/internal/queue"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/worker"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// working is what is being measured, running.
type working struct{ stop func() }

func (b *bench) start() working {
	if b.kind == "floor" {
		return b.startFloor()
	}
	return b.startAgentrun()
}

func limits() budget.Limits {
	return budget.Limits{MaxTurns: 12, MaxToolCalls: 32, MaxAttemptsPerStep: 3, MaxElapsedMillis: 900_000, MaxInputTokens: 1e6, MaxOutputTokens: 1e6, MaxEstimatedCostMinorUnits: 1e6}
}

// startAgentrun starts a worker with one in-process write tool that does nothing.
func (b *bench) startAgentrun() working {
	noop, err := connector.Func("noop", envelope.Write, func(context.Context, *connector.Call) (json.RawMessage, error) {
		return json.RawMessage(`{"credit_id":"cr_3"}`), nil
	})
	if err != nil {
		fail(err)
	}
	registry, err := connector.NewRegistry(noop)
	if err != nil {
		fail(err)
	}
	w := worker.New(worker.Config{
		ID: "bench", Holder: b.journal.Holder(), Lease: lease, Concurrency: b.concurrency, DrainTimeout: time.Second, PoisonAfter: 3,
		Defaults: func() engine.Defaults { return engine.Defaults{Owner: "bench", Budget: limits()} }, Boot: boottime.Now, Random: rand.Float64,
		Records: app.NewRecords(b.conn, retention), Journal: b.journal, Tools: app.NewTools(registry), Hints: b.conn, Store: app.NewStore(b.conn),
		Observe: observe.New(observe.Executor, "noop"), Ready: observe.NewReadiness(), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	puller, err := pulling.New(b.conn.Conn, []string{queue}, pulling.Turns{}, w.Deliver)
	if err != nil {
		fail(err)
	}
	w.Start(puller)
	return working{func() { w.Drain(context.Background(), puller) }}
}

// weights are what the floor writes: records, outcomes and headers as long as those of the measured job.
type weights struct {
	start, end           []byte
	startHead, endHead   port.Header
	stepOutcome, outcome []byte
}

type noopTool struct{}

func (noopTool) Tool(name string) (*run.Tool, bool) {
	return &run.Tool{Name: name, Effect: envelope.Write, Retry: run.Retry{MaxAttempts: 3}}, true
}

// weigh takes the measured job through the core once.
func (b *bench) weigh() (weights, error) {
	now := envelope.TimeOf(time.Now())
	r := engine.Create(id(10_000), engine.Message{Seq: 10_000, Time: now, Queue: queue, Data: job(10_000)}, engine.Defaults{Owner: "bench", Budget: limits()}, now)
	d := r.Begin("apply_credit", noopTool{}, engine.Start{
		Dispatch: newDispatch(), LeaseID: string(newDispatch()), Holder: b.journal.Holder(), Seconds: lease.Seconds(), Worker: "bench",
	}, now)
	var w weights
	var err error
	if w.start, err = r.Encode(); err != nil {
		return w, err
	}
	w.startHead = port.Header{State: r.State(), Workflow: r.Workflow, Episode: 1, Lease: record.LeaseHeader(r.Lease), Due: r.Deadline.Time()}
	r.Reply(d.ID, envelope.Reply{OK: true, Result: json.RawMessage(`{"credit_id":"cr_3"}`)}, noopTool{}, engine.Source{By: "bench", At: now + 20})
	r.First = 10_000
	if w.end, err = r.Encode(); err != nil {
		return w, err
	}
	w.endHead = port.Header{State: r.State(), Workflow: r.Workflow, Episode: 1, TTL: retention}
	if w.stepOutcome, err = r.Outcome(&r.Owed[0]).Append(nil); err != nil {
		return w, err
	}
	w.outcome, err = r.Outcome(&r.Owed[1]).Append(nil)
	return w, err
}

func newDispatch() engine.DispatchID { return engine.DispatchID(uuid.Must(uuid.NewV7()).String()) }

// startFloor does the same I/O with the same waits and no logic: the intent beside the first record, the effect, the
// second record, two outcomes together, the acknowledgement.
func (b *bench) startFloor() working {
	writes, err := b.weigh()
	if err != nil {
		fail(err)
	}
	var wg sync.WaitGroup
	var puller *pulling.Puller
	one := func(d port.Delivery) {
		defer wg.Done()
		ctx := context.Background()
		dispatch := newDispatch()
		intent := &engine.Intent{
			Dispatch: dispatch, Tenant: tenant, RunID: d.ID.Run, Queue: queue, Workflow: "bench", Owner: "bench", Actor: "agent:bench",
			Step: "apply_credit", Tool: "noop", Args: json.RawMessage(`{"invoice_id":"inv_1","amount_minor":500}`), Attempt: 1, Proposal: 1, Key: d.ID.String() + "/apply_credit", Budget: limits(), At: envelope.TimeOf(time.Now()),
		}
		journaled := make(chan error, 1)
		go func() { journaled <- b.journal.Write(ctx, engine.Entry{Intent: intent}) }()
		seq, err := b.conn.Save(ctx, d.ID, writes.start, writes.startHead, 0)
		if err == nil {
			err = <-journaled
		}
		if err == nil {
			effect := &engine.EffectFact{Dispatch: dispatch, Reply: envelope.Reply{OK: true, Result: json.RawMessage(`{"credit_id":"cr_3"}`)}}
			err = b.journal.Write(ctx, engine.Entry{Effect: effect})
		}
		if err == nil {
			_, err = b.conn.Save(ctx, d.ID, writes.end, writes.endHead, seq)
		}
		if err == nil {
			_, err = b.conn.Append(ctx, b.conn.Server(), []port.Outgoing{
				{Outcome: &envelope.Outcome{Tenant: d.ID.Tenant, RunID: d.ID.Run, Scope: envelope.StepScope, N: 1}, First: seq, Data: writes.stepOutcome},
				{Outcome: &envelope.Outcome{Tenant: d.ID.Tenant, RunID: d.ID.Run, Scope: envelope.RunScope, N: 1}, First: seq, Data: writes.outcome},
			})
		}
		if err == nil {
			b.journal.Later(engine.Entry{Settled: dispatch})
			err = d.Ack()
		}
		if err != nil {
			fail(err)
		}
		puller.Want(1)
	}
	started := make(chan struct{})
	puller, err = pulling.New(b.conn.Conn, []string{queue}, pulling.Turns{}, func(d port.Delivery) {
		<-started
		wg.Add(1)
		go one(d)
	})
	if err != nil {
		fail(err)
	}
	close(started)
	puller.Want(b.concurrency)
	return working{func() { puller.Stop(); wg.Wait() }}
}
