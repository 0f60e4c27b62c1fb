package bus_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/streams/streamstest"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
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
		if err := streamstest.Receive(t, "the watch's end", ended); !errors.Is(err, context.Canceled) && !errors.Is(err, bus.ErrClosed) {
			t.Errorf("watch ended with %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func consumersOf(t testing.TB, server *bustest.Server, stream string) int {
	t.Helper()
	return streamstest.State(t, server, stream).Consumers
}

func TestWatchRunsSurvivesRestartsAndReportsReset(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{})
	ctx, h := streamstest.Deadline(t), port.Header{State: "ready", Workflow: "w"}
	save := func(id run.ID, expect uint64) uint64 {
		t.Helper()
		seq, err := c.Save(ctx, id, []byte("body"), h, expect)
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	first := save(streamstest.RunID(1), 0)
	if _, err := c.SaveFleet(ctx, port.ActiveRecord, []byte("body"), port.Header{}, 0); err != nil {
		t.Fatal(err)
	}
	changes := make(chan port.Change, 100)
	stop := follow(t, func(ctx context.Context) error {
		return c.WatchRuns(ctx, func(ch port.Change) { changes <- ch })
	})
	got := streamstest.Receive(t, "the record", changes)
	if got.Report != port.Stored || got.ID != streamstest.RunID(1) || got.Seq != first || got.Header != h {
		t.Fatalf("change: %+v", got)
	}
	if got = streamstest.Receive(t, "the fleet's record", changes); got.ID != port.ActiveID {
		t.Fatalf("change: %+v", got)
	}
	if got = streamstest.Receive(t, "the end of what was there", changes); got.Report != port.Current {
		t.Fatalf("change: %+v", got)
	}
	second := save(streamstest.RunID(1), first)
	if got = streamstest.Receive(t, "the update", changes); got.Seq != second {
		t.Fatalf("change: %+v", got)
	}

	server.Stop()
	server.StartAgain()
	third := save(streamstest.RunID(1), second)
	if got = streamstest.Receive(t, "the update after a restart", changes); got.Seq != third {
		t.Fatalf("nothing is reported twice: %+v", got)
	}

	if _, err := server.Conn().Request("$JS.API.STREAM.DELETE.AGENTRUN_RUNS", nil, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	save(streamstest.RunID(5), 0)
	if got = streamstest.Receive(t, "the reset", changes); got.Report != port.Reset {
		t.Fatalf("change: %+v", got)
	}
	for got = streamstest.Receive(t, "the new stream's record", changes); got.Report == port.Current; {
		got = streamstest.Receive(t, "the new stream's record", changes)
	}
	if got.ID != streamstest.RunID(5) {
		t.Fatalf("change: %+v", got)
	}
	stop()
	bustest.Eventually(t, "the watch's consumer is gone", func() bool { return consumersOf(t, server, topology.RunsStream) == 0 })
}

func TestScanFromASequence(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{})
	var seqs []uint64
	for i := range 5 {
		seq, err := c.Save(streamstest.Deadline(t), streamstest.RunID(i), nil, port.Header{State: "s"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, seq)
	}
	var scanned []uint64
	if err := c.ScanRuns(streamstest.Deadline(t), seqs[3], func(_ run.ID, seq uint64, _ []byte) { scanned = append(scanned, seq) }); err != nil || !slices.Equal(scanned, seqs[3:]) {
		t.Fatalf("scanned %v of %v: %v", scanned, seqs, err)
	}
}

func TestWatchOutcomesAndLetters(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *streams.Conn) {
		ctx := streamstest.Deadline(t)
		outcomes, letters := make(chan port.Outcome, 10), make(chan port.Letter, 10)
		follow(t, func(ctx context.Context) error {
			return c.WatchOutcomes(ctx, time.Time{}, func(o port.Outcome) { outcomes <- o })
		})
		follow(t, func(ctx context.Context) error {
			return c.WatchLetters(ctx, func(l port.Letter) { letters <- l })
		})
		if got := streamstest.Receive(t, "current", outcomes); got.Report != port.Current {
			t.Fatalf("%+v", got)
		}
		if got := streamstest.Receive(t, "current", letters); got.Report != port.Current {
			t.Fatalf("%+v", got)
		}
		batch := []port.Outgoing{
			{Outcome: which(streamstest.RunID(1), envelope.StepScope, 1), First: 9, Data: []byte("step")},
			{Outcome: which(streamstest.RunID(1), envelope.RunScope, 1), First: 9, Data: []byte("run"), Traceparent: "00-a-b-01"},
		}
		if _, err := c.Append(ctx, c.Server(), batch); err != nil {
			t.Fatal(err)
		}
		if got := streamstest.Receive(t, "the run's outcome", outcomes); got.ID != streamstest.RunID(1) || got.Scope != envelope.RunScope || got.N != 1 || got.First != 9 {
			t.Fatalf("%+v", got)
		}
		seq, err := c.PutLetter(ctx, streamstest.RunID(1), "owner", []byte("letter"), "l1", 0)
		if err != nil {
			t.Fatal(err)
		}
		got := streamstest.Receive(t, "the letter", letters)
		if got.ID != streamstest.RunID(1) || got.Owner != "owner" || string(got.Data) != "letter" || got.Seq != seq || got.LetterID != "l1" {
			t.Fatalf("%+v", got)
		}
		testLetters(t, c, seq)
	})
}

