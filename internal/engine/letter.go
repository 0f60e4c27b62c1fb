package engine

import (
	"encoding/json"
	"time"

	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/run"
)

// situation is what the rules about a letter's actions look at.
func (r *Run) situation() situation {
	return situation{
		ReasonCode: r.End.Row.ReasonCode, Readable: r.Invalid == nil, Replays: r.Replays, Open: r.letterOpen(), Evidence: r.letterEvidence(),
	}
}

// BuildLetter makes the image of the record's letter: the same record always gives the same letter. The record must have
// one.
func (r *Run) BuildLetter() *deadletter.Letter {
	e := r.End
	l := &deadletter.Letter{Summary: deadletter.Summary{
		Schema: deadletter.Schema, ID: r.Letter.ID, Tenant: r.Tenant, RunID: r.RunID, Workflow: r.Workflow,
		Owner: r.Letter.Owner, Actor: r.Actor, Intent: r.Intent, Outcome: e.Outcome, ReasonCode: e.Row.ReasonCode, Code: e.Row.Code,
		FailureClass: e.Row.Category, CommitState: e.Row.CommitState, NextAction: e.Row.NextAction, SafeDetails: e.Details,
		CompletedEffects: r.completed(len(r.Effects)), RemainingSteps: r.remaining(nil), Open: r.letterOpen(), Evidence: r.letterEvidence(),
		Replays: r.Replays, Budget: budgetOf(r.Budget), Spent: *r.Spent.Outcome(time.Duration(r.elapsed(e.At)) * time.Millisecond),
		CreatedAt: r.Letter.At, AssignedAt: r.Letter.Assigned,
	}}
	if c := r.Letter.Claim; c != nil {
		l.Claim = &deadletter.Claim{By: c.By, Until: c.Until}
	}
	if r.Invalid != nil {
		l.Raw, l.RawSize = r.Invalid.Raw, r.Invalid.Size
	}
	if s := r.Step(e.Step); s != nil {
		l.Step, l.Tool, l.OperationRef = s.Name, s.Tool, r.Ref(s.Name)
		l.Request = r.shown(s)
	}
	l.Attempts = r.attemptsOf()
	l.AllowedActions = actionsOf(r.situation()).Actions
	trimLetter(l, within(deadletter.MaxBytes, r.messageMax))
	return l
}

// shown are a step's args as a person should see them: resolved where they can be.
func (r *Run) shown(s *Step) json.RawMessage {
	if s.Asked != nil {
		return s.Asked
	}
	for i := range r.Steps {
		if r.Steps[i] == s {
			if args, _, err := r.substitute(i); err == nil {
				return args
			}
		}
	}
	return s.Args.Text()
}

func (r *Run) letterOpen() []deadletter.Open {
	open := []deadletter.Open{}
	for _, s := range r.openSteps() {
		o := deadletter.Open{Step: s.Name, Tool: s.Tool, OperationRef: r.Ref(s.Name), Attempt: s.Attempt, CommitState: s.commitState()}
		if s.Fail != nil {
			o.ReasonCode, o.SafeDetails = s.Fail.Row.ReasonCode, s.Fail.Details
		} else {
			o.ReasonCode = r.End.Row.ReasonCode
		}
		if s.State == run.NeedsHuman && o.ReasonCode == deadletter.ReasonApprovalRequired {
			o.ArgsDigest, o.Args, o.ArgsOmitted = s.AskedSum, s.Asked, s.Asked == nil
		}
		open = append(open, o)
	}
	return open
}

func (r *Run) letterEvidence() []deadletter.Evidence {
	var out []deadletter.Evidence
	for _, k := range r.Evidence {
		out = append(out, deadletter.Evidence{Step: k.Step, Attempt: k.Attempt, CommitState: k.CommitState, EvidenceRef: k.EvidenceRef, By: k.By, At: k.At})
	}
	return out
}

// attemptsOf lists every dispatch and lookup of the steps that did not end ok.
func (r *Run) attemptsOf() []deadletter.Attempt {
	out := []deadletter.Attempt{}
	for i := range r.History {
		e := &r.History[i]
		if e.Kind != EventDispatch && e.Kind != EventVerify {
			continue
		}
		if s := r.Step(e.Step); s == nil || s.State == run.OK {
			continue
		}
		a := deadletter.Attempt{
			Step: e.Step, Attempt: e.Attempt, Kind: deadletter.AttemptKind(e.Kind), Worker: e.By, StartedAt: e.Started, EndedAt: e.At,
			Code: e.Code, CommitState: e.CommitState, SentAt: e.SentAt, AnsweredAt: e.AnsweredAt, HTTPStatus: e.HTTPStatus, MCPCode: e.MCPCode,
		}
		out = append(out, a)
	}
	return out
}

// AlarmsOwed are the alerts that the record owes besides those that follow from its end.
func (r *Run) AlarmsOwed() []Alarm {
	return append([]Alarm(nil), r.Alarms[min(r.AlarmsPub, len(r.Alarms)):]...)
}

// AlarmPublished records that alarms up to n are in the stream; the next write of the record keeps it.
func (r *Run) AlarmPublished(n int) { r.AlarmsPub = max(r.AlarmsPub, n) }

// AlarmAlert is the message of an alarm.
func (r *Run) AlarmAlert(a Alarm) deadletter.Alert {
	out := deadletter.Alert{
		Schema: deadletter.AlertSchema, Tenant: r.Tenant, Owner: r.Owner, ReasonCode: a.Reason, Severity: deadletter.Page, RunID: r.RunID,
		Workflow: r.Workflow, Count: 1, FirstAt: a.At, At: a.At, Summary: SummaryOf(a.Reason),
	}
	if s := r.Step(a.Step); s != nil {
		out.Tool = s.Tool
		if s.Owner != "" {
			out.Owner = s.Owner
		}
	}
	return out
}
