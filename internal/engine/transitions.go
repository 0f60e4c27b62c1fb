package engine

import (
	"github.com/agentrun/executor/pkg/run"
)

// Transition is one edge of a step's state machine: docs/state-machine.md is printed from this table, and to() allows
// nothing else.
type Transition struct {
	From, To run.State
	When     string
}

// Transitions lists every edge, in the order in which a job meets them.
func Transitions() []Transition { return transitions }

var transitions = []Transition{
	{"", run.Ready, "a job with the step is accepted"},
	{run.Ready, run.Executing, "its turn has come, it may be called, the call is reserved in the budget, and the holder has the lease"},
	{run.Ready, run.Waiting, "the tool has no slot or token free, or the next attempt has a time"},
	{run.Ready, run.Fatal, "it may not be called: unknown tool, unresolved reference, invalid args, not authorised"},
	{run.Ready, run.NeedsHuman, "it needs an approval, its attempts are used up, or the deadline or a budget cuts it off after a dispatch"},
	{run.Ready, run.OK, "late proof that an earlier dispatch was committed"},
	{run.Ready, run.Unknown, "a journal restores a write whose end it does not know, after the store was lost"},
	{run.Ready, run.Cancelled, "the run is cancelled"},
	{run.Waiting, run.Executing, "its time has come"},
	{run.Waiting, run.Waiting, "the tool still has no slot or token free"},
	{run.Waiting, run.Ready, "replay, or it waited for its tool only, and the run ends or a fatal step stops it"},
	{run.Waiting, run.Fatal, "it may not be called any more"},
	{run.Waiting, run.NeedsHuman, "the deadline or a budget cuts it off, or it needs an approval"},
	{run.Waiting, run.OK, "late proof that an earlier dispatch was committed"},
	{run.Waiting, run.Cancelled, "the run is cancelled"},
	{run.Executing, run.OK, "the reply, a lookup or a report proves it done"},
	{run.Executing, run.Waiting, "nothing was done, and another attempt is allowed later"},
	{run.Executing, run.Ready, "a read's lease ended, or the holder gave it back while draining"},
	{run.Executing, run.Unknown, "a write may have been done: no reply, a reply that proves nothing, the lease ended, or verify.always"},
	{run.Executing, run.Fatal, "nothing was done, and another attempt cannot help"},
	{run.Executing, run.NeedsHuman, "attempts exhausted, a write that cannot be looked up, a disputed one, poison, or the deadline cut a read off"},
	{run.Executing, run.Cancelled, "the run is cancelled and the read was cut off, or its next attempt is dropped"},
	{run.Unknown, run.OK, "a lookup, a report or late evidence proves it committed"},
	{run.Unknown, run.Ready, "a lookup sent after the consistency window proves it absent, and an attempt is left"},
	{run.Unknown, run.Executing, "the tool promises idempotent_for: the same key and bytes are sent again"},
	{run.Unknown, run.Waiting, "its own late reply says that nothing was done, and another attempt is allowed later"},
	{run.Unknown, run.Fatal, "its own late reply says that nothing was done and another attempt cannot help, or a lookup says that the far side gave it up for good"},
	{run.Unknown, run.NeedsHuman, "it cannot be established, is disputed, or is absent with no attempt left or past the deadline"},
	{run.Unknown, run.Cancelled, "a lookup proves it absent after the run was cancelled"},
	{run.Fatal, run.Ready, "amendment, replay, or a person resolves kept evidence as not committed"},
	{run.Fatal, run.OK, "a person resolves kept evidence as committed"},
	{run.NeedsHuman, run.Ready, "replay, approval, or a person resolves it as not committed"},
	{run.NeedsHuman, run.OK, "a person resolves it as committed, or proof arrives before the episode ends"},
	{run.Cancelled, run.Ready, "replay of a cancelled run that an unknown write had left to a person"},
	{run.Cancelled, run.OK, "a person resolves kept evidence as committed"},
}

var allowed = func() map[[2]run.State]bool {
	m := make(map[[2]run.State]bool, len(transitions))
	for _, t := range transitions {
		m[[2]run.State{t.From, t.To}] = true
	}
	return m
}()

// to is the only place that assigns a step's state after its creation.
func (s *Step) to(next run.State) {
	if !allowed[[2]run.State{s.State, next}] {
		panic("run: step " + s.Name + " cannot go from " + string(s.State) + " to " + string(next))
	}
	s.State = next
	if next != run.Waiting {
		s.WaitFrom = 0
	}
}
