package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// refusals lists the refusals owed so far, as "step CODE".
func (d *driver) refusals() []string {
	var out []string
	for i := range d.r.Owed {
		if o := &d.r.Owed[i]; o.Scope == envelope.StepScope && o.Outcome == envelope.Fatal {
			out = append(out, o.Step+" "+string(o.Row.Code))
		}
	}
	return out
}

func TestFirstJob(t *testing.T) {
	many := make([]string, run.MaxJobSteps+1)
	for i := range many {
		many[i] = step(fmt.Sprintf("s%d", i), "read", "{}")
	}
	deep := func(n int) string { return strings.Repeat(`{"a":`, n-1) + "{}" + strings.Repeat("}", n-1) }
	for _, c := range []struct {
		name, data, field string // field "-": the job is accepted
	}{
		{"good", string(job("", step("a", "read", "{}"))), "-"},
		{"no steps", string(job("")), "/steps"},
		{"no steps, said otherwise", string(job(`"usage":{"turns":1},"waive":[],"parallel":true`)), "/steps"},
		{"misspelt steps", `{"schema":"agentrun.job/v1","tenant":"acme","run_id":"run_1","stpes":[{"step":"a","tool":"read"}]}`, "/steps"},
		{"no steps yet", string(job(`"more":true`)), "-"},
		{"unknown fields", string(job(`"color":"red"`, step("a", "read", "{}", `"x":1`))), "-"},
		{"no args", `{"schema":"agentrun.job/v1","tenant":"acme","run_id":"run_1","steps":[{"step":"a","tool":"read"}]}`, "-"},
		{"most steps", string(job("", many[:run.MaxJobSteps]...)), "-"},
		{"deepest args", string(job("", step("a", "read", deep(run.MaxArgsDepth)))), "-"},
		{"no JSON", `{"schema"`, ""},
		{"no object", `[1]`, ""},
		{"a key twice", `{"schema":"agentrun.job/v1","schema":"agentrun.job/v1"}`, ""},
		{"other schema", `{"schema":"agentrun.job/v2","tenant":"acme","run_id":"run_1"}`, "/schema"},
		{"other tenant", `{"schema":"agentrun.job/v1","tenant":"evil","run_id":"run_1"}`, "/tenant"},
		{"other run", `{"schema":"agentrun.job/v1","tenant":"acme","run_id":"run_2"}`, "/run_id"},
		{"owner with a dot", string(job(`"owner":"a.b"`)), "/owner"},
		{"actor with a control character", string(job(`"actor":"a\nb"`)), "/actor"},
		{"actor too long", string(job(`"actor":"` + strings.Repeat("a", 257) + `"`)), "/actor"},
		{"longest actor", string(job(`"actor":"`+strings.Repeat("a", 256)+`"`, step("a", "read", "{}"))), "-"},
		{"intent too long", string(job(`"intent":"` + strings.Repeat("a", 1025) + `"`)), "/intent"},
		{"longest intent", string(job(`"intent":"`+strings.Repeat("a", 1024)+`"`, step("a", "read", "{}"))), "-"},
		{"priority 10", string(job(`"priority":10`)), "/priority"},
		{"priority 9", string(job(`"priority":9`, step("a", "read", "{}"))), "-"},
		{"wildcard step", string(job("", step("a*", "read", "{}"))), "/steps/0/step"},
		{"step twice", string(job("", step("a", "read", "{}"), step("a", "read", "{}"))), "/steps/1/step"},
		{"tool with a space", string(job("", step("a", "re ad", "{}"))), "/steps/0/tool"},
		{"args no object", string(job("", step("a", "read", "[1]"))), "/steps/0/args"},
		{"args too deep", string(job("", step("a", "read", deep(run.MaxArgsDepth+1)))), "/steps/0/args"},
		{"too many steps", string(job("", many...)), "/steps"},
		{"too large", string(job(`"x":"` + strings.Repeat("a", run.MaxJobBytes) + `"`)), ""},
		{"negative budget", string(job(`"budget":{"max_turns":-1}`)), "/budget/max_turns"},
		{"broken budget", string(job(`"budget":{"max_turns":1.5}`)), "/budget/max_turns"},
		{"budget as text", string(job(`"budget":{"max_turns":"5"}`)), "/budget/max_turns"},
		{"budget as a list", string(job(`"budget":[]`)), "/budget"},
		{"budget in other letters", string(job(`"budget":{"MAX_TURNS":-1}`, step("a", "read", "{}"))), "-"},
		{"whole numbers otherwise written", string(job(`"budget":{"max_turns":12.0,"max_tool_calls":1e2,"max_elapsed_seconds":45.0}`, step("a", "read", "{}"))), "-"},
		{"null budget", string(job(`"budget":null,"usage":null,"owner":null,"priority":null`, step("a", "read", "{}"))), "-"},
		{"usage as a list", string(job(`"usage":[]`)), "/usage"},
		{"beyond all numbers", string(job(`"usage":{"turns":1e999}`)), "/usage/turns"},
		{"owner as a number", string(job(`"owner":5`)), "/owner"},
		{"step as a number", string(job("", `{"step":1,"tool":"read"}`)), "/steps/0/step"},
		{"optional as text", string(job("", `{"step":"a","tool":"read","optional":"yes"}`)), "/steps/0/optional"},
		{"step in a list", string(job("", `["a"]`)), "/steps/0"},
		{"escaped names", string(job("", `{"st\u0065p":"\u0061","tool":"read"}`)), "-"},
		{"budget of 2^53", string(job(`"budget":{"max_turns":9007199254740992}`)), "/budget/max_turns"},
		{"budget below 2^53", string(job(`"budget":{"max_turns":9007199254740991}`, step("a", "read", "{}"))), "-"},
		{"half a second", string(job(`"budget":{"max_elapsed_seconds":0.5}`)), "/budget/max_elapsed_seconds"},
		{"negative usage", string(job(`"usage":{"turns":-1}`)), "/usage/turns"},
		{"usage of 2^53", string(job(`"usage":{"input_tokens":9007199254740992}`)), "/usage/input_tokens"},
		{"waive in the first job", string(job(`"waive":["a"]`, step("a", "read", "{}"))), "/waive/0"},
		{"deadline no time", string(job(`"deadline":"soon"`)), "/deadline"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := create(t, []byte(c.data))
			if c.field == "-" {
				if d.r.Invalid != nil {
					t.Fatalf("refused: %v", d.r.End.Details)
				}
				return
			}
			d.ended(envelope.Fatal, envelope.CodeJobInvalid, "")
			if d.r.Spent.Turns != 0 {
				t.Error("an invalid job is charged")
			}
			if got, _ := d.r.End.Details["field"].(string); strings.HasPrefix(c.field, "/") && got != c.field {
				t.Errorf("field is %q, want %q", got, c.field)
			}
			l := d.r.BuildLetter()
			if len(l.Raw) != min(len(c.data), 64<<10) || l.RawSize != len(c.data) || len(l.AllowedActions) != 1 || l.AllowedActions[0] != "discard" {
				t.Errorf("letter has %d of %d bytes, actions %v", len(l.Raw), l.RawSize, l.AllowedActions)
			}
			if o := d.last(envelope.RunScope); o.ReasonCode != "invalid_job" || o.Attempt == nil || *o.Attempt != 0 || o.Envelope == nil || o.FailedStep != "" {
				t.Errorf("run outcome %+v", o)
			}
			if a := d.job(job("", step("b", "read", "{}"))); a.Refused != 1 || !slices.Equal(d.refusals(), []string{"b RUN_CLOSED"}) {
				t.Errorf("a further job: %+v %v", a, d.refusals())
			}
		})
	}
}

