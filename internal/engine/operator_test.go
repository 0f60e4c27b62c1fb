package engine_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

func (d *driver) by(who string) engine.Call {
	return engine.Call{Letter: d.r.Letter.ID, By: who, Reason: "looked into it", At: d.now}
}

// refused expects a refusal's code; "" that there is none.
func (d *driver) refused(code string, err *engine.Refusal) {
	d.t.Helper()
	got := ""
	if err != nil {
		got = err.Code
	}
	if got != code {
		d.t.Fatalf("%q (%v), want %q", got, err, code)
	}
	d.check()
}

func (d *driver) resolve(c engine.Call, res engine.Resolution) (*engine.Answer, *engine.Refusal) {
	d.t.Helper()
	a, err := d.r.Resolve(c, res, d.tools)
	if err == nil {
		d.check()
	}
	return a, err
}

func (d *driver) replay(c engine.Call, w engine.ReplayWith) (*engine.Answer, *engine.Refusal) {
	d.t.Helper()
	a, err := d.r.Replay(c, w)
	if err == nil {
		d.check()
	}
	return a, err
}

var (
	wasDone    = engine.Resolution{CommitState: envelope.Committed, Result: json.RawMessage(`{"id":"c"}`), EvidenceRef: "ev"}
	wasNotDone = engine.Resolution{CommitState: envelope.NotCommitted}
)

// held is a run whose write a person must establish, with a step behind it.
func held(t testing.TB) *driver {
	d := create(t, job("", step("a", "none", "{}"), step("b", "read", "{}")))
	d.call("a", silent())
	d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")
	return d
}

// The order in which a call is judged: missing fields, the first answer, not found, another's claim, another letter.
func TestAdmission(t *testing.T) {
	resolve := func(d *driver, c engine.Call) (*engine.Answer, *engine.Refusal) { return d.resolve(c, wasDone) }
	discard := func(d *driver, c engine.Call) (*engine.Answer, *engine.Refusal) { return d.r.Discard(c) }
	other := func(c engine.Call) engine.Call { c.Letter = "acme/run_1/9"; return c }
	for _, c := range []struct {
		name string
		call func(*driver) (*engine.Answer, *engine.Refusal)
		code string
	}{
		{"by is missing", func(d *driver) (*engine.Answer, *engine.Refusal) { return discard(d, d.by("")) }, run.BadRequest},
		{"reason is missing", func(d *driver) (*engine.Answer, *engine.Refusal) {
			c := d.by("alice")
			c.Reason = ""
			return discard(d, c)
		}, run.BadRequest},
		{"reason is too long", func(d *driver) (*engine.Answer, *engine.Refusal) {
			c := d.by("alice")
			c.Reason = strings.Repeat("x", 5000)
			return discard(d, c)
		}, run.BadRequest},
		{"letter is missing", func(d *driver) (*engine.Answer, *engine.Refusal) {
			c := d.by("alice")
			c.Letter = ""
			return resolve(d, c)
		}, run.BadRequest},
		{"commit_state is missing", func(d *driver) (*engine.Answer, *engine.Refusal) {
			return d.resolve(d.by("alice"), engine.Resolution{})
		}, run.BadRequest},
		{"another letter", func(d *driver) (*engine.Answer, *engine.Refusal) { return resolve(d, other(d.by("alice"))) }, run.Conflict},
		{"another's claim", func(d *driver) (*engine.Answer, *engine.Refusal) {
			d.r.ClaimLetter("bob", d.now.Add(time.Minute), d.now)
			return resolve(d, d.by("alice"))
		}, run.Claimed},
		{"another's claim goes before another letter", func(d *driver) (*engine.Answer, *engine.Refusal) {
			d.r.ClaimLetter("bob", d.now.Add(time.Minute), d.now)
			return resolve(d, other(d.by("alice")))
		}, run.Claimed},
		{"another's claim that has run out", func(d *driver) (*engine.Answer, *engine.Refusal) {
			d.r.ClaimLetter("bob", d.now.Add(time.Minute), d.now)
			d.pass(time.Minute)
			return resolve(d, d.by("alice"))
		}, ""},
		{"one's own claim", func(d *driver) (*engine.Answer, *engine.Refusal) {
			d.r.ClaimLetter("alice", d.now.Add(time.Minute), d.now)
			return resolve(d, d.by("alice"))
		}, ""},
		{"settled by another", func(d *driver) (*engine.Answer, *engine.Refusal) {
			discard(d, d.by("bob"))
			return resolve(d, d.by("alice"))
		}, run.NotFound},
		{"settled by the same person otherwise", func(d *driver) (*engine.Answer, *engine.Refusal) {
			discard(d, d.by("alice"))
			return resolve(d, d.by("alice"))
		}, run.NotFound},
		{"the same call again", func(d *driver) (*engine.Answer, *engine.Refusal) {
			resolve(d, d.by("alice"))
			return resolve(d, d.by("alice"))
		}, ""},
		{"the same call by another", func(d *driver) (*engine.Answer, *engine.Refusal) {
			resolve(d, d.by("alice"))
			return resolve(d, d.by("bob"))
		}, run.NotFound},
		{"no step of this name", func(d *driver) (*engine.Answer, *engine.Refusal) {
			c := d.by("alice")
			c.Step = "b"
			return resolve(d, c)
		}, run.BadRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := held(t)
			a, err := c.call(d)
			d.refused(c.code, err)
			if err == nil && a.Episode != 2 {
				t.Errorf("episode %d", a.Episode)
			}
		})
	}
	d := create(t, job("", step("a", "read", "{}")))
	_, err := d.r.Discard(engine.Call{By: "alice", Reason: "x", At: d.now})
	d.refused(run.NotFound, err)
}

