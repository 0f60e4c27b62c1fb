package engine

import (
	"encoding/json"
	"testing"

	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

type anyTool struct{ effect envelope.Effect }

func (a anyTool) Tool(name string) (*run.Tool, bool) {
	return &run.Tool{Name: name, Effect: a.effect, Retry: run.Retry{MaxAttempts: 3}}, true
}

// A result that is kept in the object store is named in the outcome and read back for a reference, and its bytes are in
// neither the record nor the outcome.
func TestLargeResultIsReferredTo(t *testing.T) {
	d := Defaults{Owner: "o", Workflow: "w", Actor: "a", Budget: budget.Limits{MaxTurns: 9, MaxToolCalls: 9, MaxAttemptsPerStep: 3, MaxElapsedMillis: 60000, MaxInputTokens: 9, MaxOutputTokens: 9, MaxEstimatedCostMinorUnits: 9}}
	job := `{"schema":"agentrun.job/v1","tenant":"t","run_id":"r","steps":[{"step":"a","tool":"x"},{"step":"b","tool":"x","args":{"id":{"$from":"a#/id"}}}]}`
	r := Create(run.ID{Tenant: "t", Run: "r"}, Message{Seq: 1, Time: 1, Data: []byte(job)}, d, 1000)
	start := Start{Dispatch: "d1", LeaseID: "l1", Holder: "h", Seconds: 30}
	tools := anyTool{envelope.Write}
	r.Begin("a", tools, start, 1000)
	ref := &envelope.ObjectRef{Bucket: "AGENTRUN_OBJECTS", Object: "t/r/a/d1", Size: 300000, SHA256: "00"}
	r.Reply("d1", envelope.Reply{OK: true, Ref: ref}, tools, Source{At: 1001})
	out := r.Outcome(&r.Owed[0])
	if out.Envelope.ResultRef == nil || *out.Envelope.ResultRef != *ref || string(out.Envelope.Result) != "null" {
		t.Fatalf("envelope %+v", out.Envelope)
	}
	want := r.FetchObjects("b")
	if len(want) != 1 || want["a"] == nil || want["a"].Object != ref.Object {
		t.Fatalf("step b needs %v", want)
	}
	if more := r.Fetch("b"); more != nil {
		t.Fatalf("step b would also read outcomes %v", more)
	}
	r.Fetched("a", json.RawMessage(`{"id":"big-1"}`))
	start.Dispatch, start.LeaseID = "d2", "l2"
	disp := r.Begin("b", tools, start, 1002)
	if disp == nil || string(disp.Args.Text()) != `{"id":"big-1"}` {
		t.Fatalf("dispatch %+v", disp)
	}
	if data, err := r.Encode(); err != nil || len(data) > 4096 {
		t.Fatalf("the record has %d bytes, %v", len(data), err)
	}
}
