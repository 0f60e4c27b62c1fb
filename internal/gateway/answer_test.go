package gateway

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/envelope"
)

func outcome(word envelope.Word, e *envelope.Envelope) *client.Outcome {
	o := &client.Outcome{}
	o.Outcome.Outcome, o.Terminal, o.Envelope, o.Owner = word, word.Terminal(), e, "oncall"
	if e != nil {
		o.CommitState = e.CommitState
	}
	return o
}

func failed(code envelope.Code, word envelope.Word, left int) *client.Outcome {
	row := envelope.RowFor(code, envelope.Write)
	return outcome(word, &envelope.Envelope{
		Code: code, Category: row.Category, CommitState: row.CommitState, NextAction: row.NextAction, AgentMessage: "MESSAGE",
		Retry: &envelope.Retry{Directive: row.Directive, MaxAttemptsRemaining: left}, SafeDetails: envelope.Details{"field": "/amount"},
	})
}

func succeeded(result string) *client.Outcome {
	return outcome(envelope.OK, &envelope.Envelope{OK: true, CommitState: envelope.Committed, Result: json.RawMessage(result)})
}

// What a model is told of every way in which a call can end: whether it was done, and what it may do now.
func TestAnswers(t *testing.T) {
	t.Parallel()
	at := Place{"k-1", "call"}
	ok := outcome(envelope.OK, nil)
	human := outcome(envelope.NeedsHuman, nil)
	large := succeeded("")
	large.Envelope.ResultOmitted = true
	for name, x := range map[string]struct {
		step, end *client.Outcome
		schema    bool
		isError   bool
		may       string
		says      []string
		never     string
	}{
		"done":                 {step: succeeded(`{"id":"x"}`), end: ok, says: []string{`{"id":"x"}`}},
		"done, a list":         {step: succeeded(`[1]`), end: ok, says: []string{`[1]`}},
		"done, nothing":        {step: succeeded(`null`), end: ok, says: []string{"It was done."}},
		"done, not as said":    {step: succeeded(`[1]`), end: ok, schema: true, isError: true, may: nothing, says: []string{"It was done.", "Do not send it again"}},
		"done, too large":      {step: large, end: ok, may: nothing, says: []string{"It was done.", "Do not send it again"}},
		"done, too large, say": {step: large, end: ok, schema: true, isError: true, may: nothing, says: []string{"It was done."}},
		"wrong args": {
			step: failed(envelope.CodeInvalidArgument, envelope.Fatal, 2), end: ok, isError: true, may: correctInput,
			says: []string{"Nothing was done.", "INVALID_ARGUMENT at /amount", "MESSAGE", "new operation"},
		},
		"denied": {
			step: failed(envelope.CodeUpstreamDenied, envelope.Fatal, 0), end: ok, isError: true, may: nothing,
			says: []string{"Nothing was done.", "Do not send it again"},
		},
		"attempts used up": {
			step: failed(envelope.CodeAttemptsExhausted, envelope.NeedsHuman, 0), end: ok, isError: true, may: nothing,
			says: []string{"Nothing was done.", "Do not send it again now", "new key"},
		},
		"approval": {
			step: failed(envelope.CodeMissingApproval, envelope.NeedsHuman, 0), end: human, isError: true, may: waitPerson,
			says: []string{"Nothing was done.", "approval by oncall", "Do not send it again", toolStatus, "k-1/call"},
		},
		"not verified": {
			step: failed(envelope.CodeVerificationUnavailable, envelope.NeedsHuman, 0), end: human, isError: true, may: waitPerson,
			says: []string{"It may have been done.", "waits for oncall", "under any key", toolStatus}, never: "Nothing was done",
		},
		"disputed": {
			step: failed(envelope.CodeOutcomeDisputed, envelope.NeedsHuman, 0), end: human, isError: true, may: waitPerson,
			says: []string{"It may have been done."}, never: "Nothing was done",
		},
		"cancelled": {
			step: failed(envelope.CodeCancelled, envelope.Cancelled, 0), end: outcome(envelope.Cancelled, nil), isError: true, may: nothing,
			says: []string{"Nothing was done."},
		},
		"no envelope": {step: outcome(envelope.NeedsHuman, nil), end: human, isError: true, may: waitPerson, says: []string{"waits for oncall"}},
	} {
		a := Of(at, x.step, x.end, x.schema)
		for _, s := range x.says {
			if !strings.Contains(a.Text, s) {
				t.Errorf("%s: %q does not say %q", name, a.Text, s)
			}
		}
		told, _ := a.Structured.(*Told)
		if a.IsError != x.isError || (told != nil) != (x.may != "") || told != nil && told.MayDo != x.may {
			t.Errorf("%s: is error %v, told %+v", name, a.IsError, told)
		}
		if x.never != "" && strings.Contains(a.Text, x.never) {
			t.Errorf("%s: %q says %q", name, a.Text, x.never)
		}
		if told != nil && told.Operation != "k-1/call" {
			t.Errorf("%s: the operation is %q", name, told.Operation)
		}
	}
}

// Every code of the table is told with a commit state and something that may be done.
func TestEveryCodeHasAnAnswer(t *testing.T) {
	t.Parallel()
	for _, row := range envelope.Codes() {
		word := row.Outcome
		if !word.Terminal() {
			continue
		}
		a := Of(Place{"r", "s"}, failed(row.Code, word, 0), outcome(word, nil), false)
		told := a.Structured.(*Told)
		if told.MayDo == "" || told.Code != string(row.Code) || !a.IsError {
			t.Errorf("%s: %+v", row.Code, told)
		}
		if unknown := told.Commit == envelope.Unknown; unknown == strings.HasPrefix(a.Text, "Nothing was done") {
			t.Errorf("%s is %s, and told as %q", row.Code, told.Commit, a.Text)
		}
	}
}

// A call without a key is new once the one before has its last word; what waits for a person has none.
func TestSettled(t *testing.T) {
	t.Parallel()
	ok, human := outcome(envelope.OK, nil), outcome(envelope.NeedsHuman, nil)
	for name, x := range map[string]struct {
		step, end *client.Outcome
		settled   bool
	}{
		"nothing known":     {},
		"done":              {step: succeeded("{}"), end: ok, settled: true},
		"done, end to come": {step: succeeded("{}"), settled: true},
		"fatal":             {step: failed(envelope.CodeUpstreamDenied, envelope.Fatal, 0), end: ok, settled: true},
		"tried again":       {step: failed(envelope.CodeUpstreamUnavailable, envelope.Retryable, 1)},
		"unknown":           {step: failed(envelope.CodeOutcomeUnknown, envelope.UnknownNow, 1)},
		"approval":          {step: failed(envelope.CodeMissingApproval, envelope.NeedsHuman, 0), end: human},
		"forgiven":          {step: failed(envelope.CodeAttemptsExhausted, envelope.NeedsHuman, 0), end: ok, settled: true},
		"a refusal":         {step: failed(envelope.CodeStepConflict, envelope.Fatal, 0), end: ok},
	} {
		if got := Settled(x.step, x.end); got != x.settled {
			t.Errorf("%s: settled is %v", name, got)
		}
	}
}
