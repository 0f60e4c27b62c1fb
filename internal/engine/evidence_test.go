package engine_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// The evidence table of the architecture, cell by cell: each row is a piece of evidence about dispatch d1, each column a
// state in which it finds the step.

type evidence struct {
	name string
	give func(*driver) engine.Verdict
}

var (
	commits = evidence{"committed", func(d *driver) engine.Verdict {
		r := ok(`{"id":"c"}`)
		r.EvidenceRef = "ev1"
		return d.reply("d1", r)
	}}
	refuses = evidence{"nothing done", func(d *driver) engine.Verdict {
		return d.reply("d1", fails(envelope.CodeUpstreamDenied, envelope.Write))
	}}
	limits = evidence{"nothing done, retryable", func(d *driver) engine.Verdict {
		return d.reply("d1", fails(envelope.CodeUpstreamRateLimited, envelope.Write))
	}}
	unsent = evidence{"not sent", func(d *driver) engine.Verdict {
		r := fails(envelope.CodeUpstreamUnavailable, envelope.Write)
		r.NotSent = true
		return d.reply("d1", r)
	}}
	noReply     = evidence{"no reply", func(d *driver) engine.Verdict { return d.reply("d1", silent()) }}
	looksFound  = evidence{"lookup found", func(d *driver) engine.Verdict { return d.looked("d1", found(`{"id":"c"}`), true) }}
	looksAbsent = evidence{"lookup absent", func(d *driver) engine.Verdict { return d.looked("d1", absent, true) }}
	looksEarly  = evidence{"lookup absent, sent inside the window", func(d *driver) engine.Verdict { return d.looked("d1", absent, false) }}
)

// The columns. Each brings step a of tool write to the state with d1 as the dispatch that the evidence is about.
func executing(d *driver) { d.begin("a") }

func unknown(d *driver) { d.begin("a"); d.leaseEnded() }

func unknownAfterWindow(d *driver) { unknown(d); d.windowOver("d1") }

func readyAfterAbsent(d *driver) { unknownAfterWindow(d); d.looked("d1", absent, true) }

func waiting(d *driver) {
	d.begin("a")
	d.reply("d1", fails(envelope.CodeUpstreamUnavailable, envelope.Write))
}

func laterExecuting(d *driver) { readyAfterAbsent(d); d.begin("a") }

func laterUnknown(d *driver) { laterExecuting(d); d.leaseEnded() }

func doneBySame(d *driver) {
	d.begin("a")
	r := ok(`{"id":"c"}`)
	r.EvidenceRef = "ev1"
	d.reply("d1", r)
}

func doneByReport(d *driver) {
	d.begin("a")
	_, err := d.r.Report("a", 1, "hook", engine.Resolution{CommitState: envelope.Committed, EvidenceRef: "other"}, d.tools, d.now)
	if err != nil {
		d.t.Fatal(err)
	}
	d.check()
}

func endedUnknown(d *driver) {
	unknown(d)
	for range 3 {
		d.looked("d1", undecided, false)
	}
	d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")
}

func endedFatal(d *driver) {
	d.begin("a")
	d.reply("d1", fails(envelope.CodeUpstreamDenied, envelope.Write))
}

