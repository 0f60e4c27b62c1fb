// Package bus is everything that touches NATS: the streams of contract §2, the run records and their compare-and-set,
// numbered results, letters, alerts, the job queue, wakes, hints, watches and the clock.
//
// It keeps no truth of its own. Each method says what is durable when it returns, whether it may be called
// concurrently, and which errors a caller branches on. Everything is safe for concurrent use unless it says otherwise.
package bus

import (
	"strings"

	"github.com/agentrun/executor/pkg/run"
)

// The streams of contract §2. ObjectsBucket is an object store: its stream has the server's own name for it.
const (
	JobsStream    = "AGENTRUN_JOBS"
	ResultsStream = "AGENTRUN_RESULTS"
	RunsStream    = "AGENTRUN_RUNS"
	WakesStream   = "AGENTRUN_WAKES"
	LettersStream = "AGENTRUN_DEADLETTERS"
	AlertsStream  = "AGENTRUN_ALERTS"
	ObjectsBucket = "AGENTRUN_OBJECTS"
)

// The two scopes of a result subject.
const (
	ScopeStep = "step"
	ScopeRun  = "run"
)

// InvalidTenant stands in a letter's subject for a tenant that is no identifier (contract §3).
const InvalidTenant = "_invalid"

// FleetRecord is where the reconcilers agree on the active one: agentrun.runs._fleet.reconciler. Its parts are no
// identifiers, so that no publisher's run can be mistaken for it.
var FleetRecord = run.ID{Tenant: "_fleet", Run: "reconciler"}

const (
	jobsPrefix    = "agentrun.jobs."
	resultsPrefix = "agentrun.results."
	runsPrefix    = "agentrun.runs."
	wakesPrefix   = "agentrun.wakes."
	lettersPrefix = "agentrun.deadletters."
	alertsPrefix  = "agentrun.alerts."
	hintPrefix    = "agentrun.hint."
)

// JobSubject is where a publisher puts a job.
func JobSubject(queue string, id run.ID) string {
	return jobsPrefix + queue + "." + id.Tenant + "." + id.Run
}

// ResultSubject is where the outcomes of a run appear; scope is ScopeStep or ScopeRun.
func ResultSubject(id run.ID, scope string) string {
	return resultsPrefix + id.Tenant + "." + id.Run + "." + scope
}

// RunSubject is where the run's record is.
func RunSubject(id run.ID) string { return runsPrefix + id.Tenant + "." + id.Run }

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

// FleetSubject is the subject of FleetRecord.
func FleetSubject() string { return RunSubject(FleetRecord) }

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
		Valid: IsIdentifier(queue) && IsIdentifier(tenant) && IsIdentifier(runID),
	}
}

// ParseRunSubject returns the run whose record is at subject; ok is false for anything else, the fleet record excepted.
func ParseRunSubject(subject string) (id run.ID, ok bool) {
	rest, ok := strings.CutPrefix(subject, runsPrefix)
	if !ok {
		return run.ID{}, false
	}
	tenant, runID, _ := strings.Cut(rest, ".")
	id = run.ID{Tenant: tenant, Run: runID}
	return id, literalRun(id)
}

// ParseResultSubject returns run and scope of a result subject.
func ParseResultSubject(subject string) (id run.ID, scope string, ok bool) {
	rest, ok := strings.CutPrefix(subject, resultsPrefix)
	if !ok {
		return run.ID{}, "", false
	}
	tenant, rest, _ := strings.Cut(rest, ".")
	runID, scope, _ := strings.Cut(rest, ".")
	id = run.ID{Tenant: tenant, Run: runID}
	return id, scope, IsIdentifier(tenant) && IsIdentifier(runID) && (scope == ScopeStep || scope == ScopeRun)
}

// ParseLetterSubject returns the parts of a letter's subject; tenant may be InvalidTenant.
func ParseLetterSubject(subject string) (tenant, owner, runID string, ok bool) {
	rest, ok := strings.CutPrefix(subject, lettersPrefix)
	if !ok {
		return "", "", "", false
	}
	tenant, rest, _ = strings.Cut(rest, ".")
	owner, runID, _ = strings.Cut(rest, ".")
	return tenant, owner, runID, (tenant == InvalidTenant || IsIdentifier(tenant)) && IsIdentifier(owner) && IsIdentifier(runID)
}

// literalRun reports whether the subjects of id mean this run and nothing else.
func literalRun(id run.ID) bool {
	return (IsIdentifier(id.Tenant) || id.Tenant == InvalidTenant) && IsIdentifier(id.Run) || id == FleetRecord
}

// literalSubject reports whether every token of subject stands for itself.
func literalSubject(subject string) bool {
	return !strings.ContainsAny(subject, "*> \t\r\n\x00") && !strings.Contains(subject, "..") &&
		!strings.HasPrefix(subject, ".") && !strings.HasSuffix(subject, ".")
}

// IsIdentifier reports whether s is an identifier of contract §1, and so one literal subject token.
func IsIdentifier(s string) bool {
	if s == "" || len(s) > 64 || s[0] == '_' || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' {
			continue
		}
		return false
	}
	return true
}