// The first job must name what the config does not default, and even a letter about such a job has an owner.
func TestRequiredAtTheFirstJob(t *testing.T) {
	for _, c := range []struct{ members, field string }{
		{`"workflow":"w","owner":"o","actor":"a"`, ""},
		{`"owner":"o","actor":"a"`, "/workflow"},
		{`"workflow":"w","actor":"a"`, "/owner"},
		{`"workflow":"w","owner":"o"`, "/actor"},
	} {
		defaults := defaults()
		defaults.Owner, defaults.Workflow, defaults.Actor = "", "", ""
		r := engine.Create(runID, engine.Message{Seq: 1, Data: job(c.members, step("a", "read", "{}"))}, defaults, start)
		got := ""
		if r.Invalid != nil {
			got, _ = r.End.Details["field"].(string)
		}
		if got != c.field {
			t.Errorf("%s: refused for %q, want %q", c.members, got, c.field)
		}
		if _, err := r.Encode(); err != nil {
			t.Error(err)
		}
		if r.Letter != nil && r.Letter.Owner == "" {
			t.Errorf("%s: the letter has no owner", c.members)
		}
	}
}

// An unreadable job still names its owner where it can be read, else the config's.
func TestOwnerOfAnUnreadableJob(t *testing.T) {
	for data, want := range map[string]string{
		`{"owner":"billing"}`:       "billing",
		`{"owner":"bill.ing"}`:      "platform",
		`{"owner":["billing"]}`:     "platform",
		`{"owner":"billing"`:        "platform",
		`{"owner":"b","steps":"x"}`: "b",
	} {
		if d := create(t, []byte(data)); d.r.Letter.Owner != want {
			t.Errorf("%s: owner %s, want %s", data, d.r.Letter.Owner, want)
		}
	}
}

