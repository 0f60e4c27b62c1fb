package engine_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// fact is what a journal knows of one dispatch of step a.
func fact(tool string, id engine.DispatchID, attempt int, reply *envelope.Reply) engine.Fact {
	f := engine.Fact{Intent: engine.Intent{
		Dispatch: id, Tenant: "acme", RunID: "run_1", Queue: "default", Workflow: "case", Owner: "platform", Actor: "agent:support",
		Budget: budget.Fill(nil, defaults().Budget), Step: "a", Tool: tool, Args: json.RawMessage("{}"), Attempt: attempt, Proposal: 1,
		Key: "acme/run_1/a", At: start,
	}}
	if reply != nil {
		f.Effect = &engine.EffectFact{Dispatch: id, Reply: *reply, At: start}
	}
	return f
}

func reply(r envelope.Reply) *envelope.Reply { return &r }

// neverSent is what a journal knows of a dispatch that the record refused.
func neverSent(id engine.DispatchID, attempt int) engine.Fact {
	f := fact("write", id, attempt, nil)
	f.Effect = engine.NeverSent(id, start)
	return f
}

// After the store is lost the journal's facts make the record again: effects are ok, intents are unknown.
func TestRestored(t *testing.T) {
	refusedReply := fails(envelope.CodeUpstreamDenied, envelope.Write)
	for _, c := range []struct {
		name  string
		facts []engine.Fact
		state run.State
		done  bool
	}{
		{"an effect", []engine.Fact{fact("write", "d1", 1, reply(ok("{}")))}, run.OK, true},
		{"an intent", []engine.Fact{fact("write", "d1", 1, nil)}, run.Unknown, false},
		{"an intent without lookup", []engine.Fact{fact("none", "d1", 1, nil)}, run.NeedsHuman, false},
		{"an effect of verify.always", []engine.Fact{fact("always", "d1", 1, reply(ok("{}")))}, run.Unknown, false},
		{"a refusal", []engine.Fact{fact("write", "d1", 1, &refusedReply)}, run.Ready, false},
		{"a lost one, then an effect", []engine.Fact{fact("write", "d1", 1, nil), fact("write", "d2", 2, reply(ok("{}")))}, run.OK, true},
		{"an effect, then a lost one before it", []engine.Fact{fact("write", "d2", 2, reply(ok("{}"))), fact("write", "d1", 1, nil)}, run.OK, true},
		{"two lost ones", []engine.Fact{fact("write", "d1", 1, nil), fact("write", "d2", 2, nil)}, run.Unknown, false},
		{"one that never left, and a refusal", []engine.Fact{fact("write", "d1", 1, &refusedReply), neverSent("d2", 2)}, run.Ready, false},
		{"one that never left, and an effect", []engine.Fact{neverSent("d1", 1), fact("write", "d2", 1, reply(ok("{}")))}, run.OK, true},
		{"the same fact twice", []engine.Fact{fact("write", "d1", 1, nil), fact("write", "d1", 1, nil)}, run.Unknown, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &driver{t: t, tools: tools(), now: start, seq: 1, r: engine.Restored(c.facts[0], defaults(), start)}
			d.check()
			for _, f := range c.facts {
				d.r.Merge(f, d.tools, d.src())
				d.check()
			}
			d.state("a", c.state)
			if done := len(d.r.Effects) == 1; done != c.done {
				t.Errorf("completed effects %+v", d.r.Effects)
			}
		})
	}
}

// idempotent_for counts from the first dispatch, in whatever order the journals tell of it.
func TestRestoredFirstDispatch(t *testing.T) {
	first, second := fact("keyed", "d1", 1, nil), fact("keyed", "d2", 2, nil)
	second.Intent.At = start.Add(5 * time.Second)
	for name, facts := range map[string][]engine.Fact{"in order": {first, second}, "the later first": {second, first}} {
		now := start.Add(6 * time.Second)
		d := &driver{t: t, tools: tools(), now: now, seq: 1, r: engine.Restored(facts[0], defaults(), now)}
		for _, f := range facts {
			if d.r.Merge(f, d.tools, d.src()) == engine.Dropped && f.Intent.At == start {
				t.Errorf("%s: the first dispatch is not kept", name)
			}
			d.check()
		}
		d.now = start.Add(11 * time.Second)
		if d.begin("a") != nil {
			t.Errorf("%s: no-blind-repeat: sent again after idempotent_for", name)
		}
	}
}

