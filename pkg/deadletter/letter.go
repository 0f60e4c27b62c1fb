// Package deadletter says what a dead letter holds (contract §7), and what an alert does (§8). Which actions a letter allows
// and which alert it raises are the runtime's own rules.
package deadletter

import (
	"encoding/json"

	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
)

// Schema is the schema name of a dead letter.
const Schema = "agentrun.deadletter/v1"

// The limits of a letter (contract §7 and §12).
const (
	MaxRawBytes  = 64 << 10       // of an unreadable job
	MaxArgsBytes = 512 << 10      // of the request and all args together
	MaxBytes     = 1<<20 - 16<<10 // of the whole letter: NATS carries 1 MiB unless told otherwise, headers included
	MaxAttempts  = 256
	MaxReplays   = 10
)

// Summary is a letter without its request, attempts and raw job: what a list shows.
type Summary struct {
	Schema       string               `json:"schema"`
	ID           string               `json:"id"` // "<tenant>/<run_id>/<episode>"
	Tenant       string               `json:"tenant"`
	RunID        string               `json:"run_id"`
	Workflow     string               `json:"workflow,omitempty"`
	Owner        string               `json:"owner"`
	Actor        string               `json:"actor,omitempty"`
	Intent       string               `json:"intent,omitempty"` // what the run was for, in its publisher's words
	Outcome      envelope.Word        `json:"outcome"`          // fatal or needs_human
	ReasonCode   string               `json:"reason_code"`
	Code         envelope.Code        `json:"code"`
	FailureClass envelope.Category    `json:"failure_class"`
	CommitState  envelope.CommitState `json:"commit_state"`
	NextAction   envelope.NextAction  `json:"next_action"`
	SafeDetails  envelope.Details     `json:"safe_details,omitempty"` // of the run's end, as its outcome has them

	// The step that ended the run; absent where none did.
	Step         string `json:"step,omitempty"`
	Tool         string `json:"tool,omitempty"`
	OperationRef string `json:"operation_ref,omitempty"`
	ArgsDigest   string `json:"args_digest,omitempty"`  // of the request, where it is omitted
	ArgsOmitted  bool   `json:"args_omitted,omitempty"` // the request was too large for the letter

	CompletedEffects []envelope.CompletedEffect `json:"completed_effects"`
	RemainingSteps   []string                   `json:"remaining_steps"`
	Open             []Open                     `json:"open"`
	Evidence         []Evidence                 `json:"evidence,omitempty"` // what was learned and changed no outcome
	AllowedActions   []Action                   `json:"allowed_actions"`
	Replays          int                        `json:"replays"`
	Budget           budget.Request             `json:"budget"` // in the form of a job: every limit is named
	Spent            envelope.Spent             `json:"spent"`
	RawSize          int                        `json:"raw_size,omitempty"` // bytes of the whole unreadable job
	CreatedAt        envelope.Time              `json:"created_at"`
	AssignedAt       envelope.Time              `json:"assigned_at,omitempty"` // when it was handed to this owner; absent: it is the first
	Claim            *Claim                     `json:"claim,omitempty"`
}

// Letter is one dead letter.
type Letter struct {
	Summary
	Request  json.RawMessage `json:"request,omitempty"` // the args of Step, resolved where they could be
	Attempts []Attempt       `json:"attempts"`          // by time, of every step that did not end ok
	Raw      []byte          `json:"raw,omitempty"`     // the beginning of an unreadable job, base64
}

// AttemptKind says what an attempt was.
type AttemptKind string

const (
	Dispatch AttemptKind = "dispatch"
	Verify   AttemptKind = "verify"
)

// Attempt is one dispatch or one verification of a step.
type Attempt struct {
	Step        string               `json:"step"`
	Attempt     int                  `json:"attempt"`
	Kind        AttemptKind          `json:"kind"`
	Worker      string               `json:"worker,omitempty"`
	StartedAt   envelope.Time        `json:"started_at,omitempty"`
	EndedAt     envelope.Time        `json:"ended_at,omitempty"`
	Code        envelope.Code        `json:"code,omitempty"`
	CommitState envelope.CommitState `json:"commit_state,omitempty"`
	SentAt      envelope.Time        `json:"sent_at,omitempty"` // when its request left, where that is known
	AnsweredAt  envelope.Time        `json:"answered_at,omitempty"`
	HTTPStatus  int                  `json:"http_status,omitempty"`
	MCPCode     int                  `json:"mcp_code,omitempty"` // of a JSON-RPC error
}

// Open is a required step that was started or refused and did not end ok.
type Open struct {
	Step         string               `json:"step"`
	Tool         string               `json:"tool,omitempty"`
	OperationRef string               `json:"operation_ref"`
	Attempt      int                  `json:"attempt"`
	ReasonCode   string               `json:"reason_code"`
	CommitState  envelope.CommitState `json:"commit_state"`
	SafeDetails  envelope.Details     `json:"safe_details,omitempty"`
	ArgsDigest   string               `json:"args_digest,omitempty"` // strictjson.ArgsDigest; for an approval, and for omitted args
	Args         json.RawMessage      `json:"args,omitempty"`        // resolved; for an approval
	ArgsOmitted  bool                 `json:"args_omitted,omitempty"`
}

// Evidence is what was learned about a step and changed no outcome: a report after the end, a late reply.
type Evidence struct {
	Step        string               `json:"step"`
	Attempt     int                  `json:"attempt,omitempty"`
	CommitState envelope.CommitState `json:"commit_state"`
	EvidenceRef string               `json:"evidence_ref,omitempty"`
	By          string               `json:"by,omitempty"`
	At          envelope.Time        `json:"at"`
}

// Claim says who is looking at the letter, and until when nobody else may act on it.
type Claim struct {
	By    string        `json:"by"`
	Until envelope.Time `json:"until"`
}