func TestLaterJobs(t *testing.T) {
	failInput := func(d *driver) {
		d.call("a", fails(envelope.CodeUpstreamRejectedInput, envelope.Write))
		d.state("a", run.Fatal)
	}
	open := job(`"more":true`, step("a", "write", `{"n":1,"m":2}`), step("b", "read", "{}"))
	for _, c := range []struct {
		name     string
		first    []byte
		before   func(*driver)
		job      []byte
		changed  bool
		refusals []string
		turns    int64 // charged in all
	}{
		{name: "the same job again", first: open, job: open, turns: 1},
		{name: "the same args otherwise written", first: open, job: job(`"more":true`, step("a", "write", ` { "m" : 2 , "n" : 1 } `)), turns: 1},
		{name: "a new step", first: open, job: job(`"more":true`, step("c", "read", "{}")), changed: true, turns: 2},
		{name: "usage with a new step", first: open, job: job(`"more":true,"usage":{"turns":3}`, step("c", "read", "{}")), changed: true, turns: 4},
		{name: "usage with known steps only", first: open, job: job(`"more":true,"usage":{"turns":3}`, step("b", "read", "{}")), turns: 1},
		{name: "the close", first: open, job: job(`"more":false`), changed: true, turns: 1},
		{name: "the close with a known step", first: open, job: job("", step("b", "read", "{}")), changed: true, turns: 2},
		{name: "nothing, into a run that wants no more", first: job("", step("a", "read", "{}")), job: job(""), changed: true, refusals: []string{" JOB_INVALID"}, turns: 1},
		{name: "nothing, behind a close with steps", first: open, before: func(d *driver) {
			d.job(job("", step("c", "read", "{}")))
		}, job: job(""), changed: true, refusals: []string{" JOB_INVALID"}, turns: 2},
		{name: "the close again", first: open, before: func(d *driver) { d.job(job("")) }, job: job(""), turns: 1},
		{name: "nothing", first: open, job: job(`"more":true`), turns: 1},
		{name: "other args while ready", first: open, job: job(`"more":true`, step("a", "write", `{"n":2}`)), changed: true, refusals: []string{"a STEP_CONFLICT"}, turns: 1},
		{name: "other tool", first: open, job: job(`"more":true`, step("a", "read", `{"n":1,"m":2}`)), changed: true, refusals: []string{"a STEP_CONFLICT"}, turns: 1},
		{name: "conflict with a new step beside", first: open, job: job(`"more":true`, step("a", "write", `{"n":2}`), step("c", "read", "{}")), changed: true, refusals: []string{"a STEP_CONFLICT"}, turns: 2},
		{name: "conflict and close", first: open, job: job(`"more":false`, step("a", "write", `{"n":2}`)), changed: true, refusals: []string{"a STEP_CONFLICT"}, turns: 1},
		{name: "amendment", first: open, before: failInput, job: job(`"more":true`, step("a", "write", `{"n":2}`)), changed: true, turns: 2},
		{name: "identical retry", first: open, before: failInput, job: job(`"more":true`, step("a", "write", `{"m":2,"n":1}`)), changed: true, refusals: []string{"a IDENTICAL_RETRY"}, turns: 1},
		{name: "amendment with another tool", first: open, before: failInput, job: job(`"more":true`, step("a", "always", `{"n":2}`)), changed: true, refusals: []string{"a STEP_CONFLICT"}, turns: 1},
		{name: "amendment of what needs no input", first: open, before: func(d *driver) {
			d.call("a", fails(envelope.CodeUpstreamDenied, envelope.Write))
		}, job: job(`"more":true`, step("a", "write", `{"n":2}`)), changed: true, refusals: []string{"a STEP_CONFLICT"}, turns: 1},
		{name: "unreadable", first: open, job: []byte(`{"schema"`), changed: true, refusals: []string{" JOB_INVALID"}, turns: 1},
		{name: "negative usage", first: open, job: job(`"usage":{"turns":-1}`, step("c", "read", "{}")), changed: true, refusals: []string{" JOB_INVALID"}, turns: 1},
		{name: "waive a ready step", first: open, job: job(`"more":true,"waive":["b"]`), changed: true, refusals: []string{" JOB_INVALID"}, turns: 1},
		{name: "waive nobody", first: open, job: job(`"more":true,"waive":["z"]`), changed: true, refusals: []string{" JOB_INVALID"}, turns: 1},
		{name: "waive twice", first: open, before: failInput, job: job(`"more":true,"waive":["a","a"]`), changed: true, refusals: []string{" JOB_INVALID"}, turns: 1},
		{name: "waive a fatal step", first: open, before: failInput, job: job(`"more":true,"waive":["a"]`), changed: true, turns: 1},
		{name: "waive a stopped step", first: open, before: failInput, job: job(`"more":true,"waive":["b"]`), changed: true, turns: 1},
		{name: "waive with a new step", first: open, before: failInput, job: job(`"more":true,"waive":["a"]`, step("c", "read", "{}")), changed: true, turns: 2},
		{name: "waive a step that the job amends", first: open, before: failInput, job: job(`"more":true,"waive":["a"]`, step("a", "write", `{"n":2}`)), changed: true, refusals: []string{" JOB_INVALID"}, turns: 1},
		{name: "waive what is waived", first: open, before: func(d *driver) {
			failInput(d)
			d.job(job(`"more":true,"waive":["a"]`))
		}, job: job(`"more":true,"waive": ["a"]`), turns: 1},
		{name: "waive a step that is done", first: open, before: func(d *driver) { d.call("a", ok("{}")) }, job: job(`"more":true,"waive":["a"]`), changed: true, refusals: []string{" JOB_INVALID"}, turns: 1},
		{name: "by another queue, owner and budget", first: open, job: job(`"more":true,"owner":"x","actor":"y","workflow":"z","budget":{"max_turns":99}`, step("c", "read", "{}")), changed: true, turns: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := create(t, c.first)
			if c.before != nil {
				c.before(d)
			}
			known := len(d.refusals())
			a := d.job(c.job)
			if got := d.refusals()[known:]; a.Changed != c.changed || a.Refused != len(c.refusals) || !slices.Equal(got, c.refusals) {
				t.Errorf("%+v, refusals %q; want changed %v, %q", a, got, c.changed, c.refusals)
			}
			if d.r.Spent.Turns != c.turns {
				t.Errorf("%d turns are charged, want %d", d.r.Spent.Turns, c.turns)
			}
			if d.r.Owner != "platform" || d.r.Budget.MaxTurns != 12 || d.r.Queue != "default" {
				t.Error("a later job changed the run's header")
			}
		})
	}
}

