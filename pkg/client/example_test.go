package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// A service submits a job and waits for what becomes of it.
func Example() {
	stack, err := install() // NATS, an executor and a reconciler in this process
	if err != nil {
		log.Fatal(err)
	}
	defer stack.stop()

	nc, err := stack.connect() // nats.Connect(url, nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	c, err := client.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	result, err := c.SubmitAndWait(ctx, &run.Job{
		Tenant: "acme", RunID: "refund_1042",
		Steps: []run.JobStep{
			{Step: "order", Tool: "find_order", Args: json.RawMessage(`{"order":"o_1"}`)},
			{Step: "refund", Tool: "refund", Args: json.RawMessage(`{"order":{"$from":"order#/order"},"minor":{"$from":"order#/paid_minor"}}`)},
		},
	}, client.Options{})
	if err != nil {
		log.Fatal(err) // it is not known how the run ends; it goes on without us, and the same call may be made again
	}
	fmt.Println("the run is", result.Outcome)
	fmt.Println("the refund is", string(result.Steps["refund"].Envelope.Result))
	for _, e := range result.Run.CompletedEffects {
		fmt.Println("done:", e.OperationRef)
	}
	// Output:
	// the run is ok
	// the refund is {"refund":"rf_1"}
	// done: acme/refund_1042/refund
}

// One process submits, another one waits, later.
func ExampleClient_Wait() {
	stack, err := install()
	if err != nil {
		log.Fatal(err)
	}
	defer stack.stop()
	nc, err := stack.connect()
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	c, err := client.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	job := &run.Job{Tenant: "acme", RunID: "refund_1043", Steps: []run.JobStep{{Step: "refund", Tool: "refund"}}}
	receipt, err := c.Submit(ctx, job, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("in queue", receipt.Queue)

	result, err := c.Wait(ctx, "acme", "refund_1043")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the run is", result.Outcome)
	// Output:
	// in queue default
	// the run is ok
}

// Every outcome of a run as it comes: what happened already is read first.
func ExampleClient_Watch() {
	stack, err := install()
	if err != nil {
		log.Fatal(err)
	}
	defer stack.stop()
	nc, err := stack.connect()
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	c, err := client.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	job := &run.Job{Tenant: "acme", RunID: "refund_1044", Steps: []run.JobStep{{Step: "order", Tool: "find_order"}, {Step: "refund", Tool: "refund"}}}
	if _, err := c.Submit(ctx, job, client.Options{}); err != nil {
		log.Fatal(err)
	}
	w, err := c.Watch(ctx, "acme", "refund_1044")
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop()
	for o, err := range w.All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(o.ID, o.Outcome.Outcome)
		if o.Scope == envelope.RunScope {
			break
		}
	}
	// Output:
	// acme/refund_1044/step/1 ok
	// acme/refund_1044/step/2 ok
	// acme/refund_1044/run/1 ok
}

// An operator's tool works dead letters off: claim one, look at it, decide.
func ExampleClient_Claim() {
	stack, err := install()
	if err != nil {
		log.Fatal(err)
	}
	defer stack.stop()
	nc, err := stack.connect()
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	c, err := client.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stack.refuses(true) // the bank says no
	job := &run.Job{Tenant: "acme", RunID: "refund_1045", Steps: []run.JobStep{{Step: "refund", Tool: "refund"}}}
	result, err := c.SubmitAndWait(ctx, job, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the run is", result.Outcome, "because of", result.Run.ReasonCode)

	letter, err := c.Claim(ctx, client.AllTenants, client.ClaimRequest{By: "ada", For: 5 * time.Minute})
	if err != nil || letter == nil {
		log.Fatal("no letter: ", err)
	}
	fmt.Println("to", letter.Owner+":", letter.Step, letter.CommitState)
	stack.refuses(false)
	episode, err := c.Replay(ctx, letter.Tenant, client.ReplayRequest{RunID: letter.RunID, Letter: letter.ID, By: "ada", Reason: "the bank is back"})
	if err != nil {
		log.Fatal(err)
	}
	result, err = c.WaitEpisode(ctx, letter.Tenant, letter.RunID, episode.Episode)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the run is", result.Outcome)

	_, err = c.Get(ctx, letter.Tenant, letter.RunID)
	fmt.Println("settled:", errors.Is(err, client.ErrNotFound))
	// Output:
	// the run is fatal because of state_conflict
	// to billing-oncall: refund not_committed
	// the run is ok
	// settled: true
}
