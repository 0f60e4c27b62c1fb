// Package trace shows runs to OpenTelemetry: one trace per run, with a span for each call of a tool and for each lookup.
// It hides the vendor's SDK. No span carries args, results or any other text from outside but names of the config.
//
// A run's trace is that of the traceparent that its first job came with. A run that came without one has a trace id made
// from its name (engine.TraceID), so that executors and reconcilers agree on it without a word.
package trace

import (
	"context"
	"encoding/hex"
	"math/rand/v2"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	api "go.opentelemetry.io/otel/trace"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Names of OpenTelemetry's semantic conventions for generative AI, tool execution.
const (
	operationName = attribute.Key("gen_ai.operation.name")
	toolName      = attribute.Key("gen_ai.tool.name")
	toolCallID    = attribute.Key("gen_ai.tool.call.id") // the operation_ref
	errorType     = attribute.Key("error.type")
	executeTool   = "execute_tool"
)

// Names of our own.
const (
	tenant      = attribute.Key("agentrun.tenant")
	runID       = attribute.Key("agentrun.run_id")
	step        = attribute.Key("agentrun.step")
	attempt     = attribute.Key("agentrun.attempt")
	effect      = attribute.Key("agentrun.effect")
	code        = attribute.Key("agentrun.code")
	commitState = attribute.Key("agentrun.commit_state")
	answer      = attribute.Key("agentrun.answer") // of a lookup: found, absent, undecided
	verifyTool  = "verify"
)

const scope = "github.com/agentrun/executor"

// Tracer makes spans. Safe for concurrent use. A process without traces has none: callers check for nil, which costs
// nothing.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   api.Tracer
}

// New makes a tracer for a process. The sampler is the SDK's, by OTEL_TRACES_SAMPLER.
func New(about *resource.Resource, processors ...sdk.SpanProcessor) *Tracer {
	options := []sdk.TracerProviderOption{sdk.WithIDGenerator(ids{}), sdk.WithResource(about)}
	for _, p := range processors {
		options = append(options, sdk.WithSpanProcessor(p))
	}
	provider := sdk.NewTracerProvider(options...)
	return &Tracer{provider: provider, tracer: provider.Tracer(scope)}
}

// Close hands on what is still to be exported, until ctx ends.
func (t *Tracer) Close(ctx context.Context) error { return t.provider.Shutdown(ctx) }

// Operation is what a span is about.
type Operation struct {
	ID          run.ID
	Step, Tool  string
	Ref         string // operation_ref
	Effect      envelope.Effect
	Attempt     int
	Traceparent string // of the run, as it came; "" if it came with none
}

// Span is one call or lookup in flight.
type Span struct{ span api.Span }

// Call begins the span of one dispatch of a tool. The context goes to the tool.
func (t *Tracer) Call(ctx context.Context, o Operation) (context.Context, Span) {
	ctx, span := t.tracer.Start(within(ctx, &o), executeTool+" "+o.Tool, api.WithAttributes(
		operationName.String(executeTool), toolName.String(o.Tool), toolCallID.String(o.Ref), effect.String(string(o.Effect)),
		tenant.String(o.ID.Tenant), runID.String(o.ID.Run), step.String(o.Step), attempt.Int(o.Attempt),
	))
	return ctx, Span{span}
}

// Lookup begins the span of one lookup, which asks what became of a dispatch.
func (t *Tracer) Lookup(ctx context.Context, o Operation) (context.Context, Span) {
	ctx, span := t.tracer.Start(within(ctx, &o), verifyTool+" "+o.Tool, api.WithAttributes(
		toolName.String(o.Tool), toolCallID.String(o.Ref),
		tenant.String(o.ID.Tenant), runID.String(o.ID.Run), step.String(o.Step), attempt.Int(o.Attempt),
	))
	return ctx, Span{span}
}

// Traceparent is what the far side goes on with.
func (s Span) Traceparent() string {
	c := carrier{}
	propagation.TraceContext{}.Inject(api.ContextWithSpan(context.Background(), s.span), c)
	return c[traceparent]
}

// Replied ends the span of a call.
func (s Span) Replied(r *envelope.Reply) {
	state := envelope.Committed
	if !r.OK {
		state = r.Row.CommitState
		s.failed(r.Row.Code)
	}
	s.span.SetAttributes(commitState.String(string(state)))
	s.span.End()
}

// Answered ends the span of a lookup. proves says whether an absent answer counts: it was asked for late enough.
func (s Span) Answered(l *envelope.Lookup, proves bool) {
	state := envelope.Unknown
	switch {
	case l.Answer == envelope.Found:
		state = envelope.Committed
	case l.Answer == envelope.Absent && proves, l.Answer == envelope.Failed:
		state = envelope.NotCommitted
	}
	if l.Row.Code != "" {
		s.failed(l.Row.Code)
	}
	if l.Invalid != "" {
		s.failed(l.Invalid)
	}
	s.span.SetAttributes(answer.String(string(l.Answer)), commitState.String(string(state)))
	s.span.End()
}

func (s Span) failed(c envelope.Code) {
	s.span.SetAttributes(code.String(string(c)), errorType.String(string(c)))
	s.span.SetStatus(codes.Error, string(c))
}

const traceparent = "traceparent"

// carrier holds a trace context in its textual form.
type carrier map[string]string

func (c carrier) Get(key string) string { return c[key] }
func (c carrier) Set(key, value string) { c[key] = value }
func (c carrier) Keys() []string        { return []string{traceparent} }

// traceKey is the key of the trace id that a context without a parent asks for.
type traceKey struct{}

// within puts an operation into its run's trace: under the publisher's span or, where there is none, as one of the trace's
// first spans, on which the configured sampler decides by the trace's id, alike in every process.
func within(ctx context.Context, o *Operation) context.Context {
	ctx = api.ContextWithSpanContext(ctx, api.SpanContext{})
	if o.Traceparent != "" {
		ctx = propagation.TraceContext{}.Extract(ctx, carrier{traceparent: o.Traceparent})
		if api.SpanContextFromContext(ctx).IsValid() {
			return ctx
		}
	}
	var id api.TraceID
	if n, err := hex.Decode(id[:], []byte(engine.TraceID(o.ID, o.Traceparent))); err != nil || n != len(id) {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, id)
}

// ids draws span ids, and trace ids where none is asked for.
type ids struct{}

func (ids) NewIDs(ctx context.Context) (api.TraceID, api.SpanID) {
	id, ok := ctx.Value(traceKey{}).(api.TraceID)
	for !ok || !id.IsValid() {
		fill(id[:8])
		fill(id[8:])
		ok = true
	}
	return id, ids{}.NewSpanID(ctx, id)
}

func (ids) NewSpanID(context.Context, api.TraceID) (id api.SpanID) {
	for !id.IsValid() {
		fill(id[:])
	}
	return id
}

func fill(b []byte) {
	n := rand.Uint64()
	for i := range b {
		b[i] = byte(n >> (8 * i))
	}
}
