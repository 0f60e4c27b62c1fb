package engine

import (
	"encoding/json"

	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// DispatchID names one dispatch of a step: a random id that is in the record with executing, in the journal with the
// intent, and in everything said later about that dispatch. It is the fence of the protocol.
type DispatchID string

// Entry is one durable fact of a journal: exactly one of the fields is set.
type Entry struct {
	Intent *Intent
	Effect *EffectFact
	// Settled marks a dispatch as needing nothing more at the next start. It may be written lazily: losing it costs one
	// look at the record.
	Settled DispatchID
}

// Intent says that this executor means to send a write. It holds what is needed to make the run's record again if the
// NATS store is lost.
type Intent struct {
	Dispatch DispatchID      `json:"dispatch"`
	Tenant   string          `json:"tenant"`
	RunID    string          `json:"run_id"`
	Queue    string          `json:"queue"`
	Workflow string          `json:"workflow,omitempty"`
	Owner    string          `json:"owner,omitempty"`
	Actor    string          `json:"actor,omitempty"`
	Purpose  string          `json:"intent,omitempty"`
	Budget   budget.Limits   `json:"budget"`
	Step     string          `json:"step"`
	Tool     string          `json:"tool"`
	Args     json.RawMessage `json:"args"`               // resolved
	Proposed json.RawMessage `json:"proposed,omitempty"` // as the job had them, if $from made a difference
	Optional bool            `json:"optional,omitempty"`
	Attempt  int             `json:"attempt"`
	Proposal int             `json:"proposal"`
	Key      string          `json:"key"`
	At       envelope.Time   `json:"at"`
}

// EffectFact is what came back for a dispatch.
type EffectFact struct {
	Dispatch DispatchID     `json:"dispatch"`
	Reply    envelope.Reply `json:"reply"`
	At       envelope.Time  `json:"at"`
}

// NeverSent is what a journal keeps of a dispatch that its record refused: nothing left, and nothing was charged. Of the
// intent alone one would have to believe that the request may have been sent.
func NeverSent(d DispatchID, at run.Time) *EffectFact {
	return &EffectFact{Dispatch: d, Reply: envelope.Reply{NotSent: true}, At: at}
}

// NeverSent tells it from a reply that says the same of a dispatch that the record has.
func (f *Fact) NeverSent() bool {
	return f.Effect != nil && f.Effect.Reply.NotSent && f.Effect.Reply.Row.Code == ""
}

// Fact is what a journal knows of one dispatch, as read back at start.
type Fact struct {
	Intent  Intent
	Effect  *EffectFact // nil: sent or not, and nothing came back
	Settled bool
}
