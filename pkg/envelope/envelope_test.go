package envelope

import (
	"encoding/json"
	"testing"

	"github.com/agentrun/executor/internal/strictjson"
)

// What a record or a journal keeps of a call must be published the same after it was read back.
func TestEnvelopeReadsBackTheSame(t *testing.T) {
	const failure = `{"ok":false,"code":"UPSTREAM_REJECTED_INPUT","category":"validation","commit_state":"not_committed",` +
		`"retry":{"directive":"after_input_fix","max_attempts_remaining":2},"next_action":"correct_input","operation_ref":"acme/r/s",` +
		`"safe_details":{"field":"/a<b","limit":12345678901234567890.10,"soft":true}}`
	const success = `{"ok":true,"commit_state":"committed","operation_ref":"acme/r/s","result":{"html":"<b>&","n":1e400},` +
		`"verification":{"checked_at":"2026-12-01T10:00:00.000Z","evidence_ref":"cr_3"}}`
	for _, text := range []string{failure, success} {
		var e Envelope
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatal(err)
		}
		if got, err := strictjson.Marshal(e); err != nil || string(got) != text {
			t.Errorf("\n got %s, %v\nwant %s", got, err, text)
		}
	}
}

func TestDetailsJSON(t *testing.T) {
	var d Details
	if err := json.Unmarshal([]byte(`{"n":1.0}`), &d); err != nil || d["n"] != json.Number("1.0") {
		t.Errorf("%v, %v", d, err)
	}
	if err := json.Unmarshal([]byte(`null`), &d); err != nil || d != nil {
		t.Errorf("null: %v, %v", d, err)
	}
	if err := json.Unmarshal([]byte(`[1]`), &d); err == nil {
		t.Error("a list was read")
	}
	if data, err := json.Marshal(Envelope{CommitState: NotCommitted}); err != nil || string(data) != `{"ok":false,"commit_state":"not_committed"}` {
		t.Errorf("without details: %s, %v", data, err)
	}
}

// The fixed forms of a reply in the journal: what is not set takes no bytes.
func TestReplyJSON(t *testing.T) {
	for text, r := range map[string]Reply{
		`{"no_reply":true}`: {NoReply: true},
		`{"ok":true,"result":null,"evidence_ref":"cr_3"}`: {OK: true, Result: json.RawMessage("null"), EvidenceRef: "cr_3"},
	} {
		got, err := strictjson.Marshal(r)
		if err != nil || string(got) != text {
			t.Errorf("got %s, %v, want %s", got, err, text)
		}
		var back Reply
		if err := json.Unmarshal(got, &back); err != nil || back.OK != r.OK || back.NoReply != r.NoReply || string(back.Result) != string(r.Result) {
			t.Errorf("%s: read back as %+v, %v", text, back, err)
		}
	}
}
