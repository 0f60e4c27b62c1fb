package connectortest

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
)

func answered(t *testing.T, s *suite) {
	s.peer.Script(Script{Do: Answer, Body: ` {"id": 12345678901234567890123, "rate": 1.10} `})
	got := s.tool(t, func(sp *connector.Spec) { sp.EvidenceRef = "body.id" }).Caller.Call(t.Context(), call())
	if !got.OK || string(got.Result) != `{"id":12345678901234567890123,"rate":1.10}` {
		t.Fatalf("got %+v", got)
	}
	if got.EvidenceRef != "12345678901234567890123" {
		t.Fatalf("evidence_ref %q", got.EvidenceRef)
	}
	seen := s.arrived(t, 1)
	if seen.Args != "" && seen.Args != args {
		t.Fatalf("args arrived as %s", seen.Args)
	}
	if c := call(); s.effect == envelope.Write && (seen.OperationRef != c.OperationRef || seen.IdempotencyKey != c.IdempotencyKey) {
		t.Fatalf("arrived with ref %q and key %q", seen.OperationRef, seen.IdempotencyKey)
	}
}

func empty(t *testing.T, s *suite) {
	s.peer.Script(Script{Do: Answer})
	if got := s.tool(t, nil).Caller.Call(t.Context(), call()); !got.OK || string(got.Result) != "null" {
		t.Fatalf("got %+v", got)
	}
	object := func(sp *connector.Spec) { sp.OutputSchema = map[string]any{"type": "object"} }
	s.expect(t, s.tool(t, object).Caller.Call(t.Context(), call()), envelope.CodeResultInvalid, envelope.CodeResultInvalid)
}

func neverSent(t *testing.T, s *suite) {
	tool := s.tool(t, func(sp *connector.Spec) { sp.Kind = s.peer.Unreachable(s.effect) })
	got := tool.Caller.Call(t.Context(), call())
	s.expect(t, got, envelope.CodeUpstreamUnavailable, envelope.CodeUpstreamUnavailable)
	if !got.NotSent || got.NoReply {
		t.Fatalf("got %+v", got)
	}
}

func leaseGone(t *testing.T, s *suite) {
	s.peer.Script(Script{Do: Answer, Body: `{}`})
	tool := s.tool(t, nil)
	for range 2 { // on a new connection, then where the kind keeps one, on a used one
		c := call()
		asked := 0
		c.Last = func() error { asked++; return errors.New("the lease is gone") }
		got := tool.Caller.Call(t.Context(), c)
		s.expect(t, got, envelope.CodeUpstreamUnavailable, envelope.CodeUpstreamUnavailable)
		if !got.NotSent || asked != 1 {
			t.Fatalf("not sent %v, asked %d times", got.NotSent, asked)
		}
		s.arrived(t, 0)
		if got := tool.Caller.Call(t.Context(), call()); !got.OK {
			t.Fatalf("the next call: %+v", got)
		}
		s.arrived(t, 1)
	}
}

func cancelledBefore(t *testing.T, s *suite) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := s.tool(t, nil).Caller.Call(ctx, call())
	s.expect(t, got, envelope.CodeUpstreamUnavailable, envelope.CodeUpstreamUnavailable)
	if !got.NotSent {
		t.Fatalf("got %+v", got)
	}
	s.arrived(t, 0)
}

func cancelled(t *testing.T, s *suite) {
	s.need(t, Hang)
	s.peer.Script(Script{Do: Hang})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan envelope.Reply, 1)
	tool := s.tool(t, nil)
	go func() { done <- tool.Caller.Call(ctx, call()) }()
	s.arrived(t, 1)
	cancel()
	s.expectNoReply(t, <-done)
}

func (s *suite) expectNoReply(t *testing.T, got envelope.Reply) {
	t.Helper()
	s.expect(t, got, envelope.CodeUpstreamTimeout, envelope.CodeOutcomeUnknown)
	if got.NotSent || !got.NoReply {
		t.Fatalf("got %+v", got)
	}
}

func (s *suite) need(t *testing.T, d Do) {
	t.Helper()
	if !s.peer.Can(d) {
		t.Skipf("a far side of kind %s cannot %s", s.peer.Kind().Name(), d)
	}
}

