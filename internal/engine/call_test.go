package engine_test

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// What keeps a step from being dispatched: nothing is reserved, no attempt is counted.
func TestRefusedBeforeDispatch(t *testing.T) {
	big := `"` + strings.Repeat("x", 200<<10) + `"`
	for _, c := range []struct {
		name  string
		steps []string
		code  envelope.Code
		field any
		end   envelope.Word
	}{
		{"unknown tool", []string{step("a", "nosuch", "{}")}, envelope.CodeUnknownTool, nil, envelope.Fatal},
		{"schema", []string{step("a", "strict", `{"bad":1}`)}, envelope.CodeInvalidArgument, "/bad", envelope.Fatal},
		{"not allowed", []string{step("a", "denied", `{}`)}, envelope.CodeNotAuthorized, nil, envelope.Fatal},
		{"approval", []string{step("a", "asks", `{}`)}, envelope.CodeMissingApproval, nil, envelope.NeedsHuman},
		{"later step", []string{step("a", "read", `{"x":{"$from":"b#"}}`), step("b", "read", "{}")}, envelope.CodeReferenceUnresolved, "b#", envelope.Fatal},
		{"itself", []string{step("a", "read", `{"x":{"$from":"a#"}}`)}, envelope.CodeReferenceUnresolved, "a#", envelope.Fatal},
		{"no such step", []string{step("a", "read", `{"x":{"$from":"z#/id"}}`)}, envelope.CodeReferenceUnresolved, "z#/id", envelope.Fatal},
		{"no pointer", []string{step("a", "read", `{"x":{"$from":"z"}}`)}, envelope.CodeReferenceUnresolved, "z", envelope.Fatal},
		{"missing member", []string{step("p", "read", "{}"), step("a", "read", `{"x":{"$from":"p#/nosuch"}}`)}, envelope.CodeReferenceUnresolved, "p#/nosuch", envelope.Fatal},
		{"resolved args too large", []string{step("p", "read", "{}"), step("a", "read", `{"x":{"$from":"p#/big"},"y":{"$from":"p#/big"}}`)}, envelope.CodeInvalidArgument, nil, envelope.Fatal},
		{"resolved args no object", []string{step("p", "read", "{}"), step("a", "read", `{"$from":"p#/list"}`)}, envelope.CodeInvalidArgument, nil, envelope.Fatal},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := create(t, job("", c.steps...))
			if len(c.steps) > 1 && d.r.Step("p") != nil {
				d.call("p", ok(`{"big":`+big+`,"list":[1]}`))
			}
			calls := d.r.Spent.ToolCalls
			if x := d.begin("a"); x != nil {
				t.Fatalf("dispatched %+v", x)
			}
			d.ended(c.end, c.code, "a")
			s := d.r.Step("a")
			if d.r.Spent.ToolCalls != calls || s.Attempt != 0 || d.r.Lease != nil {
				t.Errorf("a refused step took a call, an attempt or a lease: %+v", s)
			}
			o := d.last(envelope.StepScope)
			if o.Step != "a" || *o.Attempt != 0 || o.Envelope.Code != c.code || o.Envelope.SafeDetails["field"] != c.field || o.CommitState != envelope.NotCommitted {
				t.Errorf("%+v %+v", o, o.Envelope)
			}
		})
	}
}

func TestReferences(t *testing.T) {
	result := `{"id":12345678901234567890,"nested":{"a/b":[1.50,{"$from":"stays"}]}}`
	for args, want := range map[string]string{
		`{"x":{"$from":"p#"}}`:                     `{"x":` + result + `}`,
		`{"x":{"$from":"p#/id"}}`:                  `{"x":12345678901234567890}`,
		`{"x":[{"$from":"p#/nested/a~1b/0"}]}`:     `{"x":[1.50]}`,
		`{"x":{"$from":"p#/id","y":1}}`:            `{"x":{"$from":"p#/id","y":1}}`,
		`{"x":{"\u0024from":"p#/id"}}`:             `{"x":12345678901234567890}`,
		`{"x":"$from"}`:                            `{"x":"$from"}`,
		`{"x":{"$from":"p#/nested/a~1b/1"},"y":2}`: `{"x":{"$from":"stays"},"y":2}`,
	} {
		d := create(t, job("", step("p", "read", "{}"), step("a", "read", args)))
		d.call("p", ok(result))
		x := d.begin("a")
		if x == nil || string(x.Args.Text()) != want {
			t.Errorf("%s became %+v, want %s", args, x, want)
		}
	}
}

