package operator

import (
	"context"
	"encoding/json"

	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Call is one operator call of contract §9.
type Call struct {
	Noun, Verb string
	All        bool // the tenant may be _all
	Bulk       bool // may act on many letters
	About      string
	Request    func() any // a pointer to an empty request
	Reply      any        // for the schema

	answer func(o *Operator, ctx context.Context, tenant string, request any) (any, error)
}

// Name is the call's name, e.g. deadletters.list.
func (c *Call) Name() string { return c.Noun + "." + c.Verb }

// call ties a request's type to its handler.
func call[R any](noun, verb, about string, reply any, handler func(*Operator, context.Context, string, *R) (any, error)) *Call {
	return &Call{
		Noun: noun, Verb: verb, About: about, Reply: reply, Request: func() any { return new(R) },
		answer: func(o *Operator, ctx context.Context, tenant string, request any) (any, error) {
			return handler(o, ctx, tenant, request.(*R))
		},
	}
}

// Calls are all operator calls.
func Calls() []*Call {
	list := call("deadletters", "list", "Open dead letters, oldest first, page by page.", LettersShape{}, (*Operator).listLetters)
	claim := call("deadletters", "claim", "The oldest unclaimed dead letter, claimed for a time.", LetterShape{}, (*Operator).claim)
	replay := call("deadletters", "replay", "Go on after the last proven step; with a filter, for many letters.", ActionReply{}, (*Operator).replay)
	discard := call("deadletters", "discard", "Settle a letter, the run keeps its end; with a filter, for many letters.", ActionReply{}, (*Operator).discard)
	assign := call("deadletters", "assign", "Hand a letter to another owner, who is told; with a filter, many letters.", ActionReply{}, (*Operator).assign)
	runs := call("runs", "list", "Runs by their last change, oldest first, page by page.", RunsShape{}, (*Operator).listRuns)
	queues := call("queues", "list", "All queues of jobs: how many wait in each, and how many executors take them.", QueuesReply{}, (*Operator).listQueues)
	list.All, claim.All, runs.All, queues.All = true, true, true, true
	replay.Bulk, discard.Bulk, assign.Bulk = true, true, true
	return []*Call{
		list,
		call("deadletters", "get", "One open dead letter, whole.", LetterShape{}, (*Operator).getLetter),
		claim,
		replay,
		call("deadletters", "resolve", "Record what a person established about a write; the run goes on.", EpisodeReply{}, (*Operator).resolve),
		call("deadletters", "approve", "Allow exactly the args that were refused; the run goes on.", EpisodeReply{}, (*Operator).approve),
		discard,
		assign,
		call("runs", "get", "One run with its history.", RunReply{}, (*Operator).getRun),
		call("runs", "payload", "Args and results of one run's steps, for those who may see them.", PayloadReply{}, (*Operator).getPayload),
		runs,
		call("runs", "cancel", "Stop a run: nothing new starts, what is in flight ends by its own evidence.", StateReply{}, (*Operator).cancel),
		call("runs", "discard", "End a run whose stored record breaks a rule; the record is kept as it was found.", StateReply{}, (*Operator).setAside),
		call("runs", "report", "What a program learned about a write.", StateReply{}, (*Operator).report),
		queues,
		call("queues", "get", "Whether an executor takes a queue's jobs, for those who publish them.", QueueReply{}, (*Operator).getQueue),
	}
}

// Filter chooses letters.
type Filter struct {
	Owner      string        `json:"owner,omitempty"`
	ReasonCode string        `json:"reason_code,omitempty"`
	Tool       string        `json:"tool,omitempty"`
	Before     envelope.Time `json:"before,omitempty"`
}

// LettersRequest asks for a page of letters.
type LettersRequest struct {
	Filter
	Limit *int   `json:"limit,omitempty"`
	After string `json:"after,omitempty"`
}

// LetterPage is a page of letters: summaries, that is without request, attempts and raw.
type LetterPage struct {
	OK          bool              `json:"ok"`
	DeadLetters []json.RawMessage `json:"deadletters"`
	Total       int               `json:"total"`
	After       string            `json:"after,omitempty"`
}

// RunRequest names a run.
type RunRequest struct {
	RunID string `json:"run_id"`
}

// LetterReply has one whole letter, or null.
type LetterReply struct {
	OK         bool            `json:"ok"`
	DeadLetter json.RawMessage `json:"deadletter"`
}

// ClaimRequest asks for the oldest unclaimed letter.
type ClaimRequest struct {
	Owner      string   `json:"owner,omitempty"`
	By         string   `json:"by"`
	ForSeconds *float64 `json:"for_seconds,omitempty"`
}

// ReplayRequest replays one letter, or with a filter many.
type ReplayRequest struct {
	RunID     string          `json:"run_id,omitempty"`
	By        string          `json:"by"`
	Reason    string          `json:"reason"`
	Letter    string          `json:"letter,omitempty"`
	Args      json.RawMessage `json:"args,omitempty"`
	AddBudget json.RawMessage `json:"add_budget,omitempty"`
	Filter    *Filter         `json:"filter,omitempty"`
	Limit     *int            `json:"limit,omitempty"`
}

// DiscardRequest discards one letter, or with a filter many.
type DiscardRequest struct {
	RunID  string  `json:"run_id,omitempty"`
	By     string  `json:"by"`
	Reason string  `json:"reason"`
	Letter string  `json:"letter,omitempty"`
	Filter *Filter `json:"filter,omitempty"`
	Limit  *int    `json:"limit,omitempty"`
}

// AssignRequest hands one letter, or with a filter many, to another owner.
type AssignRequest struct {
	RunID  string  `json:"run_id,omitempty"`
	To     string  `json:"to"`
	By     string  `json:"by"`
	Reason string  `json:"reason"`
	Letter string  `json:"letter,omitempty"`
	Filter *Filter `json:"filter,omitempty"`
	Limit  *int    `json:"limit,omitempty"`
}

// ResolveRequest says what became of a write.
type ResolveRequest struct {
	RunID       string               `json:"run_id"`
	Letter      string               `json:"letter"`
	Step        string               `json:"step,omitempty"`
	By          string               `json:"by"`
	Reason      string               `json:"reason"`
	CommitState envelope.CommitState `json:"commit_state"`
	Result      json.RawMessage      `json:"result,omitempty"`
	EvidenceRef string               `json:"evidence_ref,omitempty"`
}

// ApproveRequest approves the args that the letter shows.
type ApproveRequest struct {
	RunID  string `json:"run_id"`
	Letter string `json:"letter"`
	Step   string `json:"step,omitempty"`
	By     string `json:"by"`
	Reason string `json:"reason"`
}

// EpisodeReply says which episode goes on.
type EpisodeReply struct {
	OK      bool   `json:"ok"`
	RunID   string `json:"run_id,omitempty"`
	Episode int    `json:"episode,omitempty"`
}

// ActionReply is the reply to a replay or a discard: RunID and Episode for one replayed letter, Results and Left in bulk.
type ActionReply struct {
	OK      bool     `json:"ok"`
	RunID   string   `json:"run_id,omitempty"`
	Episode int      `json:"episode,omitempty"`
	Results []Result `json:"results,omitempty"`
	Left    *int     `json:"left,omitempty"`
}

// Result is what a call in bulk came to for one letter.
type Result struct {
	Tenant  string `json:"tenant"`
	RunID   string `json:"run_id"`
	OK      bool   `json:"ok"`
	Episode int    `json:"episode,omitempty"`
	Code    string `json:"code,omitempty"`
}

// bulkReply is an ActionReply whose lists are there even when empty.
type bulkReply struct {
	OK      bool     `json:"ok"`
	Results []Result `json:"results"`
	Left    int      `json:"left"`
}

// RunReply shows one run.
type RunReply struct {
	OK  bool      `json:"ok"`
	Run *run.View `json:"run"`
}

// PayloadReply has the args and results of a run's steps.
type PayloadReply struct {
	OK    bool          `json:"ok"`
	Steps []run.Payload `json:"steps"`
}

// RunsRequest asks for a page of runs.
type RunsRequest struct {
	State    string `json:"state,omitempty"`
	Workflow string `json:"workflow,omitempty"`
	Limit    *int   `json:"limit,omitempty"`
	After    string `json:"after,omitempty"`
}

// RunPage is a page of runs, each without its history.
type RunPage struct {
	OK    bool              `json:"ok"`
	Runs  []json.RawMessage `json:"runs"`
	After string            `json:"after,omitempty"`
}

// SetAsideRequest ends a run whose record breaks a rule.
type SetAsideRequest struct {
	RunID  string `json:"run_id"`
	By     string `json:"by"`
	Reason string `json:"reason"`
}

// CancelRequest stops a run.
type CancelRequest struct {
	RunID  string `json:"run_id"`
	By     string `json:"by"`
	Reason string `json:"reason"`
}

// ReportRequest is what a program learned about a write.
type ReportRequest struct {
	RunID       string               `json:"run_id"`
	Step        string               `json:"step"`
	Attempt     *int                 `json:"attempt,omitempty"`
	CommitState envelope.CommitState `json:"commit_state"`
	Result      json.RawMessage      `json:"result,omitempty"`
	EvidenceRef string               `json:"evidence_ref"`
	By          string               `json:"by"`
}

// StateReply is the run's state after the call.
type StateReply struct {
	OK    bool   `json:"ok"`
	State string `json:"state"`
}
