// Package deadletter says what a dead letter holds (contract §7), which actions it allows, and which alert it raises
// (§8). It holds values and rules only: no I/O, no clock.
package deadletter

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/agentrun/executor/internal/strictjson"
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
	ID           string               `json:"id"` // see ID
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
	Budget           budget.Request             `json:"budget"` // in the form of a job, see BudgetOf
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

// Kind says what an attempt was.
type Kind string

const (
	Dispatch Kind = "dispatch"
	Verify   Kind = "verify"
)

// Attempt is one dispatch or one verification of a step.
type Attempt struct {
	Step        string               `json:"step"`
	Attempt     int                  `json:"attempt"`
	Kind        Kind                 `json:"kind"`
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

// HeldAgainst reports whether the claim keeps this person from acting at this time. A nil claim keeps nobody.
func (c *Claim) HeldAgainst(by string, now envelope.Time) bool {
	return c != nil && c.By != by && now < c.Until
}

// ID is the id of the letter that an episode of a run ended with.
func ID(tenant, run string, episode int) string {
	return tenant + "/" + run + "/" + strconv.Itoa(episode)
}

// InvalidRunID is the run_id of a job whose subject names no run: "invalid-" and the first 16 hex digits of the SHA-256
// of the bytes of the subject followed at once, with nothing between, by those of the payload.
func InvalidRunID(subject string, payload []byte) string {
	h := sha256.New()
	h.Write([]byte(subject))
	h.Write(payload)
	return "invalid-" + hex.EncodeToString(h.Sum(nil))[:16]
}

// BudgetOf writes limits in the form of a job: every limit is named, the elapsed time in seconds.
func BudgetOf(l budget.Limits) budget.Request {
	seconds := float64(l.MaxElapsedMillis) / 1000
	return budget.Request{
		MaxTurns: &l.MaxTurns, MaxToolCalls: &l.MaxToolCalls, MaxAttemptsPerStep: &l.MaxAttemptsPerStep,
		MaxElapsedSeconds: &seconds, MaxInputTokens: &l.MaxInputTokens, MaxOutputTokens: &l.MaxOutputTokens,
		MaxEstimatedCostMinorUnits: &l.MaxEstimatedCostMinorUnits,
	}
}

// SetRaw keeps the beginning of a job that could not be read, and its size.
func (l *Letter) SetRaw(payload []byte) {
	l.RawSize = len(payload)
	l.Raw = append([]byte(nil), payload[:min(len(payload), MaxRawBytes)]...)
}

// Trim brings a letter to its limits: of the attempts the last MaxAttempts stay; the request and the args of the open
// steps are kept while they fit MaxArgsBytes together and the letter fits most bytes, at most MaxBytes (as strictjson.Marshal writes it), the
// request first, then in the order of Open; one that does not fit is replaced by its digest. Lists that are nil become
// empty. Open is copied before it is changed. Where most is so small that the attempts alone do not fit, older ones go too.
func (l *Letter) Trim(most int) {
	l.Attempts = l.Attempts[max(0, len(l.Attempts)-MaxAttempts):]
	l.fillLists()
	l.Open = slices.Clone(l.Open)
	rest := l.sizeWithoutArgs()
	for ; rest > most && len(l.Attempts) > 1; rest = l.sizeWithoutArgs() {
		l.Attempts = l.Attempts[len(l.Attempts)/2:]
	}
	left := min(MaxArgsBytes, most-rest)
	if len(l.Request) > left {
		l.ArgsDigest, l.ArgsOmitted, l.Request = strictjson.ArgsDigest(l.Tool, l.Request), true, nil
	}
	left -= len(l.Request)
	for i := range l.Open {
		o := &l.Open[i]
		if len(o.Args) > left {
			if o.ArgsDigest == "" {
				o.ArgsDigest = strictjson.ArgsDigest(o.Tool, o.Args)
			}
			o.Args, o.ArgsOmitted = nil, true
		}
		left -= len(o.Args)
	}
}

// fillLists makes lists of what readers expect as lists.
func (l *Letter) fillLists() {
	if l.Attempts == nil {
		l.Attempts = []Attempt{}
	}
	if l.CompletedEffects == nil {
		l.CompletedEffects = []envelope.CompletedEffect{}
	}
	if l.RemainingSteps == nil {
		l.RemainingSteps = []string{}
	}
	if l.Open == nil {
		l.Open = []Open{}
	}
	if l.AllowedActions == nil {
		l.AllowedActions = []Action{}
	}
}

// sizeWithoutArgs is what the letter takes if all its args are replaced by digests.
func (l *Letter) sizeWithoutArgs() int {
	const digest = len(`"args_digest":"",`) + 2*sha256.Size + len(`"args_omitted":true,`)
	rest := *l
	rest.Request = nil
	rest.Open = slices.Clone(l.Open)
	size := digest
	for i := range rest.Open {
		rest.Open[i].Args = nil
		size += digest + len(`"args":,`)
	}
	data, err := strictjson.Marshal(&rest)
	if err != nil {
		panic("deadletter: " + err.Error()) // what is left holds no raw JSON and always encodes
	}
	return size + len(`"request":,`) + len(data)
}

// Short is the letter's summary for a list. The args of open steps stay with the letter, like its request: a page of
// summaries has to fit one reply.
func (l *Letter) Short() Summary {
	s := l.Summary
	s.Open = slices.Clone(l.Open)
	for i := range s.Open {
		if s.Open[i].Args != nil {
			s.Open[i].Args, s.Open[i].ArgsOmitted = nil, true
		}
	}
	return s
}
