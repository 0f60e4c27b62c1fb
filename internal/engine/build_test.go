package engine_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// start is the moment at which every test begins: 2026-12-01T10:00:00Z.
var start = envelope.TimeOf(time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC))

var runID = run.ID{Tenant: "acme", Run: "run_1"}

// registry is a fixed set of tools.
type registry map[string]*run.Tool

func (g registry) Tool(name string) (*run.Tool, bool) {
	t, ok := g[name]
	return t, ok
}

var policy = run.Retry{
	MaxAttempts: 3, InitialDelay: 100 * time.Millisecond, MaxDelay: time.Second, Multiplier: 2, Jitter: 0.2,
	MaxRetryAfter: 15 * time.Minute,
}

func lookup() *run.Verify {
	return &run.Verify{Window: 2 * time.Second, HasWindow: true, MaxAttempts: 3, Timeout: time.Second}
}

// tools has one tool for each thing that a tool can promise.
func tools() registry {
	always, blind := lookup(), lookup()
	always.Always = true
	blind.Window, blind.HasWindow = 0, false
	g := registry{}
	for _, t := range []*run.Tool{
		{Name: "read", Effect: envelope.Read},
		{Name: "write", Effect: envelope.Write, Verify: lookup(), Timeout: 20 * time.Second},
		{Name: "always", Effect: envelope.Write, Verify: always},
		{Name: "blind", Effect: envelope.Write, Verify: blind}, // a lookup without a consistency window
		{Name: "keyed", Effect: envelope.Write, IdempotentFor: 10 * time.Second},
		{Name: "peratt", Effect: envelope.Write, Verify: lookup(), KeyPerAttempt: true},
		{Name: "none", Effect: envelope.Write},
		{Name: "asks", Effect: envelope.Write, Verify: lookup(), RequiresApproval: true},
		{Name: "owned", Effect: envelope.Write, Verify: lookup(), Owner: "tool-owner"},
		{Name: "denied", Effect: envelope.Write, Allowed: func(string, string) bool { return false }},
		{Name: "strict", Effect: envelope.Write, Verify: lookup(), Fits: noBad, CheckResult: isObject},
	} {
		t.Retry, t.PoisonAfter = policy, 3
		g[t.Name] = t
	}
	return g
}

// noBad refuses args that have a member "bad".
func noBad(args *strictjson.Args) (string, bool) {
	if _, found := strictjson.Pointer(args.Text(), "/bad"); found {
		return "/bad", false
	}
	return "", true
}

func isObject(result json.RawMessage) bool { return len(result) > 0 && result[0] == '{' }

func defaults() engine.Defaults {
	return engine.Defaults{
		Owner: "platform", Workflow: "case", Actor: "agent:support",
		Budget: budget.Limits{
			MaxTurns: 12, MaxToolCalls: 32, MaxAttemptsPerStep: 3, MaxElapsedMillis: 60_000,
			MaxInputTokens: 1000, MaxOutputTokens: 1000, MaxEstimatedCostMinorUnits: 100,
		},
	}
}

// job is a job of runID with the given members after the required ones, and the steps.
func job(members string, steps ...string) []byte {
	list := ""
	for i, s := range steps {
		if i > 0 {
			list += ","
		}
		list += s
	}
	if members != "" {
		members += ","
	}
	return fmt.Appendf(nil, `{"schema":"agentrun.job/v1","tenant":"acme","run_id":"run_1",%s"steps":[%s]}`, members, list)
}

// step is a step of a job; more may add members.
func step(name, tool, args string, more ...string) string {
	s := fmt.Sprintf(`{"step":%q,"tool":%q,"args":%s`, name, tool, args)
	for _, m := range more {
		s += "," + m
	}
	return s + "}"
}

// driver plays executor and reconciler in the small: it draws ids and keeps the time.
type driver struct {
	t     testing.TB
	r     *engine.Run
	tools registry
	now   envelope.Time
	seq   uint64
	ids   int
}

func create(t testing.TB, data []byte) *driver {
	t.Helper()
	d := &driver{t: t, tools: tools(), now: start, seq: 1}
	d.r = engine.Create(runID, engine.Message{Seq: 1, Time: start, Queue: "default", Data: data}, defaults(), start)
	d.check()
	return d
}

// check encodes and decodes the record, as every write of it does: all rules hold, and nothing is lost.
func (d *driver) check() {
	d.t.Helper()
	for _, v := range d.r.Violations() {
		d.t.Fatalf("%s: %s", v.Rule, v.What)
	}
	data, err := d.r.Encode()
	if err != nil {
		d.t.Fatal(err)
	}
	r, err := engine.Decode(data)
	if err != nil {
		d.t.Fatal(err)
	}
	again, err := r.Encode()
	if err != nil || string(again) != string(data) {
		d.t.Fatalf("the record changes by being read (%v):\n%s\n%s", err, data, again)
	}
	d.r = r
}

