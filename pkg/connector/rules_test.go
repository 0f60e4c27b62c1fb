package connector

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/envelope"
)

func withRules(rules ...Rule) func(*Spec) { return func(s *Spec) { s.Errors = rules } }

func TestRules(t *testing.T) {
	wr := envelope.Write
	paid := Rule{When: "status == 409 && body.error.type == 'already_paid'", Code: "INVOICE_ALREADY_PAID", Category: envelope.Conflict}
	safe503 := Rule{When: "status == 503", Code: envelope.CodeUpstreamUnavailable, CommitState: envelope.NotCommitted}
	for _, c := range []struct {
		name  string
		rules []Rule
		resp  Response
		want  envelope.Row
	}{
		{"own code", []Rule{paid}, status(409, `{"error":{"type":"already_paid"}}`), envelope.Custom("INVOICE_ALREADY_PAID", envelope.Conflict, "", wr)},
		{"no match", []Rule{paid}, status(409, `{"error":{"type":"other"}}`), row(envelope.CodeStateConflict, wr)},
		{"a missing key is no match", []Rule{paid}, status(409, `{}`), row(envelope.CodeStateConflict, wr)},
		{"a body of another type is no match", []Rule{paid}, status(409, `text`), row(envelope.CodeStateConflict, wr)},
		{"proves nothing was done", []Rule{safe503}, status(503, ``), envelope.Custom(envelope.CodeUpstreamUnavailable, "", envelope.NotCommitted, wr)},
		{"first match wins", []Rule{safe503, {When: "true", Code: "LATER_RULE", Category: envelope.Internal}}, status(503, ``), row(envelope.CodeUpstreamUnavailable, wr)},
		{"status without body", []Rule{safe503}, Response{Failure: TooLarge, Status: 503}, row(envelope.CodeUpstreamUnavailable, wr)},
		{"needs the body that is not there", []Rule{{When: "body == null", Code: "EMPTY_BODY", Category: envelope.Validation}}, Response{Failure: TooLarge, Status: 200}, row(envelope.CodeResultTooLarge, wr)},
		{"unknown on a write", []Rule{{When: "status == 400", Code: "ODD_ANSWER", Category: envelope.Validation, CommitState: envelope.Unknown}}, status(400, ``), envelope.Custom("ODD_ANSWER", envelope.Validation, envelope.Unknown, wr)},
		{"unknown on a write, internal", []Rule{{When: "status == 400", Code: "ODD_ANSWER", Category: envelope.Internal, CommitState: envelope.Unknown}}, status(400, ``), unknownAs("ODD_ANSWER", envelope.Internal)},
		{"headers in lower case", []Rule{{When: "headers['x-error'] == 'a, b'", Code: "HEADER_SEEN", Category: envelope.Internal}}, Response{Status: 400, Header: map[string][]string{"x-error": {"a", "b"}}}, envelope.Custom("HEADER_SEEN", envelope.Internal, "", wr)},
		{"args, ref and key", []Rule{{When: "args.id == 'inv_7' && args.n == 9007199254740993 && operation_ref == 'acme/r/s' && idempotency_key.endsWith('.p2')", Code: "ALL_SEEN", Category: envelope.Internal}}, status(400, ``), envelope.Custom("ALL_SEEN", envelope.Internal, "", wr)},
		{"no rule without a response", []Rule{{When: "status == 0", Code: "NEVER_MATCHED", Category: envelope.Internal}}, Response{Failure: NoReply}, row(envelope.CodeOutcomeUnknown, wr)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := classified(t, KindHTTP, wr, c.resp, withRules(c.rules...)); got.OK || got.Row != c.want {
				t.Errorf("got %+v\nwant %+v", got.Row, c.want)
			}
		})
	}
}

// unknownAs is OUTCOME_UNKNOWN's row under another code.
func unknownAs(code envelope.Code, category envelope.Category) envelope.Row {
	r := row(envelope.CodeOutcomeUnknown, envelope.Write)
	r.Code, r.Category, r.ReasonCode = code, category, strings.ToLower(string(code))
	return r
}