func lost(t *testing.T, s *suite) {
	s.need(t, Lose)
	s.peer.Script(Script{Do: Lose})
	s.expectNoReply(t, s.tool(t, nil).Caller.Call(t.Context(), call()))
	s.arrived(t, 1)
}

func lostWhenReused(t *testing.T, s *suite) {
	s.need(t, Lose)
	tool := s.tool(t, nil)
	s.peer.Script(Script{Do: Answer, Body: `{}`})
	if got := tool.Caller.Call(t.Context(), call()); !got.OK {
		t.Fatalf("got %+v", got)
	}
	s.arrived(t, 1)
	s.peer.Script(Script{Do: Lose})
	s.expectNoReply(t, tool.Caller.Call(t.Context(), call()))
	s.arrived(t, 1)
	s.peer.Script(Script{Do: Answer, Body: `{}`})
	if got := tool.Caller.Call(t.Context(), call()); !got.OK {
		t.Fatalf("the next call: %+v", got)
	}
	s.arrived(t, 1)
}

func slow(t *testing.T, s *suite) {
	s.need(t, Hang)
	s.peer.Script(Script{Do: Hang})
	timeout := 150 * time.Millisecond
	if p, ok := s.peer.(Starter); ok {
		timeout += p.StartTime()
	}
	tool := s.tool(t, func(sp *connector.Spec) { sp.Timeout = timeout })
	s.expectNoReply(t, tool.Caller.Call(t.Context(), call()))
	s.arrived(t, 1)
}

func brokenOff(t *testing.T, s *suite) {
	s.need(t, Break)
	s.peer.Script(Script{Do: Break, Body: `{"id":"cr_3","amount_minor":500}`})
	s.expectNoReply(t, s.tool(t, nil).Caller.Call(t.Context(), call()))
	s.arrived(t, 1)
}

func huge(t *testing.T, s *suite) {
	s.peer.Script(Script{Do: Answer, Body: `"` + strings.Repeat("x", resultMax) + `"`})
	got := s.tool(t, nil).Caller.Call(t.Context(), call())
	s.expect(t, got, envelope.CodeResultTooLarge, envelope.CodeResultTooLarge)
	s.peer.Script(Script{Do: Answer, Body: `"` + strings.Repeat("x", resultMax-2) + `"`})
	if got := s.tool(t, nil).Caller.Call(t.Context(), call()); !got.OK || len(got.Result) != resultMax {
		t.Fatalf("a result of exactly the limit: ok=%v %s", got.OK, got.Row.Code)
	}
}

func malformed(t *testing.T, s *suite) {
	s.peer.Script(Script{Do: Answer, Body: `{"id": "cr_3`})
	if got := s.tool(t, nil).Caller.Call(t.Context(), call()); !got.OK || string(got.Result) != `"{\"id\": \"cr_3"` {
		t.Fatalf("without output_schema it is a string: %+v", got)
	}
	object := func(sp *connector.Spec) { sp.OutputSchema = map[string]any{"type": "object"} }
	s.expect(t, s.tool(t, object).Caller.Call(t.Context(), call()), envelope.CodeResultInvalid, envelope.CodeResultInvalid)
}

func ambiguous(t *testing.T, s *suite) {
	s.peer.Script(Script{Do: Answer, Body: `{"id":1,"id":2}`})
	s.expectNoReply(t, s.tool(t, nil).Caller.Call(t.Context(), call()))
}

func garbled(t *testing.T, s *suite) {
	s.need(t, Garble)
	s.peer.Script(Script{Do: Garble, Body: "{\"id\":\"\xff\"}"})
	s.expectNoReply(t, s.tool(t, nil).Caller.Call(t.Context(), call()))
}

func errorObject(t *testing.T, s *suite) {
	s.peer.Script(Script{Do: Answer, Body: `{"error":{"type":"no_money","field":"/amount_minor"},"secret":"s3cr3t"}`})
	tool := s.tool(t, func(sp *connector.Spec) {
		sp.ErrorSchema = map[string]any{"type": "object", "required": []any{"error"}}
		sp.SafeDetails = map[string]string{"field": "body.error.field"}
	})
	got := tool.Caller.Call(t.Context(), call())
	s.expect(t, got, envelope.CodeUpstreamError, envelope.CodeOutcomeUnknown)
	if s.effect == envelope.Read && got.Row.Directive != envelope.Never {
		t.Fatalf("directive %s", got.Row.Directive)
	}
	if got.Details["field"] != "/amount_minor" {
		t.Fatalf("details %v", got.Details)
	}
	s.leaksNothing(t, got, "s3cr3t")
}