// A detail that is cut to its bound is the same text once it has been stored and read again.
func TestDetailsKeepCharactersWhole(t *testing.T) {
	for _, prefix := range []string{"", "a", "ab", "abc"} {
		d := create(t, job("", step("p", "read", "{}"), step("a", "read", `{"x":{"$from":"p#/`+prefix+strings.Repeat("😀", 100)+`"}}`)))
		d.call("p", ok("{}"))
		if d.begin("a") != nil {
			t.Fatal("a step without its reference was started")
		}
		field, _ := d.r.Step("a").Fail.Details["field"].(string)
		if !utf8.ValidString(field) || len(field) > 256 || len(field) < 250 {
			t.Errorf("%d bytes, whole: %v", len(field), utf8.ValidString(field))
		}
	}
}

func TestDispatch(t *testing.T) {
	d := create(t, job("", step("a", "write", `{"n":1}`, `"optional":true`), step("b", "read", "{}")))
	x := d.begin("a")
	want := engine.Dispatch{
		Step: "a", Tool: "write", Effect: envelope.Write, ID: "d1", Attempt: 1, Proposal: 1, Key: "acme/run_1/a", Ref: "acme/run_1/a",
		Args: strictjson.CheckedArgs([]byte(`{"n":1}`)), Optional: true, Deadline: d.r.Deadline,
		Timeout: 20 * time.Second,
	}
	if got, _ := json.Marshal(x); string(got) != func() string { b, _ := json.Marshal(want); return string(b) }() {
		t.Errorf("%s", got)
	}
	if d.r.Lease == nil || d.r.Lease.ID != "l1" || d.r.Lease.Holder != "h1" || d.r.Spent.ToolCalls != 1 {
		t.Errorf("lease %+v, %d calls", d.r.Lease, d.r.Spent.ToolCalls)
	}
	if d.r.State() != run.StateRunning || d.r.Next(d.now).Ready != nil {
		t.Errorf("state %s, ready %v", d.r.State(), d.r.Next(d.now).Ready)
	}
	d.reply(x.ID, ok("{}"))
	if d.r.Lease != nil {
		t.Error("one-lease: a lease without an executing step")
	}
}

func TestIdempotencyKeys(t *testing.T) {
	amend := func(d *driver, tool, args string) { d.job(job(`"more":true`, step("a", tool, args))) }
	key := func(d *driver) string {
		x := d.begin("a")
		if x == nil {
			t.Fatal("not started")
		}
		if x.Ref != "acme/run_1/a" {
			t.Errorf("same-ref: %s", x.Ref)
		}
		return x.Key
	}
	d := create(t, job(`"more":true`, step("a", "strict", `{"bad":1}`)))
	d.begin("a") // a first proposal that is refused before it is sent counts as the first
	amend(d, "strict", `{"n":1}`)
	if k := key(d); k != "acme/run_1/a.p2" {
		t.Error(k)
	}
	d.reply("d2", fails(envelope.CodeUpstreamRejectedInput, envelope.Write))
	amend(d, "strict", `{"n":2}`)
	if k := key(d); k != "acme/run_1/a.p3" {
		t.Error(k)
	}
	d.reply("d3", fails(envelope.CodeUpstreamUnavailable, envelope.Write))

	d = create(t, job(`"more":true`, step("a", "write", `{}`)))
	d.call("a", fails(envelope.CodeUpstreamUnavailable, envelope.Write))
	d.pass(time.Minute / 4)
	if k := key(d); k != "acme/run_1/a" {
		t.Errorf("the key changes within a proposal: %s", k)
	}

	d = create(t, job(`"more":true`, step("a", "peratt", `{}`)))
	if k := key(d); k != "acme/run_1/a.a1" {
		t.Error(k)
	}
	d.reply("d1", fails(envelope.CodeUpstreamUnavailable, envelope.Write))
	d.pass(time.Minute / 4)
	if k := key(d); k != "acme/run_1/a.a2" {
		t.Error(k)
	}
	d.reply("d2", fails(envelope.CodeUpstreamRejectedInput, envelope.Write))
	amend(d, "peratt", `{"n":1}`)
	if k := key(d); k != "acme/run_1/a.p2.a3" {
		t.Error(k)
	}
}