// The first answer is kept beyond the next letter.
func TestFirstAnswer(t *testing.T) {
	d := held(t)
	first := d.by("alice")
	_, err := d.replay(first, engine.ReplayWith{})
	d.refused(run.NotAllowed, err) // its outcome is unknown
	a, err := d.resolve(first, wasNotDone)
	d.refused("", err)
	episode := a.Episode
	d.call("a", silent())
	if d.r.Letter.ID != "acme/run_1/2" || !d.r.Letter.Open {
		t.Fatalf("%+v", d.r.Letter)
	}
	a, err = d.resolve(first, wasNotDone)
	d.refused("", err)
	if a.Episode != episode || d.r.Episode != 2 {
		t.Errorf("the same call again is another: %+v", a)
	}
	first.By = "bob"
	_, err = d.resolve(first, wasNotDone)
	d.refused(run.Conflict, err)
}

func TestClaim(t *testing.T) {
	d := held(t)
	d.refused(run.BadRequest, d.r.ClaimLetter("", d.now.Add(time.Minute), d.now))
	d.refused("", d.r.ClaimLetter("alice", d.now.Add(time.Minute), d.now))
	d.refused(run.Claimed, d.r.ClaimLetter("bob", d.now.Add(time.Minute), d.now))
	if l := d.r.BuildLetter(); l.Claim == nil || l.Claim.By != "alice" {
		t.Errorf("%+v", l.Claim)
	}
	if h := d.r.History[len(d.r.History)-1]; h.Kind != engine.EventClaim || h.By != "alice" {
		t.Errorf("%+v", h)
	}
	d.pass(time.Minute)
	d.refused("", d.r.ClaimLetter("bob", d.now.Add(time.Minute), d.now))
	d.r.Discard(d.by("bob"))
	d.refused(run.NotFound, d.r.ClaimLetter("bob", d.now.Add(time.Minute), d.now))
}

