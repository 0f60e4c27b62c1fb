package connector

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
)

func lookedUp(t *testing.T, resp Response, edit func(*Spec)) envelope.Lookup {
	t.Helper()
	s := Spec{Name: "tool", Effect: envelope.Write, Kind: kindSpec(KindNATS), OutputSchema: map[string]any{"type": "object"}, MaxResultBytes: 1 << 10}
	s.Verify = &VerifySpec{
		Kind: kindSpec(KindHTTP), Committed: "status == 200 && size(body.items) > 0", NotCommitted: "status == 200 && size(body.items) == 0",
		Result: "body.items[0]", EvidenceRef: "body.items[0].id",
	}
	if edit != nil {
		edit(&s)
	}
	tool, err := Compile(s, &stub{name: KindNATS}, &stub{KindHTTP, resp})
	if err != nil {
		t.Fatal(err)
	}
	return tool.Looker.Lookup(t.Context(), testCall())
}

func TestLookup(t *testing.T) {
	und := envelope.Lookup{Answer: envelope.Undecided}
	set := func(f func(*VerifySpec)) func(*Spec) { return func(s *Spec) { f(s.Verify) } }
	for _, c := range []struct {
		name string
		resp Response
		edit func(*Spec)
		want envelope.Lookup
	}{
		{"found", status(200, `{"items":[{"id":12345678901234567890123,"rate":1.10}]}`), nil, envelope.Lookup{Answer: envelope.Found, Result: json.RawMessage(`{"id":12345678901234567890123,"rate":1.10}`), EvidenceRef: "12345678901234567890123"}},
		{"absent", status(200, `{"items":[]}`), nil, envelope.Lookup{Answer: envelope.Absent}},
		{"not found by rule", status(404, ``), set(func(v *VerifySpec) { v.NotCommitted = "status == 404" }), envelope.Lookup{Answer: envelope.Absent}},
		{"404 without a rule", status(404, `{"items":[]}`), nil, und},
		{"500", status(500, `{"items":[]}`), nil, und},
		{"neither", status(200, `{"items":7}`), nil, und},
		{"both", status(200, `{"items":[]}`), set(func(v *VerifySpec) { v.Committed = "status == 200" }), und},
		{"two of one", status(200, `{"items":[{"id":"a"},{"id":"b"}]}`), set(func(v *VerifySpec) { v.Disputed = "size(body.items) > 1" }), envelope.Lookup{Answer: envelope.Disputed}},
		{"one of one", status(200, `{"items":[{"id":"a"}]}`), set(func(v *VerifySpec) { v.Disputed = "size(body.items) > 1" }), envelope.Lookup{Answer: envelope.Found, Result: json.RawMessage(`{"id":"a"}`), EvidenceRef: "a"}},
		{"not sent", Response{Failure: NotSent}, set(func(v *VerifySpec) { v.NotCommitted = "true" }), und},
		{"no reply", Response{Failure: NoReply}, set(func(v *VerifySpec) { v.NotCommitted = "true" }), und},
		{"broken off", Response{Failure: Unreadable, Status: 200}, set(func(v *VerifySpec) { v.NotCommitted = "status == 200" }), und},
		{"two readings", status(200, `{"items":[],"items":[1]}`), nil, und},
		{"no not_committed", status(200, `{"items":[]}`), set(func(v *VerifySpec) { v.NotCommitted = "" }), und},
		{"does not fit", status(200, `{"items":[7]}`), nil, envelope.Lookup{Answer: envelope.Found, Invalid: envelope.CodeResultInvalid}},
		{"no such result", status(200, `{"items":[{}]}`), set(func(v *VerifySpec) { v.Result = "body.items[0].credit" }), envelope.Lookup{Answer: envelope.Found, Invalid: envelope.CodeResultInvalid}},
		{"too large", status(200, `{"items":[{"id":"`+strings.Repeat("x", 400)+`","x":"`+strings.Repeat("x", 1<<10)+`"}]}`), nil, envelope.Lookup{Answer: envelope.Found, Invalid: envelope.CodeResultTooLarge, EvidenceRef: strings.Repeat("x", 400)}},
		{"too large to look into", Response{Failure: TooLarge, Status: 200}, set(func(v *VerifySpec) { v.Committed = "status == 200" }), envelope.Lookup{Answer: envelope.Found, Invalid: envelope.CodeResultTooLarge}},
		{"the body is the result", status(200, `{"items":[ 1 ]}`), set(func(v *VerifySpec) { v.Result = "" }), envelope.Lookup{Answer: envelope.Found, Result: json.RawMessage(`{"items":[1]}`)}},
		{"a made result", status(200, `{"items":[{"id":"a"}]}`), set(func(v *VerifySpec) {
			v.Result = "{'credit': body.items[0].id, 'all': body.items, 'n': 18446744073709551615u, 'f': 0.5, 'none': null, 'l': body.items.map(i, i.id)}"
		}), envelope.Lookup{Answer: envelope.Found, Result: json.RawMessage(`{"all":[{"id":"a"}],"credit":"a","f":0.5,"l":["a"],"n":18446744073709551615,"none":null}`), EvidenceRef: "a"}},
		{"not JSON", status(200, `{"items":[{"id":"a"}]}`), set(func(v *VerifySpec) { v.Result = "{'x': 1.0 / 0.0}" }), envelope.Lookup{Answer: envelope.Found, Invalid: envelope.CodeResultInvalid, EvidenceRef: "a"}},
		{"from a list index out of range", status(200, `{"items":[{}]}`), set(func(v *VerifySpec) { v.Result = "body.items[3]" }), envelope.Lookup{Answer: envelope.Found, Invalid: envelope.CodeResultInvalid}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := lookedUp(t, c.resp, c.edit)
			if got.Answer != c.want.Answer || string(got.Result) != string(c.want.Result) || got.EvidenceRef != c.want.EvidenceRef || got.Invalid != c.want.Invalid {
				t.Errorf("got %+v %s\nwant %+v", got, got.Result, c.want)
			}
		})
	}
}

