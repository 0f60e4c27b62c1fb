package connector_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"sync"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
)

// A tool is a function from JSON to JSON. An executor calls it; here it is called by hand.
func ExampleFunc() {
	tool, err := connector.Func("upper", envelope.Read, func(_ context.Context, c *connector.Call) (json.RawMessage, error) {
		return json.Marshal(map[string]string{"ref": c.OperationRef})
	})
	if err != nil {
		log.Fatal(err)
	}
	reply := tool.Caller.Call(context.Background(), &connector.Call{OperationRef: "acme/case_7/s1", Args: json.RawMessage(`{}`)})
	fmt.Println(reply.OK, string(reply.Result))
	// Output: true {"ref":"acme/case_7/s1"}
}

// The types are the schemas: args that do not fit never reach the function.
func ExampleTyped() {
	type in struct {
		Invoice string `json:"invoice" jsonschema:"the invoice's number"`
		Minor   int64  `json:"minor"`
	}
	type out struct {
		Credit string `json:"credit"`
		Minor  int64  `json:"minor"`
	}
	tool, err := connector.Typed("credit", envelope.Write, func(_ context.Context, c *connector.Call, in in) (out, error) {
		return out{Credit: "cr_" + c.IdempotencyKey, Minor: in.Minor}, nil // a provider would be sent the key
	})
	if err != nil {
		log.Fatal(err)
	}
	field, ok := tool.CheckArgs(json.RawMessage(`{"invoice":"i_1","minor":"19.99"}`))
	fmt.Println(ok, field)
	reply := tool.Caller.Call(context.Background(), &connector.Call{IdempotencyKey: "k1", Args: json.RawMessage(`{"invoice":"i_1","minor":9007199254740993}`)})
	fmt.Println(string(reply.Result))
	// Output:
	// false /minor
	// {"credit":"cr_k1","minor":9007199254740993}
}

// A write whose answer was lost is looked up, by the operation that it was stored under, before it may be sent again.
func ExampleWithLookup() {
	var refunds sync.Map // stands for the database
	refund := func(_ context.Context, c *connector.Call) (json.RawMessage, error) {
		refunds.Store(c.OperationRef, true)
		return nil, context.DeadlineExceeded // it is done, and nobody hears of it
	}
	lookup := func(_ context.Context, c *connector.Call) (json.RawMessage, error) {
		_, found := refunds.Load(c.OperationRef)
		return json.Marshal(map[string]any{"found": found, "refund": c.OperationRef})
	}
	tool, err := connector.Func("refund", envelope.Write, refund, connector.WithLookup(lookup, connector.VerifySpec{
		Committed: "body.found", NotCommitted: "!body.found", EvidenceRef: "body.refund", HasWindow: true,
	}))
	if err != nil {
		log.Fatal(err)
	}
	call := &connector.Call{OperationRef: "acme/case_7/s1", Args: json.RawMessage(`{}`)}
	fmt.Println(tool.Caller.Call(context.Background(), call).Row.Code)
	found := tool.Looker.Lookup(context.Background(), call)
	fmt.Println(found.Answer == envelope.Found, found.EvidenceRef)
	// Output:
	// OUTCOME_UNKNOWN
	// true acme/case_7/s1
}
