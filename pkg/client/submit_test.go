package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/run"
)

func TestSubmitErrors(t *testing.T) {
	t.Parallel()
	bare, full := bustest.Start(t), bustest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	job := &run.Job{Tenant: "acme", RunID: "r1", Steps: []run.JobStep{{Step: "a", Tool: "t"}}}
	c := newClient(t, connect(t, bare.URL))
	if _, err := c.Submit(ctx, job, client.Options{}); !errors.Is(err, client.ErrNoStreams) {
		t.Errorf("without streams: %v", err)
	}
	if _, err := c.Watch(ctx, "acme", "r1"); !errors.Is(err, client.ErrNoStreams) {
		t.Errorf("watching without streams: %v", err)
	}
	if _, err := c.GetRun(ctx, "acme", "r1"); !errors.Is(err, client.ErrNoReconciler) {
		t.Errorf("a call without a reconciler: %v", err)
	}
	withStreams(t, full.URL, 1)
	c = newClient(t, connect(t, full.URL))
	if _, err := c.Submit(ctx, job, client.Options{}); err != nil {
		t.Fatal(err)
	}
	job.RunID = "r2"
	if _, err := c.Submit(ctx, job, client.Options{}); !errors.Is(err, client.ErrQueueFull) {
		t.Errorf("into a full queue: %v", err)
	}
	for _, bad := range []run.Job{
		{Tenant: "a.b", RunID: "r"},
		{Tenant: "acme", RunID: ">"},
		{Tenant: "acme", RunID: "r", Schema: "agentrun.job/v9"},
		{Tenant: "acme", RunID: "r", Steps: []run.JobStep{{Step: "a", Tool: "t"}, {Step: "a", Tool: "t"}}},
		{Tenant: "acme", RunID: "r", Steps: []run.JobStep{{Step: "a", Tool: "t", Args: json.RawMessage(`[1]`)}}},
		{Tenant: "acme", RunID: "r", Steps: []run.JobStep{{Step: "a", Tool: "t", Args: json.RawMessage(`{"a":`)}}},
	} {
		var wrong *run.JobError
		if _, err := c.Submit(ctx, &bad, client.Options{}); !errors.As(err, &wrong) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := c.Submit(ctx, job, client.Options{Queue: "*"}); err == nil {
		t.Error("a wildcard is no queue")
	}
	// A server that hangs: the caller is told that the job may be there.
	s := bustest.Start(t)
	withStreams(t, s.URL, 0)
	proxy := bustest.StartProxy(t, s)
	c = newClient(t, connect(t, proxy.URL))
	proxy.Hold()
	short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	defer stop()
	if _, err := c.Submit(short, job, client.Options{}); !errors.Is(err, client.ErrUnacknowledged) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("at a server that hangs: %v", err)
	}
	proxy.Resume()
}

// The trace context of the options, else of the span in ctx, goes with the job.
func TestSubmitPassesTheTraceOn(t *testing.T) {
	t.Parallel()
	s := bustest.Start(t)
	withStreams(t, s.URL, 0)
	nc := connect(t, s.URL)
	c := newClient(t, nc)
	sub, err := nc.SubscribeSync("agentrun.jobs.bulk.acme.>")
	if err != nil {
		t.Fatal(err)
	}
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	const given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, x := range []struct {
		ctx   context.Context
		given string
		want  string
	}{
		{t.Context(), "", ""},
		{t.Context(), given, given},
		{trace.ContextWithSpanContext(t.Context(), span), "", "00-01000000000000000000000000000000-0200000000000000-01"},
		{trace.ContextWithSpanContext(t.Context(), span), given, given},
	} {
		if _, err := c.Submit(x.ctx, &run.Job{Tenant: "acme", RunID: "r"}, client.Options{Queue: "bulk", Traceparent: x.given}); err != nil {
			t.Fatal(err)
		}
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Header["traceparent"]; strings.Join(got, "") != x.want {
			t.Errorf("traceparent %q, wanted %q", got, x.want)
		}
	}
}
