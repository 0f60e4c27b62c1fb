package connector

import (
	"context"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
)

// BenchmarkGoTool is what the boundary costs: args checked against a schema, the call, its result checked and classified.
// The aim is 30 µs and 60 allocations.
func BenchmarkGoTool(b *testing.B) {
	result := json.RawMessage(`{"credit_id":"cr_3","amount_minor":500,"currency":"EUR","created_at":"2026-12-01T10:00:00Z"}`)
	tool, err := Func("credit", envelope.Write, func(context.Context, *Call) (json.RawMessage, error) { return result, nil },
		WithSpec(func(s *Spec) {
			s.InputSchema = decoded(b, `{"type":"object","required":["invoice_id","amount_minor"],"properties":{"invoice_id":{"type":"string"},"amount_minor":{"type":"integer","minimum":1}}}`)
			s.OutputSchema = decoded(b, `{"type":"object","required":["credit_id"],"properties":{"credit_id":{"type":"string"}}}`)
			s.EvidenceRef = "body.credit_id"
		}))
	if err != nil {
		b.Fatal(err)
	}
	args := json.RawMessage(`{"invoice_id":"inv_7","amount_minor":500}`)
	ctx, cancel := context.WithTimeout(b.Context(), TimeoutDefault) // the runtime gives every call a deadline
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		checked := strictjson.CheckedArgs(args)
		if _, ok := tool.Fits(checked); !ok {
			b.Fatal("args")
		}
		if got := tool.Caller.Call(ctx, &Call{OperationRef: "acme/r/s", IdempotencyKey: "acme/r/s", Args: args, Checked: checked}); !got.OK {
			b.Fatal(got)
		}
	}
}

// BenchmarkClassifyRule is a reply that the second rule of a tool matches.
func BenchmarkClassifyRule(b *testing.B) {
	c, err := newClassifier(&Spec{Effect: envelope.Write, MaxResultBytes: 1 << 10, Errors: []Rule{
		{When: "status == 409 && body.error.type == 'already_paid'", Code: "ALREADY_PAID", Category: envelope.Conflict},
		{When: "status == 409 && body.error.type == 'locked'", Code: "INVOICE_LOCKED", Category: envelope.Conflict},
	}}, KindHTTP)
	if err != nil {
		b.Fatal(err)
	}
	resp := &Response{Status: 409, Body: []byte(`{"error":{"type":"locked","field":"/x"}}`)}
	r := &Request{Call: testCall()}
	b.ReportAllocs()
	for b.Loop() {
		if got := c.classify(resp, r); got.Row.Code != "INVOICE_LOCKED" {
			b.Fatal(got)
		}
	}
}

// Args that the runtime has checked are decoded once: what the schema saw is what the transport gets.
func TestCheckedArgsAreDecodedOnce(t *testing.T) {
	args := strictjson.CheckedArgs([]byte(`{"n":1.50}`))
	var got map[string]any
	tool, err := Func("t", envelope.Read, func(_ context.Context, c *Call) (json.RawMessage, error) {
		got, _ = c.values()
		return c.Args, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := tool.Fits(args); !ok {
		t.Fatal("they do not fit")
	}
	want, _ := args.Values()
	reply := tool.Caller.Call(t.Context(), &Call{OperationRef: "acme/r/s", Args: args.Text(), Checked: args})
	if !reply.OK || string(reply.Result) != `{"n":1.50}` || reflect.ValueOf(got).Pointer() != reflect.ValueOf(want).Pointer() {
		t.Errorf("%+v, values %v", reply, got)
	}
	tool.Caller.Call(t.Context(), &Call{OperationRef: "acme/r/s", Args: json.RawMessage(`{"n":2}`), Checked: args})
	if got["n"] != json.Number("2") {
		t.Errorf("who calls with other args is given %v", got)
	}
}
