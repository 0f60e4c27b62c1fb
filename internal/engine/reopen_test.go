package engine

import (
	"fmt"
	"testing"

	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/run"
)

// Every job of an agent loop may be published twice, and the copies may come in any order: whatever comes after the closing
// job changes nothing, charges nothing, and above all does not open the run again.
func TestLateRepeatsDoNotReopen(t *testing.T) {
	job := func(step string, more bool) []byte {
		return fmt.Appendf(nil, `{"schema":"agentrun.job/v1","tenant":"t","run_id":"r","more":%v,"steps":[{"step":"%s","tool":"x"}]}`, more, step)
	}
	jobs := [][]byte{job("a", true), job("b", true), job("c", false)}
	d := Defaults{Owner: "o", Workflow: "w", Actor: "a", Budget: budget.Limits{MaxTurns: 9, MaxToolCalls: 9, MaxAttemptsPerStep: 3, MaxElapsedMillis: 60000}}
	r := Create(run.ID{Tenant: "t", Run: "r"}, Message{Seq: 10, Time: 1, Data: jobs[0]}, d, 1000)
	for i, data := range jobs[1:] {
		r.Append(Message{Seq: uint64(11 + i), Time: 2, Data: data}, d, 1001)
	}
	before := r.Spent
	for i, data := range jobs {
		if a := r.Append(Message{Seq: uint64(i), Time: 1, Data: data}, d, 1002); a != (Accepted{}) || r.More {
			t.Errorf("the late copy of job %d: %+v, more %v", i+1, a, r.More)
		}
	}
	if r.Spent != before {
		t.Errorf("spent %+v, before the repeats %+v", r.Spent, before)
	}
	if !r.Append(Message{Seq: 20, Time: 3, Data: job("d", true)}, d, 1003).Changed || !r.More {
		t.Error("a job with a new step may open the run again")
	}
}