func TestResolve(t *testing.T) {
	d := held(t)
	if !slices.Equal(actions(d), []string{"resolve", "discard"}) {
		t.Errorf("%v", actions(d))
	}
	_, err := d.resolve(d.by("alice"), wasDone)
	d.refused("", err)
	d.call("b", ok("{}"))
	d.ended(envelope.OK, "", "")
	o := d.last(envelope.RunScope)
	if o.N != 2 || o.ID != "acme/run_1/run/2" || len(o.CompletedEffects) != 1 || o.CompletedEffects[0].EvidenceRef != "ev" {
		t.Errorf("%+v", o)
	}

	d = held(t)
	_, err = d.resolve(d.by("alice"), wasNotDone)
	d.refused("", err)
	if x := d.begin("a"); x.Attempt != 2 || x.Key != "acme/run_1/a" {
		t.Errorf("attempts go on and the proposal is the same: %+v", x)
	}

	d = held(t)
	_, err = d.resolve(d.by("alice"), engine.Resolution{CommitState: envelope.Committed, EvidenceRef: "ev"})
	d.refused("", err)
	if o := d.last(envelope.StepScope); !o.Envelope.ResultOmitted || string(o.Envelope.Result) != "null" {
		t.Errorf("%+v", o.Envelope)
	}

	// A result must fit.
	d = create(t, job("", step("a", "strict", "{}")))
	d.call("a", silent())
	for range 3 {
		d.looked("d1", undecided, false)
	}
	_, err = d.resolve(d.by("alice"), engine.Resolution{CommitState: envelope.Committed, Result: json.RawMessage(`[]`)})
	d.refused(run.BadRequest, err)
	_, err = d.resolve(d.by("alice"), wasDone)
	d.refused("", err)
	d.ended(envelope.OK, "", "")
}

// Who says that a write was done is asked for what later steps refer to, because the letter is settled with the answer.
func TestResolveNeedsWhatLaterStepsReferTo(t *testing.T) {
	from := func(refs ...string) string {
		list := ""
		for i, ref := range refs {
			list += fmt.Sprintf(`"k%d":{"$from":%q},`, i, ref)
		}
		return "{" + strings.TrimSuffix(list, ",") + "}"
	}
	optional, other := `"optional":true`, step("b", "read", from("z#/id"))
	for _, c := range []struct {
		name   string
		steps  []string // behind the unknown step a
		result string
		needs  []string // parts of the refusal; none: it is accepted
	}{
		{"no step refers to it", []string{other}, "", nil},
		{"no result", []string{step("b", "read", from("a#/id", "a#/id")), step("c", "read", from("a#/x/0", "b#"))}, "", []string{"result is missing", `step b needs "/id"`, `step c needs "/x/0"`}},
		{"the whole result", []string{step("b", "read", from("a#"))}, "", []string{`step b needs ""`}},
		{"a result without it", []string{step("b", "read", from("a#/id"))}, `{"ID":1}`, []string{"does not have", `step b needs "/id"`}},
		{"a result with it", []string{step("b", "read", from("a#/id"))}, `{"id":null}`, nil},
		{"an optional step", []string{step("b", "read", from("a#/id"), optional)}, "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := create(t, job("", append([]string{step("a", "none", "{}")}, c.steps...)...))
			d.call("a", silent())
			d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")
			res := engine.Resolution{CommitState: envelope.Committed, EvidenceRef: "ev"}
			if c.result != "" {
				res.Result = json.RawMessage(c.result)
			}
			_, err := d.resolve(d.by("alice"), res)
			if len(c.needs) == 0 {
				d.refused("", err)
				return
			}
			d.refused(run.BadRequest, err)
			for _, part := range c.needs {
				if !strings.Contains(err.Message, part) {
					t.Errorf("%q does not say %q", err.Message, part)
				}
			}
			if !d.r.Letter.Open {
				t.Error("a refused call has settled the letter")
			}
			_, err = d.resolve(d.by("alice"), wasNotDone)
			d.refused("", err)
		})
	}

	d := create(t, job("", step("a", "none", "{}"), step("b", "read", from("a#/id"))))
	d.begin("a")
	d.r.CancelRun("bob", "stop", d.now)
	d.reply("d1", silent())
	_, err := d.resolve(d.by("alice"), engine.Resolution{CommitState: envelope.Committed, EvidenceRef: "ev"})
	d.refused("", err) // a cancelled run starts nothing any more
	d.ended(envelope.Cancelled, envelope.CodeCancelled, "b")
}

