package engine_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

func nowhere(string) bool { return false }

// judge looks ahead, as an executor does after each job and before each start.
func (d *driver) judge() bool {
	d.t.Helper()
	changed := d.r.Judge(d.tools, nowhere, d.now)
	d.check()
	return changed
}

// A mistake in a later step is found before the first has started.
func TestWhatIsWrongIsFoundBeforeAnythingStarts(t *testing.T) {
	first := step("a", "write", "{}")
	for _, c := range []struct {
		name  string
		bad   string
		code  envelope.Code
		field string
	}{
		{"unknown tool", step("c", "wriet", "{}"), envelope.CodeUnknownTool, ""},
		{"wrong args", step("c", "strict", `{"bad":1}`), envelope.CodeInvalidArgument, "/bad"},
		{"a step that is not there", step("c", "write", `{"x":{"$from":"aa#/id"}}`), envelope.CodeReferenceUnresolved, "aa#/id"},
		{"a later step", step("c", "write", `{"x":{"$from":"d#/id"}}`), envelope.CodeReferenceUnresolved, "d#/id"},
		{"itself", step("c", "write", `{"x":{"$from":"c#/id"}}`), envelope.CodeReferenceUnresolved, "c#/id"},
		{"no pointer", step("c", "write", `{"x":{"$from":"a"}}`), envelope.CodeReferenceUnresolved, "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := create(t, job("", first, step("b", "read", "{}"), c.bad, step("d", "read", "{}")))
			if !d.judge() {
				t.Fatal("nothing is found")
			}
			d.ended(envelope.Fatal, c.code, "c")
			o := d.last(envelope.RunScope)
			if !slices.Equal(o.RemainingSteps, []string{"a", "b", "d"}) || o.Spent.ToolCalls != 0 || len(o.CompletedEffects) != 0 {
				t.Errorf("%+v", o)
			}
			if got, _ := o.Envelope.SafeDetails["field"].(string); got != c.field {
				t.Errorf("field %q, want %q", got, c.field)
			}
			if got := d.words(); len(got) != 1 || !strings.HasPrefix(got[0], "c ") {
				t.Errorf("outcomes of steps: %q", got)
			}
			if d.judge() {
				t.Error("what has ended is judged again")
			}
		})
	}
}

// What can only be known at a step's turn is left to it.
func TestWhatTheMomentDecidesIsNotJudged(t *testing.T) {
	d := create(t, job("", step("a", "write", "{}"), step("b", "strict", `{"bad":{"$from":"a#/id"}}`), step("c", "denied", "{}"), step("d", "asks", "{}")))
	if d.judge() {
		t.Fatalf("%q", d.words())
	}
	d.call("a", ok(`{"id":1}`))
	if d.begin("b") != nil {
		t.Fatal("resolved args are not checked")
	}
	d.ended(envelope.Fatal, envelope.CodeInvalidArgument, "b")
}

// An optional step's mistake is told at once and stops nobody.
func TestAWrongOptionalStepStopsNobody(t *testing.T) {
	for _, members := range []string{"", `"more":true`} {
		d := create(t, job(members, step("a", "write", "{}"), step("b", "wriet", "{}", `"optional":true`), step("c", "read", "{}")))
		d.judge()
		d.goesOn()
		d.state("b", run.Fatal)
		d.call("a", ok("{}"))
		d.call("c", ok("{}"))
	}
}