// The job that comes again repeats nothing of what the journal has proved, and brings the rest.
func TestRestoredRunGoesOn(t *testing.T) {
	f := fact("write", "d1", 1, reply(ok(`{"id":"c"}`)))
	d := &driver{t: t, tools: tools(), now: start, seq: 1, r: engine.Restored(f, defaults(), start)}
	d.r.Merge(f, d.tools, d.src())
	d.check()
	d.goesOn()
	d.job(job(`"owner":"billing"`, step("p", "read", "{}"), step("a", "write", "{}"), step("b", "read", `{"x":{"$from":"a#/id"}}`)))
	d.goesOn()
	if got := d.r.Next(d.now).Ready; !slices.Equal(got, []string{"p"}) || d.r.Owner != "billing" {
		t.Fatalf("ready %v, owner %s", got, d.r.Owner)
	}
	d.call("p", ok("{}"))
	if x := d.begin("b"); string(x.Args.Text()) != `{"x":"c"}` {
		t.Errorf("%s", x.Args.Text())
	}
	d.reply(d.r.Step("b").Dispatch, ok("{}"))
	d.ended(envelope.OK, "", "")
	if o := d.last(envelope.RunScope); len(o.CompletedEffects) != 1 {
		t.Errorf("%+v", o.CompletedEffects)
	}
}

// A record that knows the dispatch takes the fact as evidence.
func TestMergeKnownDispatch(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*driver)
		fact   engine.Fact
		state  run.State
	}{
		"executing, and its worker is gone": {executing, fact("write", "d1", 1, nil), run.Unknown},
		"executing, with its effect":        {executing, fact("write", "d1", 1, reply(ok("{}"))), run.OK},
		"unknown, with its effect":          {unknown, fact("write", "d1", 1, reply(ok("{}"))), run.OK},
		"unknown":                           {unknown, fact("write", "d1", 1, nil), run.Unknown},
		"ok":                                {doneBySame, fact("write", "d1", 1, nil), run.OK},
	} {
		t.Run(name, func(t *testing.T) {
			d := create(t, job("", step("a", "write", "{}")))
			c.before(d)
			d.r.Merge(c.fact, d.tools, d.src())
			d.check()
			d.state("a", c.state)
		})
	}
}

// A copy of the store in which the step is still executing, and a journal that knows a later dispatch of it: the earlier one
// was settled before that, so what else the journals know of it contradicts nothing.
func TestMergeALaterDispatch(t *testing.T) {
	for name, later := range map[string]struct {
		reply *envelope.Reply
		state run.State
	}{"ok": {reply(ok("{}")), run.OK}, "lost": {nil, run.Unknown}} {
		d := create(t, job("", step("a", "write", "{}")))
		executing(d)
		for _, f := range []engine.Fact{fact("write", "d2", 2, later.reply), fact("write", "d1", 1, nil)} {
			d.r.Merge(f, d.tools, d.src())
			d.check()
		}
		d.state("a", later.state)
		if d.r.Lease != nil {
			t.Errorf("%s: a lease is left", name)
		}
	}
}

// The record had refused a dispatch, whose executor died before it knew, and given the attempt to another: whichever journal
// comes first, what was done is done, and nobody is asked.
func TestMergeTwoOfOneAttempt(t *testing.T) {
	refused, sent := fact("write", "d1", 1, nil), fact("write", "d2", 1, reply(ok("{}")))
	for _, facts := range [][]engine.Fact{{refused, sent}, {sent, refused}} {
		d := create(t, job("", step("a", "write", "{}"), step("b", "write", "{}")))
		for _, f := range facts {
			d.r.Merge(f, d.tools, d.src())
			d.check()
		}
		d.state("a", run.OK)
		if s := d.r.Step("a"); s.Dispatch != "d2" || s.Attempt != 1 || s.Disputed || d.r.Spent.ToolCalls != 1 {
			t.Errorf("%s first: %+v, %d calls", facts[0].Intent.Dispatch, s, d.r.Spent.ToolCalls)
		}
	}
	// Where the record itself has the other one, two may have left: a person is asked.
	d := create(t, job("", step("a", "write", "{}")))
	executing(d)
	d.r.Merge(sent, d.tools, d.src())
	d.check()
	if !d.r.Step("a").Disputed {
		t.Errorf("a recorded dispatch is taken for refused: %+v", d.r.Step("a"))
	}
}