func TestEvidenceTable(t *testing.T) {
	const same = run.State("") // the step stays as it is
	for _, c := range []struct {
		column  string
		before  func(*driver)
		what    evidence
		verdict engine.Verdict
		state   run.State
		alarm   bool
		kept    int
	}{
		{"executing", executing, commits, engine.Applied, run.OK, false, 0},
		{"executing", executing, refuses, engine.Applied, run.Fatal, false, 0},
		{"executing", executing, limits, engine.Applied, run.Waiting, false, 0},
		{"executing", executing, unsent, engine.Applied, run.Waiting, false, 0},
		{"executing", executing, looksAbsent, engine.Dropped, same, false, 0},
		{"executing", executing, noReply, engine.Applied, run.Unknown, false, 0},

		{"unknown", unknown, commits, engine.Applied, run.OK, false, 0},
		{"unknown", unknown, refuses, engine.Applied, run.Fatal, false, 0},
		{"unknown", unknown, limits, engine.Applied, run.Waiting, false, 0},
		{"unknown", unknown, unsent, engine.Applied, run.Waiting, false, 0},
		{"unknown", unknown, looksFound, engine.Applied, run.OK, false, 0},
		{"unknown", unknown, looksEarly, engine.Applied, same, false, 0},
		{"unknown", unknown, noReply, engine.Dropped, same, false, 0},
		{"unknown after the window", unknownAfterWindow, looksAbsent, engine.Applied, run.Ready, false, 0},
		{"unknown after the window", unknownAfterWindow, looksEarly, engine.Dropped, same, false, 0},
		{"unknown after the window", unknownAfterWindow, looksFound, engine.Applied, run.OK, false, 0},

		{"ready", readyAfterAbsent, commits, engine.Applied, run.OK, false, 0},
		{"ready", readyAfterAbsent, looksFound, engine.Applied, run.OK, false, 0},
		{"ready", readyAfterAbsent, refuses, engine.Dropped, same, false, 0},
		{"ready", readyAfterAbsent, unsent, engine.Dropped, same, false, 0},
		{"ready", readyAfterAbsent, looksAbsent, engine.Dropped, same, false, 0},
		{"ready", readyAfterAbsent, noReply, engine.Dropped, same, false, 0},
		{"waiting", waiting, commits, engine.Applied, run.OK, false, 0},
		{"waiting", waiting, limits, engine.Dropped, same, false, 0},
		{"waiting", waiting, noReply, engine.Dropped, same, false, 0},

		{"a later dispatch executing", laterExecuting, commits, engine.Applied, run.Executing, false, 1},
		{"a later dispatch executing", laterExecuting, looksFound, engine.Applied, run.Executing, false, 1},
		{"a later dispatch executing", laterExecuting, refuses, engine.Dropped, same, false, 0},
		{"a later dispatch executing", laterExecuting, unsent, engine.Dropped, same, false, 0},
		{"a later dispatch executing", laterExecuting, looksAbsent, engine.Dropped, same, false, 0},
		{"a later dispatch executing", laterExecuting, noReply, engine.Dropped, same, false, 0},
		{"a later dispatch unknown", laterUnknown, commits, engine.Applied, run.NeedsHuman, false, 1},
		{"a later dispatch unknown", laterUnknown, looksAbsent, engine.Dropped, same, false, 0},

		{"ok by the same", doneBySame, commits, engine.Dropped, same, false, 0},
		{"ok by the same", doneBySame, looksAbsent, engine.Dropped, same, false, 0},
		{"ok by the same", doneBySame, noReply, engine.Dropped, same, false, 0},
		{"ok by the same", doneBySame, refuses, engine.Noted, same, true, 1},
		{"ok by another", doneByReport, commits, engine.Noted, same, true, 1},
		{"ok by another", doneByReport, limits, engine.Noted, same, true, 1},

		{"ended unknown", endedUnknown, commits, engine.Noted, same, false, 1},
		{"ended unknown", endedUnknown, refuses, engine.Noted, same, false, 1},
		{"ended unknown", endedUnknown, looksFound, engine.Noted, same, false, 1},
		{"ended unknown", endedUnknown, looksAbsent, engine.Dropped, same, false, 0},
		{"ended unknown", endedUnknown, noReply, engine.Dropped, same, false, 0},
		{"ended fatal", endedFatal, commits, engine.Noted, same, true, 1},
		{"ended fatal", endedFatal, refuses, engine.Dropped, same, false, 0}, // what it ended with, again
		{"ended fatal", endedFatal, limits, engine.Noted, same, false, 1},
		{"ended fatal", endedFatal, noReply, engine.Dropped, same, false, 0},
	} {
		t.Run(c.what.name+"/"+c.column, func(t *testing.T) {
			d := create(t, job(`"budget":{"max_elapsed_seconds":600}`, step("a", "write", "{}")))
			c.before(d)
			before, outcomes, end := d.r.Step("a").State, len(d.r.Owed), d.r.End
			v := c.what.give(d)
			want := c.state
			if want == same {
				want = before
			}
			if got := d.r.Step("a").State; v != c.verdict || got != want {
				t.Errorf("%s, %s → %s; want %s, %s", v, before, got, c.verdict, want)
			}
			if alarm := len(d.r.Alarms) > 0; alarm != c.alarm || alarm && d.r.Alarms[0].Reason != "external_outcome_disputed" {
				t.Errorf("alarms %+v", d.r.Alarms)
			}
			if len(d.r.Evidence) != c.kept {
				t.Errorf("%d pieces are kept, want %d", len(d.r.Evidence), c.kept)
			}
			if v != engine.Applied && (len(d.r.Owed) != outcomes || (d.r.End == nil) != (end == nil)) {
				t.Error("evidence that is not applied made an outcome")
			}
			if again := c.what.give(d); again == engine.Noted {
				t.Error("the same evidence again is kept twice")
			}
		})
	}
}