func TestNumbersInCEL(t *testing.T) {
	body := `{"int":9223372036854775807,"neg":-9223372036854775808,"uint":18446744073709551615,"frac":1.5,"whole":1.0,"exp":1e2,"one":1,"big":123456789012345678901234567890}`
	for expression, want := range map[string]bool{
		"body.int == 9223372036854775807":                 true,
		"body.int == 9223372036854775806":                 false,
		"body.neg == -9223372036854775808":                true,
		"body.uint == 18446744073709551615u":              true,
		"body.uint > body.int":                            true,
		"body.frac == 1.5":                                true,
		"body.frac > 1":                                   true,
		"body.whole == 1":                                 true,
		"body.exp == 100":                                 true,
		"body.one == 1.0":                                 true,
		"body.one + 1 == 2":                               true,
		"body.big > 1":                                    true,
		"body.one in [1, 2]":                              true,
		"status == 200 && size(body) == 8":                true,
		"string(body.int) == '9223372036854775807'":       true,
		"body.nothing == 1":                               false,
		"has(body.nothing) || body.one == 1":              true,
		"body.exists(k, k == 'one')":                      true,
		"[1,2,3].all(x, x > 0) && body.frac + 0.5 == 2.0": true,
	} {
		got := classified(t, KindHTTP, envelope.Read, status(200, body), withRules(Rule{When: expression, Code: "IT_MATCHED", Category: envelope.Internal}))
		if matched := !got.OK && got.Row.Code == "IT_MATCHED"; matched != want {
			t.Errorf("%s: %v", expression, matched)
		}
	}
}

func TestCommittedByRule(t *testing.T) {
	duplicate := Rule{When: "status == 409", Code: "DUPLICATE_OPERATION", CommitState: envelope.Committed}
	schema := map[string]any{"type": "object", "required": []any{"credit_id"}}
	resp := status(409, `{"credit_id":"cr_3"}`)
	got := classified(t, KindHTTP, envelope.Write, resp, func(s *Spec) { s.Errors = []Rule{duplicate}; verify(s) })
	if !got.OK || !got.LookUp || got.Result != nil {
		t.Errorf("with verify: %+v", got)
	}
	got = classified(t, KindHTTP, envelope.Write, resp, func(s *Spec) {
		s.Errors, s.OutputSchema, s.EvidenceRef = []Rule{duplicate}, schema, "body.credit_id"
	})
	if !got.OK || got.LookUp || string(got.Result) != `{"credit_id":"cr_3"}` || got.EvidenceRef != "cr_3" {
		t.Errorf("without verify: %+v", got)
	}
	for _, resp := range []Response{status(409, `{"error":1}`), {Failure: Unreadable, Status: 409}, {Failure: TooLarge, Status: 409}} {
		got = classified(t, KindHTTP, envelope.Write, resp, func(s *Spec) { s.Errors, s.OutputSchema = []Rule{duplicate}, schema })
		if got.OK || got.Row.CommitState != envelope.Committed || got.Row.Outcome != envelope.NeedsHuman || got.Row.Directive != envelope.Never {
			t.Errorf("without a result that fits: %+v", got.Row)
		}
	}
}

