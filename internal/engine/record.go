// Package engine holds the run record and every rule about it, as pure code: no I/O, no clock (time is an argument), no
// goroutine, no logger, no randomness (ids and jitter are arguments). Executor, reconciler and operator calls all go
// through it; recovery after a crash is the same question asked again.
//
// The rules that must hold after every event are named in rules.go and checked there, always on.
package engine

import (
	"encoding/json"
	"fmt"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// RecordSchema is the schema name of a run record.
const (
	RecordSchema  = recordSchemas + "v1"
	recordSchemas = "agentrun.record/" // of every version
)

// MaxRecordBytes is how large an encoded record may be (contract §12).
const MaxRecordBytes = 768 << 10

// Run is the run record: the truth the fleet shares about one run. Every change is one compare-and-set of the whole
// record. The JSON form is for us and for reading; nobody but executor and reconciler writes it.
type Run struct {
	Schema   string `json:"schema"`
	Tenant   string `json:"tenant"`
	RunID    string `json:"run_id"`
	Queue    string `json:"queue"`
	Workflow string `json:"workflow,omitempty"`
	Owner    string `json:"owner,omitempty"`
	Actor    string `json:"actor,omitempty"`
	Intent   string `json:"intent,omitempty"`
	Priority int    `json:"priority,omitempty"`
	// Trace is the traceparent of the first job.
	Trace string `json:"traceparent,omitempty"`

	// First is the sequence of the record's first message: it tells this run from an earlier one of the same name whose
	// results are still in the stream. Zero until the second write: then the message's own sequence is meant.
	First     uint64   `json:"first,omitempty"`
	Episode   int      `json:"episode"`
	More      bool     `json:"more,omitempty"`
	CreatedAt run.Time `json:"created_at"`
	UpdatedAt run.Time `json:"updated_at"`
	Deadline  run.Time `json:"deadline"`

	Budget budget.Limits `json:"budget"`
	Spent  budget.Spent  `json:"spent"`

	Jobs  []JobRef `json:"jobs,omitempty"`
	Steps []*Step  `json:"steps"`

	Lease   *Lease    `json:"lease,omitempty"`
	Decided *Decision `json:"decided,omitempty"`
	Cancel  *Note     `json:"cancel,omitempty"`
	End     *End      `json:"end,omitempty"`

	Letter  *Letter  `json:"letter,omitempty"`
	Replays int      `json:"replays,omitempty"`
	Answers []Answer `json:"answers,omitempty"`
	// Invalid holds what a job that could not be accepted said, for its letter (contract §7).
	Invalid *InvalidJob `json:"invalid,omitempty"`

	// StepN numbers the messages of the step subject; the run subject is numbered by the episode.
	StepN    int       `json:"step_n,omitempty"`
	StepPub  Published `json:"step_published,omitzero"`
	RunPub   Published `json:"run_published,omitzero"`
	Owed     []Owed    `json:"out,omitempty"`
	Refusals int       `json:"refusals,omitempty"`
	// Restored: made from a journal after the store was lost, and its job has not come again yet.
	Restored bool `json:"restored,omitempty"`
	// Pending: the first job was delivered before and left no record, so that it may kill its reader. It is counted here
	// before it is read again.
	Pending   bool     `json:"pending,omitempty"`
	Losses    int      `json:"losses,omitempty"` // deliveries of the first job that ended without a record
	Effects   []Effect `json:"effects,omitempty"`
	Evidence  []Kept   `json:"evidence,omitempty"`
	Alarms    []Alarm  `json:"alarms,omitempty"`
	AlarmsPub int      `json:"alarms_published,omitempty"`
	History   []Event  `json:"history,omitempty"`
	Forgotten int      `json:"history_dropped,omitempty"`

	// Foreign members, here and in every object below, are those of a newer build. They stay with their object.
	Foreign strictjson.Foreign `json:"-"`

	foreign bool                       // there are any
	fetched map[string]json.RawMessage // results read back from AGENTRUN_RESULTS by the driver, by step
	merging bool                       // more is to come before anything follows
	size    int                        // bytes of the last encoding

	messageMax int // as Defaults.MessageMax
}

// JobRef remembers a stream message whose job was accepted or refused, so that the same message again changes nothing.
type JobRef struct {
	Seq uint64   `json:"seq"`
	At  run.Time `json:"at"`
	// Closer: a job that closed the open run and said nothing else. Another such job is then a repeat of it.
	Closer bool `json:"closer,omitempty"`

	Foreign strictjson.Foreign `json:"-"`
}

// Step is one step of the run.
type Step struct {
	Name     string           `json:"step"`
	Tool     string           `json:"tool"`
	Effect   envelope.Effect  `json:"effect,omitempty"` // known once its turn came
	Owner    string           `json:"owner,omitempty"`  // of the tool, if its config names one
	Args     *strictjson.Args `json:"args,omitempty"`   // of the current proposal, $from not yet replaced
	Digest   string           `json:"digest"`           // of tool and args as proposed; outlives args
	Optional bool             `json:"optional,omitempty"`
	Parallel bool             `json:"parallel,omitempty"`
	State    run.State        `json:"state"`
	// StoppedBy names the fatal step of an open run that keeps this one from starting.
	StoppedBy string `json:"stopped_by,omitempty"`
	Waived    bool   `json:"waived,omitempty"`
	// Unchecked: nobody has looked yet whether tool and args fit, see Judge.
	Unchecked bool `json:"unchecked,omitempty"`

	Attempt   int        `json:"attempt,omitempty"`   // dispatches so far, over all episodes
	Used      int        `json:"used,omitempty"`      // attempts of this episode that count against the budget
	Failures  int        `json:"failures,omitempty"`  // of this episode, for the backoff
	Losses    int        `json:"losses,omitempty"`    // workers lost in this episode
	Proposal  int        `json:"proposal,omitempty"`  // the current one, from 1, over all episodes
	Proposals int        `json:"proposals,omitempty"` // of this episode
	Dispatch  DispatchID `json:"dispatch,omitempty"`  // the last one
	Key       string     `json:"key,omitempty"`       // idempotency key of the last dispatch
	SentArgs  string     `json:"sent,omitempty"`      // digest of the resolved args of the last dispatch
	FirstSent run.Time   `json:"first_sent,omitempty"`
	// Doubted is the first dispatch of this operation that was ever unknown: what refuses a later one proves nothing.
	Doubted DispatchID `json:"doubted,omitempty"`
	// Unsettled: an earlier dispatch is still unknown, and only idempotent_for allows another within its time.
	Unsettled bool `json:"unsettled,omitempty"`
	Disputed  bool `json:"disputed,omitempty"`

	NotBefore run.Time `json:"not_before,omitempty"`
	WaitFrom  run.Time `json:"wait_from,omitempty"` // when NotBefore was set, while the step waits
	Postponed bool     `json:"postponed,omitempty"` // it waits for its tool's slot or token, not for a time
	Doubt     *Doubt   `json:"doubt,omitempty"`
	Fail      *Fail    `json:"fail,omitempty"`

	// An approval covers exactly the args with this digest.
	Approved string          `json:"approved,omitempty"`
	Asked    json.RawMessage `json:"asked,omitempty"` // resolved args that wait for approval
	AskedSum string          `json:"asked_digest,omitempty"`

	Result     json.RawMessage     `json:"result,omitempty"`
	Omitted    bool                `json:"result_omitted,omitempty"`
	ResultRef  *envelope.ObjectRef `json:"result_ref,omitempty"`
	OutcomeSeq uint64              `json:"outcome_seq,omitempty"` // of its ok outcome in AGENTRUN_RESULTS, once published
	Proof      string              `json:"proof,omitempty"`       // reply, lookup, report or person
	ProvenAt   run.Time            `json:"proven_at,omitempty"`
	EvidRef    string              `json:"evidence_ref,omitempty"`

	Foreign strictjson.Foreign `json:"-"`
}

// Doubt is kept while a write is unknown.
type Doubt struct {
	Since run.Time `json:"since"`
	// Said: the dispatch's own reply said done and a lookup must see it, or a lookup has seen the operation under way.
	// Absence then is a dispute, to an older build too: which of the two it was the step's Fail tells.
	Said bool `json:"said,omitempty"`
	// WindowOver: the consistency window has passed on a reconciler's clock. Only a lookup sent after reading this proves
	// absence.
	WindowOver bool `json:"window_over,omitempty"`
	// Journal: of the dispatch only a journal tells. The record may have refused it, and then it never left.
	Journal bool     `json:"journal,omitempty"`
	Lookups int      `json:"lookups,omitempty"` // that failed or answered neither
	Asked   int      `json:"asked,omitempty"`   // since the spacing began
	Next    run.Time `json:"next"`              // no lookup, or no resend, before this
	// NotBefore is until when the far side has asked to be left alone, which the end of the window does not shorten; 0: it
	// has not. WaitFrom is when Next and NotBefore were set by a lookup's answer.
	NotBefore run.Time     `json:"not_before,omitempty"`
	WaitFrom  run.Time     `json:"wait_from,omitempty"`
	Resend    bool         `json:"resend,omitempty"` // idempotent_for: the same key and bytes are sent again
	Row       envelope.Row `json:"row"`

	Foreign strictjson.Foreign `json:"-"`
}

// Fail is how a step's last proposal failed.
type Fail struct {
	Row     envelope.Row     `json:"row"`
	Details envelope.Details `json:"details,omitempty"`

	Foreign strictjson.Foreign `json:"-"`
}

// Lease says who works on the run. It exists exactly while a step is executing (one-lease).
type Lease struct {
	Holder  string  `json:"holder"`
	ID      string  `json:"id"`
	Renewal int     `json:"renewal"`
	Seconds float64 `json:"seconds"`
	Worker  string  `json:"worker,omitempty"` // the holder's name, for people

	Foreign strictjson.Foreign `json:"-"`
}

// Decision is an end that is decided while something is still in flight: nothing new is dispatched from then on.
type Decision struct {
	Why  Why           `json:"why"`
	Code envelope.Code `json:"code,omitempty"`
	Step string        `json:"step,omitempty"` // for a budget: the step it kept from starting
	At   run.Time      `json:"at"`

	Foreign strictjson.Foreign `json:"-"`
}

// Why says what decided an end.
type Why string

const (
	ByStep   Why = "step"
	ByBudget Why = "budget"
	ByTime   Why = "time"
	ByCancel Why = "cancel"
)

// Note is who did something and why.
type Note struct {
	By     string   `json:"by"`
	Reason string   `json:"reason,omitempty"`
	At     run.Time `json:"at"`

	Foreign strictjson.Foreign `json:"-"`
}

// End is the terminal outcome of the current episode.
type End struct {
	Outcome envelope.Word    `json:"outcome"`
	Row     *envelope.Row    `json:"row,omitempty"` // absent on ok
	Details envelope.Details `json:"details,omitempty"`
	Step    string           `json:"step,omitempty"`
	At      run.Time         `json:"at"`

	Foreign strictjson.Foreign `json:"-"`
}

// Letter is the record's word on its dead letter; the message in the stream is its image.
type Letter struct {
	ID    string   `json:"id"`
	Owner string   `json:"owner"`
	Open  bool     `json:"open"`
	At    run.Time `json:"at"`
	// Settled is when it was answered; the record is remembered for the retention from then on.
	Settled run.Time `json:"settled_at,omitempty"`
	// Assigned is when it was handed to another owner, the latest time; 0: it has its first one.
	Assigned run.Time `json:"assigned_at,omitempty"`
	Claim    *Claim   `json:"claim,omitempty"`

	Foreign strictjson.Foreign `json:"-"`
}

// Claim keeps other operators out until it runs out.
type Claim struct {
	By    string   `json:"by"`
	Until run.Time `json:"until"`

	Foreign strictjson.Foreign `json:"-"`
}

// Answer is the first answer that a letter was settled with: the same call again gets it.
type Answer struct {
	Letter  string   `json:"letter"`
	Kind    string   `json:"kind"`
	By      string   `json:"by"`
	Step    string   `json:"step,omitempty"`
	Episode int      `json:"episode,omitempty"`
	At      run.Time `json:"at"`

	Foreign strictjson.Foreign `json:"-"`
}

// InvalidJob keeps a job that could not be accepted as its run's first.
type InvalidJob struct {
	Raw  []byte `json:"raw"` // at most 64 KiB
	Size int    `json:"size"`

	Foreign strictjson.Foreign `json:"-"`
}

// Published is the last message of a result subject that is known to be there.
type Published struct {
	N   int    `json:"n"`
	Seq uint64 `json:"seq"`

	Foreign strictjson.Foreign `json:"-"`
}

// Effect is one write that is proven committed, in order.
type Effect struct {
	Step        string   `json:"step"`
	At          run.Time `json:"at"`
	EvidenceRef string   `json:"evidence_ref,omitempty"`

	Foreign strictjson.Foreign `json:"-"`
}

// Kept is evidence that came too late to change the record; it is shown to whoever decides.
type Kept struct {
	Step        string               `json:"step"`
	Dispatch    DispatchID           `json:"dispatch,omitempty"`
	Attempt     int                  `json:"attempt,omitempty"`
	CommitState envelope.CommitState `json:"commit_state"`
	EvidenceRef string               `json:"evidence_ref,omitempty"`
	By          string               `json:"by"`
	At          run.Time             `json:"at"`

	Foreign strictjson.Foreign `json:"-"`
}

// Alarm is an alert that the record owes besides those that follow from its end. N numbers them from 1.
type Alarm struct {
	N      int      `json:"n"`
	Reason string   `json:"reason_code"`
	Step   string   `json:"step,omitempty"`
	At     run.Time `json:"at"`

	Foreign strictjson.Foreign `json:"-"`
}

// Event is one line of the run's history. Kind dispatch and verify are attempts: At is their end, or their start while
// they run.
type Event struct {
	At          run.Time             `json:"at"`
	Kind        string               `json:"kind"`
	By          string               `json:"by,omitempty"`
	Step        string               `json:"step,omitempty"`
	Attempt     int                  `json:"attempt,omitempty"`
	Code        envelope.Code        `json:"code,omitempty"`
	CommitState envelope.CommitState `json:"commit_state,omitempty"`
	Reason      string               `json:"reason,omitempty"`
	Started     run.Time             `json:"started_at,omitempty"`
	Dispatch    DispatchID           `json:"dispatch,omitempty"`
	// What was seen of the call or lookup, where it is known: see envelope.Seen.
	SentAt     run.Time `json:"sent_at,omitempty"`
	AnsweredAt run.Time `json:"answered_at,omitempty"`
	HTTPStatus int      `json:"http_status,omitempty"`
	MCPCode    int      `json:"mcp_code,omitempty"`

	Owner string `json:"owner,omitempty"` // of an assignment: whose the letter is from then on

	Foreign strictjson.Foreign `json:"-"`
}

// Kinds of history events.
const (
	EventAccepted = "accepted"
	EventDispatch = "dispatch"
	EventVerify   = "verify"
	EventLost     = "worker_lost"
	EventReport   = "report"
	EventCancel   = "cancel"
	EventReplay   = "replay"
	EventResolve  = "resolve"
	EventApprove  = "approve"
	EventDiscard  = "discard"
	EventClaim    = "claim"
	EventAssign   = "assign"
	EventWaive    = "waive"
	EventAmend    = "amend"
	EventRefused  = "refused"
	EventRestored = "restored"
	EventEvidence = "evidence"
)

// historyMax bounds the history; beyond it the oldest attempts go first, never what people did.
const historyMax = 320

// ID names the run.
func (r *Run) ID() run.ID { return run.ID{Tenant: r.Tenant, Run: r.RunID} }

// Ref is the operation ref of a step (contract §1): it never changes (same-ref).
func (r *Run) Ref(step string) string { return r.Tenant + "/" + r.RunID + "/" + step }

// Step finds a step by name, or nil.
func (r *Run) Step(name string) *Step {
	for _, s := range r.Steps {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Carrying finds the step whose last dispatch is d, or nil.
func (r *Run) Carrying(d DispatchID) *Step {
	for _, s := range r.Steps {
		if s.Dispatch == d && d != "" {
			return s
		}
	}
	return nil
}

// Encode checks every rule, drops what nothing needs any more, and returns the record's bytes.
func (r *Run) Encode() ([]byte, error) {
	r.check()
	r.trim()
	data, err := r.bytes()
	if err == nil && len(data) > r.softMax() {
		r.size = len(data)
		r.detach(0, len(data)-r.softMax())
		data, err = r.bytes()
	}
	if err != nil {
		return nil, fmt.Errorf("run record %s/%s: %w", r.Tenant, r.RunID, err)
	}
	r.size = len(data)
	return data, nil
}

// noteOnce notes a lookup that tells nothing new in one line with the earlier ones that told the same: there may be
// thousands. The line begins with the first of them.
func (r *Run) noteOnce(e Event) {
	for i := len(r.History) - 1; i >= 0; i-- {
		if h := &r.History[i]; h.Kind == EventVerify && h.Dispatch == e.Dispatch && h.Code == e.Code {
			e.Started, e.Foreign = h.Started, h.Foreign
			r.History = append(r.History[:i], r.History[i+1:]...)
			break
		}
	}
	r.note(e)
}

func (r *Run) note(e Event) {
	r.History = append(r.History, e)
	if len(r.History) <= historyMax {
		return
	}
	for i, h := range r.History {
		if h.Kind == EventDispatch || h.Kind == EventVerify || h.Kind == EventRefused || h.Kind == EventLost {
			r.History = append(r.History[:i], r.History[i+1:]...)
			r.Forgotten++
			return
		}
	}
	r.History = r.History[1:]
	r.Forgotten++
}
