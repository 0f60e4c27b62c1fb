package engine

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Start is what the driver brings to start a step: the ids it drew, and the lease it would hold.
type Start struct {
	Dispatch DispatchID
	LeaseID  string // used if the run has no lease yet
	Holder   string
	Seconds  float64 // length of the lease
	Worker   string  // the --id, for people
	// Random is a number in [0, 1) for the jitter of whatever this event makes wait.
	Random float64
}

// Dispatch is a call that may be made once its start is in the record and, for a write, its intent in the journal
// (intent-first).
type Dispatch struct {
	Step     string
	Tool     string
	Effect   envelope.Effect
	ID       DispatchID
	Attempt  int
	Proposal int
	Key      string
	Ref      string
	Args     *strictjson.Args // resolved
	Optional bool
	Proposed json.RawMessage // with its references, where there are any
	Deadline run.Time
	Due      run.Time // when an attempt that waited might leave; zero: it waited for no time
	// Timeout is the tool's when the step was started: a reload may take the tool away before the request leaves.
	Timeout time.Duration
}

// Begin starts a step whose turn has come: its tool is found, its args are resolved and validated, the actor is
// authorised, the call is reserved in the budget, and the step is executing under a lease. A step that may not start gets
// its end instead, and nil is returned; the record has changed in either case. Begin panics if the turn has not come.
func (r *Run) Begin(name string, tools run.Tools, st Start, now run.Time) *Dispatch {
	i := r.mustStart(name, now)
	s := r.Steps[i]
	defer r.conclude(now)
	s.Unchecked = false
	resend := s.State == run.Unknown
	tool, args, fail := r.prepare(i, tools)
	if (resend || s.Unsettled) && (fail != nil || args.Digest(s.Tool) != s.SentArgs || !r.mayResend(s, tool, now)) {
		// no-blind-repeat: the same key and bytes cannot be sent again, and what was sent is still unknown.
		last := envelope.Code("")
		if resend {
			last = s.Doubt.Row.Code
		}
		r.unverifiable(s, last, now)
		return nil
	}
	if fail != nil {
		r.fail(s, *fail, now)
		return nil
	}
	if !r.Spent.ReserveCall(r.Budget) {
		r.decide(Decision{Why: ByBudget, Code: envelope.CodeToolCallsExhausted, Step: s.Name, At: now})
		return nil
	}
	due := run.Time(0)
	if s.State == run.Waiting && !s.Postponed {
		due = s.NotBefore
	}
	s.Attempt++
	s.Used++
	s.to(run.Executing)
	s.Unsettled = s.Unsettled || resend
	s.Dispatch, s.NotBefore, s.Postponed, s.Doubt, s.Fail, s.Asked = st.Dispatch, 0, false, nil, nil, nil
	s.Key = r.key(s, tool)
	s.SentArgs = args.Digest(s.Tool)
	if s.FirstSent == 0 {
		s.FirstSent = now
	}
	if r.Lease == nil {
		r.Lease = &Lease{Holder: st.Holder, ID: st.LeaseID, Seconds: st.Seconds, Worker: st.Worker}
	} else if r.Lease.Holder != st.Holder {
		panic("run: one-lease: started under another holder's lease: " + r.dump())
	}
	r.note(Event{At: now, Started: now, Kind: EventDispatch, By: st.Worker, Step: s.Name, Attempt: s.Attempt, Dispatch: st.Dispatch})
	d := &Dispatch{
		Step: s.Name, Tool: s.Tool, Effect: s.Effect, ID: s.Dispatch, Attempt: s.Attempt, Proposal: s.Proposal, Key: s.Key,
		Ref: r.Ref(s.Name), Args: args, Optional: s.Optional, Deadline: r.Deadline, Due: due,
		Timeout: tool.Timeout,
	}
	if s.mayRefer() {
		d.Proposed = s.Args.Text()
	}
	return d
}

func (r *Run) mustStart(name string, now run.Time) int {
	if r.End != nil || r.Decided != nil {
		panic("run: one-end: started after the end was decided: " + r.dump())
	}
	for i, s := range r.Steps {
		if s.Name != name {
			continue
		}
		at, turn := r.turn(i)
		if s.State == run.Unknown && s.Doubt.Resend {
			at, turn = s.Doubt.Next, true
		} else if r.inDoubt() {
			panic("run: blocked-by-unknown: " + r.dump())
		}
		if !turn || at > now && !s.Postponed {
			panic("run: no-blind-repeat: step " + name + " started before its turn: " + r.dump())
		}
		return i
	}
	panic("run: no step " + name + ": " + r.dump())
}