// Two dispatches of one operation are proven: no third goes out, whatever the one in flight says, and a person decides.
func TestDisputedByALaterDispatch(t *testing.T) {
	for name, settle := range map[string]func(*driver){
		"ok":         func(d *driver) { d.reply("d2", ok("{}")) },
		"refused":    func(d *driver) { d.reply("d2", fails(envelope.CodeUpstreamDenied, envelope.Write)) },
		"retryable":  func(d *driver) { d.reply("d2", fails(envelope.CodeUpstreamUnavailable, envelope.Write)) },
		"no reply":   func(d *driver) { d.reply("d2", silent()) },
		"lease lost": func(d *driver) { d.leaseEnded() },
		"given back": func(d *driver) { d.r.GiveBack("d2", false, d.tools, d.src()); d.check() },
	} {
		t.Run(name, func(t *testing.T) {
			d := create(t, job("", step("a", "write", "{}"), step("b", "read", "{}")))
			laterExecuting(d)
			commits.give(d)
			d.goesOn()
			settle(d)
			d.ended(envelope.NeedsHuman, envelope.CodeOutcomeDisputed, "a")
			l := d.r.BuildLetter()
			if l.CommitState != envelope.Unknown || len(l.Evidence) != 1 || !slices.Equal(actions(d), []string{"resolve", "discard"}) {
				t.Errorf("%+v %v", l.Summary, actions(d))
			}
		})
	}
}

// verify.always: a tool's own word makes the step unknown, and absence afterwards is a dispute.
func TestVerifyAlways(t *testing.T) {
	start := func() *driver {
		d := create(t, job("", step("a", "always", "{}")))
		d.call("a", ok(`{"id":"c"}`))
		d.state("a", run.Unknown)
		return d
	}
	d := start()
	if got := d.words(); !slices.Equal(got, []string{"a unknown OUTCOME_UNKNOWN"}) {
		t.Errorf("%q", got)
	}
	if v := d.reply("d1", ok(`{"id":"c"}`)); v != engine.Dropped {
		t.Errorf("the journal's copy of the reply: %s", v)
	}
	d.looked("d1", found(`{"id":"c"}`), false)
	d.ended(envelope.OK, "", "")

	d = start()
	d.windowOver("d1")
	d.looked("d1", absent, true)
	d.ended(envelope.NeedsHuman, envelope.CodeOutcomeDisputed, "a")

	d = start()
	for range 3 {
		d.goesOn()
		d.looked("d1", undecided, false)
	}
	d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")

	// The reconciler ended the lease first; the reply comes after it and still marks the step.
	d = create(t, job("", step("a", "always", "{}")))
	d.begin("a")
	d.leaseEnded()
	if v := d.reply("d1", ok("{}")); v != engine.Applied {
		t.Errorf("%s", v)
	}
	d.windowOver("d1")
	d.looked("d1", absent, true)
	d.ended(envelope.NeedsHuman, envelope.CodeOutcomeDisputed, "a")
}

// A rule's "committed" is looked up where there is a lookup, and else is the success itself.
func TestCommittedByRule(t *testing.T) {
	reply := ok("null")
	reply.LookUp = true
	for tool, state := range map[string]run.State{"write": run.Unknown, "blind": run.Unknown, "none": run.OK, "keyed": run.OK, "read": run.OK} {
		d := create(t, job("", step("a", tool, "{}")))
		d.call("a", reply)
		d.state("a", state)
	}
}

// After an unknown dispatch a refusal of category conflict or validation proves nothing about the operation.
func TestRefusalAfterDoubt(t *testing.T) {
	for _, c := range []struct {
		code  envelope.Code
		state run.State
	}{
		{envelope.CodeStateConflict, run.Unknown},
		{envelope.CodeUpstreamRejectedInput, run.Unknown},
		{envelope.CodeUpstreamDenied, run.Fatal},
		{envelope.CodeUpstreamUnavailable, run.Waiting},
	} {
		d := create(t, job("", step("a", "write", "{}")))
		laterExecuting(d)
		d.reply("d2", fails(c.code, envelope.Write))
		d.state("a", c.state)
		if c.state == run.Unknown {
			d.looked("d2", found("{}"), false)
			d.ended(envelope.OK, "", "")
		}
		// As the first dispatch's own late answer it settles that dispatch.
		d = create(t, job("", step("a", "write", "{}")))
		unknown(d)
		d.reply("d1", fails(c.code, envelope.Write))
		if got := d.r.Step("a").State; got == run.Unknown {
			t.Errorf("%s: a dispatch's own refusal is ignored", c.code)
		}
	}
	d := create(t, job("", step("a", "keyed", "{}")))
	d.call("a", silent())
	d.pass(time.Second)
	d.call("a", fails(envelope.CodeStateConflict, envelope.Write))
	d.state("a", run.Unknown)
}