// The journals' facts come one by one. One of them may decide that a person is needed; what the next ones know of the same
// run's parallel steps is taken in all the same, in whatever order.
func TestMergeIntoARunWhoseEndIsDecided(t *testing.T) {
	named := func(step, tool string, reply *envelope.Reply) engine.Fact {
		f := fact(tool, engine.DispatchID("d-"+step), 1, reply)
		f.Intent.Step, f.Intent.Key = step, "acme/run_1/"+step
		return f
	}
	doubt, held, done := named("a", "write", nil), named("b", "none", nil), named("c", "write", reply(ok("{}")))
	for _, facts := range [][]engine.Fact{{doubt, held, done}, {done, doubt, held}, {doubt, done, held}} {
		d := &driver{t: t, tools: tools(), now: start, seq: 1, r: engine.Restored(facts[0], defaults(), start)}
		for _, f := range facts {
			d.r.Merge(f, d.tools, d.src())
			d.check()
		}
		d.state("c", run.OK)
		if len(d.r.Effects) != 1 {
			t.Errorf("completed effects %+v", d.r.Effects)
		}
	}
}

func TestPostpone(t *testing.T) {
	d := create(t, job("", step("a", "read", "{}")))
	if d.r.Postpone("a", d.now.Add(time.Second), d.now) != engine.Applied || len(d.words()) != 0 || d.r.Step("a").Attempt != 0 {
		t.Error("postponing makes an outcome or an attempt")
	}
	d.check()
	if n := d.r.Next(d.now); n.Ready != nil || !slices.Equal(n.Postponed, []string{"a"}) || n.At != d.now.Add(time.Second) {
		t.Errorf("%+v", n)
	}
	if n := d.r.Next(d.now.Add(time.Second)); !slices.Equal(n.Ready, []string{"a"}) || n.Postponed != nil {
		t.Errorf("when its time has come: %+v", n)
	}
	d.call("a", fails(envelope.CodeUpstreamUnavailable, envelope.Read)) // whoever postponed it starts it as soon as it can
	// A step that waits for its next attempt has no turn yet: postponing must not bring it forward.
	if d.r.Postpone("a", d.now.Add(time.Second), d.now) != engine.Dropped {
		t.Error("a waiting attempt is postponed before its time")
	}
}

// A worker that took a run for a new one has journaled an intent, and its record refused it. In an older copy of the store
// the step may be at any point: it stays there.
func TestWhatNeverLeftMovesNothing(t *testing.T) {
	refusedReply := fails(envelope.CodeInvalidArgument, envelope.Write)
	d := &driver{t: t, tools: tools(), now: start, seq: 1, r: engine.Restored(fact("write", "d1", 1, &refusedReply), defaults(), start)}
	d.r.Merge(fact("write", "d1", 1, &refusedReply), d.tools, d.src())
	d.check()
	before, err := d.r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if v := d.r.Merge(neverSent("d2", 2), d.tools, d.src()); v != engine.Dropped {
		t.Errorf("it was %v", v)
	}
	if after, err := d.r.Encode(); err != nil || string(after) != string(before) {
		t.Errorf("the record changed: %s (%v)", after, err)
	}
}

