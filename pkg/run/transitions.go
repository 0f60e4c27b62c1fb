package run

// Transition is one edge of a step's state machine: docs/state-machine.md is printed from this table, and to() allows
// nothing else.
type Transition struct {
	From, To State
	When     string
}

// Transitions lists every edge, in the order in which a job meets them.
func Transitions() []Transition { return transitions }

var transitions = []Transition{
	{"", Ready, "a job with the step is accepted"},
	{Ready, Executing, "its turn has come, it may be called, the call is reserved in the budget, and the holder has the lease"},
	{Ready, Waiting, "the tool has no slot or token free, or the next attempt has a time"},
	{Ready, Failed, "it may not be called: unknown tool, unresolved reference, invalid args, not authorised"},
	{Ready, Held, "it needs an approval, its attempts are used up, or the deadline or a budget cuts it off after a dispatch"},
	{Ready, Done, "late proof that an earlier dispatch was committed"},
	{Ready, InDoubt, "a journal restores a write whose end it does not know, after the store was lost"},
	{Ready, Stopped, "the run is cancelled"},
	{Waiting, Executing, "its time has come"},
	{Waiting, Waiting, "the tool still has no slot or token free"},
	{Waiting, Ready, "replay, or it waited for its tool only, and the run ends or a fatal step stops it"},
	{Waiting, Failed, "it may not be called any more"},
	{Waiting, Held, "the deadline or a budget cuts it off, or it needs an approval"},
	{Waiting, Done, "late proof that an earlier dispatch was committed"},
	{Waiting, Stopped, "the run is cancelled"},
	{Executing, Done, "the reply, a lookup or a report proves it done"},
	{Executing, Waiting, "nothing was done, and another attempt is allowed later"},
	{Executing, Ready, "a read's lease ended, or the holder gave it back while draining"},
	{Executing, InDoubt, "a write may have been done: no reply, a reply that proves nothing, the lease ended, or verify.always"},
	{Executing, Failed, "nothing was done, and another attempt cannot help"},
	{Executing, Held, "attempts exhausted, a write that cannot be looked up, a disputed one, poison, or the deadline cut a read off"},
	{Executing, Stopped, "the run is cancelled and the read was cut off, or its next attempt is dropped"},
	{InDoubt, Done, "a lookup, a report or late evidence proves it committed"},
	{InDoubt, Ready, "a lookup sent after the consistency window proves it absent, and an attempt is left"},
	{InDoubt, Executing, "the tool promises idempotent_for: the same key and bytes are sent again"},
	{InDoubt, Waiting, "its own late reply says that nothing was done, and another attempt is allowed later"},
	{InDoubt, Failed, "its own late reply says that nothing was done and another attempt cannot help, or a lookup says that the far side gave it up for good"},
	{InDoubt, Held, "it cannot be established, is disputed, or is absent with no attempt left or past the deadline"},
	{InDoubt, Stopped, "a lookup proves it absent after the run was cancelled"},
	{Failed, Ready, "amendment, replay, or a person resolves kept evidence as not committed"},
	{Failed, Done, "a person resolves kept evidence as committed"},
	{Held, Ready, "replay, approval, or a person resolves it as not committed"},
	{Held, Done, "a person resolves it as committed, or proof arrives before the episode ends"},
	{Stopped, Ready, "replay of a cancelled run that an unknown write had left to a person"},
	{Stopped, Done, "a person resolves kept evidence as committed"},
}

var allowed = func() map[[2]State]bool {
	m := make(map[[2]State]bool, len(transitions))
	for _, t := range transitions {
		m[[2]State{t.From, t.To}] = true
	}
	return m
}()

// to is the only place that assigns a step's state after its creation.
func (s *Step) to(next State) {
	if !allowed[[2]State{s.State, next}] {
		panic("run: step " + s.Name + " cannot go from " + string(s.State) + " to " + string(next))
	}
	s.State = next
	if next != Waiting {
		s.WaitFrom = 0
	}
}
