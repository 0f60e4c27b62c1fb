package bus_test

import (
	"errors"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/streams/streamstest"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// onBoth runs a test on one server and on three with replicated streams: they check in different orders.
func onBoth(t *testing.T, test func(t *testing.T, c *streams.Conn)) {
	t.Helper()
	onBothWith(t, streams.Config{Queues: []string{"default"}}, test)
}

func onBothWith(t *testing.T, cfg streams.Config, test func(t *testing.T, c *streams.Conn)) {
	t.Helper()
	t.Run("R1", func(t *testing.T) { test(t, streamstest.SetUp(t, bustest.Start(t).URL, cfg)) })
	t.Run("R3", func(t *testing.T) {
		cfg.Replicas = 3
		test(t, streamstest.SetUp(t, bustest.StartCluster(t).URL, cfg))
	})
}

// which is an outcome as far as its message names it.
func which(id run.ID, scope envelope.Scope, n int) *envelope.Outcome {
	return &envelope.Outcome{Tenant: id.Tenant, RunID: id.Run, Scope: scope, N: n}
}

func TestSaveIsCompareAndSet(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *streams.Conn) {
		ctx := streamstest.Deadline(t)
		if _, err := c.Load(ctx, streamstest.RunID(1)); !errors.Is(err, port.ErrNotFound) {
			t.Fatalf("load of nothing: %v", err)
		}
		due := time.UnixMilli(1_900_000_000_123).UTC()
		h := port.Header{State: "running", Due: due, Lease: "h/i/1", Workflow: "w", TTL: 90 * time.Minute}
		first, err := c.Save(ctx, streamstest.RunID(1), []byte("one"), h, 0)
		if err != nil {
			t.Fatal(err)
		}
		rec, err := c.Load(ctx, streamstest.RunID(1))
		if err != nil || string(rec.Data) != "one" || rec.Seq != first || rec.Header != h || rec.Time.IsZero() {
			t.Fatalf("load: %+v %v", rec, err)
		}
		if _, err := c.Save(ctx, streamstest.RunID(1), []byte("other"), h, 0); !errors.Is(err, port.ErrConflict) {
			t.Fatalf("second creation: %v", err)
		}
		if again, err := c.Save(ctx, streamstest.RunID(1), []byte("one"), h, 0); err != nil || again != first {
			t.Fatalf("the same bytes at the same revision: %d %v", again, err)
		}
		second, err := c.Save(ctx, streamstest.RunID(1), []byte("two"), port.Header{State: "ok"}, first)
		if err != nil || second <= first {
			t.Fatalf("update: %d %v", second, err)
		}
		if _, err := c.Save(ctx, streamstest.RunID(1), []byte("late"), h, first); !errors.Is(err, port.ErrConflict) {
			t.Fatalf("late update: %v", err)
		}
		if _, err := c.Save(ctx, streamstest.RunID(2), []byte("x"), h, 12345); !errors.Is(err, port.ErrConflict) {
			t.Fatalf("update of nothing: %v", err)
		}
	})
}

func TestResultsAreNumbered(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *streams.Conn) {
		ctx, id := streamstest.Deadline(t), streamstest.RunID(1)
		o := func(n int, first uint64, data string) port.Outgoing {
			return port.Outgoing{Outcome: which(id, envelope.StepScope, n), First: first, Data: []byte(data)}
		}
		end := port.Outgoing{Outcome: which(id, envelope.RunScope, 1), First: 7, Data: []byte("end")}
		seqs, err := c.Append(ctx, c.Server(), []port.Outgoing{o(1, 7, "a"), o(2, 7, "b"), end})
		if err != nil || len(seqs) != 3 || seqs[0] == 0 || seqs[1] <= seqs[0] || seqs[2] == 0 {
			t.Fatalf("fresh: %v %v", seqs, err)
		}
		again, err := c.Append(ctx, c.Server(), []port.Outgoing{o(2, 7, "b"), end})
		if err != nil || again[0] != seqs[1] || again[1] != seqs[2] {
			t.Fatalf("repeated: %v %v, was %v", again, err, seqs)
		}
		if passed, err := c.Append(ctx, c.Server(), []port.Outgoing{o(1, 7, "a")}); err != nil || passed[0] != 0 {
			t.Fatalf("passed by a higher one: %v %v", passed, err)
		}
		if _, err := c.Append(ctx, c.Server(), []port.Outgoing{o(4, 7, "d")}); !errors.Is(err, bus.ErrGap) {
			t.Fatalf("gap: %v", err)
		}
		if next, err := c.Append(ctx, c.Server(), []port.Outgoing{o(3, 7, "c")}); err != nil || next[0] <= seqs[2] {
			t.Fatalf("next, last unknown: %v %v", next, err)
		}
		if _, err := c.Append(ctx, c.Server(), []port.Outgoing{o(2, 900, "second run")}); !errors.Is(err, bus.ErrGap) {
			t.Fatalf("another run's messages count as none: %v", err)
		}
		if seqs, err := c.Append(ctx, c.Server(), []port.Outgoing{o(1, 900, "second run")}); err != nil || seqs[0] == 0 {
			t.Fatalf("a new run of the same name: %v %v", seqs, err)
		}
		expired := port.Outgoing{Outcome: which(streamstest.RunID(2), envelope.StepScope, 5), First: 8, Last: 3, PublishedBefore: true}
		if seqs, err := c.Append(ctx, c.Server(), []port.Outgoing{expired}); err != nil || seqs[0] == 0 {
			t.Fatalf("expired: %v %v", seqs, err)
		}
		last, err := c.LastOutcome(ctx, streamstest.RunID(2), envelope.StepScope)
		if err != nil || last.N != 5 || last.First != 8 {
			t.Fatalf("last: %+v %v", last, err)
		}
		unpublished := port.Outgoing{Outcome: which(streamstest.RunID(3), envelope.StepScope, 2), First: 8}
		if _, err := c.Append(ctx, c.Server(), []port.Outgoing{unpublished}); !errors.Is(err, bus.ErrGap) {
			t.Fatalf("never published: %v", err)
		}
	})
}
