package engine

import (
	"cmp"
	"slices"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Restored makes the record of a run that a journal knows and the store has lost. It has no steps yet: Merge adds what the
// journal's facts prove. It stays open until its job comes again, or until its deadline.
func Restored(f Fact, d Defaults, now run.Time) *Run {
	in := &f.Intent
	d.Owner, d.Workflow, d.Actor = cmp.Or(in.Owner, d.Owner), cmp.Or(in.Workflow, d.Workflow), cmp.Or(in.Actor, d.Actor)
	r := blank(run.ID{Tenant: in.Tenant, Run: in.RunID}, nil, Message{Queue: in.Queue}, d, now)
	r.Intent, r.Budget, r.More, r.Restored = in.Purpose, in.Budget, true, true
	r.Deadline = now.Add(r.Budget.Elapsed())
	r.History = nil
	r.note(Event{At: now, Kind: EventRestored})
	return r
}

// MergeAll merges all that a journal knows of the run, in any order, before anything follows from it: what the first fact
// says may end the run, and what the next ones say belongs to the same end.
func (r *Run) MergeAll(facts []Fact, tools run.Tools, src Source) Verdict {
	v := Dropped
	r.merging = true
	for _, f := range facts {
		if one := r.Merge(f, tools, src); one == Applied || v == Dropped {
			v = one
		}
	}
	if r.merging = false; v != Dropped {
		r.conclude(src.At)
	}
	return v
}

// Merge applies one fact of a journal to a record that was made anew or comes from an older copy of the store: an effect
// makes its step ok, an intent without one makes it unknown. A record that knows the dispatch gets it as evidence.
func (r *Run) Merge(f Fact, tools run.Tools, src Source) Verdict {
	in := &f.Intent
	if f.NeverSent() {
		return Dropped
	}
	if s := r.Carrying(in.Dispatch); s != nil || r.dispatched(in.Dispatch) != nil {
		return r.mergeKnown(s, f, tools, src)
	}
	s := r.Step(in.Step)
	reply := envelope.Reply{NoReply: true, Row: envelope.RowFor(envelope.CodeOutcomeUnknown, envelope.Write)}
	if f.Effect != nil {
		reply = f.Effect.Reply
	}
	// idempotent_for counts from the first dispatch under the key, in whatever order the journals tell of them.
	earlier := s != nil && s.Key == in.Key && in.At < s.FirstSent
	if earlier {
		s.FirstSent = in.At
	}
	if s != nil && in.Attempt > s.Attempt && (s.State == run.Executing || s.State == run.Unknown && (reply.OK || !s.Doubt.Resend)) {
		// A later dispatch was made, so the earlier one had been settled as not committed before it, or may be repeated.
		s.to(run.Ready)
		s.Doubt, s.Fail = nil, nil
	}
	if s != nil && s.refused(in) && reply.OK {
		s.to(run.Ready)
		s.Doubt, s.Fail = nil, nil
		s.Attempt--
		r.Spent.ReleaseCall()
	}
	if s != nil && s.State == run.Fatal && in.Proposal > s.Proposal && r.End == nil && !r.contradicted(s) {
		s.to(run.Ready) // other args came after it had failed, and the copy does not know them yet
		s.Fail, s.NotBefore = nil, 0
	}
	if s != nil && (s.State != run.Ready && s.State != run.Waiting || r.End != nil) {
		defer r.conclude(src.At)
		if v := r.mergeBeside(s, in, reply, src); v != Dropped || !earlier {
			return v
		}
		return Noted
	}
	if s == nil {
		if r.End != nil {
			return Dropped
		}
		// Also where the end is decided: that the journal knows of the step means that it was begun before.
		s = &Step{
			Name: in.Step, Tool: in.Tool, Optional: in.Optional, State: run.Ready, Proposals: 1,
		}
		r.Steps = append(r.Steps, s)
	}
	if p := max(in.Proposal, 1); p > s.Proposal {
		text := in.Proposed
		if text == nil {
			text = in.Args
		}
		s.Proposal = p
		s.Args, _ = strictjson.ParseArgs(text, strictjson.Bounds{})
		s.Digest = digest(s.Tool, s.Args)
	}
	defer r.conclude(src.At)
	tool, _ := tools.Tool(in.Tool)
	if tool != nil {
		s.Owner = tool.Owner
	}
	s.Effect, s.Dispatch, s.Key, s.SentArgs = envelope.Write, in.Dispatch, in.Key, strictjson.ArgsDigest(in.Tool, in.Args)
	s.Attempt = max(s.Attempt+1, in.Attempt)
	if s.FirstSent == 0 {
		s.FirstSent = in.At
	}
	r.Spent.ToolCalls = min(r.Spent.ToolCalls+1, r.Budget.MaxToolCalls)
	r.note(Event{At: src.At, Started: in.At, Kind: EventDispatch, By: src.By, Step: s.Name, Attempt: s.Attempt, Dispatch: in.Dispatch, Code: replyCode(reply), CommitState: replyCommit(reply, envelope.Write)})
	r.see(in.Dispatch, reply.Seen)
	switch {
	case reply.OK && !s.mustLookUp(reply, tool):
		if s.State != run.Ready {
			s.to(run.Ready)
		}
		r.done(s, committed{result: reply.Result, ref: reply.Ref, evidRef: reply.EvidenceRef, proof: "reply"}, src.At)
	case !reply.OK && !reply.NoReply && reply.Row.CommitState == envelope.NotCommitted:
		// Nothing was done: the step is as ready as the record says.
	default:
		if s.State != run.Ready {
			s.to(run.Ready)
		}
		r.doubt(s, Fail{Row: unknownRow(reply.Row), Details: reply.Details}, tool, src, reply.OK)
		if s.Doubt != nil {
			s.Doubt.Journal = f.Effect == nil
		}
	}
	return Applied
}

// refused: what the step carries is known from one journal alone, and another journal knows of another dispatch of the same
// attempt. A record gives an attempt to one dispatch only, so it had refused the one that is carried, which never left.
func (s *Step) refused(in *Intent) bool {
	return s.State == run.Unknown && s.Doubt.Journal && in.Attempt == s.Attempt && in.Proposal == s.Proposal && in.Key == s.Key
}

// mergeBeside: the record knows the step and not this dispatch of it, and the step is under way or has ended. What has ended
// stays ended: proof of a commit is late evidence like any other. A later attempt that nobody knows the end of was made after
// an answer of a person's that the copy does not know; it is kept, so that nothing goes out again before a person has
// looked. One of an attempt that the record has given to another dispatch was refused by the record, and never left.
func (r *Run) mergeBeside(s *Step, in *Intent, reply envelope.Reply, src Source) Verdict {
	switch {
	case reply.OK:
		return r.lateCommit(s, in.Dispatch, committed{result: reply.Result, ref: reply.Ref, evidRef: reply.EvidenceRef, proof: "reply"}, src)
	case !reply.NoReply && reply.Row.CommitState == envelope.NotCommitted, in.Attempt <= s.Attempt:
		return Dropped
	case s.State == run.OK || s.State == run.Executing || s.State == run.Unknown || s.commitState() != envelope.NotCommitted:
		return Dropped // it is done, or to be settled in any case
	case !r.keep(s, in.Dispatch, envelope.Unknown, "", src):
		return Dropped
	}
	return Noted
}

// mergeKnown: the record knows the dispatch. One of this journal that is still executing has lost its worker.
func (r *Run) mergeKnown(s *Step, f Fact, tools run.Tools, src Source) Verdict {
	if f.Effect != nil {
		return r.Reply(f.Intent.Dispatch, f.Effect.Reply, tools, src)
	}
	if s == nil || s.State != run.Executing || r.Lease == nil {
		return Dropped
	}
	return r.LeaseEnded(tools, src)
}

// adopt makes the first job that comes for a restored run what it would have been: its header, and its order of steps.
func (r *Run) adopt(j *run.Job, m Message, d Defaults) {
	r.Restored = false
	fresh := blank(r.ID(), j, m, d, r.CreatedAt)
	r.Workflow, r.Owner, r.Actor, r.Intent, r.Queue, r.Trace = fresh.Workflow, fresh.Owner, fresh.Actor, fresh.Intent, m.Queue, m.Trace
	if limits := budget.Fill(j.Budget, d.Budget); budget.Exceeds(limits, d.MaxBudget) == "" {
		limits.MaxToolCalls = max(limits.MaxToolCalls, r.Spent.ToolCalls)
		r.Budget = limits
	}
	if j.Priority != nil {
		r.Priority = *j.Priority
	}
}

// reorder puts the steps in the job's order, those it does not name first.
func (r *Run) reorder(j *run.Job) {
	place := make(map[string]int, len(j.Steps))
	for i := range j.Steps {
		place[j.Steps[i].Step] = i + 1
	}
	slices.SortStableFunc(r.Steps, func(a, b *Step) int { return cmp.Compare(place[a.Name], place[b.Name]) })
	for _, s := range r.Steps {
		if i := place[s.Name]; i > 0 {
			s.Optional, s.Parallel = j.Steps[i-1].Optional, j.Parallel
		}
	}
}
