package engine

import (
	"time"

	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// State is the run's state as operators see it: of a run that has not ended the first that applies of cancelling, unknown,
// running, ready, waiting, open.
func (r *Run) State() string {
	if r.End != nil {
		return string(r.End.Outcome)
	}
	if r.Cancel != nil {
		return run.StateCancelling
	}
	state, rank := run.StateOpen, 0
	is := func(what string, n int) {
		if n > rank {
			state, rank = what, n
		}
	}
	for i, s := range r.Steps {
		switch s.State {
		case run.Unknown:
			is(run.StateUnknown, 4)
		case run.Executing:
			is(run.StateRunning, 3)
		case run.Waiting:
			is(run.StateWaiting, 1)
		case run.Ready:
			if _, turn := r.turn(i); turn {
				is(run.StateReady, 2) // one that waits for an earlier step is no reason to call the run ready
			}
		}
	}
	return state
}

// View shows the run. now is used for the elapsed time of a run that goes on.
func (r *Run) View(now run.Time) *run.View {
	if r.End != nil {
		now = r.End.At
	}
	v := &run.View{
		Tenant: r.Tenant, RunID: r.RunID, Workflow: r.Workflow, Owner: r.Owner, Actor: r.Actor, State: r.State(),
		Episode: r.Episode, More: r.More, Steps: []run.StepView{}, Budget: budgetOf(r.Budget),
		Spent:            r.Spent.Outcome(time.Duration(r.elapsed(now)) * time.Millisecond),
		CompletedEffects: r.completed(len(r.Effects)), History: []run.HistoryView{}, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Deadline: r.Deadline,
	}
	if r.End != nil {
		v.Outcome = r.End.Outcome
		if r.End.Row != nil {
			v.ReasonCode = r.End.Row.ReasonCode
		}
	}
	for _, s := range r.Steps {
		sv := run.StepView{Step: s.Name, Tool: s.Tool, Effect: s.Effect, State: s.State, Attempt: s.Attempt, NotBefore: s.NotBefore, Optional: s.Optional, StoppedBy: s.StoppedBy}
		if s.State == run.Unknown && s.Doubt.Next > now {
			sv.NotBefore = s.Doubt.Next
		}
		if s.Fail != nil {
			sv.Code, sv.CommitState, sv.SafeDetails = s.Fail.Row.Code, s.Fail.Row.CommitState, s.Fail.Details
		} else if s.State == run.OK {
			sv.CommitState = envelope.Committed
		}
		v.Steps = append(v.Steps, sv)
	}
	for _, e := range r.History {
		v.History = append(v.History, run.HistoryView{
			At: e.At, Kind: e.Kind, By: e.By, Step: e.Step, Attempt: e.Attempt, Code: e.Code, CommitState: e.CommitState, Reason: e.Reason,
			StartedAt: e.Started, SentAt: e.SentAt, AnsweredAt: e.AnsweredAt, HTTPStatus: e.HTTPStatus, MCPCode: e.MCPCode, Owner: e.Owner,
		})
	}
	return v
}

// Held says who holds the run, nil for nobody. sign is when the record was last written, by the server's clock: whoever
// writes while it holds the lease renews it.
func (r *Run) Held(sign, now run.Time) *run.LeaseView {
	l := r.Lease
	if l == nil {
		return nil
	}
	return &run.LeaseView{Worker: l.Worker, Holder: l.Holder, SignAt: sign, Seconds: l.Seconds, Left: max(0, l.Seconds-now.Sub(sign).Seconds())}
}

// Due is when somebody must look at the run although nobody holds it: zero for never. A run under a lease is its holder's
// business until the lease ends or the deadline passes, but for the lookups of its unknown steps, which need no lease.
func (r *Run) Due(now run.Time) run.Time {
	if r.End != nil {
		return 0
	}
	due := r.Deadline
	if r.Decided != nil {
		due = 0 // the deadline has no say any more
	}
	at := func(t run.Time) {
		if due == 0 || t < due {
			due = t
		}
	}
	for _, s := range r.Steps {
		if s.State == run.Unknown && (r.Lease == nil || !s.Doubt.Resend) {
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
func (r *Run) DueAfter(t run.Time) run.Time {
	if r.End != nil {
		return 0
	}
	first := run.Time(0)
	at := func(due run.Time) {
		if due > t && (first == 0 || due < first) {
			first = due
		}
	}
	for _, s := range r.Steps {
		if s.State == run.Unknown && !s.Doubt.Resend {
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

// Payloads are the args and results of all steps, as far as the record knows them or they have been read back (Fetched).
func (r *Run) Payloads() []run.Payload {
	out := make([]run.Payload, len(r.Steps))
	for i, s := range r.Steps {
		p := run.Payload{Step: s.Name, Tool: s.Tool, Args: r.shown(s)}
		if s.State == run.OK {
			p.Result, p.ResultRef = s.Result, s.ResultRef
			if len(p.Result) == 0 {
				p.Result = r.fetched[s.Name]
			}
		}
		out[i] = p
	}
	return out
}

// Stored lists the results that lie in AGENTRUN_RESULTS only: step name to the sequence of its ok outcome.
func (r *Run) Stored() map[string]uint64 {
	out := map[string]uint64{}
	for _, s := range r.Steps {
		if s.State == run.OK && len(s.Result) == 0 && !s.Omitted && s.ResultRef == nil && s.OutcomeSeq != 0 {
			out[s.Name] = s.OutcomeSeq
		}
	}
	return out
}