// budget-before-work, also by steps that run beside each other.
func TestToolCallBudget(t *testing.T) {
	d := create(t, job(`"parallel":true,"budget":{"max_tool_calls":2}`, step("a", "read", "{}"), step("b", "read", "{}"), step("c", "read", "{}")))
	d.begin("a")
	d.begin("b")
	if x := d.begin("c"); x != nil {
		t.Fatal("a third call of two")
	}
	d.goesOn() // what is in flight settles
	d.reply("d1", ok("{}"))
	d.reply("d2", fails(envelope.CodeUpstreamUnavailable, envelope.Read))
	d.ended(envelope.NeedsHuman, envelope.CodeToolCallsExhausted, "b")
	if got := d.words(); !slices.Equal(got, []string{"a ok", "b needs_human TOOL_CALLS_EXHAUSTED"}) {
		t.Errorf("%q", got)
	}
	if o := d.last(envelope.RunScope); !slices.Equal(o.RemainingSteps, []string{"c"}) || o.Spent.ToolCalls != 2 {
		t.Errorf("%+v", o)
	}
}

// Every row of the table of codes, as a reply to a read and to a write whose tool has a lookup.
func TestEveryCodeAsReply(t *testing.T) {
	for _, row := range envelope.Codes() {
		for _, effect := range []envelope.Effect{envelope.Read, envelope.Write} {
			reply := fails(row.Code, effect)
			if effect == envelope.Read && reply.Row.CommitState == envelope.Unknown {
				continue // no read has these
			}
			name := string(row.Code) + "/" + string(effect)
			t.Run(name, func(t *testing.T) {
				d := create(t, job("", step("a", string(effect), "{}")))
				d.call("a", reply)
				o := d.last(envelope.StepScope)
				want := reply.Row
				if want.CommitState == envelope.Unknown { // on a write it behaves like OUTCOME_UNKNOWN whatever its code
					want.NextAction, want.Outcome = envelope.VerifyOperation, envelope.UnknownNow
				}
				if o.Outcome != want.Outcome || o.ReasonCode != want.ReasonCode || o.CommitState != want.CommitState || o.NextAction != want.NextAction ||
					o.Envelope.Code != want.Code || o.Envelope.Category != want.Category || o.Envelope.Retry.Directive != want.Directive {
					t.Errorf("%+v\n%+v\nwant %+v", o, o.Envelope, want)
				}
				state := map[envelope.Word]run.State{
					envelope.Retryable: run.Waiting, envelope.UnknownNow: run.Unknown, envelope.NeedsHuman: run.NeedsHuman, envelope.Fatal: run.Fatal, envelope.Cancelled: run.Fatal,
				}[want.Outcome]
				if want.Outcome == envelope.Retryable && (row.Code == envelope.CodeVerifiedAbsent || row.Code == envelope.CodeWorkerLost) {
					state = run.Ready // their not_before is now
				}
				d.state("a", state)
				if terminal := o.Outcome.Terminal(); o.Terminal != terminal || (d.r.End != nil) != terminal {
					t.Errorf("terminal %v, the run's end %+v", o.Terminal, d.r.End)
				}
				if (o.RetryAfterSeconds != nil) != (want.Outcome == envelope.Retryable) || (o.NotBefore != 0) != (want.Outcome == envelope.Retryable) {
					t.Errorf("retry_after %v, not_before %v", o.RetryAfterSeconds, o.NotBefore)
				}
				if (d.r.Lease != nil) || d.r.Spent.ToolCalls != 1 {
					t.Errorf("lease %v, %d calls", d.r.Lease, d.r.Spent.ToolCalls)
				}
			})
		}
	}
}

// What a write's reply that says nothing certain becomes for each thing that a tool can promise.
func TestUnknownWriteByTool(t *testing.T) {
	for _, c := range []struct {
		tool  string
		state run.State
		words []string
	}{
		{"write", run.Unknown, []string{"a unknown OUTCOME_UNKNOWN"}},
		{"always", run.Unknown, []string{"a unknown OUTCOME_UNKNOWN"}},
		{"blind", run.Unknown, []string{"a unknown OUTCOME_UNKNOWN"}},
		{"keyed", run.Unknown, []string{"a unknown OUTCOME_UNKNOWN"}},
		{"none", run.NeedsHuman, []string{"a needs_human VERIFICATION_UNAVAILABLE"}},
	} {
		d := create(t, job("", step("a", c.tool, "{}"), step("b", "read", "{}")))
		d.call("a", silent())
		d.state("a", c.state)
		if got := d.words(); !slices.Equal(got, c.words) {
			t.Errorf("%s: %q", c.tool, got)
		}
		if n := d.r.Next(d.now); len(n.Ready) > 0 {
			t.Errorf("blocked-by-unknown: %s: %v may start", c.tool, n.Ready)
		}
	}
}