func TestSameMessageIsSilent(t *testing.T) {
	first := job(`"more":true`, step("a", "read", "{}"))
	d := create(t, first)
	again := engine.Message{Seq: 1, Time: start, Data: job("", step("z", "read", "{}"))}
	if a := d.r.Append(again, defaults(), d.now); a != (engine.Accepted{}) {
		t.Errorf("the same sequence and time: %+v", a)
	}
	again.Time++
	if a := d.r.Append(again, defaults(), d.now); !a.Changed {
		t.Errorf("the same sequence of another stream: %+v", a)
	}
}

func TestRefusalsAreBounded(t *testing.T) {
	d := create(t, job(`"more":true`, step("a", "read", "{}")))
	for i := range engine.MaxRefusals + 5 {
		a := d.job(job(`"more":true`, step("a", "read", fmt.Sprintf(`{"n":%d}`, i))))
		if !a.Changed || a.Refused != 1 {
			t.Fatalf("refusal %d: %+v", i, a)
		}
	}
	if got := len(d.refusals()); got != engine.MaxRefusals || d.r.Refusals != engine.MaxRefusals+5 {
		t.Errorf("%d refusals are told, %d counted", got, d.r.Refusals)
	}
	d.state("a", run.Ready)
}

func TestRefusalIsAnExtraOutcome(t *testing.T) {
	d := create(t, job(`"more":true`, step("a", "read", "{}"), step("b", "read", "{}")))
	d.call("a", ok("{}"))
	d.job(job(`"more":true`, step("a", "read", `{"n":1}`)))
	o := d.last(envelope.StepScope)
	if o.Step != "a" || o.Tool != "read" || !o.Terminal || *o.Attempt != 1 || o.Outcome != envelope.Fatal || o.ReasonCode != "step_conflict" ||
		o.FailedStep != "a" || o.OperationRef != "acme/run_1/a" || !slices.Equal(o.RemainingSteps, []string{"b"}) {
		t.Errorf("%+v", o)
	}
	d.state("a", run.OK)
}

