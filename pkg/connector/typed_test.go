package connector

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentrun/executor/pkg/envelope"
)

type typedIn struct {
	Minor    int64          `json:"minor"`
	Exact    json.Number    `json:"exact,omitempty"`
	Small    int8           `json:"small,omitempty"`
	Currency string         `json:"currency" jsonschema:"ISO 4217"`
	Tags     []string       `json:"tags,omitempty"`
	Free     map[string]any `json:"free,omitempty"`
	At       struct {
		Line uint64 `json:"line"`
	} `json:"at,omitzero"`
}

type typedOut struct {
	Refund string         `json:"refund"`
	In     typedIn        `json:"in"`
	Free   map[string]any `json:"free,omitempty"`
}

func typedTool(t *testing.T, options ...Option) *Tool {
	t.Helper()
	tool, err := Typed("refund", envelope.Write, func(_ context.Context, c *Call, in typedIn) (typedOut, error) {
		if in.Currency == "XXX" {
			return typedOut{}, &Fault{Code: envelope.CodeStateConflict, CommitState: envelope.NotCommitted}
		}
		return typedOut{Refund: c.OperationRef + " " + c.IdempotencyKey, In: in}, nil
	}, options...)
	if err != nil {
		t.Fatal(err)
	}
	return tool
}

// What goes in and comes out keeps its digits, and the call is within reach.
func TestTypedKeepsDigits(t *testing.T) {
	args := `{"minor":9223372036854775807,"exact":0.12345678901234567890,"currency":"<EUR>","free":{"n":[12345678901234567890123]},"at":{"line":18446744073709551615}}`
	tool := typedTool(t)
	if field, ok := tool.CheckArgs(json.RawMessage(args)); !ok {
		t.Fatalf("refused at %q", field)
	}
	reply := tool.Caller.Call(t.Context(), &Call{OperationRef: "acme/r/s", IdempotencyKey: "k", Args: json.RawMessage(args)})
	want := `{"refund":"acme/r/s k","in":` + args + `}`
	if !reply.OK || string(reply.Result) != want {
		t.Errorf("%+v\n%s\nwant\n%s", reply.Row, reply.Result, want)
	}
	reply = tool.Caller.Call(t.Context(), &Call{Args: json.RawMessage(`{"minor":1,"currency":"XXX"}`)})
	if reply.OK || reply.Row.Code != envelope.CodeStateConflict {
		t.Errorf("the function's fault came as %+v", reply.Row)
	}
}

// Args that the type cannot hold exactly are refused before anything is sent, at their place.
func TestTypedRefuses(t *testing.T) {
	narrow := typedTool(t, WithSpec(func(s *Spec) {
		s.InputSchema = map[string]any{"properties": map[string]any{"minor": map[string]any{"$ref": "#/$defs/n"}}, "$defs": map[string]any{"n": map[string]any{"maximum": json.Number("100")}}}
	}))
	for _, x := range []struct{ args, field string }{
		{`{"minor":9223372036854775808,"currency":"EUR"}`, "/minor"},
		{`{"minor":1.5,"currency":"EUR"}`, "/minor"},
		{`{"minor":1.0,"currency":"EUR"}`, "/minor"},
		{`{"minor":"1","currency":"EUR"}`, "/minor"},
		{`{"minor":1,"currency":"EUR","small":128}`, "/small"},
		{`{"minor":1,"currency":"EUR","at":{"line":18446744073709551616}}`, "/at/line"},
		{`{"minor":1,"currency":"EUR","at":{"line":-1}}`, "/at/line"},
		{`{"minor":1,"currency":"EUR","other":1}`, "/other"},
		{`{"Minor":1,"currency":"EUR"}`, "/Minor"},
		{`{"minor":1,"MINOR":2,"currency":"EUR"}`, "/MINOR"},
		{`{"minor":1}`, "/currency"},
		{`{}`, "/minor"},
		{`{"minor":null,"currency":"EUR"}`, "/minor"},
		{`{"minor":1,"minor":2,"currency":"EUR"}`, ""},
	} {
		for name, tool := range map[string]*Tool{"own": typedTool(t), "narrowed": narrow} {
			if field, ok := tool.CheckArgs(json.RawMessage(x.args)); ok || field != x.field {
				t.Errorf("%s, %s: %v at %q, want a refusal at %q", name, x.args, ok, field, x.field)
			}
		}
	}
	if field, ok := narrow.CheckArgs(json.RawMessage(`{"minor":101,"currency":"EUR"}`)); ok || field != "/minor" {
		t.Errorf("a schema of its own does not hold: %v at %q", ok, field)
	}
	if field, ok := narrow.CheckArgs(json.RawMessage(`{"minor":100,"currency":"EUR","tags":["a"]}`)); !ok {
		t.Errorf("refused at %q", field)
	}
}

// A type of which no args can be made is an error of the program, with the reason.
func TestTypedTypes(t *testing.T) {
	type loop struct{ Next *loop }
	_, scalar := Typed("t", envelope.Read, func(context.Context, *Call, int) (string, error) { return "", nil })
	_, pointer := Typed("t", envelope.Read, func(context.Context, *Call, *typedIn) (string, error) { return "", nil })
	_, cycle := Typed("t", envelope.Read, func(context.Context, *Call, loop) (string, error) { return "", nil })
	_, out := Typed("t", envelope.Read, func(context.Context, *Call, struct{}) (chan int, error) { return nil, nil })
	for says, err := range map[string]error{"int is no struct": scalar, "*connector.typedIn is no struct": pointer, "cycle": cycle, "chan int": out} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, must say %q", err, says)
		}
	}
	none, err := Typed("t", envelope.Read, func(_ context.Context, _ *Call, in struct{}) (json.RawMessage, error) {
		return json.RawMessage(`[1]`), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if reply := none.Caller.Call(t.Context(), &Call{}); !reply.OK || string(reply.Result) != `[1]` {
		t.Errorf("%+v", reply)
	}
	if field, ok := none.CheckArgs(json.RawMessage(`{"a":1}`)); ok || field != "/a" {
		t.Errorf("args of a tool that has none: %v at %q", ok, field)
	}
}