func TestFunc(t *testing.T) {
	done := map[string]bool{}
	schema := func(s *Spec) {
		s.InputSchema = map[string]any{"type": "object", "required": []any{"id"}}
		s.OutputSchema = map[string]any{"type": "object", "required": []any{"credit_id"}}
	}
	var fail error
	tool, err := Func("credit", envelope.Write, func(_ context.Context, c *Call) (json.RawMessage, error) {
		if fail != nil {
			return nil, fail
		}
		done[c.OperationRef] = true
		return json.RawMessage(`{"credit_id": 12345678901234567890}`), nil
	}, WithSpec(schema), WithLookup(func(_ context.Context, c *Call) (json.RawMessage, error) {
		if done[c.OperationRef] {
			return json.RawMessage(`[{"credit_id":"cr"}]`), nil
		}
		return json.RawMessage(`[]`), nil
	}, VerifySpec{Committed: "size(body) == 1", NotCommitted: "size(body) == 0", Result: "body[0]"}))
	if err != nil {
		t.Fatal(err)
	}
	if tool.Kind != KindGo {
		t.Errorf("kind %s", tool.Kind)
	}
	if got := tool.Looker.Lookup(t.Context(), testCall()); got.Answer != envelope.Absent {
		t.Errorf("before: %+v", got)
	}
	if got := tool.Caller.Call(t.Context(), testCall()); !got.OK || string(got.Result) != `{"credit_id":12345678901234567890}` {
		t.Errorf("got %+v", got)
	}
	if got := tool.Looker.Lookup(t.Context(), testCall()); got.Answer != envelope.Found || string(got.Result) != `{"credit_id":"cr"}` {
		t.Errorf("after: %+v", got)
	}
	if field, ok := tool.CheckArgs(json.RawMessage(`{}`)); ok || field != "/id" {
		t.Errorf("%q %v", field, ok)
	}
	wr := envelope.Write
	for _, c := range []struct {
		fail  error
		want  envelope.Row
		after int64
	}{
		{errors.New("s3cr3t"), row(envelope.CodeOutcomeUnknown, wr), 0},
		{ErrNotSent, row(envelope.CodeUpstreamUnavailable, wr), 0},
		{&Fault{Code: envelope.CodeUpstreamRateLimited, RetryAfter: 1500 * time.Millisecond}, row(envelope.CodeUpstreamRateLimited, wr), 1500},
		{&Fault{Code: "CARD_EXPIRED", Category: envelope.Validation}, envelope.Custom("CARD_EXPIRED", envelope.Validation, "", wr), 0},
		{&Fault{Code: "CARD_EXPIRED"}, row(envelope.CodeInternalError, wr), 0},
		{&Fault{Code: envelope.CodeCancelled}, row(envelope.CodeInternalError, wr), 0},
	} {
		fail = c.fail
		if got := tool.Caller.Call(t.Context(), testCall()); got.OK || got.Row != c.want || got.RetryAfter != c.after {
			t.Errorf("%v: %+v", c.fail, got)
		}
	}
	fail = &Fault{Code: "ALREADY_DONE", CommitState: envelope.Committed}
	if got := tool.Caller.Call(t.Context(), testCall()); !got.OK || !got.LookUp {
		t.Errorf("committed: %+v", got)
	}
	fail = &Fault{Code: "CARD_EXPIRED", Category: envelope.Validation, Details: envelope.Details{"n": 7, "s": strings.Repeat("x", 300), "x": struct{}{}}}
	if got := tool.Caller.Call(t.Context(), testCall()); len(got.Details) != 1 || got.Details["n"] != json.Number("7") {
		t.Errorf("details: %+v", got.Details)
	}
}