// In an open run the wrong step ends, what came with it waits, and other jobs go on. Its amendment is judged before
// anything starts, and then all go in their order.
func TestAWrongStepOfAnOpenRun(t *testing.T) {
	ready := func(d *driver, want ...string) {
		d.t.Helper()
		if got := d.r.Next(d.now).Ready; !slices.Equal(got, want) {
			d.t.Fatalf("ready are %v, want %v", got, want)
		}
	}
	for _, members := range []string{`"more":true`, `"more":true,"parallel":true`} {
		d := create(t, job(`"more":true`, step("z", "read", "{}")))
		d.judge()
		d.job(job(members, step("a", "write", "{}"), step("b", "read", "{}"), step("c", "strict", `{"bad":1}`), step("d", "read", "{}")))
		d.judge()
		d.goesOn()
		d.state("c", run.Fatal)
		if o := d.last(envelope.StepScope); o.Step != "c" || o.Envelope.Retry.MaxAttemptsRemaining != 2 || o.ReasonCode != "invalid_input" {
			t.Errorf("%+v", o)
		}
		ready(d, "z")
		d.call("z", ok("{}"))
		ready(d)
		d.job(job(`"more":true`, step("e", "read", "{}")))
		d.judge()
		d.call("e", ok("{}"))
		ready(d)

		d.job(job(members, step("c", "strict", `{"bad":2}`)))
		d.judge()
		d.state("c", run.Fatal)
		ready(d) // wrong again: nothing of its job has started

		d.job(job(members, step("c", "strict", `{"good":1}`)))
		if d.judge() {
			t.Fatal("good args are refused")
		}
		if members == `"more":true` {
			ready(d, "a")
		} else {
			ready(d, "a", "b", "c")
		}
		for _, s := range []string{"a", "b", "c", "d"} {
			d.call(s, ok("{}"))
		}
		d.job(job(""))
		d.ended(envelope.OK, "", "")
	}

	// A tool that nobody has cannot be amended; without the step the others start.
	d := create(t, job(`"more":true`, step("a", "write", "{}"), step("c", "wriet", "{}")))
	d.judge()
	ready(d)
	d.job(job(`"waive":["c"]`))
	d.judge()
	d.call("a", ok("{}"))
	d.ended(envelope.OK, "", "")
}

// A replay looks ahead again, also with the args that it brings.
func TestAReplayIsJudged(t *testing.T) {
	d := create(t, job("", step("a", "write", "{}"), step("b", "strict", `{"bad":1}`), step("c", "strict", `{"bad":1}`)))
	d.judge()
	d.ended(envelope.Fatal, envelope.CodeInvalidArgument, "b")
	d.state("c", run.Fatal) // all mistakes are told at once
	replay := func(args string) {
		t.Helper()
		_, err := d.r.Replay(d.by("alice"), engine.ReplayWith{Args: []byte(args)})
		d.refused("", err)
		d.check()
	}
	replay(`{"bad":2}`)
	d.judge()
	d.ended(envelope.Fatal, envelope.CodeInvalidArgument, "b")
	replay(`{}`)
	d.judge()
	d.ended(envelope.Fatal, envelope.CodeInvalidArgument, "c")
	replay(`{}`)
	if d.judge() {
		t.Fatalf("%q", d.words())
	}
	for _, s := range []string{"a", "b", "c"} {
		d.call(s, ok("{}"))
	}
	d.ended(envelope.OK, "", "")
}

// A tool that another executor has is left to that one, which then judges the args.
func TestAToolOfAnotherExecutor(t *testing.T) {
	d := create(t, job("", step("a", "write", "{}"), step("b", "theirs", `{"bad":1}`)))
	if d.r.Judge(d.tools, func(tool string) bool { return tool == "theirs" }, d.now) {
		t.Fatalf("%q", d.words())
	}
	d.check()
	d.tools["theirs"] = d.tools["strict"]
	d.judge()
	d.ended(envelope.Fatal, envelope.CodeInvalidArgument, "b")
}

// The args of a step that refers to nothing are one value from the job to the call: nobody on the way reads them again.
func TestArgsTravelFromTheJobToTheCall(t *testing.T) {
	d := create(t, job("", step("a", "write", `{"x":1}`)))
	tool, _ := d.tools.Tool("write")
	var seen []*strictjson.Args
	tool.Fits = func(args *strictjson.Args) (string, bool) {
		seen = append(seen, args)
		return "", true
	}
	d.r.Judge(d.tools, nowhere, d.now)
	sent := d.r.Begin("a", d.tools, engine.Start{Dispatch: "d1", LeaseID: "l1", Holder: "h1", Seconds: 10}, d.now)
	if sent == nil || len(seen) != 2 || seen[0] != seen[1] || sent.Args != seen[0] || d.r.Steps[0].Args != seen[0] {
		t.Fatalf("judged and started with %v, sent %+v", seen, sent)
	}
}