// A step that is committed and whose result was refused needs only its result.
func TestResolveResultOnly(t *testing.T) {
	d := create(t, job("", step("a", "strict", "{}")))
	d.call("a", silent())
	d.looked("d1", envelope.Lookup{Answer: envelope.Found, Invalid: envelope.CodeResultInvalid}, false)
	if !slices.Equal(actions(d), []string{"resolve", "discard"}) {
		t.Errorf("%v", actions(d))
	}
	for _, res := range []engine.Resolution{wasNotDone, {CommitState: envelope.Committed, EvidenceRef: "ev"}} {
		_, err := d.resolve(d.by("alice"), res)
		d.refused(run.BadRequest, err)
	}
	_, err := d.resolve(d.by("alice"), wasDone)
	d.refused("", err)
	d.ended(envelope.OK, "", "")
	if o := d.last(envelope.RunScope); len(o.CompletedEffects) != 1 {
		t.Errorf("%+v", o.CompletedEffects)
	}
}

// Kept evidence reopens what a step ended with: also one that is ready, waiting or cancelled.
func TestResolveContradicted(t *testing.T) {
	for name, end := range map[string]func(*driver){
		"fatal":   func(d *driver) { d.begin("a"); d.reply("d1", fails(envelope.CodeUpstreamDenied, envelope.Write)) },
		"ready":   func(d *driver) { readyAfterAbsent(d) },
		"waiting": func(d *driver) { waiting(d) },
	} {
		for _, res := range []engine.Resolution{wasDone, wasNotDone} {
			t.Run(name+"/"+string(res.CommitState), func(t *testing.T) {
				d := create(t, job(`"parallel":true,"budget":{"max_elapsed_seconds":600}`, step("z", "none", "{}"), step("a", "write", "{}")))
				d.ids = 100
				z := d.begin("z")
				d.ids = 0
				end(d)
				d.reply(z.ID, silent())
				d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "z")
				commits.give(d)
				c := d.by("alice")
				c.Step = "a"
				_, err := d.resolve(c, res)
				d.refused("", err)
				d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "z") // z is still open
				c = d.by("alice")
				_, err = d.resolve(c, wasDone)
				d.refused("", err)
				if res.CommitState == envelope.Committed {
					d.ended(envelope.OK, "", "")
					return
				}
				if d.state("a", run.Ready); d.begin("a") == nil {
					t.Error("not ready")
				}
			})
		}
	}
}

// While other steps are open the new episode dispatches nothing and ends again with the next letter.
func TestResolveOneOfTwo(t *testing.T) {
	d := create(t, job(`"parallel":true`, step("a", "none", "{}"), step("b", "none", "{}")))
	d.begin("a")
	d.begin("b")
	d.reply("d1", silent())
	d.reply("d2", silent())
	d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")
	_, err := d.resolve(d.by("alice"), wasDone)
	d.refused(run.BadRequest, err) // which one?
	c := d.by("alice")
	c.Step = "a"
	_, err = d.resolve(c, wasNotDone)
	d.refused("", err)
	d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "b")
	if d.r.Episode != 2 || d.r.Letter.ID != "acme/run_1/2" || d.r.Spent.ToolCalls != 2 {
		t.Errorf("episode %d, letter %s", d.r.Episode, d.r.Letter.ID)
	}
	_, err = d.resolve(d.by("alice"), wasDone)
	d.refused("", err)
	d.call("a", ok("{}"))
	d.ended(envelope.OK, "", "")
}

