package deploy

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// pkg/client works under the shipped accounts: a tenant's service submits, waits and learns of ends from before; an
// operator makes its calls.
func TestTheClientUnderTheShippedAccounts(t *testing.T) {
	t.Parallel()
	n := startShipped(t)
	n.fleet(t, toolConfig(t))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	connect := func(user string) *client.Client {
		nc, _ := n.client(t, user)
		c, err := client.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	shop, operator := connect("publisher-acme"), connect("operator")
	job := &run.Job{Tenant: "acme", RunID: "r1", Steps: []run.JobStep{{Step: "a", Tool: "get_invoice"}, {Step: "b", Tool: "apply_credit"}}}
	for _, repeated := range []bool{false, true} {
		r, err := shop.SubmitAndWait(ctx, job, client.Options{})
		if err != nil || r.Outcome != envelope.OK || r.Repeated != repeated {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	if r, err := connect("publisher-acme").Wait(ctx, "acme", "r1"); err != nil || r.Outcome != envelope.OK {
		t.Errorf("%+v, %v", r, err)
	}
	if view, err := operator.GetRun(ctx, "acme", "r1"); err != nil || view.Outcome != envelope.OK {
		t.Errorf("%+v, %v", view, err)
	}
	job = &run.Job{Tenant: "globex", RunID: "r1"}
	if _, err := shop.Submit(ctx, job, client.Options{}); !errors.Is(err, client.ErrNotAllowed) {
		t.Errorf("for another tenant: %v", err)
	}
	if _, err := shop.GetRun(ctx, "acme", "r1"); !errors.Is(err, client.ErrNotAllowed) {
		t.Errorf("a publisher's operator call: %v", err)
	}
}
