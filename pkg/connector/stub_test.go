package connector

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/agentrun/executor/pkg/envelope"
)

// stub is a kind whose far side answers with one response.
type stub struct {
	name   string
	answer Response
}

func (s *stub) Name() string                           { return s.name }
func (s *stub) Prepare(Preparation) (Transport, error) { return s, nil }
func (s *stub) CheckArgs(map[string]any) (string, bool) {
	return "", true
}

func (s *stub) RoundTrip(_ context.Context, r *Request) Response {
	if !r.Leave() {
		return Response{Failure: NotSent}
	}
	return s.answer
}

func kindSpec(kind string) KindSpec {
	switch kind {
	case KindNATS:
		return KindSpec{NATS: &NATSSpec{Subject: "x"}}
	case KindMCP:
		return KindSpec{MCP: &MCPSpec{Server: "s", Tool: "t"}}
	case KindCommand:
		return KindSpec{Command: &CommandSpec{Argv: []string{"x"}}}
	}
	return KindSpec{HTTP: &HTTPSpec{Method: "POST", URL: "http://h/"}}
}

// classified compiles a tool of the kind and says what the response comes to.
func classified(t *testing.T, kind string, effect envelope.Effect, resp Response, edit func(*Spec)) envelope.Reply {
	t.Helper()
	spec := Spec{Name: "tool", Effect: effect, Kind: kindSpec(kind)}
	if edit != nil {
		edit(&spec)
	}
	tool, err := Compile(spec, &stub{kind, resp})
	if err != nil {
		t.Fatal(err)
	}
	return tool.Caller.Call(t.Context(), testCall())
}

func testCall() *Call {
	return &Call{OperationRef: "acme/r/s", IdempotencyKey: "acme/r/s.p2", Args: json.RawMessage(`{"id":"inv_7","n":9007199254740993}`)}
}

func status(code int, body string) Response { return Response{Status: code, Body: []byte(body)} }

func verify(s *Spec) {
	s.Verify = &VerifySpec{Kind: s.Kind, Committed: "size(body.items) > 0", NotCommitted: "size(body.items) == 0", Result: "body.items[0]"}
}