// What has ended in the copy stays ended, whatever a journal knows of another dispatch of it: proof that it was done is kept
// and disputed, a later attempt whose end nobody knows is kept for a person, and one that the record refused is nothing.
func TestMergeIntoAStepThatHasEnded(t *testing.T) {
	conflict := fails(envelope.CodeStateConflict, envelope.Write)
	later := fact("write", "d2", 2, nil)
	amended := fact("write", "d2", 2, nil)
	amended.Intent.Proposal, amended.Intent.Args = 2, json.RawMessage(`{"n":2}`)
	for name, c := range map[string]struct {
		more   bool
		code   envelope.Code
		fact   engine.Fact
		state  run.State
		kept   []envelope.CommitState
		alarms int
	}{
		"refused by the record":         {true, envelope.CodeStateConflict, fact("write", "other", 1, nil), run.Fatal, nil, 0},
		"refused by the provider":       {true, envelope.CodeStateConflict, fact("write", "d2", 2, &conflict), run.Fatal, nil, 0},
		"done after all":                {true, envelope.CodeStateConflict, fact("write", "d2", 2, reply(ok("{}"))), run.Fatal, []envelope.CommitState{envelope.Committed}, 1},
		"a later attempt":               {true, envelope.CodeStateConflict, later, run.Fatal, []envelope.CommitState{envelope.Unknown}, 0},
		"a later attempt, the run over": {false, envelope.CodeStateConflict, later, run.Fatal, []envelope.CommitState{envelope.Unknown}, 0},
		"other args":                    {true, envelope.CodeUpstreamRejectedInput, amended, run.Unknown, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			members := ""
			if c.more {
				members = `"more":true`
			}
			d := create(t, job(members, step("a", "write", "{}")))
			d.begin("a")
			d.reply("d1", fails(c.code, envelope.Write))
			d.state("a", run.Fatal)
			for range 2 { // the same fact again changes nothing
				d.r.Merge(c.fact, d.tools, d.src())
				d.check()
			}
			d.state("a", c.state)
			var kept []envelope.CommitState
			for _, k := range d.r.Evidence {
				kept = append(kept, k.CommitState)
			}
			if !slices.Equal(kept, c.kept) || len(d.r.Alarms) != c.alarms {
				t.Errorf("kept %v, alarms %+v", kept, d.r.Alarms)
			}
			if d.r.End == nil {
				return
			}
			if l := d.r.BuildLetter(); slices.Contains(l.AllowedActions, deadletter.Replay) || !slices.Contains(l.AllowedActions, deadletter.Resolve) {
				t.Errorf("allowed %v", l.AllowedActions)
			}
		})
	}
}

// One journal's facts are merged at once: a step that only a person can settle ends the run, but not before the others that
// were sent beside it are in the record.
func TestMergeAllThatAJournalKnows(t *testing.T) {
	named := func(step, tool string, reply *envelope.Reply) engine.Fact {
		f := fact(tool, engine.DispatchID("d-"+step), 1, reply)
		f.Intent.Step, f.Intent.Key = step, "acme/run_1/"+step
		return f
	}
	held, done := named("a", "none", nil), named("b", "write", reply(ok("{}")))
	for _, facts := range [][]engine.Fact{{held, named("c", "none", nil), done}, {done, held, named("c", "none", nil)}} {
		d := &driver{t: t, tools: tools(), now: start, seq: 1, r: engine.Restored(facts[0], defaults(), start)}
		if v := d.r.MergeAll(facts, d.tools, d.src()); v != engine.Applied {
			t.Errorf("it was %s", v)
		}
		d.check()
		d.state("a", run.NeedsHuman)
		d.state("b", run.OK)
		d.state("c", run.NeedsHuman)
		if d.r.End == nil || len(d.last(envelope.RunScope).CompletedEffects) != 1 {
			t.Errorf("ended %+v with the effects %+v", d.r.End, d.r.Effects)
		}
		if v := d.r.MergeAll(facts, d.tools, d.src()); v != engine.Dropped {
			t.Errorf("again it was %s", v)
		}
	}
}

// A restored step whose args refer to one that only the job has waits for the job.
func TestRestoredStepWaitsForWhatItRefersTo(t *testing.T) {
	refused := fails(envelope.CodeUpstreamRateLimited, envelope.Write)
	f := fact("write", "d1", 1, &refused)
	f.Intent.Proposed = json.RawMessage(`{"x":{"$from":"p#/id"}}`)
	d := &driver{t: t, tools: tools(), now: start, seq: 1, r: engine.Restored(f, defaults(), start)}
	d.r.Merge(f, d.tools, d.src())
	d.check()
	if n := d.r.Next(d.now); n.Ready != nil {
		t.Fatalf("ready before the job: %v", n.Ready)
	}
	d.job(job("", step("p", "read", "{}"), step("a", "write", `{"x":{"$from":"p#/id"}}`)))
	d.call("p", ok(`{"id":"c"}`))
	if x := d.begin("a"); x == nil || string(x.Args.Text()) != `{"x":"c"}` {
		t.Errorf("%+v", x)
	}
}