func TestVerificationToolIsNamed(t *testing.T) {
	d := create(t, job("", step("a", "write", "{}")))
	d.call("a", silent())
	o := d.last(envelope.StepScope)
	if o.Envelope.SafeDetails["verification_tool"] != "write.verify" || o.Envelope.Retry.MaxAttemptsRemaining != 0 || o.Terminal {
		t.Errorf("%+v %+v", o, o.Envelope)
	}
}

const forever = time.Duration(math.MaxInt64)

func TestRetryAfter(t *testing.T) {
	limited := func(after time.Duration) envelope.Reply {
		r := fails(envelope.CodeUpstreamRateLimited, envelope.Write)
		r.RetryAfter = after.Milliseconds()
		if after == forever {
			r.RetryAfter = math.MaxInt64
		}
		return r
	}
	for _, c := range []struct {
		name  string
		after time.Duration
		wait  time.Duration // 0: the step ends
	}{
		{"none", 0, 100 * time.Millisecond},
		{"shorter than the backoff", 20 * time.Millisecond, 100 * time.Millisecond},
		{"longer", 30 * time.Second, 30 * time.Second},
		{"up to the deadline", time.Minute, time.Minute},
		{"past the deadline", time.Minute + time.Millisecond, 0},
		{"past max_retry_after", 15*time.Minute + time.Second, 0},
		{"two hundred years", 200 * 365 * 24 * time.Hour, 0},
		{"past all time", forever, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := create(t, job("", step("a", "write", "{}")))
			d.call("a", limited(c.after))
			o := d.last(envelope.StepScope)
			if c.wait > 0 {
				if d.state("a", run.Waiting); o.NotBefore != d.now.Add(c.wait) || *o.RetryAfterSeconds != c.wait.Seconds() {
					t.Errorf("not_before %s, %v s", o.NotBefore, *o.RetryAfterSeconds)
				}
				if n := d.r.Next(o.NotBefore - 1); len(n.Ready) > 0 {
					t.Error("due too early")
				}
				return
			}
			d.ended(envelope.NeedsHuman, envelope.CodeUpstreamRateLimited, "a")
			if o.Envelope.Retry.Directive != envelope.Never || o.NextAction != envelope.Escalate || o.RetryAfterSeconds != nil {
				t.Errorf("%+v", o)
			}
			written := c.after < forever
			if ro := d.last(envelope.RunScope); (o.NotBefore != 0) != written || ro.NotBefore != o.NotBefore {
				t.Errorf("not_before %v, of the run %v", o.NotBefore, ro.NotBefore)
			}
		})
	}
	// Past max_retry_after alone, with a deadline far away.
	d := create(t, job(`"budget":{"max_elapsed_seconds":360000}`, step("a", "write", "{}")))
	d.call("a", limited(15*time.Minute))
	d.state("a", run.Waiting)
	d = create(t, job(`"budget":{"max_elapsed_seconds":360000}`, step("a", "write", "{}")))
	d.call("a", limited(15*time.Minute+time.Millisecond))
	d.state("a", run.NeedsHuman)
}

func TestAttemptsExhausted(t *testing.T) {
	d := create(t, job("", step("a", "read", "{}", `"optional":true`), step("b", "read", "{}")))
	for range 3 {
		d.call("a", fails(envelope.CodeUpstreamUnavailable, envelope.Read))
		d.pass(5 * time.Second)
	}
	d.state("a", run.NeedsHuman)
	o := d.last(envelope.StepScope)
	if o.Envelope.Code != envelope.CodeAttemptsExhausted || o.Envelope.SafeDetails["last_code"] != "UPSTREAM_UNAVAILABLE" || *o.Attempt != 3 {
		t.Errorf("%+v", o)
	}
	left := []int{}
	for i := range d.r.Owed {
		left = append(left, d.r.Outcome(&d.r.Owed[i]).Envelope.Retry.MaxAttemptsRemaining)
	}
	if !slices.Equal(left, []int{2, 1, 0}) {
		t.Errorf("attempts remaining %v", left)
	}
	d.call("b", ok("{}")) // optional forgives exhausted attempts
	d.ended(envelope.OK, "", "")
}

