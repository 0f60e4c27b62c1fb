package deadletter

import "github.com/agentrun/executor/pkg/envelope"

// AlertSchema is the schema name of an alert.
const AlertSchema = "agentrun.alert/v1"

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
