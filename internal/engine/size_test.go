package engine_test

import (
	"testing"

	"github.com/agentrun/executor/internal/engine"
)

// A run that is ok is remembered for days, so its record holds only what is still read: what operators are shown, what
// tells a repeated job, and what the outcomes are made of.
func TestRememberedRunIsSmall(t *testing.T) {
	g := tools()
	r := engine.Create(runID, engine.Message{Seq: 1, Time: start, Queue: "default", Data: job("", step("a", "write", `{"n":1}`))}, defaults(), start)
	d := r.Begin("a", g, engine.Start{Dispatch: "d1", LeaseID: "l1", Holder: "h1", Seconds: 30, Worker: "w1"}, start)
	running, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Step("a"); got.Key == "" || got.SentArgs == "" || got.FirstSent == 0 || got.Used != 1 {
		t.Errorf("a step that may be sent again has forgotten what was sent: %+v", got)
	}
	r.Reply(d.ID, ok(`{"id":7}`), g, engine.Source{By: "w1", At: start + 5})
	ended, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes running, %d bytes ended", len(running), len(ended))
	s := r.Step("a")
	if s.Key != "" || s.SentArgs != "" || s.FirstSent != 0 || s.Used != 0 || s.Args != nil {
		t.Errorf("an ok run keeps what only a further dispatch would need: %+v", s)
	}
	if s.Digest == "" || s.Dispatch != d.ID || s.Attempt != 1 || s.Proposal != 1 {
		t.Errorf("an ok run has forgotten what tells a repeated job or late evidence: %+v", s)
	}
	if len(ended) > 1500 {
		t.Errorf("%d bytes:\n%s", len(ended), ended)
	}
}
