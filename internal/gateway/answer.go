package gateway

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Answer is what the caller is told: words for a model, the same for a program, and, where it was done, the tool's result.
type Answer struct {
	Text       string
	Structured any // a JSON object
	IsError    bool
	Place      Place  // "": the call was refused before it was one
	State      string // for log and _meta: an outcome's word, not_known_yet, refused
}

// Told is the structured content of every answer that is not the tool's own result.
type Told struct {
	Outcome    string               `json:"outcome"` // fatal, needs_human, cancelled, not_known_yet, refused; ok where the result cannot be shown
	Code       string               `json:"code,omitempty"`
	Commit     envelope.CommitState `json:"commit_state,omitempty"`
	MayDo      string               `json:"may_do"` // correct_input, call_again, ask_status, wait_for_person, nothing
	Attempts   *int                 `json:"attempts_left,omitempty"`
	Operation  string               `json:"operation,omitempty"` // for agentrun_status
	ReasonCode string               `json:"reason_code,omitempty"`
	Owner      string               `json:"owner,omitempty"` // whom a person's answer is waited for from
	State      string               `json:"state,omitempty"` // of the run, while it is not known
	Details    envelope.Details     `json:"details,omitempty"`
}

// What may be done next.
const (
	correctInput = "correct_input"
	callAgain    = "call_again"
	askStatus    = "ask_status"
	waitPerson   = "wait_for_person"
	nothing      = "nothing"
)

const (
	notKnownYet = "not_known_yet"
	refused     = "refused"
	toolStatus  = "agentrun_status"
)

func (t *Told) answer(at Place, format string, args ...any) *Answer {
	if at != (Place{}) {
		t.Operation = at.Ref()
	}
	return &Answer{Text: fmt.Sprintf(format, args...), Structured: t, IsError: true, Place: at, State: t.Outcome}
}

// Refuse is the answer to a call that was none: nothing was sent.
func Refuse(p *Problem) *Answer {
	t := &Told{Outcome: refused, Code: string(envelope.CodeInvalidArgument), Commit: envelope.NotCommitted, MayDo: correctInput}
	if p.Field != "" {
		t.Details = envelope.Details{"field": p.Field}
	}
	return t.answer(Place{}, "Nothing was sent: %s. Correct the call and make it again.", p.Text)
}

// Unfit is the answer to args that the tool's schema does not take.
func Unfit(field string) *Answer {
	if field == "" {
		return Refuse(&Problem{Text: "the arguments do not fit the tool's input schema"})
	}
	return Refuse(&Problem{field, "the arguments do not fit the tool's input schema at " + field})
}

// KeyTaken is the answer to a key that was used with another tool or other args.
func KeyTaken(at Place) *Answer {
	t := &Told{Outcome: refused, Code: "KEY_TAKEN", Commit: envelope.NotCommitted, MayDo: nothing}
	return t.answer(at, "This call was refused and nothing was sent for it: its key was used before with another tool or other arguments. "+
		"What became of that call %s tells (operation %s). A new operation needs a new key.", toolStatus, at.Ref())
}

// Unsubmitted is the answer where the job could not be handed over for certain.
func Unsubmitted(at Place, keyed bool, why string) *Answer {
	t := &Told{Outcome: notKnownYet, Commit: envelope.Unknown, MayDo: callAgain}
	same := "Make the very same call again: while it is not settled it is the same operation"
	if keyed {
		same = "Make the same call with the same key again: it is the same operation, and is done once"
	}
	return t.answer(at, "It is not known whether the call was taken up (%s). %s. Or ask %s with operation %s.", why, same, toolStatus, at.Ref())
}

// Pending is the answer when the caller's time is over before the end is known. state is the run's, "" if that is not known.
func Pending(at Place, state string, last *client.Outcome) *Answer {
	t := &Told{Outcome: notKnownYet, Commit: envelope.Unknown, MayDo: askStatus, State: state}
	now := "It is being worked on."
	if last != nil && last.Envelope != nil {
		t.Code, t.ReasonCode = string(last.Envelope.Code), last.ReasonCode
		now = last.Envelope.AgentMessage
	}
	return t.answer(at, "The outcome is not known yet. %s Do not send this call again and do not replace it by another: it goes on by itself. "+
		"Ask %s with operation %s.", now, toolStatus, at.Ref())
}

// Unheard is the answer about an operation of which nothing is known.
func Unheard(at Place) *Answer {
	t := &Told{Outcome: notKnownYet, Commit: envelope.Unknown, MayDo: askStatus}
	return t.answer(at, "Nothing is known of operation %s: it waits for an executor, is older than what is kept, or never was. "+
		"Check the operation's name, and ask again later.", at.Ref())
}

