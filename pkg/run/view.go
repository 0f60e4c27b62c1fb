package run

import (
	"time"

	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/deadletter"
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

// State names of a run that has not ended (contract §9); the end's word otherwise.
const (
	StateOpen       = "open"
	StateReady      = "ready"
	StateRunning    = "running"
	StateWaiting    = "waiting"
	StateUnknown    = "unknown"
	StateCancelling = "cancelling"
)

// Ended reports whether a state, as State says it, is an end.
func Ended(state string) bool {
	switch envelope.Word(state) {
	case envelope.OK, envelope.Fatal, envelope.NeedsHuman, envelope.Cancelled:
		return true
	}
	return false
}

// State is the run's state as operators see it: of a run that has not ended the first that applies of cancelling, unknown,
// running, ready, waiting, open.
func (r *Run) State() string {
	if r.End != nil {
		return string(r.End.Outcome)
	}
	if r.Cancel != nil {
		return StateCancelling
	}
	state, rank := StateOpen, 0
	is := func(what string, n int) {
		if n > rank {
			state, rank = what, n
		}
	}
	for i, s := range r.Steps {
		switch s.State {
		case InDoubt:
			is(StateUnknown, 4)
		case Executing:
			is(StateRunning, 3)
		case Waiting:
			is(StateWaiting, 1)
		case Ready:
			if _, turn := r.turn(i); turn {
				is(StateReady, 2) // one that waits for an earlier step is no reason to call the run ready
			}
		}
	}
	return state
}

// View shows the run. now is used for the elapsed time of a run that goes on.
func (r *Run) View(now Time) *View {
	if r.End != nil {
		now = r.End.At
	}
	v := &View{
		Tenant: r.Tenant, RunID: r.RunID, Workflow: r.Workflow, Owner: r.Owner, Actor: r.Actor, State: r.State(),
		Episode: r.Episode, More: r.More, Steps: []StepView{}, Budget: deadletter.BudgetOf(r.Budget),
		Spent:            r.Spent.Outcome(time.Duration(r.elapsed(now)) * time.Millisecond),
		CompletedEffects: r.completed(len(r.Effects)), History: []HistoryView{}, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Deadline: r.Deadline,
	}
	if r.End != nil {
		v.Outcome = r.End.Outcome
		if r.End.Row != nil {
			v.ReasonCode = r.End.Row.ReasonCode
		}
	}
	for _, s := range r.Steps {
		sv := StepView{Step: s.Name, Tool: s.Tool, Effect: s.Effect, State: s.State, Attempt: s.Attempt, NotBefore: s.NotBefore, Optional: s.Optional, StoppedBy: s.StoppedBy}
		if s.State == InDoubt && s.Doubt.Next > now {
			sv.NotBefore = s.Doubt.Next
		}
		if s.Fail != nil {
			sv.Code, sv.CommitState, sv.SafeDetails = s.Fail.Row.Code, s.Fail.Row.CommitState, s.Fail.Details
		} else if s.State == Done {
			sv.CommitState = envelope.Committed
		}
		v.Steps = append(v.Steps, sv)
	}
	for _, e := range r.History {
		v.History = append(v.History, HistoryView{
			At: e.At, Kind: e.Kind, By: e.By, Step: e.Step, Attempt: e.Attempt, Code: e.Code, CommitState: e.CommitState, Reason: e.Reason,
			StartedAt: e.Started, SentAt: e.SentAt, AnsweredAt: e.AnsweredAt, HTTPStatus: e.HTTPStatus, MCPCode: e.MCPCode, Owner: e.Owner,
		})
	}
	return v
}

// Leased adds who holds the run. sign is when the record was last written, by the server's clock: whoever writes while it
// holds the lease renews it.
func (v *View) Leased(l *Lease, sign, now Time) {
	if l == nil {
		return
	}
	v.Lease = &LeaseView{Worker: l.Worker, Holder: l.Holder, SignAt: sign, Seconds: l.Seconds, Left: max(0, l.Seconds-now.Sub(sign).Seconds())}
}

// Due is when somebody must look at the run although nobody holds it: zero for never. A run under a lease is its holder's
// business until the lease ends or the deadline passes,
// but for the lookups of its unknown steps, which need no lease.
func (r *Run) Due(now Time) Time {
	if r.End != nil {
		return 0
	}
	due := r.Deadline
	if r.Decided != nil {
		due = 0 // the deadline has no say any more
	}
	at := func(t Time) {
		if due == 0 || t < due {
			due = t
		}
	}
	for _, s := range r.Steps {
		if s.State == InDoubt && (r.Lease == nil || !s.Doubt.Resend) {
			at(max(s.Doubt.Next, 1))
		}
	}
	if r.Lease != nil {
		return due
	}
	n := r.Next(now)
	if len(n.Ready) > 0 || n.Expired {
		at(now)
	} else if n.At != 0 {
		at(n.At)
	}
	return due
}

// DueAfter is the first moment after t at which something of the run becomes due by itself: an attempt that waits, a resend,
// a lookup, the deadline. What is due at t is not looked at; zero for never. A run under a lease is its holder's business,
// but for its lookups and its deadline.
func (r *Run) DueAfter(t Time) Time {
	if r.End != nil {
		return 0
	}
	first := Time(0)
	at := func(due Time) {
		if due > t && (first == 0 || due < first) {
			first = due
		}
	}
	for _, s := range r.Steps {
		if s.State == InDoubt && !s.Doubt.Resend {
			at(s.Doubt.Next)
		}
	}
	if r.Decided != nil {
		return first
	}
	if r.Lease == nil {
		at(r.Next(t).At)
	}
	at(r.Deadline)
	return first
}
