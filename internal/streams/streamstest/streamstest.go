// Package streamstest is what the tests of the connection, of the streams and of the queue have in common.
package streamstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/pkg/run"
)

// WaitLimit is when a test that waits has failed.
const WaitLimit = time.Minute

// Deadline is a context that ends then.
func Deadline(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), WaitLimit)
	tb.Cleanup(cancel)
	return ctx
}

// Receive waits for one value.
func Receive[T any](tb testing.TB, what string, ch <-chan T) T {
	tb.Helper()
	timer := time.NewTimer(WaitLimit)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		tb.Fatalf("not within %s: %s", WaitLimit, what)
		panic("unreachable")
	}
}

// Dial connects; the attempts of what is asked and written are short.
func Dial(tb testing.TB, url string) *streams.Conn {
	tb.Helper()
	c, err := streams.Connect(streams.Options{Options: bus.Options{
		URL: url, Name: tb.Name(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), AttemptTimeout: 300 * time.Millisecond,
	}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// SetUp dials and makes the streams.
func SetUp(tb testing.TB, url string, cfg streams.Config) *streams.Conn {
	tb.Helper()
	c := Dial(tb, url)
	if err := c.Setup(Deadline(tb), cfg); err != nil {
		tb.Fatal(err)
	}
	return c
}

// State is a stream's own word of what it holds.
func State(tb testing.TB, server *bustest.Server, stream string) jetstream.StreamState {
	tb.Helper()
	js, err := bus.API{}.JetStream(server.Conn())
	if err != nil {
		tb.Fatal(err)
	}
	var s jetstream.Stream
	// The server acknowledges what is published into a new stream a moment before it lists the stream (stream.go,
	// "Register with our account last").
	bustest.Eventually(tb, stream+" is listed", func() bool {
		s, err = js.Stream(Deadline(tb), stream)
		return !errors.Is(err, jetstream.ErrStreamNotFound)
	})
	if err != nil {
		tb.Fatal(err)
	}
	return s.CachedInfo().State
}

// PublishJob publishes a job, or anything else that a stream takes.
func PublishJob(tb testing.TB, nc *nats.Conn, subject, data string) {
	tb.Helper()
	reply, err := nc.Request(subject, []byte(data), 5*time.Second)
	if err != nil || strings.Contains(string(reply.Data), "error") {
		tb.Fatalf("publish %s: %v %s", subject, err, reply.Data)
	}
}

// RunID is a run of the tenant acme.
func RunID(n int) run.ID { return run.ID{Tenant: "acme", Run: fmt.Sprintf("run_%d", n)} }