func TestSafeDetailsAndEvidence(t *testing.T) {
	long := strings.Repeat("x", 257)
	got := classified(t, KindHTTP, envelope.Write, status(400, `{"s":"text","n":1.10,"big":12345678901234567890123,"b":true,"o":{},"l":[],"z":null,"long":"`+long+`"}`), func(s *Spec) {
		s.SafeDetails = map[string]string{}
		for _, k := range []string{"s", "n", "big", "b", "o", "l", "z", "long", "missing"} {
			s.SafeDetails["k_"+k] = "body." + k
		}
		s.SafeDetails["status"] = "status"
		s.SafeDetails["sum"] = "body.n + 1.0"
	})
	b, err := json.Marshal(got.Details)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"http_status":400,"k_b":true,"k_big":12345678901234567890123,"k_n":1.10,"k_s":"text","status":400,"sum":2.1}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	for source, want := range map[string]string{
		"body.id": "cr_3", "body.n": "12345678901234567890123", "'x' + body.id": "xcr_3", "body.none": "", "body.list": "", "headers['etag']": "W/1",
		"body.long": "", "operation_ref": "acme/r/s",
	} {
		resp := status(200, `{"id":"cr_3","n":12345678901234567890123,"list":[],"long":"`+strings.Repeat("y", 600)+`"}`)
		resp.Header = map[string][]string{"etag": {"W/1"}}
		got := classified(t, KindHTTP, envelope.Write, resp, func(s *Spec) { s.EvidenceRef = source })
		if !got.OK || got.EvidenceRef != want {
			t.Errorf("%s: %q", source, got.EvidenceRef)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		values []string
		want   time.Duration
		ok     bool
	}{
		{nil, 0, false},
		{[]string{"30"}, 30 * time.Second, true},
		{[]string{" 007 "}, 7 * time.Second, true},
		{[]string{"0"}, 0, true},
		{[]string{"99999999999999999999999"}, retryAfterMax, true},
		{[]string{"-1"}, 0, false},
		{[]string{"+1"}, 0, false},
		{[]string{"1.5"}, 0, false},
		{[]string{"120junk"}, 0, false},
		{[]string{"1e3"}, 0, false},
		{[]string{""}, 0, false},
		{[]string{"1", "2"}, 0, false},
		{[]string{"1, 2"}, 0, false},
		{[]string{"٣"}, 0, false},
		{[]string{"Tue, 01 Dec 2026 10:00:10 GMT"}, 10 * time.Second, true},
		{[]string{"Tuesday, 01-Dec-26 10:00:10 GMT"}, 10 * time.Second, true},
		{[]string{"Tue Dec  1 10:00:10 2026"}, 10 * time.Second, true},
		{[]string{"Tue, 01 Dec 2026 09:00:00 GMT"}, 0, true},
		{[]string{"Sunday, 06-Nov-94 08:49:37 GMT"}, 0, true},
		{[]string{"Monday, 01-Dec-75 10:00:00 GMT"}, retryAfterMax, true}, // 49 years ahead, not 51 years ago
		{[]string{"Tue, 01 Dec 2026 10:00:10 PST"}, 0, false},
		{[]string{"Tue, 1 Dec 2026 10:00:10 GMT"}, 0, false},
		{[]string{"Tue, 01 Dec 2026 10:00:10.5 GMT"}, 0, false},
		{[]string{"Tuesday, 01-Dec-26 10:00:10 CET"}, 0, false},
		{[]string{"Tue Dec 1 10:00:10 2026"}, 0, false},
		{[]string{"2026-12-01T10:00:10Z"}, 0, false},
		{[]string{"Tue, 01 Dec 2026 10:00:10 GMT, 5"}, 0, false},
	} {
		got, ok := retryAfter(map[string][]string{"retry-after": c.values}, now)
		if got != c.want || ok != c.ok {
			t.Errorf("%q: %v %v", c.values, got, ok)
		}
	}
	// The far side's own clock is an hour behind ours: its date is 10 s ahead of its Date.
	got, ok := retryAfter(map[string][]string{
		"retry-after": {"Tue, 01 Dec 2026 09:00:10 GMT"}, "date": {"Tue, 01 Dec 2026 09:00:00 GMT"},
	}, now)
	if got != 10*time.Second || !ok {
		t.Errorf("by its own Date: %v %v", got, ok)
	}
	resp := status(429, "")
	resp.Header = map[string][]string{"retry-after": {"30"}}
	if got := classified(t, KindHTTP, envelope.Write, resp, nil); got.RetryAfter != 30_000 {
		t.Errorf("429: %d ms", got.RetryAfter)
	}
	resp.Status = 400
	if got := classified(t, KindHTTP, envelope.Write, resp, nil); got.RetryAfter != 0 {
		t.Errorf("400: %d ms", got.RetryAfter)
	}
}
