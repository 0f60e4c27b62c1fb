package topology_test

import (
	"testing"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

func TestSubjects(t *testing.T) {
	id := run.ID{Tenant: "acme", Run: "run_1"}
	for got, want := range map[string]string{
		topology.JobSubject("q", id):                                                 "agentrun.jobs.q.acme.run_1",
		topology.ResultSubject(id, envelope.StepScope):                               "agentrun.results.acme.run_1.step",
		topology.RunSubject(id):                                                      "agentrun.runs.acme.run_1",
		topology.WakeSubject("q", id):                                                "agentrun.wakes.q.acme.run_1",
		topology.LetterSubject("acme", "o", "run_1"):                                 "agentrun.deadletters.acme.o.run_1",
		topology.AlertSubject("acme", "o", "poison_job"):                             "agentrun.alerts.acme.o.poison_job",
		topology.HintSubject("h"):                                                    "agentrun.hint.h",
		topology.FleetSubject(port.ActiveRecord):                                     "agentrun.runs._fleet.reconciler",
		topology.ConsumerName("q"):                                                   "executor-q",
		topology.ParseQueueSubject(topology.Jobs, "agentrun.jobs.q.a.b").ID.String(): "a/b",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for subject, valid := range map[string]bool{
		"agentrun.jobs.q.acme.run_1": true, "agentrun.jobs.q.acme.run_1.x": false, "agentrun.jobs.q.acme": false,
		"agentrun.jobs.q.*.run": false, "agentrun.jobs.q.acme.>": false, "agentrun.jobs.q._fleet.reconciler": false,
		"agentrun.jobs.q.acme.-x": false, "agentrun.jobs.q.ac=me.x": false, "agentrun.jobs": false,
	} {
		if got := topology.ParseQueueSubject(topology.Jobs, subject); got.Valid != valid {
			t.Errorf("%s: %+v", subject, got)
		}
	}
	if _, ok := topology.ParseRunSubject(topology.FleetSubject(port.ActiveRecord)); !ok {
		t.Error("the fleet's record is no record")
	}
	if _, ok := topology.ParseRunSubject("agentrun.runs._fleet.other"); ok {
		t.Error("_fleet.other is taken for a run")
	}
	if tenant, owner, runID, ok := topology.ParseLetterSubject("agentrun.deadletters._invalid.o.invalid-0123"); !ok ||
		tenant != port.InvalidTenant || owner != "o" || runID != "invalid-0123" {
		t.Error("a letter of an invalid tenant is not understood")
	}
	if tenant, _, runID, ok := topology.ParseLetterSubject("agentrun.deadletters._other.o.invalid-0123"); ok {
		t.Errorf("a letter of %s/%s is understood", tenant, runID)
	}
	if _, _, ok := topology.ParseResultSubject("agentrun.results.acme.run_1.other"); ok {
		t.Error("another scope is taken for a result")
	}
}
