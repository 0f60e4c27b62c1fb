package run

import (
	"encoding/json"

	"github.com/agentrun/executor/pkg/envelope"
)

// Payload is what a step was asked and what it gave.
type Payload struct {
	Step string `json:"step"`
	Tool string `json:"tool"`
	// Args are the current proposal's, resolved as far as they can be. A run that ended ok or cancelled has forgotten them.
	Args json.RawMessage `json:"args,omitempty"`
	// Result is there where the step is ok and its result is still known.
	Result    json.RawMessage     `json:"result,omitempty"`
	ResultRef *envelope.ObjectRef `json:"result_ref,omitempty"` // of one that lies in the object store
	Omitted   []string            `json:"omitted,omitempty"`    // args or result: there, and too large for this reply
}