func TestApprove(t *testing.T) {
	d := create(t, job("", step("p", "read", "{}"), step("a", "asks", `{"x":{"$from":"p#/id"}}`)))
	d.call("p", ok(`{"id":7}`))
	d.begin("a")
	d.ended(envelope.NeedsHuman, envelope.CodeMissingApproval, "a")
	l := d.r.BuildLetter()
	if !slices.Equal(actions(d), []string{"replay", "approve", "discard"}) || len(l.Open) != 1 || len(l.Open[0].ArgsDigest) != 64 ||
		string(l.Open[0].Args) != `{"x":7}` || l.Open[0].ArgsDigest != strictjson.ArgsDigest("asks", json.RawMessage(`{"x":7}`)) {
		t.Errorf("%v %+v", actions(d), l.Open)
	}
	_, err := d.resolve(d.by("alice"), wasDone)
	d.refused(run.NotAllowed, err)
	_, err = d.r.Approve(d.by("alice"))
	d.refused("", err)
	if x := d.begin("a"); x == nil || string(x.Args.Text()) != `{"x":7}` {
		t.Fatal("approved and not started")
	}
	d.reply("d3", fails(envelope.CodeUpstreamUnavailable, envelope.Write))
	d.pass(time.Second)
	d.call("a", ok("{}")) // a retry of the same args needs no other approval
	d.ended(envelope.OK, "", "")

	// An approval covers exactly what was refused.
	d = create(t, job(`"more":true`, step("a", "asks", `{"n":1}`)))
	d.begin("a")
	digest := d.r.BuildLetter().Open[0].ArgsDigest
	_, err = d.replay(d.by("alice"), engine.ReplayWith{Args: json.RawMessage(`{"n":2}`)})
	d.refused("", err)
	d.begin("a")
	d.ended(envelope.NeedsHuman, envelope.CodeMissingApproval, "a")
	if got := d.r.BuildLetter().Open[0].ArgsDigest; got == digest {
		t.Error("other args, same digest")
	}
	// A replay of such a letter asks again.
	_, err = d.replay(d.by("alice"), engine.ReplayWith{})
	d.refused("", err)
	if d.begin("a") != nil {
		t.Error("a replay is no approval")
	}
}

func TestReplay(t *testing.T) {
	d := create(t, job("", step("p", "write", "{}"), step("a", "read", "{}"), step("b", "read", "{}")))
	d.call("p", ok(`{"id":1}`))
	for range 3 {
		d.call("a", fails(envelope.CodeUpstreamUnavailable, envelope.Read))
		d.pass(5 * time.Second)
	}
	d.ended(envelope.NeedsHuman, envelope.CodeAttemptsExhausted, "a")
	l := d.r.BuildLetter()
	if len(l.Attempts) != 3 || l.Attempts[2].Attempt != 3 || !slices.Equal(l.RemainingSteps, []string{"b"}) || len(l.CompletedEffects) != 1 || l.Replays != 0 {
		t.Errorf("%+v %+v", l.Summary, l.Attempts)
	}
	d.pass(time.Hour)
	c := d.by("alice")
	c.Letter = ""
	a, err := d.replay(c, engine.ReplayWith{})
	d.refused("", err)
	if a.Episode != 2 || d.r.Replays != 1 || d.r.Deadline != d.now.Add(time.Minute) || d.r.Spent.ToolCalls != 4 {
		t.Errorf("%+v, deadline %s, %d calls", a, d.r.Deadline, d.r.Spent.ToolCalls)
	}
	if x := d.begin("a"); x.Attempt != 4 { // completed effects are never repeated; attempts go on
		t.Errorf("%+v", x)
	}
	d.reply("d5", fails(envelope.CodeUpstreamUnavailable, envelope.Read))
	if o := d.last(envelope.StepScope); o.Envelope.Retry.MaxAttemptsRemaining != 2 {
		t.Errorf("%+v", o.Envelope.Retry)
	}
	d.pass(time.Second)
	d.call("a", ok("{}"))
	d.call("b", ok("{}"))
	d.ended(envelope.OK, "", "")
}

