package app_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/run"
)

// A whole fleet's streams are whole; what is broken by hand is found, by the name of the rule.
func TestAudit(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.answer(notFound)
	w := s.executor("w1")
	r := s.reconciler("r1")
	_, conn := s.records()
	for _, id := range []string{"a", "b", "c"} {
		s.fail("acme", id)
	}
	s.op("deadletters.replay", "acme", M{"run_id": "a", "by": "alice", "reason": "x"})
	s.end("acme", "a", 2)
	audit := func() (found []string) {
		t.Helper()
		report, err := app.Audit(t.Context(), app.Connection{NATS: s.server.URL}, "test")
		if err != nil {
			t.Fatal(err)
		}
		if report.Records != 3 || report.Outcomes == 0 {
			t.Errorf("looked at %d records and %d outcomes", report.Records, report.Outcomes)
		}
		for _, f := range report.Found {
			found = append(found, f.String())
		}
		return found
	}
	if found := audit(); len(found) != 0 {
		t.Fatalf("a healthy fleet: %q", found)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	l, err := conn.GetLetter(t.Context(), run.ID{Tenant: "acme", Run: "b"}, "platform")
	if err == nil {
		err = conn.DeleteLetter(t.Context(), l.Seq)
	}
	if err == nil {
		_, err = conn.PutLetter(t.Context(), run.ID{Tenant: "acme", Run: "lost"}, "nobody", l.Data, l.LetterID, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	results, err := s.js.Stream(t.Context(), topology.ResultsStream)
	if err == nil {
		err = results.Purge(t.Context(), jetstream.WithPurgeSubject("agentrun.results.acme.c.run"))
	}
	if err != nil {
		t.Fatal(err)
	}
	found := strings.Join(audit(), "\n")
	for _, want := range []string{
		"acme/b: nothing-vanishes: letter acme/b/1 is open and not in the stream",
		"acme/lost: nothing-vanishes: there is a letter without a record",
		"acme/c: one-end: ",
	} {
		if !strings.Contains(found, want) {
			t.Errorf("not found: %s\nin:\n%s", want, found)
		}
	}
}
