package engine

import (
	"slices"
	"time"

	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
)

// BurstRuns runs of a tenant that one fatal reason ends within BurstWindow are paged, once per window.
const (
	BurstRuns   = 5
	BurstWindow = 5 * time.Minute
)

// alerts has every reason that raises an alert by itself. An end by another reason raises one only in a burst.
var alerts = map[string]struct {
	severity deadletter.Severity
	summary  string
}{
	"external_outcome_unknown":      {deadletter.Page, "A write may have happened and could not be verified; a person must establish what happened."},
	"external_outcome_disputed":     {deadletter.Page, "What is known about a write contradicts itself; a person must establish what happened."},
	"attempt_budget_exhausted":      {deadletter.Page, "Every attempt of a step failed and none is left."},
	"not_authorized":                {deadletter.Page, "A run asked for a tool that its tenant or actor may not use."},
	"provider_denied":               {deadletter.Page, "A provider denied access with the configured credentials."},
	"poison_job":                    {deadletter.Page, "Every worker that took a step was lost; the step is stopped."},
	deadletter.ReasonOverdue:        {deadletter.Page, "A run is past its deadline without a terminal outcome."},
	deadletter.ReasonForgotten:      {deadletter.Page, "A write was done whose run is forgotten; a person must see whether anybody was told of it."},
	"turn_budget_exhausted":         {deadletter.Ticket, "A run ended because its turns are used up."},
	"tool_call_budget_exhausted":    {deadletter.Ticket, "A run ended because its tool calls are used up."},
	"elapsed_budget_exhausted":      {deadletter.Ticket, "A run ended because its time is used up."},
	"input_token_budget_exhausted":  {deadletter.Ticket, "A run ended because its input tokens are used up."},
	"output_token_budget_exhausted": {deadletter.Ticket, "A run ended because its output tokens are used up."},
	"cost_budget_exhausted":         {deadletter.Ticket, "A run ended because its cost budget is used up."},
}

const (
	unverifiedSummary = "A run ended while a write of it may have happened and could not be verified."
	burstSummary      = "Several runs of the tenant ended for the same reason within five minutes."
	assignedSummary   = "A dead letter was handed to this owner."
	otherSummary      = "A run ended in a way that a person should look at."
)

// SeverityOf is how loud the end of one run for this reason is (contract §8).
func SeverityOf(reason string) deadletter.Severity { return alerts[reason].severity }

// SummaryOf is the fixed sentence of an alert about one run.
func SummaryOf(reason string) string {
	if r, ok := alerts[reason]; ok {
		return r.summary
	}
	return otherSummary
}

// AlertOf is the alert that a letter raises by itself, or false. A write that is left unknown is paged whatever the
// reason that ended the run.
func AlertOf(l *deadletter.Letter, at envelope.Time) (deadletter.Alert, bool) {
	severity, summary := SeverityOf(l.ReasonCode), SummaryOf(l.ReasonCode)
	unknown := slices.ContainsFunc(l.Open, func(o deadletter.Open) bool { return o.CommitState == envelope.Unknown })
	if unknown && severity != deadletter.Page {
		severity, summary = deadletter.Page, unverifiedSummary
	}
	if severity == deadletter.None {
		return deadletter.Alert{}, false
	}
	return alertOf(l, severity, summary, at), true
}

// Assigned is the alert that tells the owner whom a letter was handed to: the letter's own, or a ticket where it raises none.
func Assigned(l *deadletter.Letter, at envelope.Time) deadletter.Alert {
	if a, ok := AlertOf(l, at); ok {
		return a
	}
	return alertOf(l, deadletter.Ticket, assignedSummary, at)
}

func alertOf(l *deadletter.Letter, severity deadletter.Severity, summary string, at envelope.Time) deadletter.Alert {
	return deadletter.Alert{
		Schema: deadletter.AlertSchema, Tenant: l.Tenant, Owner: l.Owner, ReasonCode: l.ReasonCode, Severity: severity,
		RunID: l.RunID, Workflow: l.Workflow, Tool: l.Tool, Count: 1, FirstAt: at, At: at, Summary: summary,
	}
}

// Burst is the alert about count runs of a tenant that one fatal reason ended between first and at.
func Burst(tenant, owner, reason string, count int, first, at envelope.Time) deadletter.Alert {
	return deadletter.Alert{
		Schema: deadletter.AlertSchema, Tenant: tenant, Owner: owner, ReasonCode: reason, Severity: deadletter.Page,
		Count: count, FirstAt: first, At: at, Summary: burstSummary,
	}
}
