package engine_test

import (
	"encoding/json"
	"testing"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
)

// The stream forgets a result before a letter does: a run that a person may continue takes it back.
func TestEndedRunTakesResultsBack(t *testing.T) {
	big := `{"id":"x","pad":"` + stringOf('p', 5000) + `"}`
	d := create(t, job(`"more":true`, step("p", "read", "{}"), step("q", "read", "{}"), step("a", "none", "{}"), step("b", "read", `{"x":{"$from":"p#/id"}}`)))
	d.call("p", ok(big))
	d.call("q", ok(big))
	d.r.Published(envelope.StepScope, 1, 41)
	d.r.Published(envelope.StepScope, 2, 42)
	d.check()
	if d.r.WantsBack() != nil {
		t.Error("a run that goes on wants results back")
	}
	d.call("a", silent())
	d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")
	want := d.r.WantsBack()
	if len(want) != 1 || want["p"] != 41 {
		t.Fatalf("%v", want) // nothing names q
	}
	d.r.Fetched("p", json.RawMessage(big))
	d.check()
	if d.r.WantsBack() != nil || string(d.r.Step("p").Result) != big {
		t.Errorf("not taken back: %d bytes", len(d.r.Step("p").Result))
	}
	_, err := d.resolve(d.by("alice"), engine.Resolution{CommitState: envelope.Committed, EvidenceRef: "ev"})
	d.refused("", err)
	if x := d.begin("b"); x == nil || string(x.Args.Text()) != `{"x":"x"}` {
		t.Errorf("%+v", x)
	}
}

// Above 256 KiB every published result leaves the record, oldest first, until it is below.
func TestLargeRecordLetsResultsGo(t *testing.T) {
	big := ok(`"` + stringOf('x', 120<<10) + `"`)
	d := create(t, job("", step("p", "read", "{}"), step("q", "read", "{}"), step("r", "read", "{}"), step("s", "read", "{}")))
	for i, name := range []string{"p", "q", "r"} {
		d.call(name, big)
		d.r.Published(envelope.StepScope, i+1, uint64(40+i))
	}
	d.check()
	for name, there := range map[string]bool{"p": false, "q": true, "r": true} {
		if got := d.r.Step(name).Result != nil; got != there {
			t.Errorf("the result of %s is there: %v", name, got)
		}
	}
}
