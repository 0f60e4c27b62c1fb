// Command customexecutor is an executor with a tool of its own: a refund, and the lookup that finds it again.
//
//	go run ./examples/customexecutor serve --config examples/customexecutor/config.yaml --embedded-nats
package main

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/executor"
)

// refunds stands for the database that the tool writes to; what matters is that a refund is stored under its operation.
var refunds sync.Map

func refund(_ context.Context, c *connector.Call) (json.RawMessage, error) {
	refunds.LoadOrStore(c.OperationRef, c.Args)
	return json.Marshal(map[string]string{"refund": c.OperationRef})
}

func lookup(_ context.Context, c *connector.Call) (json.RawMessage, error) {
	_, found := refunds.Load(c.OperationRef)
	return json.Marshal(map[string]any{"found": found, "refund": c.OperationRef})
}

func main() {
	tool, err := connector.Func("refund", envelope.Write, refund, connector.WithLookup(lookup, connector.VerifySpec{
		Committed: "body.found", NotCommitted: "!body.found", EvidenceRef: "body.refund", HasWindow: true,
	}))
	if err != nil {
		panic(err)
	}
	executor.Main(tool)
}