// The smaller of the run's budget and the tool's own is the attempt budget.
func TestAttemptBudget(t *testing.T) {
	for _, n := range []int64{0, 1, 2, 9} {
		d := create(t, job(`"budget":{"max_attempts_per_step":`+string(rune('0'+n))+`}`, step("a", "read", "{}")))
		made := int64(0)
		for d.r.End == nil {
			if x := d.begin("a"); x != nil {
				made++
				d.reply(x.ID, fails(envelope.CodeUpstreamUnavailable, envelope.Read))
				d.pass(2 * time.Second)
			}
		}
		if want := min(n, 3); made != want {
			t.Errorf("%d attempts with a budget of %d", made, n)
		}
		d.ended(envelope.NeedsHuman, envelope.CodeAttemptsExhausted, "a")
	}
}

func TestOptionalForgives(t *testing.T) {
	for _, c := range []struct {
		code    envelope.Code
		forgive bool
	}{
		{envelope.CodeUpstreamRejectedInput, true},
		{envelope.CodeUpstreamDenied, true},
		{envelope.CodeInternalError, false}, // needs_human
	} {
		d := create(t, job("", step("a", "read", "{}", `"optional":true`), step("b", "read", "{}")))
		d.call("a", fails(c.code, envelope.Read))
		if c.forgive {
			d.call("b", ok("{}"))
			d.ended(envelope.OK, "", "")
		} else {
			d.ended(envelope.NeedsHuman, c.code, "a")
		}
	}
	for tool, code := range map[string]envelope.Code{"none": envelope.CodeVerificationUnavailable, "asks": envelope.CodeMissingApproval} {
		d := create(t, job("", step("a", tool, "{}", `"optional":true`), step("b", "read", "{}")))
		if x := d.begin("a"); x != nil {
			d.reply(x.ID, silent())
		}
		d.ended(envelope.NeedsHuman, code, "a")
	}
}

// A read's call may end without a row, and no read is ever unknown.
func TestReadWithoutReply(t *testing.T) {
	for _, reply := range []envelope.Reply{{NoReply: true}, silent(), {Row: envelope.Custom("ODD", envelope.Dependency, envelope.Unknown, envelope.Write)}} {
		d := create(t, job("", step("a", "read", "{}")))
		d.call("a", reply)
		d.state("a", run.Waiting)
	}
}

func TestResultTooLargeForTheRecord(t *testing.T) {
	big := ok(`"` + strings.Repeat("x", 300<<10) + `"`)
	for tool, state := range map[string]run.State{"read": run.Fatal, "write": run.Unknown} {
		d := create(t, job("", step("p", "read", "{}"), step("q", "read", "{}"), step("a", tool, "{}")))
		d.call("p", big)
		d.call("q", big)
		d.call("a", big)
		d.state("a", state)
		if o := d.last(envelope.StepScope); o.ReasonCode != "result_too_large" {
			t.Errorf("%s: %+v", tool, o)
		}
		if state == run.Unknown {
			d.looked("d3", found(string(big.Result)), false)
			d.ended(envelope.OK, "", "")
			if o := d.last(envelope.StepScope); !o.Envelope.ResultOmitted || string(o.Envelope.Result) != "null" || o.Envelope.Verification.EvidenceRef != "ev" {
				t.Errorf("%+v", o.Envelope)
			}
		}
	}
}

func TestMaxBudget(t *testing.T) {
	top := int64(5)
	def := defaults()
	def.MaxBudget = &budget.Ceiling{MaxToolCalls: &top}
	for data, invalid := range map[string]bool{`"budget":{"max_tool_calls":5}`: false, `"budget":{"max_tool_calls":6}`: true} {
		r := engine.Create(runID, engine.Message{Seq: 1, Data: job(data, step("a", "read", "{}"))}, def, start)
		if (r.Invalid != nil) != invalid {
			t.Errorf("%s: invalid %v", data, r.Invalid != nil)
		}
		if invalid && r.End.Details["field"] != "/budget/max_tool_calls" {
			t.Errorf("%v", r.End.Details)
		}
	}
}
