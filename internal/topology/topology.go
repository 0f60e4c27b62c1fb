// Package topology is contract §2: the streams, their subjects, and what a subject says. It only makes and reads names.
package topology

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

// What all subjects of a kind begin with.
const (
	Jobs    = "agentrun.jobs."
	Results = "agentrun.results."
	Runs    = "agentrun.runs."
	Fleet   = Runs + port.FleetTenant + "."
	Wakes   = "agentrun.wakes."
	Letters = "agentrun.deadletters."
	Alerts  = "agentrun.alerts."
	Ops     = "agentrun.op."
	hints   = "agentrun.hint."
)

// JobSubject is where a publisher puts a job.
func JobSubject(queue string, id run.ID) string {
	return Jobs + queue + "." + id.Tenant + "." + id.Run
}

// ResultSubject is where the outcomes of a run appear.
func ResultSubject(id run.ID, scope envelope.Scope) string {
	return Results + id.Tenant + "." + id.Run + "." + string(scope)
}

// RunSubject is where the run's record is.
func RunSubject(id run.ID) string { return Runs + id.Tenant + "." + id.Run }

// FleetSubject is where a record of the fleet is, among those of the runs.
func FleetSubject(name string) string { return Fleet + name }

// WakeSubject is where a run that is due again is put in its queue.
func WakeSubject(queue string, id run.ID) string {
	return Wakes + queue + "." + id.Tenant + "." + id.Run
}

// LetterSubject is where the open dead letter of a run is.
func LetterSubject(tenant, owner, runID string) string {
	return Letters + tenant + "." + owner + "." + runID
}

// AlertSubject is where alerts of one kind go.
func AlertSubject(tenant, owner, reasonCode string) string {
	return Alerts + tenant + "." + owner + "." + reasonCode
}

// HintSubject reaches one lease holder; core NATS, no stream.
func HintSubject(holder string) string { return hints + holder }

// OpSubject is where an operator call, e.g. deadletters.list, is made for a tenant.
func OpSubject(call, tenant string) string { return Ops + call + "." + tenant }

// ConsumerName is the durable consumer of a queue, the same on AGENTRUN_JOBS and AGENTRUN_WAKES.
func ConsumerName(queue string) string { return "executor-" + queue }

// InQueue matches all subjects of one queue below a prefix, Jobs or Wakes.
func InQueue(prefix, queue string) string { return prefix + queue + ".>" }

// QueueTokens are the parts of a job's or a wake's subject, as published: NATS lets through any token, wildcards
// included, so Valid says whether queue, tenant and run are identifiers of contract §1.
type QueueTokens struct {
	Queue string
	ID    run.ID
	Valid bool
}

// ParseQueueSubject takes a job's or a wake's subject apart; prefix is Jobs or Wakes. A subject with too few or too many tokens
// is not valid; what is there is returned all the same, with the surplus in ID.Run.
func ParseQueueSubject(prefix, subject string) QueueTokens {
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
	rest, ok := strings.CutPrefix(subject, Runs)
	if !ok {
		return run.ID{}, false
	}
	tenant, runID, _ := strings.Cut(rest, ".")
	id = run.ID{Tenant: tenant, Run: runID}
	return id, LiteralRun(id) || id == port.ActiveID
}

// ParseResultSubject returns run and scope of a result subject.
func ParseResultSubject(subject string) (id run.ID, scope envelope.Scope, ok bool) {
	rest, ok := strings.CutPrefix(subject, Results)
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
	rest, ok := strings.CutPrefix(subject, Letters)
	if !ok {
		return "", "", "", false
	}
	tenant, rest, _ = strings.Cut(rest, ".")
	owner, runID, _ = strings.Cut(rest, ".")
	return tenant, owner, runID, (tenant == port.InvalidTenant || run.ValidID(tenant)) && run.ValidID(owner) && run.ValidID(runID)
}

// LiteralRun reports whether the subjects of id mean this run and nothing else.
func LiteralRun(id run.ID) bool {
	return (run.ValidID(id.Tenant) || id.Tenant == port.InvalidTenant) && run.ValidID(id.Run)
}

// Literal reports whether every token of subject stands for itself.
func Literal(subject string) bool {
	return !strings.ContainsAny(subject, "*> \t\r\n\x00") && !strings.Contains(subject, "..") &&
		!strings.HasPrefix(subject, ".") && !strings.HasSuffix(subject, ".")
}
