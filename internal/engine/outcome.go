package engine

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Owed is an outcome that the record owes its result subject: numbered by the event that made it, in the record until a
// later write finds it published. It refers to its step's result and does not copy it.
type Owed struct {
	N         int              `json:"n"`
	Scope     envelope.Scope   `json:"scope"`
	Outcome   envelope.Word    `json:"outcome"`
	Step      string           `json:"step,omitempty"`
	Tool      string           `json:"tool,omitempty"`
	Failed    string           `json:"failed_step,omitempty"`
	Row       *envelope.Row    `json:"row,omitempty"`
	Details   envelope.Details `json:"details,omitempty"`
	Attempt   int              `json:"attempt,omitempty"`
	Left      int              `json:"left,omitempty"` // max_attempts_remaining
	NotBefore run.Time         `json:"not_before,omitempty"`
	WaitMS    int64            `json:"wait_ms,omitempty"`
	Effects   int              `json:"effects,omitempty"` // how many of the run's effects had been proven by then
	Remaining []string         `json:"remaining,omitempty"`
	Spent     budget.Spent     `json:"spent"`
	ElapsedMS int64            `json:"elapsed_ms"`
	Message   string           `json:"-"`
	At        run.Time         `json:"at"`

	Foreign strictjson.Foreign `json:"-"`
}

// owe adds an outcome of a step to what the record owes.
func (r *Run) owe(s *Step, word envelope.Word, now run.Time) *Owed {
	r.StepN++
	o := Owed{
		N: r.StepN, Scope: envelope.StepScope, Outcome: word, Step: s.Name, Tool: s.Tool, Attempt: s.Attempt,
		Effects: len(r.Effects), Remaining: r.remaining(s), Spent: r.Spent, ElapsedMS: r.elapsed(now), At: now,
	}
	if s.Fail != nil && word != envelope.OK {
		row := s.Fail.Row
		o.Row, o.Details, o.Failed = &row, s.Fail.Details, s.Name
	}
	r.Owed = append(r.Owed, o)
	return &r.Owed[len(r.Owed)-1]
}

// refuse adds an extra outcome that refuses a proposal and changes nothing else (contract §3). step may be "".
func (r *Run) refuse(step, tool string, code envelope.Code, details envelope.Details, now run.Time) {
	r.Refusals++
	if r.Refusals > MaxRefusals {
		return
	}
	row := envelope.RowFor(code, envelope.Read)
	r.StepN++
	o := Owed{
		N: r.StepN, Scope: envelope.StepScope, Outcome: envelope.Fatal, Step: step, Tool: tool, Row: &row, Details: details, Failed: step,
		Effects: len(r.Effects), Remaining: r.remaining(nil), Spent: r.Spent, ElapsedMS: r.elapsed(now), At: now,
	}
	if s := r.Step(step); s != nil {
		o.Attempt, o.Tool = s.Attempt, s.Tool
	}
	r.Owed = append(r.Owed, o)
	r.note(Event{At: now, Kind: EventRefused, Step: step, Code: code})
}

// MaxRefusals is after how many refusals of a run further ones are only counted.
const MaxRefusals = 64

// remaining lists the steps that have not started, without the one that the outcome is about.
func (r *Run) remaining(except *Step) []string {
	var out []string
	for _, s := range r.Steps {
		if s != except && s.notStarted() {
			out = append(out, s.Name)
		}
	}
	return out
}

// notStarted: never dispatched, and no end of its own.
func (s *Step) notStarted() bool {
	return s.Attempt == 0 && !s.Waived && (s.waits() || s.State == run.Cancelled)
}

func (r *Run) elapsed(now run.Time) int64 {
	if now < r.CreatedAt {
		return 0
	}
	return int64(now - r.CreatedAt)
}

