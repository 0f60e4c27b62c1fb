// Package bus is everything that touches NATS: the streams of contract §2, the run records and their compare-and-set,
// numbered results, letters, alerts, the job queue, wakes, hints, watches and the clock.
//
// It keeps no truth of its own. Each method says what is durable when it returns, whether it may be called
// concurrently, and which errors a caller branches on. Everything is safe for concurrent use unless it says otherwise.
package bus

import (
	"strings"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// The streams of contract §2, beside the object store port.ObjectsBucket.
const (
	JobsStream    = "AGENTRUN_JOBS"
	ResultsStream = "AGENTRUN_RESULTS"
	RunsStream    = "AGENTRUN_RUNS"
	WakesStream   = "AGENTRUN_WAKES"
	LettersStream = "AGENTRUN_DEADLETTERS"
	AlertsStream  = "AGENTRUN_ALERTS"
)

const (
	jobsPrefix    = "agentrun.jobs."
	resultsPrefix = "agentrun.results."
	runsPrefix    = "agentrun.runs."
	fleetPrefix   = runsPrefix + port.FleetTenant + "."
	wakesPrefix   = "agentrun.wakes."
	lettersPrefix = "agentrun.deadletters."
	alertsPrefix  = "agentrun.alerts."
	hintPrefix    = "agentrun.hint."
)

// JobSubject is where a publisher puts a job.
func JobSubject(queue string, id run.ID) string {
	return jobsPrefix + queue + "." + id.Tenant + "." + id.Run
}

// ResultSubject is where the outcomes of a run appear.
func ResultSubject(id run.ID, scope envelope.Scope) string {
	return resultsPrefix + id.Tenant + "." + id.Run + "." + string(scope)
}

// RunSubject is where the run's record is.
func RunSubject(id run.ID) string { return runsPrefix + id.Tenant + "." + id.Run }

// FleetSubject is where a record of the fleet is, among those of the runs.
func FleetSubject(name string) string { return fleetPrefix + name }

// WakeSubject is where a run that is due again is put in its queue.
func WakeSubject(queue string, id run.ID) string {
	return wakesPrefix + queue + "." + id.Tenant + "." + id.Run
}

// LetterSubject is where the open dead letter of a run is.
func LetterSubject(tenant, owner, runID string) string {
	return lettersPrefix + tenant + "." + owner + "." + runID
}

// AlertSubject is where alerts of one kind go.
func AlertSubject(tenant, owner, reasonCode string) string {
	return alertsPrefix + tenant + "." + owner + "." + reasonCode
}

// HintSubject reaches one lease holder; core NATS, no stream.
func HintSubject(holder string) string { return hintPrefix + holder }

// ConsumerName is the durable consumer of a queue, the same on AGENTRUN_JOBS and AGENTRUN_WAKES.
func ConsumerName(queue string) string { return "executor-" + queue }

func queueFilter(prefix, queue string) string { return prefix + queue + ".>" }

// QueueTokens are the parts of a job's or a wake's subject, as published: NATS lets through any token, wildcards
// included, so Valid says whether queue, tenant and run are identifiers of contract §1.
type QueueTokens struct {
	Queue string
	ID    run.ID
	Valid bool
}

// ParseJobSubject takes a job's subject apart. A subject with too few or too many tokens is not valid; what is there is
// returned all the same, with the surplus in ID.Run.
func ParseJobSubject(subject string) QueueTokens { return parseQueueSubject(jobsPrefix, subject) }

// ParseWakeSubject is ParseJobSubject for wakes.
func ParseWakeSubject(subject string) QueueTokens { return parseQueueSubject(wakesPrefix, subject) }

func parseQueueSubject(prefix, subject string) QueueTokens {
	rest, ok := strings.CutPrefix(subject, prefix)
	if !ok {
		return QueueTokens{}
	}
	queue, rest, _ := strings.Cut(rest, ".")
	tenant, runID, _ := strings.Cut(rest, ".")
	return QueueTokens{
		Queue: queue,
		ID:    run.ID{Tenant: tenant, Run: runID},
		Valid: run.ValidID(queue) && run.ValidID(tenant) && run.ValidID(runID),
	}
}

// ParseRunSubject returns the run whose record is at subject; ok is false for anything else but the active
// reconciler's own.
func ParseRunSubject(subject string) (id run.ID, ok bool) {
	rest, ok := strings.CutPrefix(subject, runsPrefix)
	if !ok {
		return run.ID{}, false
	}
	tenant, runID, _ := strings.Cut(rest, ".")
	id = run.ID{Tenant: tenant, Run: runID}
	return id, literalRun(id) || id == port.ActiveID
}

// ParseResultSubject returns run and scope of a result subject.
func ParseResultSubject(subject string) (id run.ID, scope envelope.Scope, ok bool) {
	rest, ok := strings.CutPrefix(subject, resultsPrefix)
	if !ok {
		return run.ID{}, "", false
	}
	tenant, rest, _ := strings.Cut(rest, ".")
	runID, rest, _ := strings.Cut(rest, ".")
	id, scope = run.ID{Tenant: tenant, Run: runID}, envelope.Scope(rest)
	return id, scope, run.ValidID(tenant) && run.ValidID(runID) && (scope == envelope.StepScope || scope == envelope.RunScope)
}

// ParseLetterSubject returns the parts of a letter's subject; tenant may be port.InvalidTenant.
func ParseLetterSubject(subject string) (tenant, owner, runID string, ok bool) {
	rest, ok := strings.CutPrefix(subject, lettersPrefix)
	if !ok {
		return "", "", "", false
	}
	tenant, rest, _ = strings.Cut(rest, ".")
	owner, runID, _ = strings.Cut(rest, ".")
	return tenant, owner, runID, (tenant == port.InvalidTenant || run.ValidID(tenant)) && run.ValidID(owner) && run.ValidID(runID)
}

// literalRun reports whether the subjects of id mean this run and nothing else.
func literalRun(id run.ID) bool {
	return (run.ValidID(id.Tenant) || id.Tenant == port.InvalidTenant) && run.ValidID(id.Run)
}

// literalSubject reports whether every token of subject stands for itself.
func literalSubject(subject string) bool {
	return !strings.ContainsAny(subject, "*> \t\r\n\x00") && !strings.Contains(subject, "..") &&
		!strings.HasPrefix(subject, ".") && !strings.HasSuffix(subject, ".")
}