func TestReplayWithArgs(t *testing.T) {
	rejected := func() *driver {
		d := create(t, job("", step("a", "write", `{"n":1}`), step("b", "read", "{}")))
		d.call("a", fails(envelope.CodeUpstreamRejectedInput, envelope.Write))
		return d
	}
	for _, bad := range []string{`[]`, `"x"`, `{"a":` + strings.Repeat(`{"a":`, 64) + `1` + strings.Repeat("}", 65)} {
		d := rejected()
		_, err := d.replay(d.by("alice"), engine.ReplayWith{Args: json.RawMessage(bad)})
		d.refused(run.BadRequest, err)
	}
	d := rejected()
	_, err := d.replay(d.by("alice"), engine.ReplayWith{Args: json.RawMessage(`{"n":2}`)})
	d.refused("", err)
	if x := d.begin("a"); x.Key != "acme/run_1/a.p2" || x.Proposal != 2 || string(x.Args.Text()) != `{"n":2}` {
		t.Errorf("%+v", x)
	}
	d = rejected()
	_, err = d.replay(d.by("alice"), engine.ReplayWith{Args: json.RawMessage(`{ "n" : 1 }`)})
	d.refused("", err)
	if x := d.begin("a"); x.Key != "acme/run_1/a" {
		t.Errorf("the same args are no new proposal: %+v", x)
	}
	// A step that never started may get other args too.
	d = create(t, job(`"usage":{"turns":99}`, step("a", "write", `{"n":1}`)))
	more := int64(100)
	_, err = d.replay(d.by("alice"), engine.ReplayWith{Args: json.RawMessage(`{"n":2}`), Add: &budget.Request{MaxTurns: &more}})
	d.refused("", err)
	if x := d.begin("a"); string(x.Args.Text()) != `{"n":2}` || x.Attempt != 1 {
		t.Errorf("%+v", x)
	}
}

func TestReplayBudget(t *testing.T) {
	spent := func() *driver {
		d := create(t, job(`"budget":{"max_tool_calls":1}`, step("p", "write", "{}"), step("a", "write", "{}")))
		d.call("p", ok("{}"))
		d.begin("a")
		d.ended(envelope.NeedsHuman, envelope.CodeToolCallsExhausted, "a")
		return d
	}
	n := func(v int64) *int64 { return &v }
	seconds := -1.0
	for _, c := range []struct {
		name string
		with engine.ReplayWith
		code string
	}{
		{"nothing added", engine.ReplayWith{}, run.NotAllowed},
		{"another budget", engine.ReplayWith{Add: &budget.Request{MaxTurns: n(1)}}, run.NotAllowed},
		{"negative", engine.ReplayWith{Add: &budget.Request{MaxElapsedSeconds: &seconds}}, run.BadRequest},
		{"above max_budget", engine.ReplayWith{Add: &budget.Request{MaxToolCalls: n(5)}, Max: &budget.Ceiling{MaxToolCalls: n(5)}}, run.BadRequest},
		{"up to max_budget", engine.ReplayWith{Add: &budget.Request{MaxToolCalls: n(4)}, Max: &budget.Ceiling{MaxToolCalls: n(5)}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := spent()
			before := d.r.Budget
			_, err := d.replay(d.by("alice"), c.with)
			d.refused(c.code, err)
			if c.code != "" && (d.r.Budget != before || d.r.Episode != 1) {
				t.Error("a refused replay changed the run")
			}
			if c.code == "" {
				d.call("a", ok("{}"))
				d.ended(envelope.OK, "", "")
			}
		})
	}
	// Elapsed time starts again by itself.
	d := create(t, job("", step("a", "read", "{}")))
	d.expire()
	_, err := d.replay(d.by("alice"), engine.ReplayWith{})
	d.refused("", err)
	d.call("a", ok("{}"))
	d.ended(envelope.OK, "", "")
}

