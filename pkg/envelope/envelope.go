// Package envelope says what one tool call came to: the envelope of contract §4, the outcome of §5, and the one table
// of codes of §6, from which the documents and the JSON Schemas are printed. It holds values only: no I/O, no clock.
package envelope

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Effect says whether a tool changes something.
type Effect string

const (
	Read  Effect = "read"
	Write Effect = "write"
)

// Category is the class of a failure.
type Category string

const (
	Validation    Category = "validation"
	Authorization Category = "authorization"
	Conflict      Category = "conflict"
	Dependency    Category = "dependency"
	Internal      Category = "internal"
)

// CommitState says whether the operation took effect.
type CommitState string

const (
	NotCommitted CommitState = "not_committed"
	Committed    CommitState = "committed"
	Unknown      CommitState = "unknown"
)

// Directive says whether and when the caller or the runtime may try again.
type Directive string

const (
	Never         Directive = "never"
	AfterDelay    Directive = "after_delay"
	AfterInputFix Directive = "after_input_fix"
)

// NextAction is the next step that is allowed.
type NextAction string

const (
	CorrectInput    NextAction = "correct_input"
	WaitAndRetry    NextAction = "wait_and_retry"
	VerifyOperation NextAction = "verify_operation"
	RequestApproval NextAction = "request_approval"
	Escalate        NextAction = "escalate"
)

// Word is the outcome of a step or a run.
type Word string

const (
	OK         Word = "ok"
	Retryable  Word = "retryable"
	UnknownNow Word = "unknown"
	NeedsHuman Word = "needs_human"
	Fatal      Word = "fatal"
	Cancelled  Word = "cancelled"
)

// Terminal reports whether the outcome is final for its step or run (contract §5).
func (w Word) Terminal() bool { return w != Retryable && w != UnknownNow }

// Retry tells what may be tried again and when.
type Retry struct {
	Directive            Directive `json:"directive"`
	MaxAttemptsRemaining int       `json:"max_attempts_remaining"`
	NotBefore            Time      `json:"not_before,omitempty"`
}

// Verification is the proof of a success: when it was established, and the far side's own reference.
type Verification struct {
	CheckedAt   Time   `json:"checked_at"`
	EvidenceRef string `json:"evidence_ref,omitempty"`
}

// ObjectRef names a large result in the object store AGENTRUN_OBJECTS.
type ObjectRef struct {
	Bucket string `json:"bucket"`
	Object string `json:"object"`
	Size   int    `json:"size"`
	SHA256 string `json:"sha256"`
}

// Envelope is what one tool call came to (contract §4). On success Result is set; on failure Code, Category, Retry and
// NextAction are.
type Envelope struct {
	OK            bool            `json:"ok"`
	Code          Code            `json:"code,omitempty"`
	Category      Category        `json:"category,omitempty"`
	CommitState   CommitState     `json:"commit_state"`
	Retry         *Retry          `json:"retry,omitempty"`
	NextAction    NextAction      `json:"next_action,omitempty"`
	OperationRef  string          `json:"operation_ref,omitempty"`
	Result        json.RawMessage `json:"result,omitempty"`
	ResultOmitted bool            `json:"result_omitted,omitempty"`
	ResultRef     *ObjectRef      `json:"result_ref,omitempty"`
	Verification  *Verification   `json:"verification,omitempty"`
	SafeDetails   Details         `json:"safe_details,omitempty"`
	AgentMessage  string          `json:"agent_message,omitempty"`
	UserMessage   string          `json:"user_message,omitempty"`
}

// Details are the safe_details of a failure: keys that the tool's config names and the runtime's own, with string,
// number (json.Number) and boolean values of at most 256 bytes each.
type Details map[string]any

// UnmarshalJSON keeps the digits of numbers: what is read back from a record must give the same bytes again.
func (d *Details) UnmarshalJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var m map[string]any
	if err := dec.Decode(&m); err != nil {
		return fmt.Errorf("safe_details: %w", err)
	}
	*d = m
	return nil
}

// Reply is one call's end, classified by the tool's connector: either OK with a result, or a row of the table of codes.
// It is a value: how a call ended is data, never a Go error.
type Reply struct {
	OK          bool            `json:"ok,omitempty"`
	Result      json.RawMessage `json:"result,omitempty"`       // on OK: the tool's JSON, or null
	Ref         *ObjectRef      `json:"ref,omitempty"`          // a large result's place; Result is nil then
	EvidenceRef string          `json:"evidence_ref,omitempty"` // the far side's reference of a write, if the config names one
	LookUp      bool            `json:"look_up,omitempty"`      // committed by a rule's word: the result is looked up (contract §6, commit_state: committed)
	NotSent     bool            `json:"not_sent,omitempty"`     // the request provably never left this process
	NoReply     bool            `json:"no_reply,omitempty"`     // sent, and nothing that can be read came back
	Row         Row             `json:"row,omitzero"`           // on failure
	RetryAfter  int64           `json:"retry_after_ms,omitempty"`
	Details     Details         `json:"details,omitempty"`
	Seen        Seen            `json:"seen,omitzero"`
}

// Seen is what was seen of one call or lookup on its way. It decides nothing; people read it.
type Seen struct {
	SentAt     Time `json:"sent_at,omitempty"`     // when the request was let go, after the last check
	AnsweredAt Time `json:"answered_at,omitempty"` // when its end was known; absent where nothing came back
	HTTPStatus int  `json:"http_status,omitempty"` // of the answer, also of one that broke off
	MCPCode    int  `json:"mcp_code,omitempty"`    // of a JSON-RPC error
}

// Answer is what a lookup established.
type Answer string

const (
	Found     Answer = "found"
	Absent    Answer = "absent"
	Disputed  Answer = "disputed"  // it shows what must not be, for example the operation twice
	Undecided Answer = "undecided" // the lookup failed, or its answer fits no rule
	Later     Answer = "later"     // the far side did not look: it was asked too often, or says when to come again
	Pending   Answer = "pending"   // the far side has the operation and is not through with it
	Failed    Answer = "failed"    // the far side had the operation and gave it up for good: nothing was done
)

// Lookup is one lookup's end. Only Found carries a result.
type Lookup struct {
	Answer      Answer          `json:"answer"`
	Result      json.RawMessage `json:"result,omitempty"`
	Ref         *ObjectRef      `json:"ref,omitempty"` // a large result's place; Result is nil then
	EvidenceRef string          `json:"evidence_ref,omitempty"`
	Invalid     Code            `json:"invalid,omitempty"` // found, but RESULT_INVALID or RESULT_TOO_LARGE
	Row         Row             `json:"row,omitzero"`      // Later: why the far side did not look; Failed: how the operation ended
	RetryAfter  int64           `json:"retry_after_ms,omitempty"`
	Seen        Seen            `json:"seen,omitzero"`
}