// Of is the answer to the outcome of the call's step. end is the run's terminal outcome, nil if it has none yet; schema says
// that the tool promises what its result looks like.
func Of(at Place, step, end *client.Outcome, schema bool) *Answer {
	e, word := step.Envelope, step.Outcome.Outcome
	if e != nil && e.OK {
		return done(at, e, schema)
	}
	t := &Told{Outcome: string(word), ReasonCode: step.ReasonCode, Owner: step.Owner, Commit: step.CommitState, MayDo: nothing}
	said, left := "It ended "+string(word)+".", 0
	if e != nil {
		t.Code, t.Commit, t.Details, said = string(e.Code), e.CommitState, e.SafeDetails, e.AgentMessage
		if e.Retry != nil {
			left = e.Retry.MaxAttemptsRemaining
		}
		t.Attempts = &left
	}
	if end != nil && end.Owner != "" {
		t.Owner = end.Owner
	}
	happened := "Nothing was done."
	switch t.Commit {
	case envelope.Unknown:
		happened = "It may have been done."
	case envelope.Committed:
		happened = "It was done."
	}
	var next string
	switch {
	case e != nil && e.Code == envelope.CodeMissingApproval:
		t.MayDo = waitPerson
		next = fmt.Sprintf("It waits for an approval by %s. Do not send it again; ask %s with operation %s.", orPerson(t.Owner), toolStatus, at.Ref())
	case word == envelope.NeedsHuman && t.Commit == envelope.NotCommitted && optionalEnd(end):
		said = "Every attempt failed." // and nobody was called about it
		next = "Do not send it again now. A call at a later time is a new operation and needs a new key."
	case word == envelope.NeedsHuman:
		t.MayDo = waitPerson
		next = fmt.Sprintf("It waits for %s. Do not send it again, under any key; ask %s with operation %s.", orPerson(t.Owner), toolStatus, at.Ref())
	case e != nil && e.NextAction == envelope.CorrectInput && t.Commit == envelope.NotCommitted:
		t.MayDo = correctInput
		next = "The corrected call is a new operation: give it a new key if you use keys."
	default:
		next = "Do not send it again as it is."
	}
	return t.answer(at, "%s %s%s %s", happened, codeOf(t), said, next)
}

// optionalEnd: the run went on without this step, so that nobody was called.
func optionalEnd(end *client.Outcome) bool { return end == nil || end.Outcome.Outcome == envelope.OK }

func codeOf(t *Told) string {
	if t.Code == "" {
		return ""
	}
	out := t.Code
	if field, is := t.Details["field"].(string); is && field != "" {
		out += " at " + field
	}
	return out + ": "
}

func orPerson(owner string) string {
	if owner == "" {
		return "a person"
	}
	return owner
}

// done shows the result. MCP knows objects as structured content; whatever it is it stands in the text as JSON.
func done(at Place, e *envelope.Envelope, schema bool) *Answer {
	a := &Answer{Place: at, State: string(envelope.OK), Text: string(e.Result)}
	object := strings.HasPrefix(strings.TrimSpace(a.Text), "{")
	switch {
	case e.ResultOmitted, e.ResultRef != nil, schema && !object:
		// A client that holds results against the schema it was shown refuses one that is not there, unless it is an error.
		t := &Told{Outcome: string(envelope.OK), Commit: envelope.Committed, MayDo: nothing, Code: string(envelope.CodeResultTooLarge)}
		if !e.ResultOmitted && e.ResultRef == nil {
			t.Code = string(envelope.CodeResultInvalid)
		}
		out := t.answer(at, "It was done. Do not send it again. Its result cannot be shown here: it is too large, or not of the promised form.")
		out.IsError = schema
		return out
	case object:
		a.Structured = e.Result
	case a.Text == "", a.Text == "null":
		a.Text = "It was done."
	}
	return a
}

// Busy is the run's state in words, from what an operator would see.
func Busy(at Place, v *run.View) *Answer {
	state := v.State
	for i := range v.Steps {
		if v.Steps[i].Step == at.Step {
			state = string(v.Steps[i].State)
		}
	}
	return Pending(at, state, nil)
}

// refusal says that an outcome is not of the step but of a job that changed nothing.
func refusal(o *client.Outcome) bool {
	if o == nil || o.Envelope == nil {
		return false
	}
	switch o.Envelope.Code {
	case envelope.CodeStepConflict, envelope.CodeIdenticalRetry, envelope.CodeRunClosed, envelope.CodeJobInvalid:
		return true
	}
	return false
}

// Settled reports whether the outcome of a step without a key is its last word, so that the same call is a new one. What
// waits for a person is not. end is the run's end, nil if it has none.
func Settled(step, end *client.Outcome) bool {
	if step == nil || !step.Terminal || refusal(step) {
		return false
	}
	return step.Outcome.Outcome != envelope.NeedsHuman || end != nil && end.Outcome.Outcome == envelope.OK
}

// NotTaken is the answer where nobody took the call up, and nobody will.
func NotTaken(why string) *Answer {
	t := &Told{Outcome: refused, Commit: envelope.NotCommitted, MayDo: callAgain}
	return t.answer(Place{}, "Nothing was sent: %s. The same call may be made again later.", why)
}

// Forgotten is the answer about an operation that has ended and whose result is not kept any more.
func Forgotten(at Place, v *run.View) *Answer {
	t := &Told{Outcome: string(v.Outcome), ReasonCode: v.ReasonCode, Owner: v.Owner, MayDo: nothing}
	return t.answer(at, "It ended %s. Its result is not kept any more. Do not send it again.", v.Outcome)
}

// Text of structured content, for clients that read text only.
func (a *Answer) structuredText() string {
	data, err := json.Marshal(a.Structured)
	if err != nil {
		return ""
	}
	return string(data)
}
