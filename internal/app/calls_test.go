package app

import (
	"context"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/internal/trace"
	"github.com/agentrun/executor/internal/worker"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// given is a tool that does nothing and keeps the traceparent and the args that it was given.
type given struct {
	traceparent string
	args        *strictjson.Args
}

func (g *given) Call(_ context.Context, c *connector.Call) envelope.Reply {
	g.traceparent, g.args = c.Traceparent, c.Checked
	return envelope.Reply{OK: true}
}

// Without traces a call costs what it cost before there were any: the one allocation of connector.Call; and the tool gets
// the publisher's traceparent as it came, valid or not.
func TestNoTracesCostNothing(t *testing.T) {
	tool := &given{}
	registry, err := connector.NewRegistry(&connector.Tool{Tool: run.Tool{Name: "t"}, Caller: tool})
	if err != nil {
		t.Fatal(err)
	}
	tools := newLive(&Toolbox{File: &config.File{}, Registry: registry})
	d := &engine.Dispatch{Tool: "t", Step: "a", Ref: "acme/r/a", Effect: envelope.Write, Attempt: 1, Args: strictjson.CheckedArgs([]byte(`{"n":1}`))}
	info := worker.CallInfo{ID: run.ID{Tenant: "acme", Run: "r"}, Trace: "as it came"}
	call := func() { tools.Call(context.Background(), d, info) }
	if n := testing.AllocsPerRun(100, call); n > 1 {
		t.Errorf("a call allocates %v times, wanted 1", n)
	}
	if tool.traceparent != "as it came" {
		t.Errorf("the tool was given %q", tool.traceparent)
	}
	if tool.args != d.Args {
		t.Error("the tool is left to check its args again")
	}
	spans := tracetest.NewInMemoryExporter()
	tools.tracer = trace.New(nil, sdk.NewSimpleSpanProcessor(spans))
	call()
	if got := spans.GetSpans(); len(got) != 1 || tool.traceparent != "00-"+engine.TraceID(info.ID, "")+"-"+got[0].SpanContext.SpanID().String()+"-01" {
		t.Errorf("with traces: %d spans, the tool was given %q", len(got), tool.traceparent)
	}
}
