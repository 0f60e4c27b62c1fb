package run

import "github.com/agentrun/executor/pkg/envelope"

// State is what a step is doing.
type State string

const (
	Ready      State = "ready"
	Executing  State = "executing"
	Waiting    State = "waiting"
	Unknown    State = "unknown"
	OK         State = "ok"
	Fatal      State = "fatal"
	NeedsHuman State = "needs_human"
	Cancelled  State = "cancelled"
)

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
