package run

import (
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
)

// View is a run as operators see it (contract §9).
type View struct {
	Tenant           string                     `json:"tenant"`
	RunID            string                     `json:"run_id"`
	Workflow         string                     `json:"workflow,omitempty"`
	Owner            string                     `json:"owner,omitempty"`
	Actor            string                     `json:"actor,omitempty"`
	State            string                     `json:"state"`
	Outcome          envelope.Word              `json:"outcome,omitempty"`
	ReasonCode       string                     `json:"reason_code,omitempty"`
	Episode          int                        `json:"episode"`
	More             bool                       `json:"more"`
	Steps            []StepView                 `json:"steps"`
	Budget           budget.Request             `json:"budget"`
	Spent            *envelope.Spent            `json:"spent"`
	CompletedEffects []envelope.CompletedEffect `json:"completed_effects"`
	History          []HistoryView              `json:"history"`
	CreatedAt        Time                       `json:"created_at"`
	UpdatedAt        Time                       `json:"updated_at"`
	Deadline         Time                       `json:"deadline,omitempty"`
	Lease            *LeaseView                 `json:"lease,omitempty"` // while a call is in flight
}

// LeaseView says who works on a run.
type LeaseView struct {
	Worker string `json:"worker,omitempty"` // its --id
	Holder string `json:"holder"`
	// SignAt is when its holder last wrote the record; after Seconds without a further sign others take over.
	SignAt  Time    `json:"sign_at,omitempty"`
	Seconds float64 `json:"seconds"`
	Left    float64 `json:"left_seconds"` // at least 0
}

// StepView is one step of a View.
type StepView struct {
	Step        string               `json:"step"`
	Tool        string               `json:"tool"`
	Effect      envelope.Effect      `json:"effect"`
	State       State                `json:"state"`
	Attempt     int                  `json:"attempt"`
	Code        envelope.Code        `json:"code,omitempty"`
	CommitState envelope.CommitState `json:"commit_state,omitempty"`
	NotBefore   Time                 `json:"not_before,omitempty"`
	Optional    bool                 `json:"optional,omitempty"`
	StoppedBy   string               `json:"stopped_by,omitempty"` // the fatal step of an open run that keeps it from starting
	SafeDetails envelope.Details     `json:"safe_details,omitempty"`
}

// HistoryView is one line of a View's history.
type HistoryView struct {
	At          Time                 `json:"at"`
	Kind        string               `json:"kind"`
	By          string               `json:"by"`
	Step        string               `json:"step,omitempty"`
	Attempt     int                  `json:"attempt,omitempty"`
	Code        envelope.Code        `json:"code,omitempty"`
	CommitState envelope.CommitState `json:"commit_state,omitempty"`
	Reason      string               `json:"reason,omitempty"`
	StartedAt   Time                 `json:"started_at,omitempty"` // of an attempt: when it was decided, and reserved in the record
	SentAt      Time                 `json:"sent_at,omitempty"`    // when its request left
	AnsweredAt  Time                 `json:"answered_at,omitempty"`
	HTTPStatus  int                  `json:"http_status,omitempty"`
	MCPCode     int                  `json:"mcp_code,omitempty"`
	Owner       string               `json:"owner,omitempty"` // of an assignment: the letter's new owner
}
