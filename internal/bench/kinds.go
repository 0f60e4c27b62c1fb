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
	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/observe"
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
		Defaults: func() run.Defaults { return run.Defaults{Owner: "bench", Budget: limits()} }, Boot: boottime.Now, Random: rand.Float64,
		Records: app.NewRecords(b.conn, 168*time.Hour), Journal: b.journal, Tools: app.NewTools(registry), Hints: b.conn, Waker: b.conn, Store: app.NewStore(b.conn),
		Observe: observe.New(observe.Executor, "noop"), Ready: observe.NewReadiness(), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err := w.SettleStore(context.Background(), b.conn.Status().Created); err != nil {
		fail(err)
	}
	puller, err := b.conn.NewPuller([]string{queue}, func(d bus.Delivery) { w.Deliver(app.NewDelivery(d)) })
	if err != nil {
		fail(err)
	}
	w.Start(puller)
	return working{func() { w.Drain(context.Background(), puller) }}
}

// Bytes of the floor's writes: what the records, outcomes and journal entries of the measured job come to.
var (
	startRecord = make([]byte, 1000)
	endRecord   = make([]byte, 1500)
	outcome     = make([]byte, 700)
)

// startFloor does the same I/O with the same waits and no logic: the intent beside the first record, the effect, the
// second record, two outcomes together, the acknowledgement.
func (b *bench) startFloor() working {
	var wg sync.WaitGroup
	var puller *bus.Puller
	one := func(d bus.Delivery) {
		defer wg.Done()
		ctx := context.Background()
		dispatch := run.DispatchID(uuid.Must(uuid.NewV7()).String())
		intent := &run.Intent{
			Dispatch: dispatch, Tenant: tenant, RunID: d.ID.Run, Queue: queue, Workflow: "bench", Owner: "bench", Actor: "agent:bench",
			Step: "apply_credit", Tool: "noop", Args: json.RawMessage(`{"invoice_id":"inv_1","amount_minor":500}`), Attempt: 1, Proposal: 1, Key: "bench/run/apply_credit",
		}
		journaled := make(chan error, 1)
		go func() { journaled <- b.journal.Write(ctx, run.Entry{Intent: intent}) }()
		seq, err := b.conn.Runs().Save(ctx, d.ID, startRecord, bus.RecordHeader{State: "running", Lease: "h/1/0/30000"}, 0)
		if err == nil {
			err = <-journaled
		}
		if err == nil {
			effect := &run.EffectFact{Dispatch: dispatch, Reply: envelope.Reply{OK: true, Result: json.RawMessage(`{"credit_id":"cr_3"}`)}}
			err = b.journal.Write(ctx, run.Entry{Effect: effect})
		}
		if err == nil {
			_, err = b.conn.Runs().Save(ctx, d.ID, endRecord, bus.RecordHeader{State: "ok", TTL: 168 * time.Hour}, seq)
		}
		if err == nil {
			_, err = b.conn.Results().Append(ctx, []bus.Outgoing{
				{ID: d.ID, Scope: bus.ScopeStep, N: 1, First: seq, Data: outcome}, {ID: d.ID, Scope: bus.ScopeRun, N: 1, First: seq, Data: outcome},
			})
		}
		if err == nil {
			b.journal.Later(run.Entry{Settled: dispatch})
			err = d.Ack()
		}
		if err != nil {
			fail(err)
		}
		puller.Want(1)
	}
	started := make(chan struct{})
	var err error
	puller, err = b.conn.NewPuller([]string{queue}, func(d bus.Delivery) {
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
