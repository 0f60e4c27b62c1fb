package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/streams"
)

// Four executors with calls to make come to know one another by their greetings, and forget one that has gone.
func TestGreetingsAreCounted(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	counts := make([]*Count, 4)
	var gone context.CancelFunc
	for i := range counts {
		name := fmt.Sprintf("w%d", i+1)
		conn, err := streams.Connect(streams.Options{Options: bus.Options{URL: server.URL, Name: name, Logger: slog.New(slog.DiscardHandler)}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		gone = cancel
		counts[i] = Greet(ctx, conn, name, slog.New(slog.DiscardHandler), func() bool { return true }, func() {})
	}
	agree := func(n int, among []*Count) {
		t.Helper()
		bustest.Eventually(t, fmt.Sprintf("each divides by %d", n), func() bool {
			for _, f := range among {
				if f.Executors() != n {
					return false
				}
			}
			return true
		})
	}
	agree(4, counts)
	gone()
	agree(3, counts[:3])
}

func TestFleetCount(t *testing.T) {
	t.Parallel()
	f := newCount("a")
	now := time.Now()
	f.now = func() time.Time { return now }
	want := func(n int, why string) {
		t.Helper()
		if got := f.Executors(); got != n {
			t.Fatalf("%d executors, wanted %d: %s", got, n, why)
		}
	}
	f.heard("a", true)
	want(1, "its own greeting is none")
	f.heard("b", true)
	f.heard("c", false)
	f.tick(true)
	want(3, "one that begins to share keeps to its part among all")
	now = now.Add(greetGone)
	f.heard("b", true)
	f.heard("c", false)
	f.tick(true)
	want(2, "then to its part among those that share")
	now = now.Add(greetGone + time.Millisecond)
	f.tick(true)
	want(1, "who is not heard any more is gone")
}