func TestWindow(t *testing.T) {
	d := create(t, job("", step("a", "write", "{}")))
	d.call("a", silent())
	l := d.r.Lookups(d.now)
	if len(l) != 1 || l[0].Proves || l[0].Dispatch != "d1" || l[0].Key != "acme/run_1/a" || string(l[0].Args.Text()) != "{}" {
		t.Fatalf("%+v", l)
	}
	for i := range 20 { // "not found" inside the window does not count, and is asked again later and later
		d.looked("d1", absent, false)
		d.state("a", run.Unknown)
		if len(d.r.Lookups(d.now)) != 0 || len(d.r.Lookups(d.now.Add(2*time.Second))) != 1 {
			t.Fatalf("lookup %d is not spaced", i)
		}
	}
	if got := d.r.Doubts(); !slices.Equal(got, []engine.DispatchID{"d1"}) {
		t.Errorf("%v", got)
	}
	d.windowOver("d1")
	if l := d.r.Lookups(d.now); len(l) != 1 || !l[0].Proves {
		t.Fatalf("no lookup is due when the window ends: %+v", l)
	}
	if v := d.r.WindowOver("d1", d.now); v != engine.Dropped || d.r.Doubts() != nil {
		t.Errorf("%s %v", v, d.r.Doubts())
	}
	d.looked("d1", absent, true)
	d.state("a", run.Ready)
	o := d.last(envelope.StepScope)
	if o.ReasonCode != "verified_absent" || o.NotBefore != d.now || *o.RetryAfterSeconds != 0 || o.Envelope.Retry.MaxAttemptsRemaining != 2 {
		t.Errorf("%+v %+v", o, o.Envelope)
	}
	if x := d.begin("a"); x.Attempt != 2 || x.Key != "acme/run_1/a" || x.Ref != "acme/run_1/a" {
		t.Errorf("%+v", x)
	}
}

// Without a consistency window absence proves nothing, however often it is said.
func TestAbsentWithoutWindow(t *testing.T) {
	d := create(t, job("", step("a", "blind", "{}")))
	d.call("a", silent())
	for range 3 {
		d.goesOn()
		d.looked("d1", absent, true)
	}
	d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")
}

func TestAbsentWithNoAttemptLeft(t *testing.T) {
	d := create(t, job(`"budget":{"max_attempts_per_step":1}`, step("a", "write", "{}")))
	readyAfterAbsent(d) // a lost worker costs no attempt
	d.call("a", silent())
	d.windowOver("d2")
	d.looked("d2", absent, true)
	d.ended(envelope.NeedsHuman, envelope.CodeAttemptsExhausted, "a")
	if got := d.last(envelope.StepScope).Envelope.SafeDetails["last_code"]; got != "VERIFIED_ABSENT" {
		t.Errorf("last_code %v", got)
	}
}

func TestLookupWhoseResultDoesNotFit(t *testing.T) {
	d := create(t, job("", step("a", "write", "{}"), step("b", "read", `{"x":{"$from":"a#"}}`)))
	d.call("a", silent())
	d.looked("d1", envelope.Lookup{Answer: envelope.Found, Invalid: envelope.CodeResultInvalid, EvidenceRef: "ev"}, false)
	d.ended(envelope.NeedsHuman, envelope.CodeResultInvalid, "a")
	o := d.last(envelope.StepScope)
	if o.CommitState != envelope.Committed || o.Envelope.Retry.Directive != envelope.Never || o.NextAction != envelope.Escalate || len(o.CompletedEffects) != 1 {
		t.Errorf("%+v", o)
	}

	d = create(t, job("", step("a", "write", "{}"), step("b", "read", `{"x":{"$from":"a#"}}`)))
	d.call("a", silent())
	d.looked("d1", envelope.Lookup{Answer: envelope.Found, Invalid: envelope.CodeResultTooLarge, EvidenceRef: "ev"}, false)
	d.state("a", run.OK)
	d.begin("b")
	d.ended(envelope.Fatal, envelope.CodeReferenceUnresolved, "b")
}