func testLetters(t *testing.T, c *streams.Conn, seq uint64) {
	t.Helper()
	ctx, other := streamstest.Deadline(t), run.ID{Tenant: "other", Run: "run_1"}
	if _, err := c.PutLetter(ctx, streamstest.RunID(1), "owner", []byte("other"), "l1", 0); !errors.Is(err, port.ErrConflict) {
		t.Fatalf("a second letter: %v", err)
	}
	if _, err := c.PutLetter(ctx, other, "owner", []byte("x"), "l2", 0); err != nil {
		t.Fatal(err)
	}
	if of, err := c.Lettered(ctx); err != nil || len(of) != 2 || !of[streamstest.RunID(1)] || !of[other] {
		t.Fatalf("lettered: %v %v", of, err)
	}
	for range 2 { // what is gone is removed
		if err := c.DeleteLetter(ctx, seq); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.GetLetter(ctx, streamstest.RunID(1), "owner"); !errors.Is(err, port.ErrNotFound) {
		t.Fatalf("get of a removed letter: %v", err)
	}
	if of, err := c.Lettered(ctx); err != nil || len(of) != 1 {
		t.Fatalf("lettered: %v %v", of, err)
	}
}

func TestWatchCatchesUpWithManyRecords(t *testing.T) {
	records := 200_000
	if testing.Short() {
		records = 20_000
	}
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{})
	js, err := jetstream.New(server.Conn(), jetstream.WithPublishAsyncMaxPending(4000))
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(strings.Repeat("x", 600))
	for i := range records {
		msg := nats.NewMsg(topology.RunSubject(streamstest.RunID(i)))
		msg.Data = body
		msg.Header.Set("Agentrun-State", "waiting")
		msg.Header.Set("Agentrun-Due", fmt.Sprint(1_900_000_000_000+i))
		msg.Header.Set("Agentrun-Workflow", "resolve_billing_case")
		if _, err := js.PublishMsgAsync(msg, jetstream.WithStallWait(streamstest.WaitLimit)); err != nil {
			t.Fatal(err)
		}
	}
	streamstest.Receive(t, "all records stored", js.PublishAsyncComplete())
	runtime.GC()
	current := make(chan struct{})
	n, ordered, last := 0, true, uint64(0)
	start := time.Now()
	follow(t, func(ctx context.Context) error {
		return c.WatchRuns(ctx, func(ch port.Change) {
			if ch.Report == port.Current {
				close(current)
				return
			}
			n++
			ordered = ordered && ch.Seq > last
			last = ch.Seq
		})
	})
	streamstest.Receive(t, "all records", current)
	t.Logf("%d record headers in %s", n, time.Since(start))
	if n != records || !ordered {
		t.Fatalf("%d of %d records, ordered %v", n, records, ordered)
	}
}

func TestWatchNoticesLostMessages(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	proxy := bustest.StartProxy(t, server)
	c, direct := streamstest.SetUp(t, proxy.URL, streams.Config{}), streamstest.Dial(t, server.URL)
	var drops atomic.Int64
	proxy.Drop(func(subject string, _ []byte) bool {
		return strings.HasPrefix(subject, "agentrun.runs.") && drops.Add(1)%5 == 2 && drops.Load() < 40
	})
	const records = 60
	changes := make(chan port.Change, 10)
	follow(t, func(ctx context.Context) error {
		return c.WatchRuns(ctx, func(ch port.Change) { changes <- ch })
	})
	if got := streamstest.Receive(t, "current", changes); got.Report != port.Current {
		t.Fatalf("%+v", got)
	}
	go func() {
		for i := range records {
			if _, err := direct.Save(context.Background(), streamstest.RunID(i), nil, port.Header{State: "s"}, 0); err != nil {
				t.Error(err)
			}
		}
	}()
	for i := range records {
		if got := streamstest.Receive(t, "a record", changes); got.ID != streamstest.RunID(i) {
			t.Fatalf("record %d: %+v", i, got)
		}
	}
	if drops.Load() == 0 {
		t.Fatal("nothing was lost")
	}
}

func TestWatchSurvivesAHungServer(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	proxy := bustest.StartProxy(t, server)
	c, direct := streamstest.SetUp(t, proxy.URL, streams.Config{}), streamstest.Dial(t, server.URL)
	changes := make(chan port.Change, 10)
	follow(t, func(ctx context.Context) error {
		return c.WatchRuns(ctx, func(ch port.Change) { changes <- ch })
	})
	if got := streamstest.Receive(t, "current", changes); got.Report != port.Current {
		t.Fatalf("%+v", got)
	}
	proxy.Hold()
	proxy.Cut()
	if _, err := direct.Save(streamstest.Deadline(t), streamstest.RunID(1), nil, port.Header{State: "s"}, 0); err != nil {
		t.Fatal(err)
	}
	proxy.Resume()
	if got := streamstest.Receive(t, "the record", changes); got.ID != streamstest.RunID(1) {
		t.Fatalf("%+v", got)
	}
}
