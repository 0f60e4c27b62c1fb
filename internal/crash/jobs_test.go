package main

import (
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// An open run ended early, say with a write that stayed unknown, and the store lost that end: its agent goes on from where it
// was, or nobody would ever close the run.
func TestAnAgentGoesOnWithARunWhoseEndWasLost(t *testing.T) {
	id := run.ID{Tenant: tenant, Run: "r1"}
	step := func(name string) run.Job {
		return run.Job{Steps: []run.JobStep{{Step: name, Tool: "mail"}}, More: true}
	}
	plan := &Plan{ID: id, Jobs: []run.Job{step("a"), step("w"), {}}, next: 2, waits: true}
	plan.sent = plan.Jobs[:2:2]
	p := &Publisher{plans: map[run.ID]*Plan{id: plan}, open: 1, changed: make(chan struct{}, 1)}
	p.Heard(t.Context(), id, &envelope.Outcome{Scope: envelope.RunScope})
	if p.Unfinished() != 0 || plan.Ended.IsZero() {
		t.Fatalf("not ended: %+v", plan)
	}
	p.Reopen(plan.Ended.Add(-time.Minute))
	if p.Unfinished() != 1 || plan.next != 2 || !plan.waits {
		t.Fatalf("reopened, and its agent is done with it: next job %d of %d, waits %v", plan.next, len(plan.Jobs), plan.waits)
	}
}