// Outcome builds the message of an owed outcome. The same one always gives the same bytes, whoever publishes it.
func (r *Run) Outcome(o *Owed) *envelope.Outcome {
	out := &envelope.Outcome{
		Schema: envelope.OutcomeSchema, N: o.N, Scope: o.Scope, Terminal: o.Outcome.Terminal(),
		ID:     r.Tenant + "/" + r.RunID + "/" + string(o.Scope) + "/" + strconv.Itoa(o.N),
		Tenant: r.Tenant, RunID: r.RunID, Workflow: r.Workflow, Owner: r.Owner, Actor: r.Actor,
		Outcome: o.Outcome, CompletedEffects: r.completed(o.Effects), RemainingSteps: o.Remaining,
		Spent: o.Spent.Outcome(time.Duration(o.ElapsedMS) * time.Millisecond), At: o.At,
	}
	if out.RemainingSteps == nil {
		out.RemainingSteps = []string{}
	}
	if o.Scope == envelope.RunScope && o.Outcome == envelope.OK {
		return out
	}
	attempt := o.Attempt
	out.Step, out.Tool, out.Attempt = o.Step, o.Tool, &attempt
	if o.Step != "" {
		out.OperationRef = r.Ref(o.Step)
	}
	if o.Outcome == envelope.OK {
		out.CommitState = envelope.Committed
		out.Envelope = r.success(o)
		return out
	}
	row := *o.Row
	agent, user, operator := row.Messages()
	out.ReasonCode, out.CommitState, out.NextAction, out.FailedStep = row.ReasonCode, row.CommitState, row.NextAction, o.Failed
	out.CustomerMessage, out.OperatorDetail = user, operator
	out.NotBefore = o.NotBefore
	if o.Outcome == envelope.Retryable {
		secs := float64(o.WaitMS) / 1000
		out.RetryAfterSeconds = &secs
	}
	details := o.Details
	if row.NextAction == envelope.VerifyOperation && o.Tool != "" {
		details = with(details, "verification_tool", o.Tool+".verify")
	}
	out.Envelope = &envelope.Envelope{
		Code: row.Code, Category: row.Category, CommitState: row.CommitState,
		Retry:      &envelope.Retry{Directive: row.Directive, MaxAttemptsRemaining: o.Left, NotBefore: o.NotBefore},
		NextAction: row.NextAction, OperationRef: out.OperationRef, SafeDetails: details, AgentMessage: agent, UserMessage: user,
	}
	return out
}

func with(d envelope.Details, key string, v any) envelope.Details {
	out := envelope.Details{key: v}
	for k, x := range d {
		out[k] = x
	}
	return out
}

func (r *Run) success(o *Owed) *envelope.Envelope {
	e := &envelope.Envelope{OK: true, CommitState: envelope.Committed, OperationRef: r.Ref(o.Step), Result: json.RawMessage("null")}
	s := r.Step(o.Step)
	if s == nil {
		return e
	}
	if len(s.Result) > 0 {
		e.Result = s.Result
	}
	e.ResultOmitted, e.ResultRef = s.Omitted, s.ResultRef
	if s.Effect == envelope.Write {
		e.Verification = &envelope.Verification{CheckedAt: s.ProvenAt, EvidenceRef: s.EvidRef}
	}
	return e
}

// completed lists the first n proven writes.
func (r *Run) completed(n int) []envelope.CompletedEffect {
	out := make([]envelope.CompletedEffect, 0, n)
	for _, e := range r.Effects[:min(n, len(r.Effects))] {
		c := envelope.CompletedEffect{Step: e.Step, OperationRef: r.Ref(e.Step), CommittedAt: e.At, EvidenceRef: e.EvidenceRef}
		if s := r.Step(e.Step); s != nil {
			c.Tool = s.Tool
		}
		out = append(out, c)
	}
	return out
}

// OwesLetter: the episode's end is not published yet, and its letter comes before it.
func (r *Run) OwesLetter() bool {
	if r.Letter == nil || !r.Letter.Open {
		return false
	}
	for i := range r.Owed {
		if r.Owed[i].Scope == envelope.RunScope && r.Owed[i].N == r.Episode {
			return true
		}
	}
	return false
}

// Published records that the owed outcomes of a scope up to number n are in the stream, the n-th at seq: the next write of
// the record drops them. It is no event: nothing is decided by it.
func (r *Run) Published(scope envelope.Scope, n int, seq uint64) {
	pub := &r.StepPub
	if scope == envelope.RunScope {
		pub = &r.RunPub
	}
	if n > pub.N {
		*pub = Published{N: n, Seq: seq}
	}
	keep := r.Owed[:0]
	for i := range r.Owed {
		o := r.Owed[i]
		if o.Scope != scope || o.N > n {
			keep = append(keep, o)
			continue
		}
		if s := r.Step(o.Step); s != nil && o.N == n && scope == envelope.StepScope && o.Outcome == envelope.OK {
			s.OutcomeSeq = seq
		}
	}
	r.Owed = keep
}

// KeepResult keeps a step's result in the record although its outcome is published: the stream has it only redacted.
func (r *Run) KeepResult(step string) {
	if s := r.Step(step); s != nil {
		s.OutcomeSeq = 0
	}
}

// PublishedBefore is the state that the publisher of owed number n starts from.
func (r *Run) PublishedBefore(scope envelope.Scope) Published {
	if scope == envelope.RunScope {
		return r.RunPub
	}
	return r.StepPub
}