func TestFuncThatMisbehaves(t *testing.T) {
	block := make(chan struct{})
	defer close(block)
	for _, c := range []struct {
		name   string
		effect envelope.Effect
		fn     GoFunc
		want   envelope.Code
	}{
		{"panics", envelope.Write, func(context.Context, *Call) (json.RawMessage, error) { panic("s3cr3t") }, envelope.CodeInternalError},
		{"ignores its context", envelope.Write, func(context.Context, *Call) (json.RawMessage, error) { <-block; return nil, nil }, envelope.CodeOutcomeUnknown},
		{"ignores its context", envelope.Read, func(context.Context, *Call) (json.RawMessage, error) { <-block; return nil, nil }, envelope.CodeUpstreamTimeout},
		{"returns no JSON", envelope.Write, func(context.Context, *Call) (json.RawMessage, error) { return json.RawMessage(`{`), nil }, envelope.CodeOutcomeUnknown},
		{"returns too much", envelope.Read, func(context.Context, *Call) (json.RawMessage, error) {
			return json.RawMessage(`"` + strings.Repeat("x", ResultBytesDefault) + `"`), nil
		}, envelope.CodeResultTooLarge},
	} {
		tool, err := Func("x", c.effect, c.fn, WithSpec(func(s *Spec) { s.Timeout = 50 * time.Millisecond }))
		if err != nil {
			t.Fatal(err)
		}
		if got := tool.Caller.Call(t.Context(), testCall()); got.OK || got.Row.Code != c.want {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	if _, err := Func("x", envelope.Read, nil); err == nil {
		t.Error("a tool without a function")
	}
}

func TestLastOfGoTool(t *testing.T) {
	called := false
	tool, err := Func("x", envelope.Write, func(context.Context, *Call) (json.RawMessage, error) { called = true; return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	c := testCall()
	c.Last = func() error { return errors.New("gone") }
	if got := tool.Caller.Call(t.Context(), c); !got.NotSent || called {
		t.Errorf("called %v: %+v", called, got)
	}
}

func TestRegistry(t *testing.T) {
	tool, err := Func("x", envelope.Read, func(context.Context, *Call) (json.RawMessage, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewRegistry(tool)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := r.Tool("x"); !ok || got.Name != "x" {
		t.Errorf("got %v", got)
	}
	if _, ok := r.Get("y"); ok {
		t.Error("a tool that is not there")
	}
	if _, err := NewRegistry(tool, tool); err == nil {
		t.Error("two tools of one name")
	}
}

func TestGoLookupOfAnotherKind(t *testing.T) {
	s := Spec{Name: "x", Effect: envelope.Write, Kind: kindSpec(KindHTTP), Verify: &VerifySpec{Committed: "body == operation_ref"}}
	tool, err := Compile(s, &stub{name: KindHTTP}, GoLookup(func(_ context.Context, c *Call) (json.RawMessage, error) {
		return json.Marshal(c.OperationRef)
	}))
	if err != nil {
		t.Fatal(err)
	}
	if got := tool.Looker.Lookup(t.Context(), testCall()); got.Answer != envelope.Found || string(got.Result) != `"acme/r/s"` {
		t.Errorf("got %+v", got)
	}
}

// The end of an expression may look like a path whose beginning is none.
func TestAPathBehindSomethingElse(t *testing.T) {
	body, err := decodeJSON([]byte(`{"items": [{"ref": "x", "id": 1.50}, {"ref": "acme/r/s", "id": 2.50}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]string{
		"body.items.filter(i, i.ref == operation_ref)[0]":    `{"id":2.50,"ref":"acme/r/s"}`,
		"body.items.filter(i, i.ref == operation_ref)[0].id": `2.5`,
		"(status == 200 ? body : args).items[1].id":          `2.5`,
		"body.items[1].id": `2.50`,
	} {
		e, err := compileExpr(KindHTTP, source, false)
		if err != nil {
			t.Fatal(err)
		}
		v, ok := e.value(&scope{status: 200, body: body, bodyKnown: true, args: map[string]any{}, ref: "acme/r/s"})
		if b, _ := strictjson.AppendValue(nil, v); !ok || string(b) != want {
			t.Errorf("%s is %s (%t), want %s", source, b, ok, want)
		}
	}
}

// breaking is a far side whose data breaks what reads it.
type breaking struct{ stub }

func (b *breaking) Prepare(Preparation) (Transport, error) { return b, nil }

func (b *breaking) CheckArgs(args map[string]any) (string, bool) {
	return "/id", args["id"] != "refuse"
}

func (b *breaking) RoundTrip(context.Context, *Request) Response { panic("s3cr3t") }

func TestCallNeverPanics(t *testing.T) {
	s := Spec{Name: "x", Effect: envelope.Write, Kind: kindSpec(KindHTTP)}
	verify(&s)
	tool, err := Compile(s, &breaking{stub{name: KindHTTP}})
	if err != nil {
		t.Fatal(err)
	}
	if got := tool.Caller.Call(t.Context(), testCall()); got.NotSent || got.Row != row(envelope.CodeInternalError, envelope.Write) {
		t.Errorf("got %+v", got)
	}
	if got := tool.Looker.Lookup(t.Context(), testCall()); got.Answer != envelope.Undecided {
		t.Errorf("got %+v", got)
	}
	for args, field := range map[string]string{`{"id":"refuse"}`: "/id", `[]`: ""} {
		c := testCall()
		c.Args = json.RawMessage(args)
		got := tool.Caller.Call(t.Context(), c)
		if !got.NotSent || got.Row.Code != envelope.CodeInvalidArgument || got.Details["field"] != field {
			t.Errorf("%s: %+v", args, got)
		}
		if got := tool.Looker.Lookup(t.Context(), c); got.Answer != envelope.Undecided {
			t.Errorf("%s: %+v", args, got)
		}
		if got, ok := tool.CheckArgs(c.Args); ok || got != field {
			t.Errorf("%s: %q %v", args, got, ok)
		}
	}
}

// withHeader is a response with header fields, given as name and value in turn.
func withHeader(resp Response, fields ...string) Response {
	resp.Header = map[string][]string{}
	for i := 0; i < len(fields); i += 2 {
		resp.Header[fields[i]] = []string{fields[i+1]}
	}
	return resp
}

func renewing(resp Response, after time.Duration) Response {
	resp.Renewal = &Renewal{After: after}
	return resp
}

// What tells a lookup to come again is no failed lookup; what only fails is one.
func TestLookupThatIsToldToWait(t *testing.T) {
	for _, c := range []struct {
		name string
		resp Response
		code envelope.Code // "": undecided
		wait int64
	}{
		{"429 without a time", status(429, ``), envelope.CodeUpstreamRateLimited, 0},
		{"429 with seconds", withHeader(status(429, `{"items":7}`), "retry-after", "120"), envelope.CodeUpstreamRateLimited, 120_000},
		{"503 without a time", status(503, ``), "", 0},
		{"503 with seconds", withHeader(status(503, ``), "retry-after", "7"), envelope.CodeUpstreamUnavailable, 7_000},
		{"503 at once", withHeader(status(503, ``), "retry-after", "0"), envelope.CodeUpstreamUnavailable, 0},
		{"503 with nonsense", withHeader(status(503, ``), "retry-after", "soon"), "", 0},
		{"503 that breaks off", withHeader(Response{Failure: Unreadable, Status: 503}, "retry-after", "7"), envelope.CodeUpstreamUnavailable, 7_000},
		{"403 of GitHub", withHeader(status(403, `{}`), "x-ratelimit-remaining", "0", "x-ratelimit-reset", "90"), envelope.CodeUpstreamRateLimited, 90_000},
		{"429 of the draft", withHeader(status(429, ``), "ratelimit", `"default";r=0;t=30`), envelope.CodeUpstreamRateLimited, 30_000},
		{"423 with a time", withHeader(status(423, ``), "retry-after", "3"), envelope.CodeResourceLocked, 3_000},
		{"401 while the credentials are renewed", renewing(status(401, ``), 5*time.Second), envelope.CodeCredentialsExpired, 5_000},
		{"401 when they are", renewing(status(401, ``), 0), envelope.CodeCredentialsExpired, 0},
		{"401", status(401, ``), "", 0},
		{"403", status(403, ``), "", 0},
		{"404 with a time", withHeader(status(404, ``), "retry-after", "3"), "", 0},
		{"200 with a time", withHeader(status(200, `{"items":7}`), "retry-after", "3"), "", 0},
		{"no reply", Response{Failure: NoReply}, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := envelope.Lookup{Answer: envelope.Undecided}
			if c.code != "" {
				want = envelope.Lookup{Answer: envelope.Later, Row: envelope.RowFor(c.code, envelope.Read), RetryAfter: c.wait}
			}
			if got := lookedUp(t, c.resp, nil); got.Answer != want.Answer || got.Row != want.Row || got.RetryAfter != want.RetryAfter {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
		})
	}
	t.Run("a rule comes first", func(t *testing.T) {
		got := lookedUp(t, withHeader(status(429, ``), "retry-after", "7"), func(s *Spec) { s.Verify.NotCommitted = "status == 429" })
		if got.Answer != envelope.Absent {
			t.Errorf("%+v", got)
		}
	})
}

// The other kinds tell it in their own ways.
func TestLookupOfAnotherKindThatIsToldToWait(t *testing.T) {
	for _, c := range []struct {
		name, kind string
		resp       Response
		want       envelope.Answer
	}{
		{"nats", KindNATS, withHeader(Response{IsError: true}, "retry-after", "5"), envelope.Later},
		{"nats without a time", KindNATS, Response{IsError: true}, envelope.Undecided},
		{"mcp over http", KindMCP, withHeader(Response{Status: 503}, "retry-after", "5"), envelope.Later},
		{"mcp over http, no answer of the tool", KindMCP, Response{Status: 404}, envelope.Undecided},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := Spec{Name: "tool", Effect: envelope.Write, Kind: kindSpec(KindHTTP)}
			s.Verify = &VerifySpec{Kind: kindSpec(c.kind), Committed: "size(body.items) > 0", NotCommitted: "size(body.items) == 0"}
			if c.kind == KindMCP {
				s.Verify.NotCommitted = "true"
			}
			tool, err := Compile(s, &stub{name: KindHTTP}, &stub{c.kind, c.resp})
			if err != nil {
				t.Fatal(err)
			}
			if got := tool.Looker.Lookup(t.Context(), testCall()); got.Answer != c.want || c.want == envelope.Later && got.RetryAfter != 5000 {
				t.Errorf("%+v", got)
			}
		})
	}
	t.Run("go", func(t *testing.T) {
		tool, err := Func("credit", envelope.Write, func(context.Context, *Call) (json.RawMessage, error) { return nil, nil },
			WithLookup(func(context.Context, *Call) (json.RawMessage, error) {
				return nil, &Fault{Code: envelope.CodeUpstreamRateLimited, RetryAfter: 5 * time.Second}
			}, VerifySpec{Committed: "true"}))
		if err != nil {
			t.Fatal(err)
		}
		if got := tool.Looker.Lookup(t.Context(), testCall()); got.Answer != envelope.Later || got.RetryAfter != 5000 {
			t.Errorf("%+v", got)
		}
	})
}

// A lookup of a job that the provider has accepted: under way, done, or ended for good. The rules must agree.
func TestLookupOfAJob(t *testing.T) {
	job := func(v *VerifySpec) {
		v.Committed, v.NotCommitted = "body.status == 'done'", "status == 404"
		v.Pending = "status == 202 || body.status in ['queued', 'running', 'both']"
		v.Failed = []Rule{
			{When: "body.status == 'failed' && body.why == 'card'", Code: "CARD_DECLINED", Category: envelope.Conflict},
			{When: "body.status in ['failed', 'both']", Code: envelope.CodeUpstreamError},
		}
		v.Result, v.EvidenceRef = "body", "body.id"
	}
	for _, kind := range []string{KindHTTP, KindNATS, KindMCP} {
		for _, c := range []struct {
			body string
			want envelope.Lookup
		}{
			{`{"id":"j","status":"done"}`, envelope.Lookup{Answer: envelope.Found, EvidenceRef: "j"}},
			{`{"id":"j","status":"running"}`, envelope.Lookup{Answer: envelope.Pending}},
			{`{"id":"j","status":"failed","why":"card"}`, envelope.Lookup{Answer: envelope.Failed, Row: envelope.Row{
				Code: "CARD_DECLINED", Category: envelope.Conflict, ReasonCode: "card_declined", CommitState: envelope.NotCommitted,
				Directive: envelope.Never, NextAction: envelope.Escalate, Outcome: envelope.Fatal,
			}}},
			{`{"id":"j","status":"failed","why":"x"}`, envelope.Lookup{Answer: envelope.Failed, Row: envelope.RowFor(envelope.CodeUpstreamError, envelope.Read).NeverRetried()}},
			{`{"id":"j","status":"both"}`, envelope.Lookup{Answer: envelope.Undecided}},
		} {
			s := Spec{Name: "tool", Effect: envelope.Write, Kind: kindSpec(KindCommand), Verify: &VerifySpec{Kind: kindSpec(kind)}}
			job(s.Verify)
			resp := Response{Body: []byte(c.body)}
			if kind == KindHTTP {
				resp.Status = 200
			} else {
				s.Verify.NotCommitted, s.Verify.Pending = "body == null", "body.status in ['queued', 'running', 'both']"
			}
			tool, err := Compile(s, &stub{name: KindCommand}, &stub{kind, resp})
			if err != nil {
				t.Fatal(err)
			}
			if got := tool.Looker.Lookup(t.Context(), testCall()); got.Answer != c.want.Answer || got.Row != c.want.Row || got.EvidenceRef != c.want.EvidenceRef {
				t.Errorf("%s %s: %+v", kind, c.body, got)
			}
		}
	}
	got := lookedUp(t, withHeader(status(202, ``), "retry-after", "30"), func(s *Spec) { job(s.Verify) })
	if got.Answer != envelope.Pending || got.RetryAfter != 30_000 {
		t.Errorf("202 with a time: %+v", got)
	}
}

func TestBadFailed(t *testing.T) {
	for want, r := range map[string]Rule{
		"[verify failed 0 code]: is given by the runtime only":                                              {When: "true", Code: envelope.CodeOperationPending},
		"[verify failed 0 code]: must be 3 to 64 capital letters, digits and underscores":                   {When: "true", Code: "no"},
		"[verify failed 0 category]: is required for a code of your own: it says what follows":              {When: "true", Code: "JOB_DIED"},
		"[verify failed 0 code]: OUTCOME_UNKNOWN is for writes that may have happened":                      {When: "true", Code: envelope.CodeOutcomeUnknown},
		"[verify failed 0]: has only when, code and category: nothing was done, and nothing is tried again": {When: "true", Code: envelope.CodeStateConflict, CommitState: envelope.Committed},
	} {
		s := Spec{Name: "tool", Effect: envelope.Write, Kind: kindSpec(KindHTTP), Verify: &VerifySpec{Kind: kindSpec(KindHTTP), Committed: "true", Failed: []Rule{r}}}
		if _, err := Compile(s, &stub{name: KindHTTP}); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}
