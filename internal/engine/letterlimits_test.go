package engine

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

var at = envelope.TimeOf(time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC))

func sample() deadletter.Letter {
	const ref = "acme/run_1042/apply_credit"
	return deadletter.Letter{
		Summary: deadletter.Summary{
			Schema: deadletter.Schema, ID: letterID(run.ID{Tenant: "acme", Run: "run_1042"}, 1), Tenant: "acme", RunID: "run_1042", Workflow: "resolve_billing_case",
			Owner: "billing-oncall", Actor: "agent:support", Intent: "Apply the credit", Outcome: envelope.NeedsHuman,
			ReasonCode: "external_outcome_unknown", Code: envelope.CodeVerificationUnavailable, FailureClass: envelope.Dependency,
			CommitState: envelope.Unknown, NextAction: envelope.Escalate, Step: "apply_credit", Tool: "apply_credit", OperationRef: ref,
			RemainingSteps: []string{"draft_reply"},
			Open:           []deadletter.Open{{Step: "apply_credit", OperationRef: ref, Attempt: 1, ReasonCode: "external_outcome_unknown", CommitState: envelope.Unknown}},
			AllowedActions: []deadletter.Action{deadletter.Resolve, deadletter.Discard},
			Budget:         budgetOf(budget.Limits{MaxTurns: 12, MaxElapsedMillis: 45_500}),
			Spent:          envelope.Spent{Turns: 1, ElapsedSeconds: 3.2},
			CreatedAt:      at, Claim: &deadletter.Claim{By: "alice", Until: at.Add(time.Minute)},
		},
		Request: json.RawMessage(`{"invoice_id":"inv_7","amount_minor":500}`),
		Attempts: []deadletter.Attempt{
			{Step: "apply_credit", Attempt: 1, Kind: deadletter.Dispatch, Worker: "w1", StartedAt: at, EndedAt: at, Code: envelope.CodeOutcomeUnknown, CommitState: envelope.Unknown},
			{Step: "apply_credit", Attempt: 1, Kind: deadletter.Verify, Worker: "reconciler-1", StartedAt: at, EndedAt: at, Code: envelope.CodeVerificationUnavailable},
		},
	}
}