// key is the idempotency key of the next dispatch (contract §1).
func (r *Run) key(s *Step, t *run.Tool) string {
	k := r.Ref(s.Name)
	if s.Proposal > 1 {
		k += ".p" + strconv.Itoa(s.Proposal)
	}
	if t.KeyPerAttempt {
		k += ".a" + strconv.Itoa(s.Attempt)
	}
	return k
}

// prepare does everything that must hold before a dispatch, in the boundary's order: tool, references, args, permission,
// approval, attempts.
func (r *Run) prepare(i int, tools run.Tools) (*run.Tool, *strictjson.Args, *Fail) {
	s := r.Steps[i]
	tool, ok := tools.Tool(s.Tool)
	if !ok {
		return nil, nil, failure(envelope.CodeUnknownTool, nil)
	}
	s.Effect, s.Owner = tool.Effect, tool.Owner
	if s.Used >= r.attempts(tool) {
		return nil, nil, r.exhausted(Fail{})
	}
	args, bad, err := r.resolve(i)
	switch {
	case errors.Is(err, strictjson.ErrUnresolved):
		return nil, nil, failure(envelope.CodeReferenceUnresolved, envelope.Details{"field": clip(bad)})
	case err != nil || args == nil || args.Text()[0] != '{':
		return nil, nil, failure(envelope.CodeInvalidArgument, nil)
	}
	if tool.Fits != nil {
		if field, ok := tool.Fits(args); !ok {
			return nil, nil, failure(envelope.CodeInvalidArgument, envelope.Details{"field": clip(field)})
		}
	}
	if tool.Allowed != nil && !tool.Allowed(r.Tenant, r.Actor) {
		return nil, nil, failure(envelope.CodeNotAuthorized, nil)
	}
	if tool.RequiresApproval && s.Approved != args.Digest(s.Tool) {
		s.Asked, s.AskedSum, s.Approved = args.Text(), args.Digest(s.Tool), ""
		if !r.fits(len(s.Asked)) {
			s.Asked = nil // the digest says what is approved
		}
		return nil, nil, failure(envelope.CodeMissingApproval, nil)
	}
	return tool, args, nil
}

func failure(code envelope.Code, details envelope.Details) *Fail {
	return &Fail{Row: envelope.RowFor(code, envelope.Read), Details: details}
}

// exhausted is the end of a step whose attempts are used up; last is how the last one failed.
func (r *Run) exhausted(last Fail) *Fail {
	f := failure(envelope.CodeAttemptsExhausted, last.Details)
	if last.Row.Code != "" {
		f.Details = with(f.Details, "last_code", string(last.Row.Code))
	}
	return f
}

// attempts is the attempt budget of a step per episode.
func (r *Run) attempts(t *run.Tool) int {
	n := int(min(r.Budget.MaxAttemptsPerStep, 1<<30))
	if t != nil && t.Retry.MaxAttempts > 0 {
		n = min(n, t.Retry.MaxAttempts)
	}
	return n
}

// proposalsLeft is how many further proposals the step may get in this episode.
func (r *Run) proposalsLeft(s *Step) int {
	n := int(min(r.Budget.MaxAttemptsPerStep, 1<<30))
	return max(0, min(n-s.Proposals, n-s.Used))
}

// fail ends a step, or lets it wait, by a failure that is established as it stands: fatal or held.
func (r *Run) fail(s *Step, f Fail, now run.Time) {
	s.Doubt = nil
	s.Fail = &f
	if f.Row.Outcome == envelope.NeedsHuman {
		s.to(run.NeedsHuman)
	} else {
		s.to(run.Fatal)
	}
	o := r.owe(s, f.Row.Outcome, now)
	if f.Row.Directive == envelope.AfterInputFix {
		o.Left = r.proposalsLeft(s)
	}
	o.NotBefore = s.NotBefore
	if s.State == run.Fatal && r.More && !s.Optional {
		r.stop(s)
	}
}

// stop keeps the steps accepted so far from starting behind a fatal one in an open run (contract §3).
func (r *Run) stop(by *Step) {
	after := false
	for _, s := range r.Steps {
		if s == by {
			after = true
			continue
		}
		if after && s.waits() && s.Attempt == 0 && s.StoppedBy == "" && !s.Waived {
			s.StoppedBy = by.Name
			if s.State == run.Waiting {
				s.to(run.Ready) // it waited for a slot of its tool
				s.NotBefore = 0
			}
		}
	}
}
