package client_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// On three servers with replicated streams a watch outlives the server that it is connected to, and whoever had its
// consumer.
func TestWatchOnACluster(t *testing.T) {
	t.Parallel() // it waits
	cluster := bustest.StartCluster(t)
	conn, err := streams.Connect(streams.Options{Options: bus.Options{URL: cluster.URL, Name: "test", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := conn.Setup(ctx, streams.Config{Replicas: 3, Queues: []string{"default"}}); err != nil {
		t.Fatal(err)
	}
	js := stream(t, connect(t, cluster.URL))
	nc := connect(t, cluster.URL)
	c := newClient(t, nc)
	if _, err := c.Submit(ctx, &run.Job{Tenant: "acme", RunID: "r1"}, client.Options{}); err != nil {
		t.Fatal(err)
	}
	w, err := c.Watch(ctx, "acme", "r1")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var want []string
	next := func(n int) {
		t.Helper()
		publish(t, js, "r1", stepOutcome(n, envelope.OK))
		want = append(want, fmt.Sprintf("acme/r1/step/%d", n))
	}
	for i, s := range cluster.Servers {
		next(2*i + 1)
		s.Stop()
		next(2*i + 2)
		s.StartAgain()
		bustest.Eventually(t, "all three are current", func() bool {
			for _, s := range cluster.Servers {
				if !s.Embedded().JetStreamIsCurrent() {
					return false
				}
			}
			return true
		})
	}
	publish(t, js, "r1", endOutcome(1, envelope.OK))
	want = append(want, "acme/r1/run/1")
	ids, err := read(ctx, w)
	if err != nil || strings.Join(ids, " ") != strings.Join(want, " ") {
		t.Errorf("%v, %v", ids, err)
	}
}