// A lookup that shows what must not be, for example the operation twice: held, with both dispatches in the history.
func TestLookupThatShowsADispute(t *testing.T) {
	d := create(t, job("", step("a", "write", "{}"), step("b", "read", "{}")))
	readyAfterAbsent(d)
	d.call("a", silent())
	d.looked("d2", envelope.Lookup{Answer: envelope.Disputed}, false)
	d.ended(envelope.NeedsHuman, envelope.CodeOutcomeDisputed, "a")
	if o := d.last(envelope.StepScope); o.CommitState != envelope.Unknown {
		t.Errorf("commit_state %s", o.CommitState)
	}
}

// What was sent can be looked up only with the args that were sent.
func TestLookupKeepsItsArgs(t *testing.T) {
	big := `{"id":"` + string(make([]byte, 0)) + `x","pad":"` + stringOf('p', 5000) + `"}`
	d := create(t, job(`"more":true`, step("p", "read", "{}"), step("a", "write", `{"x":{"$from":"p#/id"}}`)))
	d.call("p", ok(big))
	d.r.Published(envelope.StepScope, 1, 77)
	d.check() // a large result leaves an open run's record once it is published
	if f := d.r.Fetch("a"); f["p"] != 77 {
		t.Fatalf("%v", f)
	}
	d.r.Fetched("p", json.RawMessage(big))
	x := d.r.Begin("a", d.tools, engine.Start{Dispatch: "d2", LeaseID: "l", Holder: "h"}, d.now)
	if string(x.Args.Text()) != `{"x":"x"}` {
		t.Fatalf("%s", x.Args.Text())
	}
	d.reply("d2", silent())
	if l := d.r.Lookups(d.now); l[0].Args != nil {
		t.Errorf("a lookup with args that were not sent: %s", l[0].Args.Text())
	}
	d.r.Fetched("p", json.RawMessage(big))
	if l := d.r.Lookups(d.now); string(l[0].Args.Text()) != `{"x":"x"}` {
		t.Errorf("%s", l[0].Args.Text())
	}
}

func stringOf(b byte, n int) string {
	s := make([]byte, n)
	for i := range s {
		s[i] = b
	}
	return string(s)
}

func TestIdempotentFor(t *testing.T) {
	unknownKeyed := func() *driver {
		d := create(t, job("", step("a", "keyed", `{"n":1}`)))
		d.call("a", silent())
		return d
	}
	d := unknownKeyed()
	if n := d.r.Next(d.now); n.Ready != nil || n.At != d.now.Add(100*time.Millisecond) {
		t.Errorf("%+v", n)
	}
	d.pass(time.Second)
	x := d.begin("a")
	if x.Key != "acme/run_1/a" || string(x.Args.Text()) != `{"n":1}` || x.Attempt != 2 {
		t.Errorf("%+v", x)
	}
	d.reply(x.ID, ok("{}")) // the reply counts for the operation
	d.ended(envelope.OK, "", "")

	// After its time it is not sent again: a person must know.
	d = unknownKeyed()
	d.pass(10 * time.Second)
	if d.begin("a") != nil {
		t.Error("no-blind-repeat: sent again after idempotent_for")
	}
	d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")
	d = unknownKeyed()
	d.pass(10 * time.Second)
	d.r.Escalate(d.tools, d.src())
	d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")

	// Attempts used up.
	d = unknownKeyed()
	for range 2 {
		d.pass(time.Second)
		d.call("a", silent())
	}
	d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")

	// A resend that never left leaves the operation as unknown as it was.
	for name, back := range map[string]func(*driver){
		"not sent": func(d *driver) {
			r := fails(envelope.CodeUpstreamUnavailable, envelope.Write)
			r.NotSent = true
			d.reply("d2", r)
		},
		"given back": func(d *driver) { d.r.GiveBack("d2", false, d.tools, d.src()); d.check() },
	} {
		d = unknownKeyed()
		d.pass(time.Second)
		d.begin("a")
		back(d)
		if got := d.r.Step("a").State; got != run.Unknown {
			t.Errorf("%s: %s", name, got)
		}
	}

	// A gateway's refusal of a resend is retried, but never after the time that the tool promises for.
	var limited envelope.Reply
	for _, code := range []envelope.Code{envelope.CodeCredentialsExpired, envelope.CodeUpstreamRateLimited} {
		d = unknownKeyed()
		d.pass(time.Second)
		limited = fails(code, envelope.Write)
		limited.RetryAfter = 20_000
		d.call("a", limited)
		d.state("a", run.Waiting)
		d.pass(20 * time.Second)
		if d.begin("a") != nil {
			t.Errorf("no-blind-repeat: sent again after idempotent_for, %s", code)
		}
		d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")
	}

	// One that asks for more time than there is ends the step, as unknown as it was: nothing was said of the first dispatch.
	d = unknownKeyed()
	d.pass(time.Second)
	limited.RetryAfter = 30 * 24 * 3600_000
	d.call("a", limited)
	d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")
	if got := d.r.Step("a").Fail.Row.CommitState; got != envelope.Unknown {
		t.Errorf("the step says %s", got)
	}

	// Proof of the first dispatch is proof of the operation, also while the second is out.
	d = unknownKeyed()
	d.pass(time.Second)
	d.begin("a")
	d.reply("d1", ok("{}"))
	d.ended(envelope.OK, "", "")

	// Every worker is lost: no more of them.
	d = create(t, job("", step("a", "keyed", "{}")))
	for range 3 {
		d.goesOn()
		d.begin("a")
		d.leaseEnded()
		d.pass(time.Second)
	}
	d.ended(envelope.NeedsHuman, envelope.CodePoisonJob, "a")
	if d.r.End.Row.CommitState != envelope.Unknown {
		t.Errorf("%+v", d.r.End.Row)
	}
}