func TestReplaysAreBounded(t *testing.T) {
	d := create(t, job("", step("a", "read", "{}")))
	for i := range 11 {
		d.call("a", fails(envelope.CodeUpstreamDenied, envelope.Read))
		_, err := d.replay(d.by("alice"), engine.ReplayWith{})
		if i < 10 {
			d.refused("", err)
			continue
		}
		d.refused(run.NotAllowed, err)
		if !slices.Equal(actions(d), []string{"discard"}) {
			t.Errorf("%v", actions(d))
		}
	}
}

func TestDiscard(t *testing.T) {
	d := held(t)
	if d.r.RemembersUntil(time.Hour) != 0 {
		t.Error("a record with an open letter may go")
	}
	d.pass(time.Minute)
	a, err := d.r.Discard(d.by("alice"))
	d.refused("", err)
	if a.Episode != 0 || d.r.Letter.Open || d.r.Episode != 1 {
		t.Errorf("%+v", a)
	}
	d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")
	if got := d.r.RemembersUntil(time.Hour); got != d.now.Add(time.Hour) {
		t.Errorf("remembered until %s", got)
	}
}

// A run that was cancelled ends cancelled once its unknown write is settled; a replay goes on.
func TestCancelIsKeptOverResolve(t *testing.T) {
	cancelled := func() *driver {
		d := create(t, job("", step("a", "none", "{}"), step("b", "read", "{}")))
		d.begin("a")
		d.cancel()
		d.reply("d1", silent())
		d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")
		return d
	}
	d := cancelled()
	_, err := d.resolve(d.by("alice"), wasDone)
	d.refused("", err)
	d.ended(envelope.Cancelled, envelope.CodeCancelled, "b")
	d = cancelled()
	_, err = d.resolve(d.by("alice"), wasNotDone)
	d.refused("", err)
	d.ended(envelope.Cancelled, envelope.CodeCancelled, "a")
	if d.r.Letter.Open || d.last(envelope.StepScope).Outcome != envelope.Cancelled {
		t.Errorf("%+v", d.r.Letter)
	}
}