// The names of contract §7, in one place: a letter is read by programs of other people.
func TestLetterJSON(t *testing.T) {
	l := sample()
	trimLetter(&l, deadletter.MaxBytes)
	got, err := strictjson.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"schema":"agentrun.deadletter/v1","id":"acme/run_1042/1","tenant":"acme","run_id":"run_1042","workflow":"resolve_billing_case",
"owner":"billing-oncall","actor":"agent:support","intent":"Apply the credit","outcome":"needs_human","reason_code":"external_outcome_unknown",
"code":"VERIFICATION_UNAVAILABLE","failure_class":"dependency","commit_state":"unknown","next_action":"escalate","step":"apply_credit",
"tool":"apply_credit","operation_ref":"acme/run_1042/apply_credit","completed_effects":[],"remaining_steps":["draft_reply"],
"open":[{"step":"apply_credit","operation_ref":"acme/run_1042/apply_credit","attempt":1,"reason_code":"external_outcome_unknown","commit_state":"unknown"}],
"allowed_actions":["resolve","discard"],"replays":0,
"budget":{"max_turns":12,"max_tool_calls":0,"max_attempts_per_step":0,"max_elapsed_seconds":45.5,"max_input_tokens":0,"max_output_tokens":0,"max_estimated_cost_minor_units":0},
"spent":{"turns":1,"tool_calls":0,"input_tokens":0,"output_tokens":0,"estimated_cost_minor_units":0,"elapsed_seconds":3.2},
"created_at":"2026-12-01T10:00:00.000Z","claim":{"by":"alice","until":"2026-12-01T10:01:00.000Z"},
"request":{"invoice_id":"inv_7","amount_minor":500},
"attempts":[{"step":"apply_credit","attempt":1,"kind":"dispatch","worker":"w1","started_at":"2026-12-01T10:00:00.000Z","ended_at":"2026-12-01T10:00:00.000Z","code":"OUTCOME_UNKNOWN","commit_state":"unknown"},
{"step":"apply_credit","attempt":1,"kind":"verify","worker":"reconciler-1","started_at":"2026-12-01T10:00:00.000Z","ended_at":"2026-12-01T10:00:00.000Z","code":"VERIFICATION_UNAVAILABLE"}]}`
	if want = strings.ReplaceAll(want, "\n", ""); string(got) != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	var back deadletter.Letter
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatal(err)
	}
	if again, _ := strictjson.Marshal(back); !bytes.Equal(again, got) {
		t.Errorf("read back as %s", again)
	}
}

func TestSummaryJSON(t *testing.T) {
	l := sample()
	l.Open[0].Args, l.Open[0].ArgsDigest = json.RawMessage(`{"a":1}`), "d"
	l.Raw, l.RawSize = []byte("x"), 1
	data, err := json.Marshal(Summarize(&l))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{`"request"`, `"attempts"`, `"raw"`, `"args"`} {
		if bytes.Contains(data, []byte(key)) {
			t.Errorf("a summary has %s: %s", key, data)
		}
	}
	for _, key := range []string{`"raw_size":1`, `"args_digest":"d"`, `"args_omitted":true`, `"claim"`} {
		if !bytes.Contains(data, []byte(key)) {
			t.Errorf("a summary lacks %s: %s", key, data)
		}
	}
	if l.Open[0].Args == nil {
		t.Error("the letter itself lost its args")
	}
}

// An unreadable job has no request, and its lists are there and empty.
func TestInvalidJobJSON(t *testing.T) {
	l := deadletter.Letter{Summary: deadletter.Summary{Schema: deadletter.Schema, ReasonCode: deadletter.ReasonInvalidJob}}
	l.Raw, l.RawSize = []byte("\xff{"), 2
	trimLetter(&l, deadletter.MaxBytes)
	data, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		`"raw":"/3s="`, `"raw_size":2`, `"open":[]`, `"completed_effects":[]`, `"remaining_steps":[]`, `"attempts":[]`, `"allowed_actions":[]`, `"budget":{}`,
	} {
		if !bytes.Contains(data, []byte(part)) {
			t.Errorf("no %s in %s", part, data)
		}
	}
	if bytes.Contains(data, []byte(`"request"`)) {
		t.Errorf("a request in %s", data)
	}
}

func text(n int) json.RawMessage {
	return json.RawMessage(`"` + strings.Repeat("a", n-2) + `"`)
}

func TestTrimArgs(t *testing.T) {
	const half = deadletter.MaxArgsBytes / 2
	tests := []struct {
		name    string
		request int
		args    []int
		kept    string // one letter for the request, one for each open step: k kept, o omitted
	}{
		{"all fit exactly", half, []int{half}, "kk"},
		{"one byte too many", half, []int{half + 1}, "ko"},
		{"a smaller one behind still fits", half, []int{half + 1, half}, "kok"},
		{"the request alone is too large", deadletter.MaxArgsBytes + 1, []int{deadletter.MaxArgsBytes}, "ok"},
		{"the request alone fits exactly", deadletter.MaxArgsBytes, []int{2}, "ko"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := deadletter.Letter{Summary: deadletter.Summary{Tool: "t"}, Request: text(tt.request)}
			for _, n := range tt.args {
				l.Open = append(l.Open, deadletter.Open{Step: "s", Tool: "u", Args: text(n)})
			}
			before := l.Open
			trimLetter(&l, deadletter.MaxBytes)
			got, sum := "k", len(l.Request)
			if l.Request == nil {
				got = "o"
			}
			if l.ArgsOmitted != (l.Request == nil) || (l.ArgsOmitted && l.ArgsDigest != strictjson.ArgsDigest("t", text(tt.request))) {
				t.Errorf("request: omitted %v, digest %q", l.ArgsOmitted, l.ArgsDigest)
			}
			for i, o := range l.Open {
				if o.Args == nil {
					got += "o"
				} else {
					got += "k"
				}
				sum += len(o.Args)
				if o.ArgsOmitted != (o.Args == nil) || (o.ArgsOmitted && o.ArgsDigest != strictjson.ArgsDigest("u", text(tt.args[i]))) {
					t.Errorf("open %d: omitted %v, digest %q", i, o.ArgsOmitted, o.ArgsDigest)
				}
				if before[i].Args == nil {
					t.Errorf("open %d of the caller was changed", i)
				}
			}
			if got != tt.kept || sum > deadletter.MaxArgsBytes {
				t.Errorf("kept %s of %d bytes, want %s", got, sum, tt.kept)
			}
		})
	}
}

// However much a run has done, its letter can be published: args give way to what the run did.
func TestTrimFitsOneMessage(t *testing.T) {
	for _, effects := range []int{0, 800, 1800, 2100} {
		l := sample()
		for range effects {
			l.CompletedEffects = append(l.CompletedEffects, envelope.CompletedEffect{
				Step: strings.Repeat("s", 64), Tool: strings.Repeat("t", 128), OperationRef: strings.Repeat("r", 194), CommittedAt: at,
			})
		}
		l.Request = text(deadletter.MaxArgsBytes / 2)
		l.Open[0].Args = json.RawMessage(strings.ReplaceAll(string(text(deadletter.MaxArgsBytes/2)), "a", "<"))
		trimLetter(&l, deadletter.MaxBytes)
		data, err := strictjson.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > deadletter.MaxBytes {
			t.Errorf("%d effects: %d bytes", effects, len(data))
		}
		if all := !l.ArgsOmitted && !l.Open[0].ArgsOmitted; all != (effects < 1000) {
			t.Errorf("%d effects: request omitted %v, args omitted %v", effects, l.ArgsOmitted, l.Open[0].ArgsOmitted)
		}
	}
}

// A digest that the approval was asked with is not replaced: it is what the approval covers.
func TestTrimKeepsADigest(t *testing.T) {
	l := deadletter.Letter{Summary: deadletter.Summary{Open: []deadletter.Open{{Args: text(deadletter.MaxArgsBytes + 1), ArgsDigest: "asked"}}}}
	trimLetter(&l, deadletter.MaxBytes)
	if o := l.Open[0]; o.ArgsDigest != "asked" || !o.ArgsOmitted || o.Args != nil {
		t.Errorf("digest %q, omitted %v", o.ArgsDigest, o.ArgsOmitted)
	}
}

func TestTrimAttempts(t *testing.T) {
	var l deadletter.Letter
	for i := range deadletter.MaxAttempts + 44 {
		l.Attempts = append(l.Attempts, deadletter.Attempt{Attempt: i})
	}
	trimLetter(&l, deadletter.MaxBytes)
	if n := len(l.Attempts); n != deadletter.MaxAttempts || l.Attempts[0].Attempt != 44 || l.Attempts[n-1].Attempt != deadletter.MaxAttempts+43 {
		t.Errorf("%d attempts from %d", n, l.Attempts[0].Attempt)
	}
}

func TestInvalidRunID(t *testing.T) {
	// printf '%s' 'agentrun.jobs.q.*.runpay' | sha256sum
	if got, want := InvalidRunID("agentrun.jobs.q.*.run", []byte("pay")), "invalid-d488403d0151fe62"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if InvalidRunID("a", nil) == InvalidRunID("b", nil) || InvalidRunID("a", nil) == InvalidRunID("a", []byte("b")) {
		t.Error("subject and payload both count")
	}
}

func TestClaim(t *testing.T) {
	c := &Claim{By: "alice", Until: at}
	if !c.heldAgainst("bob", at-1) {
		t.Error("another's claim runs")
	}
	if c.heldAgainst("alice", at-1) || c.heldAgainst("bob", at) || (*Claim)(nil).heldAgainst("bob", at) {
		t.Error("one's own claim, an old one and none keep nobody out")
	}
}
