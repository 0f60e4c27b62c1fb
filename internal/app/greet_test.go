package app

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/streams"
)

// Four executors with calls to make come to know one another by their greetings, and forget one that has gone.
func TestGreetingsAreCounted(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	counts := make([]*fleetCount, 4)
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
		counts[i] = greet(ctx, conn, name, slog.New(slog.DiscardHandler), func() bool { return true }, func() {})
	}
	agree := func(n int, among []*fleetCount) {
		t.Helper()
		bustest.Eventually(t, fmt.Sprintf("each divides by %d", n), func() bool {
			for _, f := range among {
				if f.executors() != n {
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
