package app_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
)

// alerts are the subjects of the alerts that are in the stream.
func (s *stack) alerts() (subjects []string) {
	for _, m := range s.messages(topology.AlertsStream, "agentrun.alerts.>") {
		subjects = append(subjects, m.Subject())
	}
	return subjects
}

// A letter that is handed to another owner is that owner's everywhere: in lists, at its subject, in the metrics, for claims,
// and in the alert that tells of it, once.
func TestAssign(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.answer(notFound)
	s.executor("w1")
	r := s.reconciler("r1")
	s.fail("acme", "r1")
	s.fail("acme", "r2")
	bustest.Eventually(t, "both letters are there", func() bool { return len(s.letters()) == 2 })
	by := M{"run_id": "r1", "to": "billing", "by": "alice", "reason": "it is about an invoice"}
	for _, x := range []struct {
		code string
		with M
	}{{"BAD_REQUEST", M{"to": ""}}, {"BAD_REQUEST", M{"to": "a.b"}}, {"BAD_REQUEST", M{"by": ""}}, {"BAD_REQUEST", M{"reason": ""}}, {"NOT_FOUND", M{"run_id": "none"}}, {"CONFLICT", M{"letter": "acme/r1/7"}}, {"BAD_REQUEST", M{"filter": M{}}}} {
		q := M{}
		for _, m := range []M{by, x.with} {
			for k, v := range m {
				q[k] = v
			}
		}
		s.refused(x.code, "deadletters.assign", "acme", q)
	}
	s.op("deadletters.claim", "acme", M{"by": "alice", "for_seconds": 3600})
	s.refused("CLAIMED", "deadletters.assign", "acme", M{"run_id": "r1", "to": "billing", "by": "bob", "reason": "r"})
	s.op("deadletters.assign", "acme", by)
	if n := s.op("deadletters.list", "acme", M{"owner": "billing"}).Total; n != 1 {
		t.Errorf("the new owner has %d letters", n)
	}
	if n := s.op("deadletters.list", "acme", M{"owner": "platform"}).Total; n != 1 {
		t.Errorf("the former owner has %d letters", n)
	}
	at := s.letters()
	if len(at) != 2 || !strings.Contains(strings.Join(at, " "), "agentrun.deadletters.acme.billing.r1") || strings.Contains(strings.Join(at, " "), "platform.r1") {
		t.Errorf("the letters are at %q", at)
	}
	told := func() (n int) {
		for _, a := range s.alerts() {
			if strings.HasPrefix(a, "agentrun.alerts.acme.billing.") {
				n++
			}
		}
		return n
	}
	bustest.Eventually(t, "the new owner is told", func() bool { return told() > 0 })
	bustest.Eventually(t, "the metrics are by owner", func() bool {
		m := s.metrics(r)
		return strings.Contains(m, `agentrun_dead_letters_open{owner="billing",reason_code="resource_not_found"} 1`) &&
			strings.Contains(m, `agentrun_dead_letters_open{owner="platform",reason_code="resource_not_found"} 1`)
	})
	// The claim has ended; whoever takes it up next says so, and nobody is told again.
	s.op("deadletters.assign", "acme", by)
	if l := s.op("deadletters.claim", "acme", M{"by": "bob", "owner": "billing"}); !strings.Contains(string(l.DeadLetter), `"owner":"billing"`) {
		t.Errorf("the new owner's people can claim %s", l.DeadLetter)
	}
	if l := s.op("deadletters.claim", "acme", M{"by": "carol", "owner": "billing"}); string(l.DeadLetter) != "null" {
		t.Errorf("it is claimed, and carol gets %s", l.DeadLetter)
	}
	// Back again, within the time in which the stream takes an alert for the same: another handing over.
	s.op("deadletters.assign", "acme", M{"run_id": "r1", "to": "platform", "by": "bob", "reason": "it is not"})
	s.op("deadletters.assign", "acme", M{"run_id": "r1", "to": "billing", "by": "alice", "reason": "it is"})
	bustest.Eventually(t, "it is told again", func() bool { return told() == 2 })

	// Many at once, by what they are of.
	many := s.op("deadletters.assign", "acme", M{"filter": M{"owner": "platform"}, "to": "support", "by": "alice", "reason": "all of it"})
	if len(many.Results) != 1 || !many.Results[0].OK || many.Left != 0 {
		t.Errorf("in bulk: %+v", many)
	}
	s.op("deadletters.discard", "acme", M{"filter": M{}, "by": "alice", "reason": "a test"})
	bustest.Eventually(t, "no letter is left, at no owner's", func() bool { return len(s.letters()) == 0 })
	var c app.ReconcilerConfig
	if err := app.Defaults(&c, []string{"--nats", s.server.URL, "--config", s.config}); err != nil {
		t.Fatal(err)
	}
	if report, err := app.Audit(t.Context(), c.Connection, "audit"); err != nil || len(report.Found) > 0 {
		t.Errorf("the audit: %+v, %v", report, err)
	}
}

// What the call leaves to do when its process dies in the middle is done by the active reconciler: here the record says the
// new owner, and the message is still at the former one's.
func TestAssignThatWasCutOff(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.answer(notFound)
	e := s.executor("w1")
	s.reconciler("r1")
	s.fail("acme", "r1")
	bustest.Eventually(t, "the letter is there", func() bool { return len(s.letters()) == 1 })
	if err := e.stop(); err != nil {
		t.Fatal(err)
	}
	rs, _ := s.records()
	h := s.record(rs, "acme", "r1")
	if changed, refused := h.Run.Assign(call("alice"), "billing"); refused != nil || !changed {
		t.Fatalf("%v, %v", changed, refused)
	}
	if err := rs.Save(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "the letter is at its new owner's only", func() bool {
		at := s.letters()
		return len(at) == 1 && at[0] == "agentrun.deadletters.acme.billing.r1"
	})
	bustest.Eventually(t, "the new owner is told", func() bool {
		stream, err := s.js.Stream(t.Context(), topology.AlertsStream)
		if err != nil {
			return false
		}
		info, err := stream.Info(context.Background(), jetstream.WithSubjectFilter("agentrun.alerts.acme.billing.>"))
		return err == nil && len(info.State.Subjects) == 1
	})
}

func call(by string) engine.Call {
	return engine.Call{By: by, Reason: "a test", At: envelope.TimeOf(time.Now())}
}
