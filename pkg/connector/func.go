package connector

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/agentrun/executor/pkg/envelope"
)

// ErrNotSent is returned by a Go tool that provably did nothing, because it could not even begin. The attempt counts as
// never sent.
var ErrNotSent = errors.New("nothing was sent")

// A GoFunc is a tool, or a lookup, written in Go. It gets the call and returns JSON (nil is null). It should return soon
// after ctx is done; when it does not, the call ends without it.
//
// An error is classified like a reply that never came: a read may be repeated, a write is unknown. A *Fault says more, and
// ErrNotSent says that nothing was done. A function must not send anything before c.Last has been called once more and
// returned nil, if it does work of its own before sending; it was called right before the function.
type GoFunc func(ctx context.Context, c *Call) (json.RawMessage, error)

// Option changes the spec of a Go tool before it is compiled: schemas, rules, retry policy, anything of Spec but Kind.
type Option func(*funcTool)

type funcTool struct {
	spec   Spec
	call   GoFunc
	lookup GoFunc
}

// WithSpec lets edit change the spec.
func WithSpec(edit func(*Spec)) Option { return func(t *funcTool) { edit(&t.spec) } }

// WithLookup gives the tool a lookup. Its answer is judged by v.Committed, v.NotCommitted and v.Result, CEL over body.
func WithLookup(fn GoFunc, v VerifySpec) Option {
	return func(t *funcTool) {
		t.lookup = fn
		t.spec.Verify = &v
	}
}

// Func makes a tool of a Go function that runs in this process. A spec whose verify names another kind needs that kind in
// kinds. The function must be safe for concurrent use.
func Func(name string, effect envelope.Effect, fn GoFunc, options ...Option) (*Tool, error) {
	return FuncWith(nil, name, effect, fn, options...)
}

// FuncWith is Func with the kinds that the tool's lookup may need.
func FuncWith(kinds []Kind, name string, effect envelope.Effect, fn GoFunc, options ...Option) (*Tool, error) {
	t := &funcTool{spec: Spec{Name: name, Effect: effect}, call: fn}
	for _, o := range options {
		o(t)
	}
	if t.spec.Verify == nil {
		t.lookup = nil
	}
	return Compile(t.spec, append([]Kind{goKind{t}}, kinds...)...)
}

// GoLookup is the kind for a tool of another kind whose lookup is a Go function: its spec's verify names no kind.
func GoLookup(fn GoFunc) Kind { return goKind{&funcTool{lookup: fn}} }

// goKind hands out the functions of one tool.
type goKind struct{ tool *funcTool }

func (goKind) Name() string { return KindGo }

func (k goKind) Prepare(p Preparation) (Transport, error) {
	fn := k.tool.call
	if p.Lookup {
		fn = k.tool.lookup
	}
	if fn == nil {
		return nil, &SpecError{Message: "needs a Go function"}
	}
	return goTransport{fn}, nil
}

type goTransport struct{ fn GoFunc }

// CheckArgs allows everything: a Go tool's schema is its input_schema.
func (goTransport) CheckArgs(map[string]any) (string, bool) { return "", true }

// RoundTrip runs the function. It does not wait longer than ctx: a function that ignores ctx is left behind, and its end,
// whenever it comes, is dropped.
func (t goTransport) RoundTrip(ctx context.Context, r *Request) Response {
	if ctx.Err() != nil || !r.Leave() {
		return Response{Failure: NotSent}
	}
	done := make(chan Response, 1)
	go func() { done <- t.run(ctx, r) }()
	select {
	case resp := <-done:
		return resp
	case <-ctx.Done():
	}
	select {
	case resp := <-done:
		return resp
	default:
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return Response{Failure: Cancelled}
	}
	return Response{Failure: NoReply}
}

func (t goTransport) run(ctx context.Context, r *Request) (resp Response) {
	defer func() {
		if recover() != nil {
			// What a panicking tool had done nobody knows; its message may hold anything, so it goes nowhere.
			resp = Response{Fault: &Fault{Code: envelope.CodeInternalError}}
		}
	}()
	result, err := t.fn(ctx, r.Call)
	if fault, ok := errors.AsType[*Fault](err); ok {
		return Response{Fault: fault}
	}
	switch {
	case errors.Is(err, ErrNotSent):
		return Response{Failure: NotSent}
	case err != nil:
		return Response{Failure: NoReply}
	case len(result) > r.BodyMax:
		return Response{Failure: TooLarge}
	case result != nil && !json.Valid(result):
		// Unlike a far side, a function in this process owes JSON: text that happens not to parse is no string result.
		return Response{Failure: Unreadable}
	}
	return Response{Body: result}
}