func (s *suite) leaksNothing(t *testing.T, got envelope.Reply, secret string) {
	t.Helper()
	b, err := json.Marshal(got)
	if err != nil || strings.Contains(string(b), secret) {
		t.Fatalf("%v: the reply holds what the far side said: %s", err, b)
	}
}

func markedError(t *testing.T, s *suite) {
	s.need(t, Fail)
	s.peer.Script(Script{Do: Fail, Body: `{"error":"s3cr3t"}`})
	got := s.tool(t, nil).Caller.Call(t.Context(), call())
	if got.OK || (s.effect == envelope.Write && got.Row.Code != envelope.CodeOutcomeUnknown) {
		t.Fatalf("got %+v", got)
	}
	s.leaksNothing(t, got, "s3cr3t")
}

func falseSuccess(t *testing.T, s *suite) {
	s.peer.Script(Script{Do: Answer, Body: `{"status":"ok"}`})
	tool := s.tool(t, func(sp *connector.Spec) {
		sp.OutputSchema = map[string]any{"type": "object", "required": []any{"credit_id"}}
	})
	s.expect(t, tool.Caller.Call(t.Context(), call()), envelope.CodeResultInvalid, envelope.CodeResultInvalid)
}

func duplicate(t *testing.T, s *suite) {
	s.need(t, Twice)
	tool := s.tool(t, nil)
	s.peer.Script(Script{Do: Twice, Body: `{"n":1}`})
	if got := tool.Caller.Call(t.Context(), call()); !got.OK || string(got.Result) != `{"n":1}` {
		t.Fatalf("got %+v", got)
	}
	s.arrived(t, 1)
	// The second answer belongs to nobody: it must not be taken for the next call's.
	s.peer.Script(Script{Do: Answer, Body: `{"n":2}`})
	if got := tool.Caller.Call(t.Context(), call()); got.OK && string(got.Result) != `{"n":2}` {
		t.Fatalf("the next call got another call's answer: %+v", got)
	}
}

func lookup(t *testing.T, s *suite) {
	tool := s.tool(t, func(sp *connector.Spec) {
		sp.OutputSchema = map[string]any{"type": "object", "required": []any{"credit_id"}}
		sp.Verify = &connector.VerifySpec{
			Kind: s.peer.Spec(envelope.Read), Committed: "size(body.items) > 0", NotCommitted: "size(body.items) == 0",
			Result: "body.items[0]", EvidenceRef: "body.items[0].credit_id", Timeout: 5 * time.Second,
		}
	})
	for _, c := range []struct {
		body string
		want envelope.Lookup
	}{
		{
			`{"items":[{"credit_id":"cr_3","n":1.50}]}`,
			envelope.Lookup{Answer: envelope.Found, Result: json.RawMessage(`{"credit_id":"cr_3","n":1.50}`), EvidenceRef: "cr_3"},
		},
		{`{"items":[{"id":"cr_3"}]}`, envelope.Lookup{Answer: envelope.Found, Invalid: envelope.CodeResultInvalid}},
		{`{"items":[]}`, envelope.Lookup{Answer: envelope.Absent}},
		{`{"error":"no"}`, envelope.Lookup{Answer: envelope.Undecided}},
		{`nothing to see`, envelope.Lookup{Answer: envelope.Undecided}},
	} {
		s.peer.Script(Script{Do: Answer, Body: c.body})
		got := tool.Looker.Lookup(t.Context(), call())
		if got.Answer != c.want.Answer || string(got.Result) != string(c.want.Result) || got.EvidenceRef != c.want.EvidenceRef ||
			got.Invalid != c.want.Invalid {
			t.Errorf("%s: got %+v, want %+v", c.body, got, c.want)
		}
	}
	if s.peer.Can(Lose) {
		s.peer.Script(Script{Do: Lose})
		if got := tool.Looker.Lookup(t.Context(), call()); got.Answer != envelope.Undecided {
			t.Errorf("a lost lookup: %+v", got)
		}
	}
}