func TestClosedRun(t *testing.T) {
	okRun := func(t *testing.T) *driver {
		d := create(t, job("", step("a", "read", "{}")))
		d.call("a", ok("{}"))
		d.ended(envelope.OK, "", "")
		return d
	}
	closedRun := func(t *testing.T) *driver {
		d := create(t, job(`"more":true`, step("a", "read", "{}")))
		d.call("a", ok("{}"))
		d.job(job(""))
		d.ended(envelope.OK, "", "")
		return d
	}
	needsHuman := func(t *testing.T) *driver {
		d := create(t, job(`"more":true`, step("a", "none", "{}")))
		d.call("a", silent())
		d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")
		return d
	}
	cancelled := func(t *testing.T) *driver {
		d := create(t, job("", step("a", "read", "{}")))
		d.r.CancelRun("alice", "stop", d.now)
		d.ended(envelope.Cancelled, envelope.CodeCancelled, "a")
		return d
	}
	fatal := func(t *testing.T) *driver {
		d := create(t, job("", step("a", "read", "{}")))
		d.call("a", fails(envelope.CodeUpstreamRejectedInput, envelope.Read))
		return d
	}
	for _, c := range []struct {
		name     string
		run      func(*testing.T) *driver
		job      []byte
		refusals []string
	}{
		{"the same step", okRun, job("", step("a", "read", "{}")), nil},
		{"the same step of a fatal run", fatal, job("", step("a", "read", "{}")), nil},
		{"an amendment of a fatal run", fatal, job("", step("a", "read", `{"n":1}`)), []string{"a RUN_CLOSED"}},
		{"a new step", okRun, job("", step("b", "read", "{}")), []string{"b RUN_CLOSED"}},
		{"other args", okRun, job("", step("a", "read", `{"n":1}`)), []string{"a RUN_CLOSED"}},
		{"unreadable", okRun, []byte("{"), []string{" RUN_CLOSED"}},
		{"a wrong waiver", okRun, job(`"waive":["a"]`), []string{" RUN_CLOSED"}},
		{"a close of a run that a person must see", needsHuman, job(""), []string{" RUN_CLOSED"}},
		{"nothing, of a run that was never open", okRun, job(""), []string{" RUN_CLOSED"}},
		{"the close again", closedRun, job(""), nil},
		{"two new steps", cancelled, job("", step("x", "read", "{}"), step("y", "read", "{}")), []string{"x RUN_CLOSED", "y RUN_CLOSED"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := c.run(t)
			end, turns := *d.r.End, d.r.Spent.Turns
			known := len(d.refusals())
			a := d.job(c.job)
			got := d.refusals()[known:]
			if a.Refused != len(c.refusals) || !slices.Equal(got, c.refusals) {
				t.Errorf("%+v %q, want %q", a, got, c.refusals)
			}
			if d.r.End.Outcome != end.Outcome || d.r.Spent.Turns != turns {
				t.Error("a refused job changed the end or the budget")
			}
			if len(c.refusals) > 0 && d.last(envelope.StepScope).Envelope.SafeDetails["run_outcome"] != string(end.Outcome) {
				t.Errorf("run_outcome is %v", d.last(envelope.StepScope).Envelope.SafeDetails)
			}
		})
	}
}

