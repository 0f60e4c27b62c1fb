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

// Payloads are the args and results of all steps, as far as the record knows them or they have been read back (Fetched).
func (r *Run) Payloads() []Payload {
	out := make([]Payload, len(r.Steps))
	for i, s := range r.Steps {
		p := Payload{Step: s.Name, Tool: s.Tool, Args: r.shown(s)}
		if s.State == Done {
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
		if s.State == Done && len(s.Result) == 0 && !s.Omitted && s.ResultRef == nil && s.OutcomeSeq != 0 {
			out[s.Name] = s.OutcomeSeq
		}
	}
	return out
}
