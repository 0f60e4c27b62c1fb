package bus_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/pkg/run"
)

// follow runs a watch and returns its reports, and a function that ends it.
func follow(t testing.TB, watch func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- watch(ctx) }()
	var stopped bool
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := receive(t, "the watch's end", ended); !errors.Is(err, context.Canceled) && !errors.Is(err, bus.ErrClosed) {
			t.Errorf("watch ended with %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func consumersOf(t testing.TB, server *bustest.Server, stream string) int {
	t.Helper()
	return streamState(t, server, stream).Consumers
}

func TestWatchRunsSurvivesRestartsAndReportsReset(t *testing.T) {
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{})
	ctx, h := deadline(t), bus.RecordHeader{State: "ready", Workflow: "w"}
	save := func(id run.ID, expect uint64) uint64 {
		t.Helper()
		seq, err := c.Runs().Save(ctx, id, []byte("body"), h, expect)
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	first := save(runID(1), 0)
	save(bus.FleetRecord, 0)
	changes := make(chan bus.Change, 100)
	stop := follow(t, func(ctx context.Context) error {
		return c.WatchRuns(ctx, 0, func(ch bus.Change) { changes <- ch })
	})
	got := receive(t, "the record", changes)
	if got.Kind != bus.Stored || got.ID != runID(1) || got.Seq != first || got.Header != h || got.Size != 4 || got.Pending != 1 {
		t.Fatalf("change: %+v", got)
	}
	if got = receive(t, "the fleet's record", changes); got.ID != bus.FleetRecord || got.Pending != 0 {
		t.Fatalf("change: %+v", got)
	}
	if got = receive(t, "the end of what was there", changes); got.Kind != bus.Current {
		t.Fatalf("change: %+v", got)
	}
	second := save(runID(1), first)
	if got = receive(t, "the update", changes); got.Seq != second {
		t.Fatalf("change: %+v", got)
	}

	server.Stop()
	server.StartAgain()
	third := save(runID(1), second)
	if got = receive(t, "the update after a restart", changes); got.Seq != third {
		t.Fatalf("nothing is reported twice: %+v", got)
	}

	if _, err := server.Conn().Request("$JS.API.STREAM.DELETE.AGENTRUN_RUNS", nil, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	save(runID(5), 0)
	if got = receive(t, "the reset", changes); got.Kind != bus.Reset {
		t.Fatalf("change: %+v", got)
	}
	for got = receive(t, "the new stream's record", changes); got.Kind == bus.Current; {
		got = receive(t, "the new stream's record", changes)
	}
	if got.ID != runID(5) {
		t.Fatalf("change: %+v", got)
	}
	stop()
	bustest.Eventually(t, "the watch's consumer is gone", func() bool { return consumersOf(t, server, bus.RunsStream) == 0 })
}

func TestWatchFromASequence(t *testing.T) {
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{})
	var seqs []uint64
	for i := range 5 {
		seq, err := c.Runs().Save(deadline(t), runID(i), nil, bus.RecordHeader{State: "s"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, seq)
	}
	changes := make(chan bus.Change, 10)
	follow(t, func(ctx context.Context) error {
		return c.WatchRuns(ctx, seqs[3], func(ch bus.Change) { changes <- ch })
	})
	if got := receive(t, "the fourth", changes); got.Seq != seqs[3] {
		t.Fatalf("began at %+v", got)
	}
}

func TestWatchRunResultsAndLetters(t *testing.T) {
	onBoth(t, func(t *testing.T, c *bus.Conn) {
		ctx := deadline(t)
		outcomes, letters := make(chan bus.Outcome, 10), make(chan bus.LetterChange, 10)
		follow(t, func(ctx context.Context) error {
			return c.WatchRunResults(ctx, bus.StartAt{}, func(o bus.Outcome) { outcomes <- o })
		})
		follow(t, func(ctx context.Context) error {
			return c.WatchLetters(ctx, func(l bus.LetterChange) { letters <- l })
		})
		if got := receive(t, "current", outcomes); got.Kind != bus.Current {
			t.Fatalf("%+v", got)
		}
		if got := receive(t, "current", letters); got.Kind != bus.Current {
			t.Fatalf("%+v", got)
		}
		batch := []bus.Outgoing{
			{ID: runID(1), Scope: bus.ScopeStep, N: 1, First: 9, Data: []byte("step")},
			{ID: runID(1), Scope: bus.ScopeRun, N: 1, First: 9, Data: []byte("run"), Traceparent: "00-a-b-01"},
		}
		if _, err := c.Results().Append(ctx, batch); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, "the run's outcome", outcomes); got.ID != runID(1) || got.N != 1 || got.Run != 9 {
			t.Fatalf("%+v", got)
		}
		subject := bus.LetterSubject("acme", "owner", "run_1")
		seq, err := c.Letters().Put(ctx, subject, []byte("letter"), map[string][]string{"X": {"y"}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		got := receive(t, "the letter", letters)
		if got.Subject != subject || got.Tenant != "acme" || got.Owner != "owner" || got.RunID != "run_1" ||
			string(got.Data) != "letter" || got.Seq != seq || got.Headers["X"][0] != "y" {
			t.Fatalf("%+v", got)
		}
		testLetters(t, c, subject, seq)
	})
}

func testLetters(t *testing.T, c *bus.Conn, subject string, seq uint64) {
	t.Helper()
	ctx := deadline(t)
	if _, err := c.Letters().Put(ctx, subject, []byte("other"), nil, 0); !errors.Is(err, bus.ErrConflict) {
		t.Fatalf("a second letter: %v", err)
	}
	if _, err := c.Letters().Put(ctx, bus.LetterSubject("other", "owner", "run_1"), []byte("x"), nil, 0); err != nil {
		t.Fatal(err)
	}
	var listed []string
	err := c.Letters().List(ctx, bus.LetterSubject("acme", "*", "*"), func(l bus.Letter) bool {
		listed = append(listed, l.Subject)
		return true
	})
	if err != nil || len(listed) != 1 || listed[0] != subject {
		t.Fatalf("list: %v %v", listed, err)
	}
	if n, err := c.Letters().Count(ctx, bus.LetterSubject("*", "*", "*")); err != nil || n != 2 {
		t.Fatalf("count: %d %v", n, err)
	}
	if err := c.Letters().Delete(ctx, seq); err != nil {
		t.Fatal(err)
	}
	if err := c.Letters().Delete(ctx, seq); !errors.Is(err, bus.ErrNotFound) {
		t.Fatalf("second delete: %v", err)
	}
	if _, err := c.Letters().Get(ctx, subject); !errors.Is(err, bus.ErrNotFound) {
		t.Fatalf("get of a removed letter: %v", err)
	}
	if n, err := c.Letters().Count(ctx, bus.LetterSubject("acme", "*", "*")); err != nil || n != 0 {
		t.Fatalf("count: %d %v", n, err)
	}
}

func TestWatchCatchesUpWithManyRecords(t *testing.T) {
	records := 200_000
	if testing.Short() {
		records = 20_000
	}
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{})
	js, err := jetstream.New(server.Conn(), jetstream.WithPublishAsyncMaxPending(4000))
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(strings.Repeat("x", 600))
	for i := range records {
		msg := nats.NewMsg(bus.RunSubject(runID(i)))
		msg.Data = body
		msg.Header.Set("Agentrun-State", "waiting")
		msg.Header.Set("Agentrun-Due", fmt.Sprint(1_900_000_000_000+i))
		msg.Header.Set("Agentrun-Workflow", "resolve_billing_case")
		if _, err := js.PublishMsgAsync(msg, jetstream.WithStallWait(waitLimit)); err != nil {
			t.Fatal(err)
		}
	}
	receive(t, "all records stored", js.PublishAsyncComplete())
	runtime.GC()
	current := make(chan struct{})
	n, ordered, last := 0, true, uint64(0)
	start := time.Now()
	follow(t, func(ctx context.Context) error {
		return c.WatchRuns(ctx, 0, func(ch bus.Change) {
			if ch.Kind == bus.Current {
				close(current)
				return
			}
			n++
			ordered = ordered && ch.Seq > last
			last = ch.Seq
		})
	})
	receive(t, "all records", current)
	t.Logf("%d record headers in %s", n, time.Since(start))
	if n != records || !ordered {
		t.Fatalf("%d of %d records, ordered %v", n, records, ordered)
	}
}

func TestWatchNoticesLostMessages(t *testing.T) {
	server := bustest.Start(t)
	proxy := bustest.StartProxy(t, server)
	c, direct := setUp(t, proxy.URL, bus.Config{}), dial(t, server.URL)
	var drops atomic.Int64
	proxy.Drop(func(subject string, _ []byte) bool {
		return strings.HasPrefix(subject, "agentrun.runs.") && drops.Add(1)%5 == 2 && drops.Load() < 40
	})
	const records = 60
	changes := make(chan bus.Change, 10)
	follow(t, func(ctx context.Context) error {
		return c.WatchRuns(ctx, 0, func(ch bus.Change) { changes <- ch })
	})
	if got := receive(t, "current", changes); got.Kind != bus.Current {
		t.Fatalf("%+v", got)
	}
	go func() {
		for i := range records {
			if _, err := direct.Runs().Save(context.Background(), runID(i), nil, bus.RecordHeader{State: "s"}, 0); err != nil {
				t.Error(err)
			}
		}
	}()
	for i := range records {
		if got := receive(t, "a record", changes); got.ID != runID(i) {
			t.Fatalf("record %d: %+v", i, got)
		}
	}
	if drops.Load() == 0 {
		t.Fatal("nothing was lost")
	}
}

func TestWatchSurvivesAHungServer(t *testing.T) {
	server := bustest.Start(t)
	proxy := bustest.StartProxy(t, server)
	c, direct := setUp(t, proxy.URL, bus.Config{}), dial(t, server.URL)
	changes := make(chan bus.Change, 10)
	follow(t, func(ctx context.Context) error {
		return c.WatchRuns(ctx, 0, func(ch bus.Change) { changes <- ch })
	})
	if got := receive(t, "current", changes); got.Kind != bus.Current {
		t.Fatalf("%+v", got)
	}
	proxy.Hold()
	proxy.Cut()
	if _, err := direct.Runs().Save(deadline(t), runID(1), nil, bus.RecordHeader{State: "s"}, 0); err != nil {
		t.Fatal(err)
	}
	proxy.Resume()
	if got := receive(t, "the record", changes); got.ID != runID(1) {
		t.Fatalf("%+v", got)
	}
}