func TestLeaseEnded(t *testing.T) {
	d := create(t, job("", step("a", "read", "{}")))
	for i := range 2 {
		d.begin("a")
		d.leaseEnded()
		d.state("a", run.Ready)
		o := d.last(envelope.StepScope)
		if o.ReasonCode != "worker_lost" || o.Outcome != envelope.Retryable || o.NotBefore != d.now || o.Envelope.Retry.MaxAttemptsRemaining != 3 || *o.Attempt != i+1 {
			t.Errorf("%+v", o)
		}
	}
	d.begin("a")
	d.leaseEnded()
	d.ended(envelope.NeedsHuman, envelope.CodePoisonJob, "a")

	// A write is verified first, and poison only if it then proves absent.
	d = create(t, job("", step("a", "write", "{}")))
	for i := range 3 {
		d.begin("a")
		d.leaseEnded()
		id := d.r.Step("a").Dispatch
		d.windowOver(id)
		if i == 2 {
			break
		}
		d.looked(id, absent, true)
	}
	d.state("a", run.Unknown)
	d.looked("d3", absent, true)
	d.ended(envelope.NeedsHuman, envelope.CodePoisonJob, "a")
	if d.r.LeaseEnded(d.tools, d.src()) != engine.Dropped {
		t.Error("a lease ends that is not there")
	}
}

func TestGiveBack(t *testing.T) {
	for _, c := range []struct {
		tool  string
		sent  bool
		state run.State
		calls int64
		words int
	}{
		{"read", true, run.Ready, 1, 0},
		{"read", false, run.Ready, 0, 0},
		{"write", true, run.Unknown, 1, 1},
		{"write", false, run.Ready, 0, 0},
		{"none", true, run.NeedsHuman, 1, 1},
		{"none", false, run.Ready, 0, 0},
	} {
		d := create(t, job("", step("a", c.tool, "{}")))
		for range 5 { // a drain costs no attempt and is no loss
			d.begin("a")
			d.r.GiveBack(d.r.Step("a").Dispatch, c.sent, d.tools, d.src())
			d.check()
			if d.r.Step("a").State != run.Ready {
				break
			}
		}
		calls := c.calls
		if c.state == run.Ready {
			calls *= 5
		}
		if d.state("a", c.state); d.r.Spent.ToolCalls != calls || len(d.words()) != c.words || d.r.Step("a").Losses != 0 || d.r.Step("a").Used != 0 {
			t.Errorf("%s sent %v: %d calls, %q", c.tool, c.sent, d.r.Spent.ToolCalls, d.words())
		}
	}
}

func TestRenew(t *testing.T) {
	d := create(t, job("", step("a", "read", "{}")))
	d.begin("a")
	if !d.r.Renew("l1") || d.r.Lease.Renewal != 1 || d.r.Renew("other") {
		t.Errorf("%+v", d.r.Lease)
	}
	d.reply("d1", ok("{}"))
	if d.r.Renew("l1") {
		t.Error("a lease that has ended is renewed")
	}
}