func TestReport(t *testing.T) {
	report := func(d *driver, attempt int, res engine.Resolution) (engine.Verdict, *engine.Refusal) {
		v, err := d.r.Report("a", attempt, "webhook", res, d.tools, d.now)
		d.check()
		return v, err
	}
	gone := engine.Resolution{CommitState: envelope.NotCommitted, EvidenceRef: "ev"}
	for _, c := range []struct {
		name    string
		before  func(*driver)
		attempt int
		res     engine.Resolution
		verdict engine.Verdict
		state   run.State
		alarm   bool
	}{
		{"committed while executing", executing, 0, wasDone, engine.Applied, run.OK, false},
		{"committed while unknown", unknown, 1, wasDone, engine.Applied, run.OK, false},
		{"committed while ready", readyAfterAbsent, 0, wasDone, engine.Applied, run.OK, false},
		{"committed while waiting", waiting, 0, wasDone, engine.Applied, run.OK, false},
		{"committed, an earlier attempt, while a later one is out", laterExecuting, 1, wasDone, engine.Applied, run.Executing, false},
		{"committed, the current attempt", laterExecuting, 2, wasDone, engine.Applied, run.OK, false},
		{"committed, an earlier attempt, while a later one is unknown", laterUnknown, 1, wasDone, engine.Applied, run.NeedsHuman, false},
		{"committed after a fatal end", endedFatal, 1, wasDone, engine.Noted, run.Fatal, true},
		{"committed after an unknown end", endedUnknown, 1, wasDone, engine.Noted, run.NeedsHuman, false},
		{"committed again", doneByReport, 1, engine.Resolution{CommitState: envelope.Committed, EvidenceRef: "other"}, engine.Noted, run.OK, false},
		{"committed otherwise", doneByReport, 1, wasDone, engine.Noted, run.OK, true},
		{"not committed after the window", unknownAfterWindow, 1, gone, engine.Applied, run.Ready, false},
		{"not committed before the window is over", unknown, 1, gone, engine.Applied, run.Unknown, false},
		{"not committed without an attempt", unknownAfterWindow, 0, gone, engine.Applied, run.Unknown, false},
		{"not committed, an earlier attempt", laterUnknown, 1, gone, engine.Applied, run.Unknown, false},
		{"not committed while executing", executing, 1, gone, engine.Noted, run.Executing, false},
		{"not committed, but it is ok", doneBySame, 1, gone, engine.Noted, run.OK, true},
		{"not committed after a fatal end", endedFatal, 1, gone, engine.Noted, run.Fatal, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := create(t, job(`"budget":{"max_elapsed_seconds":600}`, step("a", "write", "{}")))
			c.before(d)
			v, err := report(d, c.attempt, c.res)
			if err != nil || v != c.verdict || d.r.Step("a").State != c.state || (len(d.r.Alarms) > 0) != c.alarm {
				t.Errorf("%s %v, %s, alarms %v; want %s, %s", v, err, d.r.Step("a").State, d.r.Alarms, c.verdict, c.state)
			}
			if c.state == run.Unknown && len(d.r.Lookups(d.now)) != 1 {
				t.Error("the next lookup does not happen at once")
			}
			kept := slices.ContainsFunc(d.r.History, func(e engine.Event) bool { return e.Kind == engine.EventReport && e.By == "webhook" })
			if !kept {
				t.Error("the report is not in the history")
			}
		})
	}
	d := create(t, job("", step("a", "strict", "{}"), step("r", "read", "{}")))
	refuse := func(code, name string, attempt int, by string, res engine.Resolution) {
		t.Helper()
		_, err := d.r.Report(name, attempt, by, res, d.tools, d.now)
		d.refused(code, err)
	}
	refuse(run.NotFound, "z", 1, "hook", wasDone)
	refuse(run.BadRequest, "a", 0, "hook", wasDone) // never started
	d.begin("a")
	refuse(run.BadRequest, "a", 1, "", wasDone)
	refuse(run.BadRequest, "a", 2, "hook", wasDone)
	refuse(run.BadRequest, "a", 1, "hook", engine.Resolution{CommitState: envelope.Committed})
	refuse(run.BadRequest, "a", 1, "hook", engine.Resolution{CommitState: "maybe", EvidenceRef: "e"})
	refuse(run.BadRequest, "a", 1, "hook", engine.Resolution{CommitState: envelope.Committed, Result: json.RawMessage("[]"), EvidenceRef: "e"})
	refuse(run.BadRequest, "r", 1, "hook", wasDone)
	d.state("a", run.Executing)
}

// The effects that an unpublished outcome lists stay those that were proven by then.
func TestEffectsOfOwedOutcomes(t *testing.T) {
	d := create(t, job("", step("a", "write", "{}"), step("b", "write", "{}"), step("c", "write", "{}")))
	d.call("a", ok("{}"))
	d.call("b", ok("{}"))
	for i := range d.r.Owed {
		if got := len(d.r.Outcome(&d.r.Owed[i]).CompletedEffects); got != i+1 {
			t.Errorf("outcome %d lists %d effects", i+1, got)
		}
	}
}

func TestView(t *testing.T) {
	d := held(t)
	v := d.r.View(d.now)
	if v.State != "needs_human" || v.Outcome != envelope.NeedsHuman || v.ReasonCode != "external_outcome_unknown" || v.Episode != 1 || len(v.Steps) != 2 ||
		v.Steps[0].Code != envelope.CodeVerificationUnavailable || v.Steps[0].CommitState != envelope.Unknown || v.Steps[1].State != run.Ready ||
		len(v.History) == 0 || v.CompletedEffects == nil || *v.Budget.MaxTurns != 12 {
		t.Errorf("%+v", v)
	}
	d = create(t, job("", step("a", "write", "{}"), step("b", "read", "{}")))
	waiting(d)
	if got := d.r.View(d.now).State; got != run.StateWaiting {
		t.Errorf("a step that waits for another makes the run %s", got)
	}
}
