package connector

import (
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/envelope"
)

func ownEnvelope(s *Spec) { s.Response = "envelope" }

const ownRef = `"operation_ref":"acme/r/s"`

func TestEnvelopeReply(t *testing.T) {
	rd, wr := envelope.Read, envelope.Write
	invalid := row(envelope.CodeResultInvalid, wr)
	custom := func(r envelope.Row, edit func(*envelope.Row)) envelope.Row { edit(&r); return r }
	for _, c := range []struct {
		name   string
		effect envelope.Effect
		resp   Response
		want   envelope.Row
	}{
		{"minimal", wr, status(409, `{"ok":false,"code":"STATE_CONFLICT","commit_state":"not_committed","next_action":"escalate",`+ownRef+`}`), row(envelope.CodeStateConflict, wr)},
		{"with 200", wr, status(200, `{"ok":false,"code":"UPSTREAM_RATE_LIMITED","commit_state":"not_committed","next_action":"wait_and_retry",`+ownRef+`}`), row(envelope.CodeUpstreamRateLimited, wr)},
		{"unknown", wr, status(200, `{"ok":false,"code":"OUTCOME_UNKNOWN","commit_state":"unknown","next_action":"verify_operation",`+ownRef+`}`), row(envelope.CodeOutcomeUnknown, wr)},
		{"unknown whatever else it says", wr, status(200, `{"ok":false,"code":"UPSTREAM_UNAVAILABLE","commit_state":"unknown","retry":{"directive":"after_delay"},"next_action":"wait_and_retry",`+ownRef+`}`), envelope.Custom(envelope.CodeUpstreamUnavailable, "", envelope.Unknown, wr)},
		{"own code", wr, status(200, `{"ok":false,"code":"CARD_EXPIRED","category":"validation","commit_state":"not_committed","next_action":"correct_input",`+ownRef+`}`), envelope.Custom("CARD_EXPIRED", envelope.Validation, "", wr)},
		{"own code without category", rd, status(200, `{"ok":false,"code":"CARD_EXPIRED","commit_state":"not_committed","next_action":"correct_input",`+ownRef+`}`), envelope.Custom("CARD_EXPIRED", envelope.Validation, "", rd)},
		{"its own word on retry", rd, status(200, `{"ok":false,"code":"UPSTREAM_ERROR","commit_state":"not_committed","retry":{"directive":"never"},"next_action":"escalate",`+ownRef+`}`), never(envelope.CodeUpstreamError)},
		{"asks for approval", wr, status(200, `{"ok":false,"code":"UPSTREAM_DENIED","commit_state":"not_committed","next_action":"request_approval",`+ownRef+`}`), custom(row(envelope.CodeUpstreamDenied, wr), func(r *envelope.Row) {
			r.NextAction, r.Outcome = envelope.RequestApproval, envelope.NeedsHuman
		})},
		{"unknown, internal", wr, status(200, `{"ok":false,"code":"ODD_FAULT","category":"internal","commit_state":"unknown","next_action":"escalate",`+ownRef+`}`), rowOf("ODD_FAULT", envelope.Internal, envelope.Unknown, wr)},
		{"says two things", rd, status(200, `{"ok":false,"code":"UPSTREAM_ERROR","commit_state":"not_committed","retry":{"directive":"never"},"next_action":"wait_and_retry",`+ownRef+`}`), row(envelope.CodeResultInvalid, rd)},
		{"directive that is none", rd, status(200, `{"ok":false,"code":"UPSTREAM_ERROR","commit_state":"not_committed","retry":{"directive":"soon"},"next_action":"wait_and_retry",`+ownRef+`}`), row(envelope.CodeResultInvalid, rd)},
		{"foreign ref", wr, status(200, `{"ok":true,"commit_state":"committed","operation_ref":"acme/r/other"}`), invalid},
		{"foreign ref of a failure", wr, status(409, `{"ok":false,"code":"STATE_CONFLICT","commit_state":"not_committed","next_action":"escalate","operation_ref":"x"}`), invalid},
		{"no ref", wr, status(200, `{"ok":true,"commit_state":"committed"}`), invalid},
		{"no commit state", wr, status(200, `{"ok":true,`+ownRef+`}`), invalid},
		{"ok but not committed", wr, status(200, `{"ok":true,"commit_state":"not_committed",`+ownRef+`}`), invalid},
		{"ok beside a failing status", wr, status(500, `{"ok":true,"commit_state":"committed",`+ownRef+`}`), invalid},
		{"no next action", wr, status(200, `{"ok":false,"code":"STATE_CONFLICT","commit_state":"not_committed",`+ownRef+`}`), invalid},
		{"the runtime's code", wr, status(200, `{"ok":false,"code":"CANCELLED","commit_state":"not_committed","next_action":"escalate",`+ownRef+`}`), invalid},
		{"unknown, but not committed", wr, status(200, `{"ok":false,"code":"OUTCOME_UNKNOWN","commit_state":"not_committed","next_action":"escalate",`+ownRef+`}`), invalid},
		{"a read that is unknown", rd, status(200, `{"ok":false,"code":"UPSTREAM_ERROR","commit_state":"unknown","next_action":"escalate",`+ownRef+`}`), row(envelope.CodeResultInvalid, rd)},
		{"a field of another type", wr, status(200, `{"ok":true,"commit_state":"committed","verification":7,`+ownRef+`}`), invalid},
		{"no envelope", wr, status(200, `{"id":1}`), invalid},
		{"no envelope", wr, status(200, `text`), invalid},
		{"no envelope, a failing status", wr, status(404, `{"id":1}`), row(envelope.CodeResourceNotFound, wr)},
		{"no envelope, 5xx", wr, status(502, `<html>`), row(envelope.CodeOutcomeUnknown, wr)},
		{"result does not fit", wr, status(200, `{"ok":true,"commit_state":"committed","result":7,`+ownRef+`}`), invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := classified(t, KindHTTP, c.effect, c.resp, func(s *Spec) {
				ownEnvelope(s)
				s.OutputSchema = map[string]any{"type": []any{"object", "null"}}
			})
			if got.OK || got.Row != c.want {
				t.Errorf("got %+v\nwant %+v", got.Row, c.want)
			}
		})
	}
}

