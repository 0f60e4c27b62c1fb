package engine_test

import (
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// A retry that was written while the clock was ahead waits, once it is set right, no longer than it was meant to.
func TestClockSetCutsAWait(t *testing.T) {
	for _, old := range []bool{false, true} {
		r := accepted(t, `[{"step":"s","tool":"read","args":{}}]`)
		d := r.Begin("s", tools(), engine.Start{Dispatch: "d1", LeaseID: "l", Holder: "x.1", Seconds: 30, Worker: "x"}, start)
		r.Reply(d.ID, envelope.Reply{Row: envelope.RowFor(envelope.CodeUpstreamUnavailable, envelope.Read), RetryAfter: 5000}, tools(), engine.Source{By: "x", At: start})
		s := r.Step("s")
		if s.State != run.Waiting || s.NotBefore != start.Add(5*time.Second) {
			t.Fatalf("%s until %s", s.State, s.NotBefore)
		}
		if v := r.ClockSet(tools(), start.Add(-100*time.Millisecond)); v != engine.Dropped {
			t.Fatal("the pictures that two processes have of the clock differ, and a wait is cut")
		}
		want := 5 * time.Second
		if old { // an earlier version did not say when it began
			s.WaitFrom, want = 0, policy.MaxRetryAfter+time.Second
		}
		back := start.Add(-time.Hour)
		if v := r.ClockSet(tools(), back); v != engine.Applied || s.NotBefore != back.Add(want) {
			t.Fatalf("old %v: %v, the clock is an hour back and the retry waits for %s, wanted %s", old, v, s.NotBefore.Sub(back), want)
		}
		if v := r.ClockSet(tools(), back.Add(2*time.Second)); v != engine.Dropped || s.NotBefore != back.Add(want) {
			t.Fatalf("what is cut is cut again: %s", s.NotBefore.Sub(back))
		}
		if again := r.Next(back.Add(want)); len(again.Ready) != 1 {
			t.Fatalf("%+v", again)
		}
	}
}

func TestClockSetCutsALookup(t *testing.T) {
	r := accepted(t, `[{"step":"s","tool":"write","args":{}}]`)
	d := r.Begin("s", tools(), engine.Start{Dispatch: "d1", LeaseID: "l", Holder: "x.1", Seconds: 30, Worker: "x"}, start)
	r.Reply(d.ID, envelope.Reply{NoReply: true, Row: envelope.RowFor(envelope.CodeOutcomeUnknown, envelope.Write)}, tools(), engine.Source{By: "x", At: start})
	back := start.Add(-time.Hour)
	if v := r.ClockSet(tools(), back); v != engine.Applied {
		t.Fatal(v)
	}
	if wait := r.Step("s").Doubt.Next.Sub(back); wait > policy.MaxRetryAfter+time.Second {
		t.Fatalf("the next lookup waits for %s", wait)
	}
}

func accepted(t *testing.T, steps string) *engine.Run {
	t.Helper()
	return engine.Create(runID, engine.Message{
		Seq: 1, Time: start, Queue: "default",
		Data: []byte(`{"schema":"agentrun.job/v1","tenant":"acme","run_id":"run_1","workflow":"w","owner":"o","actor":"a","steps":` + steps + `}`),
	}, defaults(), start)
}
