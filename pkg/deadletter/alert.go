package deadletter

import (
	"slices"
	"time"

	"github.com/agentrun/executor/pkg/envelope"
)

// AlertSchema is the schema name of an alert.
const AlertSchema = "agentrun.alert/v1"

// BurstRuns runs of a tenant that one fatal reason ends within BurstWindow are paged, once per window.
const (
	BurstRuns   = 5
	BurstWindow = 5 * time.Minute
)

// ReasonOverdue is the reason of the alert for a run that is past its deadline without a terminal outcome. No code has
// it: it is the runtime's own failure, not a call's.
const ReasonOverdue = "run_overdue"

// ReasonForgotten is the reason of the alert for a write that is in a journal as done and in no record: its run was removed,
// or has expired while the executor was away.
const ReasonForgotten = "effect_without_run"

// Severity says how loud an alert is. None is no alert.
type Severity string

const (
	None   Severity = ""
	Page   Severity = "page"
	Ticket Severity = "ticket"
)

// Alert is one message of agentrun.alerts (contract §8). It never holds args, results or text from upstream.
type Alert struct {
	Schema     string        `json:"schema"`
	Tenant     string        `json:"tenant"`
	Owner      string        `json:"owner"` // the letter's
	ReasonCode string        `json:"reason_code"`
	Severity   Severity      `json:"severity"`
	RunID      string        `json:"run_id,omitempty"` // absent for a window of several runs
	Workflow   string        `json:"workflow,omitempty"`
	Tool       string        `json:"tool,omitempty"`
	Count      int           `json:"count"`
	FirstAt    envelope.Time `json:"first_at"`
	At         envelope.Time `json:"at"`
	Summary    string        `json:"summary"` // a fixed sentence
}

// rules has every reason that raises an alert by itself. An end by another reason raises one only in a burst.
var rules = map[string]struct {
	severity Severity
	summary  string
}{
	"external_outcome_unknown":      {Page, "A write may have happened and could not be verified; a person must establish what happened."},
	"external_outcome_disputed":     {Page, "What is known about a write contradicts itself; a person must establish what happened."},
	"attempt_budget_exhausted":      {Page, "Every attempt of a step failed and none is left."},
	"not_authorized":                {Page, "A run asked for a tool that its tenant or actor may not use."},
	"provider_denied":               {Page, "A provider denied access with the configured credentials."},
	"poison_job":                    {Page, "Every worker that took a step was lost; the step is stopped."},
	ReasonOverdue:                   {Page, "A run is past its deadline without a terminal outcome."},
	ReasonForgotten:                 {Page, "A write was done whose run is forgotten; a person must see whether anybody was told of it."},
	"turn_budget_exhausted":         {Ticket, "A run ended because its turns are used up."},
	"tool_call_budget_exhausted":    {Ticket, "A run ended because its tool calls are used up."},
	"elapsed_budget_exhausted":      {Ticket, "A run ended because its time is used up."},
	"input_token_budget_exhausted":  {Ticket, "A run ended because its input tokens are used up."},
	"output_token_budget_exhausted": {Ticket, "A run ended because its output tokens are used up."},
	"cost_budget_exhausted":         {Ticket, "A run ended because its cost budget is used up."},
}

const (
	unverifiedSummary = "A run ended while a write of it may have happened and could not be verified."
	burstSummary      = "Several runs of the tenant ended for the same reason within five minutes."
	assignedSummary   = "A dead letter was handed to this owner."
	otherSummary      = "A run ended in a way that a person should look at."
)

// SeverityOf is how loud the end of one run for this reason is (contract §8).
func SeverityOf(reason string) Severity { return rules[reason].severity }

// SummaryOf is the fixed sentence of an alert about one run.
func SummaryOf(reason string) string {
	if r, ok := rules[reason]; ok {
		return r.summary
	}
	return otherSummary
}

// Alert is the alert that the letter raises by itself, or false. A write that is left unknown is paged whatever the
// reason that ended the run.
func (l *Letter) Alert(at envelope.Time) (Alert, bool) {
	severity, summary := SeverityOf(l.ReasonCode), SummaryOf(l.ReasonCode)
	unknown := slices.ContainsFunc(l.Open, func(o Open) bool { return o.CommitState == envelope.Unknown })
	if unknown && severity != Page {
		severity, summary = Page, unverifiedSummary
	}
	if severity == None {
		return Alert{}, false
	}
	return l.alert(severity, summary, at), true
}

// Assigned is the alert that tells the owner whom a letter was handed to: the letter's own, or a ticket where it raises none.
func (l *Letter) Assigned(at envelope.Time) Alert {
	if a, ok := l.Alert(at); ok {
		return a
	}
	return l.alert(Ticket, assignedSummary, at)
}

// Disputed is the alert about evidence that contradicts how a run ended.
func (l *Letter) Disputed(at envelope.Time) Alert {
	const reason = "external_outcome_disputed"
	a := l.alert(Page, SummaryOf(reason), at)
	a.ReasonCode = reason
	return a
}

func (l *Letter) alert(severity Severity, summary string, at envelope.Time) Alert {
	return Alert{
		Schema: AlertSchema, Tenant: l.Tenant, Owner: l.Owner, ReasonCode: l.ReasonCode, Severity: severity,
		RunID: l.RunID, Workflow: l.Workflow, Tool: l.Tool, Count: 1, FirstAt: at, At: at, Summary: summary,
	}
}

// Burst is the alert about count runs of a tenant that one fatal reason ended between first and at.
func Burst(tenant, owner, reason string, count int, first, at envelope.Time) Alert {
	return Alert{
		Schema: AlertSchema, Tenant: tenant, Owner: owner, ReasonCode: reason, Severity: Page,
		Count: count, FirstAt: first, At: at, Summary: burstSummary,
	}
}