func TestEnvelopeSuccess(t *testing.T) {
	whole := `{"ok":true,"commit_state":"committed","result":{"n":1.10},"verification":{"checked_at":"2026-12-01T10:00:00Z","evidence_ref":"cr_3"},` + ownRef + `}`
	got := classified(t, KindNATS, envelope.Write, Response{Body: []byte(whole)}, ownEnvelope)
	if !got.OK || string(got.Result) != `{"n":1.10}` || got.EvidenceRef != "cr_3" {
		t.Errorf("got %+v", got)
	}
	for source, want := range map[string]string{"body.result.n": "1.10", "body.result.none": "cr_3"} {
		got = classified(t, KindNATS, envelope.Write, Response{Body: []byte(whole)}, func(s *Spec) { ownEnvelope(s); s.EvidenceRef = source })
		if got.EvidenceRef != want {
			t.Errorf("%s: %q", source, got.EvidenceRef)
		}
	}
	got = classified(t, KindMCP, envelope.Write, Response{IsError: true, Body: []byte(whole)}, ownEnvelope)
	if got.OK || got.Row != row(envelope.CodeResultInvalid, envelope.Write) {
		t.Errorf("ok beside isError: %+v", got.Row)
	}
	committed := status(200, `{"ok":false,"code":"DUPLICATE_OPERATION","commit_state":"committed","next_action":"escalate","result":{"n":1},`+ownRef+`}`)
	if got = classified(t, KindHTTP, envelope.Write, committed, ownEnvelope); !got.OK || string(got.Result) != `{"n":1}` {
		t.Errorf("committed without verify: %+v", got)
	}
	if got = classified(t, KindHTTP, envelope.Write, committed, func(s *Spec) { ownEnvelope(s); verify(s) }); !got.OK || !got.LookUp {
		t.Errorf("committed with verify: %+v", got)
	}
}

func TestEnvelopeNotBefore(t *testing.T) {
	now := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	c := &classifier{kind: KindNATS, effect: envelope.Read, envelope: true, resultMax: 1 << 10, now: func() time.Time { return now }}
	r := &Request{Call: testCall()}
	resp := Response{Body: []byte(`{"ok":false,"code":"UPSTREAM_RATE_LIMITED","commit_state":"not_committed","next_action":"wait_and_retry","retry":{"directive":"after_delay","not_before":"2026-12-01T10:00:02.500Z"},` + ownRef + `}`)}
	if got := c.classify(&resp, r); got.RetryAfter != 2500 {
		t.Errorf("got %d ms", got.RetryAfter)
	}
}
