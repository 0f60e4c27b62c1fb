package app_test

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/trace"
	"github.com/agentrun/executor/pkg/run"
)

const traceConfig = `
defaults:
  owner: platform
  workflow: testing
  actor: "agent:test"
  retry: {initial_delay: 20ms, max_delay: 50ms, jitter: 0}
tools:
  load:
    effect: read
    http: {method: GET, url: "PROVIDER/load?secret={secret}"}
  pay:
    effect: write
    http: {method: POST, url: "PROVIDER/pay"}
    verify:
      http: {method: GET, url: "PROVIDER/paid?operation_ref={operation_ref}"}
      committed: "status == 200"
      not_committed: "status == 404"
      consistency_window: 100ms
`

// tracedStack has a provider that fails the first load, and hangs up on each payment although it makes it.
func tracedStack(t *testing.T) (s *stack, seen func() []string) {
	s = newStack(t)
	s.args = []string{"--lease", "30s"} // a lease that is lost is another dispatch, and another span
	s.config = filepath.Join(s.dir, "traces.yaml")
	if err := os.WriteFile(s.config, []byte(strings.ReplaceAll(traceConfig, "PROVIDER", s.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var requests []string
	s.answer(func(r *http.Request, _ string, n int) (int, string) {
		mu.Lock()
		requests = append(requests, r.URL.Path+" "+r.Header.Get("traceparent"))
		mu.Unlock()
		switch {
		case r.URL.Path == "/load" && n == 1:
			return 503, `{"error":"upstream-text"}`
		case r.URL.Path == "/pay":
			panic(http.ErrAbortHandler)
		}
		return 200, `{"secret":"result-text"}`
	})
	return s, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(requests)
	}
}

var tracedSteps = []M{step("a", "load", M{"secret": "argument-text"}), step("b", "pay", M{"secret": "argument-text"})}

// startTraced runs both processes with exporters of their own.
func (s *stack) startTraced() (executor, reconciler *tracetest.InMemoryExporter) {
	s.t.Helper()
	executor, reconciler = tracetest.NewInMemoryExporter(), tracetest.NewInMemoryExporter()
	var e app.ExecutorConfig
	e.Tracer = trace.New(nil, sdk.NewSimpleSpanProcessor(executor))
	s.start(&e, &e.Process, "e1", func(ctx context.Context) error { return app.Executor(ctx, e) }, "--data", filepath.Join(s.dir, "e1"))
	var r app.ReconcilerConfig
	r.Tracer = trace.New(nil, sdk.NewSimpleSpanProcessor(reconciler))
	s.start(&r, &r.Process, "r1", func(ctx context.Context) error { return app.Reconciler(ctx, r) })
	return executor, reconciler
}

// shown is a span as one line: its name and its own attributes.
func shown(span tracetest.SpanStub) string {
	var attempt, code, commit, answer string
	for _, a := range span.Attributes {
		switch a.Key {
		case "agentrun.attempt":
			attempt = a.Value.String()
		case "agentrun.code":
			code = " " + a.Value.String()
		case "agentrun.commit_state":
			commit = " " + a.Value.String()
		case "agentrun.answer":
			answer = " " + a.Value.String()
		}
	}
	return span.Name + " #" + attempt + code + commit + answer
}

// One run with a retry and a lookup is one trace, from the publisher's span to what the tool is given; no span holds what
// went to the tool or came back.
func TestOneTracePerRun(t *testing.T) {
	t.Parallel()
	s, requests := tracedStack(t)
	executor, reconciler := s.startTraced()
	const publisher = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	job := fmt.Sprintf(`{"schema":"agentrun.job/v1","tenant":"acme","run_id":"given","steps":[%s,%s]}`,
		`{"step":"a","tool":"load","args":{"secret":"argument-text"}}`, `{"step":"b","tool":"pay","args":{"secret":"argument-text"}}`)
	if _, err := s.js.PublishMsg(t.Context(), &nats.Msg{Subject: "agentrun.jobs.default.acme.given", Data: []byte(job), Header: nats.Header{"traceparent": {publisher}}}); err != nil {
		t.Fatal(err)
	}
	if o := s.end("acme", "given", 1); o.Outcome != "ok" {
		t.Fatalf("the run ended %s (%s)", o.Outcome, o.Reason)
	}
	var lines []string
	spans := append(executor.GetSpans(), reconciler.GetSpans()...)
	given := map[string]bool{}
	for _, span := range spans {
		lines = append(lines, shown(span))
		if span.SpanContext.TraceID().String() != publisher[3:35] || span.Parent.SpanID().String() != publisher[36:52] {
			t.Errorf("%s is in trace %s under %s", span.Name, span.SpanContext.TraceID(), span.Parent.SpanID())
		}
		given["00-"+publisher[3:35]+"-"+span.SpanContext.SpanID().String()+"-01"] = true
		if text := fmt.Sprintf("%+v", span); strings.Contains(text, "argument-text") || strings.Contains(text, "result-text") || strings.Contains(text, "upstream-text") {
			t.Errorf("a span tells what went to a tool or came back: %s", text)
		}
		if len(span.Events) > 0 {
			t.Errorf("%s has events: %v", span.Name, span.Events)
		}
	}
	slices.Sort(lines)
	lines = slices.Compact(lines) // the executor may look up, too, while it still has the retry's wake
	want := []string{
		"execute_tool load #1 UPSTREAM_UNAVAILABLE not_committed", "execute_tool load #2 committed",
		"execute_tool pay #1 OUTCOME_UNKNOWN unknown", "verify pay #1 committed found",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("the spans are\n%s\nwanted\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	seen := map[string]int{}
	for _, r := range requests() {
		path, _, _ := strings.Cut(r, " ")
		seen[path]++
	}
	if len(seen) != 3 || seen["/load"] != 2 || seen["/pay"] != 1 || seen["/paid"] < 1 || len(requests()) != len(spans) {
		t.Errorf("the provider saw %q", requests())
	}
	for _, r := range requests() {
		if _, traceparent, _ := strings.Cut(r, " "); !given[traceparent] {
			t.Errorf("the provider was given %q, which is none of the spans", r)
		}
	}
	for _, span := range executor.GetSpans() {
		if span.Name == "verify pay" {
			continue
		}
		have := map[string]string{}
		for _, a := range span.Attributes {
			have[string(a.Key)] = a.Value.String()
		}
		if have["gen_ai.operation.name"] != "execute_tool" || "execute_tool "+have["gen_ai.tool.name"] != span.Name ||
			have["agentrun.tenant"] != "acme" || have["agentrun.run_id"] != "given" || have["gen_ai.tool.call.id"] != "acme/given/"+have["agentrun.step"] {
			t.Errorf("%s has the attributes %v", span.Name, have)
		}
	}
}

// A run without a traceparent has one trace all the same: executor and reconciler derive its id from the run's name.
func TestOneTraceWithoutAPublishers(t *testing.T) {
	t.Parallel()
	s, _ := tracedStack(t)
	executor, reconciler := s.startTraced()
	s.submit("acme", "own", tracedSteps)
	if o := s.end("acme", "own", 1); o.Outcome != "ok" {
		t.Fatalf("the run ended %s (%s)", o.Outcome, o.Reason)
	}
	want := engine.TraceID(run.ID{Tenant: "acme", Run: "own"}, "")
	names := map[string]int{}
	for _, span := range append(executor.GetSpans(), reconciler.GetSpans()...) {
		names[span.Name]++
	}
	if len(names) != 3 || names["execute_tool load"] != 2 || names["execute_tool pay"] != 1 || names["verify pay"] < 1 {
		t.Errorf("the spans are %v", names)
	}
	for _, span := range append(executor.GetSpans(), reconciler.GetSpans()...) {
		if span.SpanContext.TraceID().String() != want || span.Parent.IsValid() {
			t.Errorf("%s is in trace %s under %v, wanted %s", span.Name, span.SpanContext.TraceID(), span.Parent, want)
		}
	}
}

// receiver takes what an OTLP exporter sends.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	spans []string // service and name
}

func newReceiver(t *testing.T) *receiver {
	c := &receiver{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body io.Reader = r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			unzipped, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			body = unzipped
		}
		data, err := io.ReadAll(body)
		var export collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(data, &export)
		}
		if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Authorization") != "of the test" {
			t.Errorf("%s %v: %v", r.URL.Path, r.Header, err)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, rs := range export.ResourceSpans {
			service := ""
			for _, a := range rs.Resource.Attributes {
				if a.Key == "service.name" {
					service = a.Value.GetStringValue()
				}
			}
			for _, ss := range rs.ScopeSpans {
				for _, span := range ss.Spans {
					c.spans = append(c.spans, service+" "+span.Name)
				}
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// The standard variables switch the export on, and off; what is not yet sent goes out when the process ends.
func TestTracesAreExportedWhenTheEnvironmentAsks(t *testing.T) {
	for _, x := range []struct {
		exporter string
		want     []string
	}{
		{"", []string{"agentrun-executor execute_tool load", "agentrun-executor execute_tool load", "agentrun-executor execute_tool pay", "agentrun-reconciler verify pay"}},
		{"none", nil},
	} {
		c := newReceiver(t)
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
		t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=of%20the%20test")
		t.Setenv("OTEL_TRACES_EXPORTER", x.exporter)
		s, _ := tracedStack(t)
		executor, reconciler := s.executor("e1"), s.reconciler("r1")
		s.submit("acme", "run1", tracedSteps)
		s.end("acme", "run1", 1)
		for _, p := range []*process{executor, reconciler} {
			if err := p.stop(); err != nil {
				t.Error(err)
			}
		}
		c.mu.Lock()
		slices.Sort(c.spans)
		if !slices.Equal(c.spans, x.want) {
			t.Errorf("OTEL_TRACES_EXPORTER=%s: exported %q, wanted %q", x.exporter, c.spans, x.want)
		}
		c.mu.Unlock()
	}
}
