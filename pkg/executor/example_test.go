package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/executor"
	"github.com/agentrun/executor/pkg/run"
)

// A program with a tool of its own is the whole command: serve, check, doctor and the others.
func ExampleMain() {
	refund, err := connector.Func("refund", envelope.Write, func(ctx context.Context, c *connector.Call) (json.RawMessage, error) {
		return json.Marshal(map[string]string{"refund": c.OperationRef})
	})
	if err != nil {
		log.Fatal(err)
	}
	executor.Main(refund)
}

// An executor inside a service or a test: it starts, a job is done, and it drains when its context ends.
func ExampleRun() {
	type person struct {
		Name string `json:"name"`
	}
	greet, err := connector.Typed("greet", envelope.Read, func(_ context.Context, _ *connector.Call, in person) (string, error) {
		return "Hello, " + in.Name, nil
	})
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "agentrun-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan executor.Running, 1), make(chan error, 1)
	go func() {
		ended <- executor.Run(ctx, executor.Options{
			NATS: "nats://127.0.0.1:0", EmbeddedNATS: true, // elsewhere: the URL of a server
			Data:    dir, // of the journal: on a disk that outlives the process
			Config:  []byte(`defaults: {owner: shop-oncall, workflow: greetings, actor: "service:shop"}`),
			Tools:   []*connector.Tool{greet},
			OnReady: func(r executor.Running) { ready <- r },
		})
	}()
	var at executor.Running
	select {
	case at = <-ready:
	case err := <-ended:
		log.Fatal(err)
	}

	nc, err := nats.Connect(at.NATS)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	c, err := client.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	result, err := c.SubmitAndWait(ctx, &run.Job{
		Tenant: "acme", RunID: "greet_1",
		Steps: []run.JobStep{{Step: "greet", Tool: "greet", Args: json.RawMessage(`{"name":"Ada"}`)}},
	}, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Outcome, string(result.Steps["greet"].Envelope.Result))

	cancel() // no new jobs; calls in flight finish
	fmt.Println("ended:", <-ended)
	// Output:
	// ok "Hello, Ada"
	// ended: <nil>
}
