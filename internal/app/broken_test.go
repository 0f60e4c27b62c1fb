package app_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/audit"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// A stored record that breaks a rule stops nobody: executor, reconciler and operator calls leave it alone, it is named, and
// a person can end it.
func TestABrokenRecordIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.args = []string{"--lease", "500ms"}
	r, e := s.reconciler("r1"), s.executor("w1")
	s.submit("acme", "bad", []M{step("a", "pay", nil)}, M{"more": true})
	rs, conn := s.records()
	h := run.ID{Tenant: "acme", Run: "bad"}
	bustest.Eventually(t, "its first step is done and published", func() bool {
		rec, err := rs.Load(t.Context(), h)
		if err != nil {
			return false
		}
		a := rec.Run.Step("a") // nil while a job that came again is counted and not read yet
		return a != nil && a.State == run.OK && len(s.outcomes("agentrun.results.acme.bad.step")) == 1 && rec.Run.Lease == nil
	})
	stored, err := conn.Load(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(stored.Data, &members); err != nil {
		t.Fatal(err)
	}
	members["lease"] = json.RawMessage(`{"holder":"somebody","id":"x","renewal":0,"seconds":1}`) // and no step executes
	data, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	seq, err := conn.Save(t.Context(), h, data, port.Header{State: "running", Lease: "somebody/x/0/1000", Episode: 1}, stored.Seq)
	if err != nil {
		t.Fatal(err)
	}
	s.submit("acme", "bad", []M{step("b", "pay", nil)}) // delivered again and again
	s.refused("NOT_ALLOWED", "runs.cancel", "acme", M{"run_id": "bad", "by": "alice", "reason": "x"})
	s.submit("acme", "good", []M{step("a", "pay", nil)})
	if o := s.end("acme", "good", 1); o.Outcome != "ok" {
		t.Errorf("another run ended %+v", o)
	}
	bustest.Eventually(t, "the metric says that one record is broken", func() bool {
		return strings.Contains(s.metrics(r), "\nagentrun_audit_broken_records 1\n")
	})
	if _, found := audit.Record(h, data, envelope.TimeOf(time.Now())); len(found) != 1 || found[0].Rule != engine.RuleOneLease {
		t.Errorf("the audit finds %v", found)
	}
	s.refused("NOT_ALLOWED", "runs.discard", "acme", M{"run_id": "good", "by": "alice", "reason": "x"})
	if got := s.op("runs.discard", "acme", M{"run_id": "bad", "by": "alice", "reason": "edited by hand"}); got.State != "cancelled" {
		t.Errorf("after discard it is %s", got.State)
	}
	if o := s.end("acme", "bad", 1); o.Outcome != "cancelled" || len(o.CompletedEffects) != 1 {
		t.Errorf("it ended %+v", o)
	}
	bustest.Eventually(t, "the job that waited is answered, and the metric is zero", func() bool {
		for _, o := range s.outcomes("agentrun.results.acme.bad.step") {
			if o.Step == "b" && o.Envelope["code"] == "RUN_CLOSED" {
				return strings.Contains(s.metrics(r), "\nagentrun_audit_broken_records 0\n")
			}
		}
		return false
	})
	if report, err := app.Audit(t.Context(), app.Connection{NATS: s.server.URL}, "audit"); err != nil || len(report.Found) != 0 {
		t.Errorf("afterwards the audit found %v: %v", report.Found, err)
	}
	view := s.op("runs.get", "acme", M{"run_id": "bad"}).Run
	last := view.History[len(view.History)-1]
	for _, n := range view.History {
		if n.Kind == engine.EventDiscard {
			last = n
		}
	}
	if last.By != "alice" || !strings.Contains(last.Reason, "edited by hand") || !strings.Contains(last.Reason, "one-lease") {
		t.Errorf("the history says %+v", last)
	}
	name, _, _ := strings.Cut(last.Reason[strings.Index(last.Reason, "AGENTRUN_OBJECTS/")+len("AGENTRUN_OBJECTS/"):], ")")
	if kept, err := conn.GetObject(t.Context(), name); err != nil || string(kept) != string(data) {
		t.Errorf("revision %d is kept as %s: %v", seq, name, err)
	}
	if n := s.count("POST /pay"); n != 2 {
		t.Errorf("pay was called %d times", n)
	}
	if status, text := s.readyz(e); status != 200 {
		t.Errorf("the executor is not ready: %s", text)
	}
}

// What is stored and is no record at all is left alone likewise, and a person can end it: its letter goes, its job is
// answered.
func TestARecordThatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.args = []string{"--lease", "500ms"}
	s.answer(notFound)
	r, _ := s.reconciler("r1"), s.executor("w1")
	s.fail("acme", "bad")
	bustest.Eventually(t, "its letter is there", func() bool { return len(s.letters()) == 1 })
	_, conn := s.records()
	id := run.ID{Tenant: "acme", Run: "bad"}
	stored, err := conn.Load(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Save(t.Context(), id, stored.Data[:100], stored.Header, stored.Seq); err != nil {
		t.Fatal(err)
	}
	s.submit("acme", "bad", []M{step("late", "pay", nil)})
	bustest.Eventually(t, "the metric says that one record is broken", func() bool {
		return strings.Contains(s.metrics(r), "\nagentrun_audit_broken_records 1\n")
	})
	s.refused("NOT_ALLOWED", "runs.get", "acme", M{"run_id": "bad"})
	s.refused("NOT_ALLOWED", "deadletters.discard", "acme", M{"run_id": "bad", "by": "alice", "reason": "x"})
	if got := s.op("runs.discard", "acme", M{"run_id": "bad", "by": "alice", "reason": "cut off"}); got.State != "cancelled" {
		t.Errorf("after discard it is %s", got.State)
	}
	if o := s.end("acme", "bad", 2); o.Outcome != "cancelled" {
		t.Errorf("it ended %+v", o)
	}
	bustest.Eventually(t, "its letter is gone", func() bool { return len(s.letters()) == 0 })
	bustest.Eventually(t, "its job is answered and gone", func() bool {
		jobs, err := s.js.Stream(t.Context(), topology.JobsStream)
		outcomes := s.outcomes("agentrun.results.acme.bad.step")
		return err == nil && jobs.CachedInfo().State.Msgs == 0 && outcomes[len(outcomes)-1].Envelope["code"] == "RUN_CLOSED"
	})
	if report, err := app.Audit(t.Context(), app.Connection{NATS: s.server.URL}, "audit"); err != nil || len(report.Found) != 0 {
		t.Errorf("afterwards the audit found %v: %v", report.Found, err)
	}
}
