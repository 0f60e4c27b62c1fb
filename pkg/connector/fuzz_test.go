package connector

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
)

// Whatever comes back, the end of a call is one envelope that holds together, and nothing of the far side is in it but a
// result and the details that the config names.
func FuzzClassify(f *testing.F) {
	for _, body := range []string{
		``, `{}`, `{"error":{"field":"/x"}}`, `{"id":1}`, `[1,2`, `{"a":1,"a":2}`, "\xff", `{"ok":true,"commit_state":"committed","operation_ref":"acme/r/s"}`,
		`{"ok":false,"code":"X_Y","commit_state":"unknown","next_action":"escalate","operation_ref":"acme/r/s"}`, `1e999`, `"\ud800"`,
	} {
		for _, status := range []int{0, 200, 202, 307, 409, 429, 503} {
			f.Add([]byte(body), status, uint8(0), "30", false)
		}
	}
	tools := map[bool][2]*classifier{}
	for _, own := range []bool{false, true} {
		var pair [2]*classifier
		for i, effect := range []envelope.Effect{envelope.Read, envelope.Write} {
			s := Spec{
				Effect: effect, MaxResultBytes: 256, EvidenceRef: "body.id", SafeDetails: map[string]string{"field": "body.error.field"},
				OutputSchema: map[string]any{"type": []any{"object", "null", "string"}},
				ErrorSchema:  map[string]any{"type": "object", "required": []any{"error"}},
				Errors: []Rule{
					{When: "status == 409 && body.done", Code: "ALREADY_DONE", CommitState: envelope.Committed},
					{When: "body.items.exists(i, i.x > 3)", Code: "ODD_ITEM", Category: envelope.Internal},
				},
			}
			if own {
				s.Response = "envelope"
			}
			c, err := newClassifier(&s, KindHTTP)
			if err != nil {
				f.Fatal(err)
			}
			pair[i] = c
		}
		tools[own] = pair
	}
	f.Fuzz(func(t *testing.T, body []byte, status int, failure uint8, after string, own bool) {
		for i, effect := range []envelope.Effect{envelope.Read, envelope.Write} {
			resp := Response{
				Failure: Failure(failure % 6), Status: status, Body: body, Header: map[string][]string{"retry-after": {after}},
			}
			r := &Request{Call: testCall(), Effect: effect}
			got := tools[own][i].classify(&resp, r)
			holdsTogether(t, &got, effect)
		}
	})
}

func holdsTogether(t *testing.T, got *envelope.Reply, effect envelope.Effect) {
	t.Helper()
	if got.OK {
		if !json.Valid(got.Result) || len(got.Result) > 256 || got.Row != (envelope.Row{}) {
			t.Fatalf("success with %+v", got)
		}
		return
	}
	row := got.Row
	switch {
	case got.Result != nil || row.Code == "" || row.ReasonCode == "" || row.Outcome == "" || row.Outcome == envelope.OK:
		t.Fatalf("failure with %+v", got)
	case row.CommitState == envelope.Unknown && (effect == envelope.Read || row.Directive != envelope.Never):
		t.Fatalf("unknown: %+v", row)
	case row.Outcome == envelope.Retryable && (row.Directive != envelope.AfterDelay || row.CommitState != envelope.NotCommitted):
		t.Fatalf("retryable: %+v", row)
	case row.CommitState == envelope.Unknown && row.Outcome != envelope.UnknownNow:
		t.Fatalf("unknown, but %+v", row)
	case (row.Directive == envelope.AfterDelay) != (row.NextAction == envelope.WaitAndRetry):
		t.Fatalf("says two things: %+v", row)
	case row.CommitState == envelope.Committed && row.Outcome != envelope.NeedsHuman:
		t.Fatalf("committed: %+v", row)
	case got.RetryAfter < 0 || (got.NotSent && row.CommitState != envelope.NotCommitted):
		t.Fatalf("got %+v", got)
	}
	if _, err := json.Marshal(got); err != nil {
		t.Fatalf("%+v: %v", got, err)
	}
}

// Our reader takes nothing that encoding/json refuses, and refuses only what it says it does; what it has taken it writes
// as JSON that reads the same.
func FuzzDecodeJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.50,"x\u00e9",null,true]}`, `{"a":1,"a":2}`, `1e5`, `"\ud83d\ude00"`, `[[[]]]`, ` 01 `, "\"\xc3\x28\"", `"\ud800x\ud800\ud83d\ude00\u00e9\b\f\n\r\t\/\\\""`, `{"":{"~":[]}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := decodeJSON(b)
		if err == nil && !json.Valid(b) || err == errNotJSON && json.Valid(b) {
			t.Fatalf("%q: %v", b, err)
		}
		if err != nil {
			return
		}
		std := json.NewDecoder(bytes.NewReader(b))
		std.UseNumber()
		var want any
		if err := std.Decode(&want); err != nil || !reflect.DeepEqual(v, want) {
			t.Fatalf("%q: %#v, encoding/json has %#v (%v)", b, v, want, err)
		}
		out, ok := strictjson.AppendValue(nil, v)
		if !ok || !json.Valid(out) {
			t.Fatalf("%q became %q", b, out)
		}
		again, err := decodeJSON(out)
		if err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		if twice, _ := strictjson.AppendValue(nil, again); !bytes.Equal(out, twice) {
			t.Fatalf("%q became %q", out, twice)
		}
	})
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"30", "-1", "Tue, 01 Dec 2026 10:00:10 GMT", "Tuesday, 01-Dec-26 10:00:10 GMT", "Tue Dec  1 10:00:10 2026", "1, 2"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, after, date string) {
		d, ok := retryAfter(map[string][]string{"retry-after": {after}, "date": {date}}, envelope.Time(0).Time())
		if d < 0 || d > retryAfterMax || (!ok && d != 0) {
			t.Fatalf("%q: %v %v", after, d, ok)
		}
	})
}
