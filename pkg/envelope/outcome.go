package envelope

// OutcomeSchema is the schema name of an outcome message.
const OutcomeSchema = "agentrun.outcome/v1"

// Scope says what an outcome is about.
type Scope string

const (
	StepScope Scope = "step"
	RunScope  Scope = "run"
)

// CompletedEffect is one write of the run that is proven committed.
type CompletedEffect struct {
	Step         string `json:"step"`
	Tool         string `json:"tool"`
	OperationRef string `json:"operation_ref"`
	CommittedAt  Time   `json:"committed_at"`
	EvidenceRef  string `json:"evidence_ref,omitempty"`
}

// Spent is what a run has used up so far, in the units of its budget.
type Spent struct {
	Turns                   int64   `json:"turns"`
	ToolCalls               int64   `json:"tool_calls"`
	InputTokens             int64   `json:"input_tokens"`
	OutputTokens            int64   `json:"output_tokens"`
	EstimatedCostMinorUnits int64   `json:"estimated_cost_minor_units"`
	ElapsedSeconds          float64 `json:"elapsed_seconds"`
}

// Outcome is one message of agentrun.results (contract §5).
type Outcome struct {
	Schema            string            `json:"schema"`
	ID                string            `json:"id"`
	N                 int               `json:"n"`
	Scope             Scope             `json:"scope"`
	Terminal          bool              `json:"terminal"`
	Tenant            string            `json:"tenant"`
	RunID             string            `json:"run_id"`
	Workflow          string            `json:"workflow,omitempty"`
	Owner             string            `json:"owner,omitempty"`
	Actor             string            `json:"actor,omitempty"`
	Step              string            `json:"step,omitempty"`
	Tool              string            `json:"tool,omitempty"`
	OperationRef      string            `json:"operation_ref,omitempty"`
	Outcome           Word              `json:"outcome"`
	ReasonCode        string            `json:"reason_code,omitempty"`
	FailedStep        string            `json:"failed_step,omitempty"`
	Attempt           *int              `json:"attempt,omitempty"`
	RetryAfterSeconds *float64          `json:"retry_after_seconds,omitempty"`
	NotBefore         Time              `json:"not_before,omitempty"`
	CommitState       CommitState       `json:"commit_state,omitempty"`
	NextAction        NextAction        `json:"next_action,omitempty"`
	CompletedEffects  []CompletedEffect `json:"completed_effects"`
	RemainingSteps    []string          `json:"remaining_steps"`
	Spent             *Spent            `json:"spent,omitempty"`
	CustomerMessage   string            `json:"customer_message,omitempty"`
	OperatorDetail    string            `json:"operator_detail,omitempty"`
	Envelope          *Envelope         `json:"envelope,omitempty"`
	At                Time              `json:"at"`
}