func (d *driver) job(data []byte) engine.Accepted {
	d.t.Helper()
	d.seq++
	a := d.r.Append(engine.Message{Seq: d.seq, Time: d.now, Queue: "default", Data: data}, defaults(), d.now)
	d.check()
	return a
}

func (d *driver) pass(by time.Duration) { d.now = d.now.Add(by) }

// begin starts the step under the test's lease; nil if it may not start.
func (d *driver) begin(name string) *engine.Dispatch {
	d.t.Helper()
	d.ids++
	x := d.r.Begin(name, d.tools, engine.Start{
		Dispatch: engine.DispatchID(fmt.Sprintf("d%d", d.ids)), LeaseID: fmt.Sprintf("l%d", d.ids), Holder: "h1", Seconds: 30, Worker: "w1",
	}, d.now)
	d.check()
	return x
}

func (d *driver) src() engine.Source { return engine.Source{By: "w1", At: d.now} }

func (d *driver) reply(id engine.DispatchID, reply envelope.Reply) engine.Verdict {
	d.t.Helper()
	v := d.r.Reply(id, reply, d.tools, d.src())
	d.check()
	return v
}

// call begins the step and applies the reply.
func (d *driver) call(name string, reply envelope.Reply) engine.DispatchID {
	d.t.Helper()
	x := d.begin(name)
	if x == nil {
		d.t.Fatalf("step %s did not start: %s", name, d.r.Step(name).State)
	}
	d.reply(x.ID, reply)
	return x.ID
}

func (d *driver) windowOver(id engine.DispatchID) {
	d.t.Helper()
	if v := d.r.WindowOver(id, d.now); v != engine.Applied {
		d.t.Fatalf("window over of %s: %s", id, v)
	}
	d.check()
}

func (d *driver) looked(id engine.DispatchID, l envelope.Lookup, proves bool) engine.Verdict {
	d.t.Helper()
	v := d.r.Looked(id, l, proves, d.tools, engine.Source{By: "reconciler", At: d.now, Start: d.now})
	d.check()
	return v
}

func (d *driver) leaseEnded() {
	d.t.Helper()
	d.r.LeaseEnded(d.tools, engine.Source{By: "reconciler", At: d.now})
	d.check()
}

// state expects a step's state.
func (d *driver) state(name string, want run.State) {
	d.t.Helper()
	if got := d.r.Step(name).State; got != want {
		d.t.Fatalf("step %s is %s, want %s", name, got, want)
	}
}

// ended expects the end of the run: its word and, if it is not ok, the reason and the step that it names.
func (d *driver) ended(word envelope.Word, code envelope.Code, name string) {
	d.t.Helper()
	e := d.r.End
	if e == nil {
		d.t.Fatalf("the run goes on (%s), want %s %s", d.r.State(), word, code)
	}
	got := envelope.Code("")
	if e.Row != nil {
		got = e.Row.Code
	}
	if e.Outcome != word || got != code || e.Step != name {
		d.t.Fatalf("the run ended %s %s by %q, want %s %s by %q", e.Outcome, got, e.Step, word, code, name)
	}
}

func (d *driver) goesOn() {
	d.t.Helper()
	if d.r.End != nil {
		d.t.Fatalf("the run ended %s by %q", d.r.End.Outcome, d.r.End.Step)
	}
}

// last is the newest owed outcome of a scope.
func (d *driver) last(scope envelope.Scope) *envelope.Outcome {
	d.t.Helper()
	for i := len(d.r.Owed) - 1; i >= 0; i-- {
		if d.r.Owed[i].Scope == scope {
			return d.r.Outcome(&d.r.Owed[i])
		}
	}
	d.t.Fatalf("no outcome of scope %s is owed", scope)
	return nil
}

// words lists the outcomes of the steps so far, as "step outcome CODE".
func (d *driver) words() []string {
	var out []string
	for i := range d.r.Owed {
		o := &d.r.Owed[i]
		if o.Scope != envelope.StepScope {
			continue
		}
		w := o.Step + " " + string(o.Outcome)
		if o.Row != nil {
			w += " " + string(o.Row.Code)
		}
		out = append(out, w)
	}
	return out
}

func ok(result string) envelope.Reply {
	return envelope.Reply{OK: true, Result: json.RawMessage(result)}
}

func fails(code envelope.Code, effect envelope.Effect) envelope.Reply {
	return envelope.Reply{Row: envelope.RowFor(code, effect)}
}

func silent() envelope.Reply {
	return envelope.Reply{NoReply: true, Row: envelope.RowFor(envelope.CodeOutcomeUnknown, envelope.Write)}
}

func found(result string) envelope.Lookup {
	return envelope.Lookup{Answer: envelope.Found, Result: json.RawMessage(result), EvidenceRef: "ev"}
}

var (
	absent    = envelope.Lookup{Answer: envelope.Absent}
	undecided = envelope.Lookup{Answer: envelope.Undecided}
)

// actions are the open letter's allowed actions.
func actions(d *driver) []string {
	var out []string
	for _, a := range d.r.BuildLetter().AllowedActions {
		out = append(out, string(a))
	}
	return out
}