func TestUsageOverTheLimit(t *testing.T) {
	for _, c := range []struct {
		usage string
		code  envelope.Code
	}{
		{`{"turns":12}`, ""},
		{`{"turns":13}`, envelope.CodeTurnsExhausted},
		{`{"input_tokens":1000}`, ""},
		{`{"input_tokens":1001}`, envelope.CodeInputTokensExhausted},
		{`{"output_tokens":1001}`, envelope.CodeOutputTokensExhausted},
		{`{"estimated_cost_minor_units":101}`, envelope.CodeCostExhausted},
	} {
		d := create(t, job(`"usage":`+c.usage, step("a", "read", "{}")))
		if c.code == "" {
			d.goesOn()
			continue
		}
		d.ended(envelope.NeedsHuman, c.code, "a")
		o := d.last(envelope.RunScope)
		if o.FailedStep != "a" || *o.Attempt != 0 || !slices.Equal(o.RemainingSteps, []string{"a"}) || len(d.r.BuildLetter().Open) != 0 {
			t.Errorf("%s: %+v", c.usage, o)
		}
	}
	// The job that takes it above in a later turn, while a step waits for its next attempt: that one is cut off.
	d := create(t, job(`"more":true`, step("a", "read", "{}")))
	d.call("a", fails(envelope.CodeUpstreamUnavailable, envelope.Read))
	d.job(job(`"more":true,"usage":{"turns":99}`, step("b", "read", "{}")))
	d.ended(envelope.NeedsHuman, envelope.CodeTurnsExhausted, "a")
	d.state("a", run.NeedsHuman)
}

func TestTurns(t *testing.T) {
	ready := func(t *testing.T, d *driver, want ...string) {
		t.Helper()
		if got := d.r.Next(d.now).Ready; !slices.Equal(got, want) {
			t.Fatalf("ready are %v, want %v", got, want)
		}
	}
	d := create(t, job(`"more":true`, step("a", "read", "{}"), step("b", "read", "{}")))
	ready(t, d, "a")
	d.job(job(`"more":true,"parallel":true`, step("p", "read", "{}"), step("q", "read", `{"x":{"$from":"b#/id"}}`), step("r", "read", `{"x":{"$from":"p#"}}`)))
	ready(t, d, "a", "p")
	d.job(job(`"more":true`, step("z", "read", "{}")))
	d.call("p", ok(`7`))
	ready(t, d, "a", "r")
	d.call("a", ok("{}"))
	ready(t, d, "b", "r")
	d.call("b", ok(`{"id":1}`))
	ready(t, d, "q", "r")
	if x := d.begin("q"); string(x.Args.Text()) != `{"x":1}` || string(x.Proposed) != `{"x":{"$from":"b#/id"}}` {
		t.Fatalf("%s %s", x.Args.Text(), x.Proposed)
	}
	if x := d.begin("r"); string(x.Args.Text()) != `{"x":7}` {
		t.Fatalf("%s", x.Args.Text())
	}
	ready(t, d)
	d.reply("d4", ok("{}"))
	ready(t, d)
	d.reply("d5", ok("{}"))
	ready(t, d, "z")
}

func TestOpenRun(t *testing.T) {
	d := create(t, job(`"more":true`, step("a", "read", "{}"), step("b", "read", "{}"), step("c", "read", "{}")))
	d.call("a", fails(envelope.CodeUpstreamRejectedInput, envelope.Read))
	d.goesOn()
	if o := d.last(envelope.StepScope); o.Envelope.Retry.MaxAttemptsRemaining != 2 || o.Envelope.Retry.Directive != envelope.AfterInputFix {
		t.Errorf("retry %+v", o.Envelope.Retry)
	}
	if d.r.Next(d.now).Ready != nil || d.r.State() != run.StateOpen {
		t.Fatalf("ready are %v, state %s", d.r.Next(d.now).Ready, d.r.State())
	}
	d.job(job(`"more":true`, step("n", "read", "{}")))
	d.call("n", ok("{}")) // new steps do start
	d.job(job(`"more":true`, step("a", "read", `{"n":1}`)))
	d.call("a", ok("{}"))
	d.call("b", ok("{}")) // the stopped ones start after all, in their order
	d.call("c", ok("{}"))
	d.goesOn()
	d.job(job(""))
	d.ended(envelope.OK, "", "")

	closed := func(members string) *driver {
		d := create(t, job(`"more":true`, step("a", "read", "{}"), step("b", "read", "{}")))
		d.call("a", fails(envelope.CodeUpstreamRejectedInput, envelope.Read))
		d.job(job(members))
		return d
	}
	d = closed("")
	d.ended(envelope.Fatal, envelope.CodeUpstreamRejectedInput, "a")
	if o := d.last(envelope.RunScope); !slices.Equal(o.RemainingSteps, []string{"b"}) || o.Envelope.Retry.MaxAttemptsRemaining != 2 {
		t.Errorf("%+v", o)
	}
	closed(`"waive":["a","b"]`).ended(envelope.OK, "", "")
	d = closed(`"waive":["a"]`)
	d.call("b", ok("{}"))
	d.ended(envelope.OK, "", "")
}

