package terminal

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// The story tells who works on a run, and of each attempt when it left, when its answer came and with which status.
func TestTheStoryOfAttempts(t *testing.T) {
	at := envelope.TimeOf(time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC))
	event := func(e run.HistoryView) run.HistoryView {
		e.At, e.Kind, e.Step, e.Attempt, e.By = at, engine.EventDispatch, "a", 1, "w1"
		return e
	}
	v := &run.View{
		Tenant: "acme", RunID: "r", CreatedAt: at, UpdatedAt: at,
		Lease: &run.LeaseView{Worker: "w1", Holder: "x.1", SignAt: at, Seconds: 30, Left: 20},
		Steps: []run.StepView{{Step: "a", SafeDetails: envelope.Details{"http_status": 503, "field": "/x"}}, {Step: "b", StoppedBy: "a"}},
		History: []run.HistoryView{
			event(run.HistoryView{Code: envelope.CodeUpstreamUnavailable, CommitState: envelope.NotCommitted, SentAt: at, AnsweredAt: at.Add(120 * time.Millisecond), HTTPStatus: 503}),
			event(run.HistoryView{Code: envelope.CodeUpstreamTimeout, CommitState: envelope.NotCommitted, SentAt: at}),
			event(run.HistoryView{Code: envelope.CodeUpstreamError, CommitState: envelope.NotCommitted, MCPCode: -32603}),
			event(run.HistoryView{}),
			event(run.HistoryView{Code: envelope.CodeWorkerLost, CommitState: envelope.Unknown, StartedAt: at.Add(-time.Minute)}),
		},
	}
	var b bytes.Buffer
	p := newPrinter(&b, false, env())
	p.Story(v, nil, at.Time().Add(10*time.Second), 200)
	p.Payloads([]run.Payload{{Step: "a", Args: []byte(`{"n":1}`), Result: []byte(`"r"`), Omitted: []string{"result"}}}, 200)
	for _, want := range []string{
		"w1 works on it; last sign of life 10s ago, 20s of its lease of 30s left",
		"a: field /x, http_status 503", "b: does not start while a is wrong",
		"(HTTP 503; sent 10:00:00.000, answered after 120ms)", "(sent 10:00:00.000, no answer)", "(MCP -32603)", "(no answer yet)", "(begun 09:59:00.000, no answer known)",
		`args {"n":1}`, `result "r"`, "too large to show: result",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// The story tells what a lookup waits for.
func TestTheStoryOfLookups(t *testing.T) {
	at := envelope.TimeOf(time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC))
	for want, e := range map[string]run.HistoryView{
		"a #1 was looked up by r1: it is under way, since 10:00:00 (HTTP 200; sent 10:05:00.000, answered after 120ms)": {Code: envelope.CodeOperationPending, CommitState: envelope.Unknown, HTTPStatus: 200},
		"a #1 was looked up by r1: to be asked again later, UPSTREAM_RATE_LIMITED, since 10:00:00 (HTTP 429":            {Code: envelope.CodeUpstreamRateLimited, CommitState: envelope.Unknown, HTTPStatus: 429},
		"a #1 was looked up by r1: it was given up, JOB_DIED, nothing happened":                                         {Code: "JOB_DIED", CommitState: envelope.NotCommitted},
		"a #1 was looked up by r1: it is not there":                                                                     {Code: envelope.CodeVerifiedAbsent, CommitState: envelope.NotCommitted},
		"a #1 was looked up by r1: no answer that decides VERIFICATION_UNAVAILABLE":                                     {Code: envelope.CodeVerificationUnavailable, CommitState: envelope.Unknown},
		"a #1 was looked up by r1: it is there":                                                                         {CommitState: envelope.Committed},
	} {
		e.At, e.Kind, e.Step, e.Attempt, e.By = at, engine.EventVerify, "a", 1, "r1"
		e.StartedAt, e.SentAt, e.AnsweredAt = at, at.Add(5*time.Minute), at.Add(5*time.Minute+120*time.Millisecond)
		var b bytes.Buffer
		p := newPrinter(&b, false, env())
		p.Story(&run.View{Tenant: "acme", RunID: "r", CreatedAt: at, UpdatedAt: at, History: []run.HistoryView{e}}, nil, at.Time(), 200)
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// What is printed is what helps: the replay of a run that a budget ended adds to it, that of a step whose args were wrong
// gives others.
func TestThePrintedReplay(t *testing.T) {
	for _, c := range []struct {
		code envelope.Code
		want string
	}{
		{envelope.CodeToolCallsExhausted, `--letter acme/r/1 --add-budget '{"max_tool_calls":1}' --reason`},
		{envelope.CodeTimeExhausted, `--letter acme/r/1 --reason`},
		{envelope.CodeReferenceUnresolved, `--letter acme/r/1 --args '{…}' --reason`},
	} {
		two := int64(2)
		l := &deadletter.Letter{Summary: deadletter.Summary{
			ID: "acme/r/1", Tenant: "acme", RunID: "r", Code: c.code, AllowedActions: []deadletter.Action{deadletter.Replay},
			Budget: budget.Request{MaxToolCalls: &two}, Spent: envelope.Spent{ToolCalls: 2}, RemainingSteps: []string{"b"},
		}}
		var b bytes.Buffer
		p := newPrinter(&b, false, env())
		p.Story(&run.View{Tenant: "acme", RunID: "r"}, l, time.Unix(0, 0), 100)
		if !strings.Contains(b.String(), c.want) {
			t.Errorf("%s: no %q in\n%s", c.code, c.want, b.String())
		}
	}
}
