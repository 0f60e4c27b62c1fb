package engine

import (
	"testing"

	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// A run without any time, or whose absolute deadline has passed, ends before anything is started: its end is decided when it
// is accepted, not by whose clock is ahead a moment later.
func TestNoTimeAtAll(t *testing.T) {
	for name, more := range map[string]string{
		"no elapsed time": `"budget":{"max_elapsed_seconds":0}`,
		"past deadline":   `"deadline":"1970-01-01T00:00:01.000Z"`,
	} {
		job := `{"schema":"agentrun.job/v1","tenant":"t","run_id":"r",` + more + `,"steps":[{"step":"a","tool":"x"}]}`
		d := Defaults{Owner: "o", Workflow: "w", Actor: "a", Budget: budget.Limits{MaxTurns: 9, MaxToolCalls: 9, MaxAttemptsPerStep: 3, MaxElapsedMillis: 60000}}
		r := Create(run.ID{Tenant: "t", Run: "r"}, Message{Seq: 1, Time: 1, Data: []byte(job)}, d, 5000)
		if r.End == nil || r.End.Row.Code != envelope.CodeTimeExhausted || r.End.Step != "a" || r.Spent.ToolCalls != 0 {
			t.Errorf("%s: ended %+v, spent %+v", name, r.End, r.Spent)
		}
	}
}