// A step that waits only for a slot of its tool is stopped like one that is ready, and may be waived.
func TestPostponedStepsAreStopped(t *testing.T) {
	d := create(t, job(`"more":true,"parallel":true`, step("a", "read", "{}"), step("b", "read", "{}")))
	d.r.Postpone("b", d.now.Add(time.Second), d.now)
	d.call("a", fails(envelope.CodeUpstreamRejectedInput, envelope.Read))
	d.pass(time.Minute / 2)
	if n := d.r.Next(d.now); n.Ready != nil {
		t.Fatalf("ready are %v", n.Ready)
	}
	if got := d.last(envelope.StepScope).RemainingSteps; !slices.Equal(got, []string{"b"}) {
		t.Errorf("remaining %v", got)
	}
	d.job(job(`"waive":["a","b"]`))
	d.ended(envelope.OK, "", "")
}

func TestAmendmentsAreBounded(t *testing.T) {
	d := create(t, job(`"more":true`, step("a", "strict", `{"bad":0}`)))
	for i := 1; i <= 2; i++ {
		if d.begin("a") != nil {
			t.Fatal("started")
		}
		d.state("a", run.Fatal)
		if left := d.last(envelope.StepScope).Envelope.Retry.MaxAttemptsRemaining; left != 3-i {
			t.Errorf("%d left after proposal %d", left, i)
		}
		d.job(job(`"more":true`, step("a", "strict", fmt.Sprintf(`{"bad":%d}`, i))))
	}
	d.begin("a")
	d.job(job(`"more":true`, step("a", "strict", `{"n":1}`)))
	if got := d.refusals(); got[len(got)-1] != "a STEP_CONFLICT" {
		t.Errorf("%v", got)
	}
	d.state("a", run.Fatal)
}

func TestDeadlineOfTheFirstJob(t *testing.T) {
	d := create(t, job(`"deadline":"2026-12-01T10:00:05Z"`, step("a", "read", "{}")))
	if d.r.Deadline != start.Add(5*time.Second) {
		t.Errorf("deadline %s", d.r.Deadline)
	}
	d = create(t, job(`"deadline":"2030-12-01T10:00:05Z","budget":{"max_elapsed_seconds":7}`, step("a", "read", "{}")))
	if d.r.Deadline != start.Add(7*time.Second) {
		t.Errorf("deadline %s", d.r.Deadline)
	}
	d = create(t, job(`"deadline":"2020-12-01T10:00:05Z"`, step("a", "read", "{}")))
	if n := d.r.Next(d.now); n.Ready != nil {
		t.Errorf("%+v", n)
	}
	d.ended(envelope.NeedsHuman, envelope.CodeTimeExhausted, "a") // decided when it is accepted
}

// A record that is nearly full takes no new step, but the repeats of what it has stay silent.
func TestFullRecord(t *testing.T) {
	big := `{"x":"` + strings.Repeat("x", 200<<10) + `"}`
	d := create(t, job(`"more":true`, step("a", "read", big)))
	d.job(job(`"more":true`, step("b", "read", big)))
	d.job(job(`"more":true`, step("c", "read", big)))
	if got := d.refusals(); got != nil {
		t.Fatalf("%v", got)
	}
	d.job(job(`"more":true`, step("d", "read", big)))
	if got := d.refusals(); !slices.Equal(got, []string{" JOB_INVALID"}) {
		t.Fatalf("%v", got)
	}
	if a := d.job(job(`"more":true`, step("c", "read", big))); a != (engine.Accepted{}) {
		t.Errorf("a repeat: %+v", a)
	}
}
