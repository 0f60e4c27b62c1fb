package engine_test

import (
	"slices"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

func (d *driver) cancel() engine.Verdict {
	d.t.Helper()
	v := d.r.CancelRun("alice", "stop", d.now)
	d.check()
	return v
}

func (d *driver) expire() {
	d.t.Helper()
	d.now = max(d.now, d.r.Deadline)
	if n := d.r.Next(d.now); !n.Expired {
		d.t.Fatalf("not expired: %+v", n)
	}
	d.r.Expire(d.now)
	d.check()
}

func TestCancel(t *testing.T) {
	d := create(t, job("", step("a", "read", "{}"), step("b", "read", "{}")))
	d.cancel()
	d.ended(envelope.Cancelled, envelope.CodeCancelled, "a")
	o := d.last(envelope.RunScope)
	if len(d.words()) != 0 || d.r.Letter != nil || !slices.Equal(o.RemainingSteps, []string{"a", "b"}) || *o.Attempt != 0 || o.NextAction != envelope.Escalate {
		t.Errorf("%q %+v", d.words(), o)
	}
	if d.cancel() != engine.Dropped || d.r.State() != "cancelled" {
		t.Error("a run that has ended is cancelled again")
	}

	// A dispatched step that waits gets an outcome; one that never was gets none.
	d = create(t, job("", step("a", "read", "{}"), step("b", "read", "{}")))
	d.call("a", fails(envelope.CodeUpstreamUnavailable, envelope.Read))
	d.cancel()
	d.ended(envelope.Cancelled, envelope.CodeCancelled, "a")
	if got := d.words(); !slices.Equal(got, []string{"a retryable UPSTREAM_UNAVAILABLE", "a cancelled CANCELLED"}) {
		t.Errorf("%q", got)
	}

	// One that waits only for a slot of its tool was never dispatched.
	d = create(t, job("", step("a", "read", "{}")))
	d.r.Postpone("a", d.now.Add(time.Second), d.now)
	d.cancel()
	d.ended(envelope.Cancelled, envelope.CodeCancelled, "a")
	if got := d.words(); len(got) != 0 {
		t.Errorf("%q", got)
	}
}

// What is in flight settles by its own evidence.
func TestCancelInFlight(t *testing.T) {
	for _, c := range []struct {
		name   string
		tool   string
		settle func(*driver)
		word   envelope.Word
		code   envelope.Code
	}{
		{"write done, and it was the last", "write", func(d *driver) { d.reply("d1", ok("{}")) }, envelope.OK, ""},
		{"write refused", "write", func(d *driver) { d.reply("d1", fails(envelope.CodeUpstreamDenied, envelope.Write)) }, envelope.Cancelled, envelope.CodeCancelled},
		{"write to be retried", "write", func(d *driver) { d.reply("d1", fails(envelope.CodeUpstreamUnavailable, envelope.Write)) }, envelope.Cancelled, envelope.CodeCancelled},
		{"write unknown, then absent", "write", func(d *driver) {
			d.reply("d1", silent())
			d.goesOn()
			d.windowOver("d1")
			d.looked("d1", absent, true)
		}, envelope.Cancelled, envelope.CodeCancelled},
		{"write unknown, then found", "write", func(d *driver) { d.reply("d1", silent()); d.looked("d1", found("{}"), false) }, envelope.OK, ""},
		{"write that nobody can look up", "none", func(d *driver) { d.reply("d1", silent()) }, envelope.NeedsHuman, envelope.CodeVerificationUnavailable},
		{"write that would be sent again", "keyed", func(d *driver) { d.reply("d1", silent()) }, envelope.NeedsHuman, envelope.CodeVerificationUnavailable},
		{"read cut off", "read", func(d *driver) { d.r.CutRead("d1", d.now); d.check() }, envelope.Cancelled, envelope.CodeCancelled},
		{"read that came back", "read", func(d *driver) { d.reply("d1", ok("{}")) }, envelope.OK, ""},
		{"read lost", "read", func(d *driver) { d.leaseEnded() }, envelope.Cancelled, envelope.CodeCancelled},
		{"read given back", "read", func(d *driver) { d.r.GiveBack("d1", true, d.tools, d.src()); d.check() }, envelope.Cancelled, envelope.CodeCancelled},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := create(t, job("", step("a", c.tool, "{}")))
			d.begin("a")
			d.cancel()
			d.goesOn()
			if d.r.State() != run.StateCancelling || !d.r.Cutting() || d.r.Next(d.now).Ready != nil {
				t.Errorf("state %s, cutting %v", d.r.State(), d.r.Cutting())
			}
			c.settle(d)
			name := "a"
			if c.word == envelope.OK || d.r.Step("a").State == run.Fatal {
				name = "" // the cancellation cut nothing off
			}
			d.ended(c.word, c.code, name)
			if (d.r.Letter != nil) != (c.word == envelope.NeedsHuman) {
				t.Errorf("letter %v", d.r.Letter)
			}
		})
	}
}

func TestDeadline(t *testing.T) {
	d := create(t, job("", step("a", "read", "{}")))
	if n := d.r.Next(d.r.Deadline - 1); n.Expired || n.At != d.r.Deadline && len(n.Ready) == 0 {
		t.Errorf("%+v", n)
	}
	d.expire()
	d.ended(envelope.NeedsHuman, envelope.CodeTimeExhausted, "a")
	if got := d.words(); len(got) != 0 || !slices.Equal(actions(d), []string{"replay", "discard"}) {
		t.Errorf("%q %v", got, actions(d))
	}

	// An open run that nobody closes.
	d = create(t, job(`"more":true`, step("a", "read", "{}")))
	d.call("a", ok("{}"))
	if d.r.State() != run.StateOpen || d.r.Due(d.now) != d.r.Deadline {
		t.Errorf("%s due %s", d.r.State(), d.r.Due(d.now))
	}
	d.expire()
	d.ended(envelope.NeedsHuman, envelope.CodeTimeExhausted, "")

	// A write in flight is given up and verified, without regard to the deadline.
	for _, c := range []struct {
		name   string
		steps  []string
		settle func(*driver)
		word   envelope.Word
		code   envelope.Code
		step   string
	}{
		{"found and last", []string{step("a", "write", "{}")}, func(d *driver) { d.looked("d1", found("{}"), false) }, envelope.OK, "", ""},
		{"found and not last", []string{step("a", "write", "{}"), step("b", "read", "{}")}, func(d *driver) { d.looked("d1", found("{}"), false) }, envelope.NeedsHuman, envelope.CodeTimeExhausted, "b"},
		{"absent", []string{step("a", "write", "{}")}, func(d *driver) { d.windowOver("d1"); d.looked("d1", absent, true) }, envelope.NeedsHuman, envelope.CodeTimeExhausted, "a"},
		{"lookups used up", []string{step("a", "write", "{}")}, func(d *driver) {
			for range 3 {
				d.looked("d1", undecided, false)
			}
		}, envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := create(t, job("", c.steps...))
			d.begin("a")
			d.expire()
			d.goesOn()
			d.reply("d1", silent())
			d.goesOn()
			if d.r.Due(d.now) > d.now {
				t.Errorf("the lookup is due at %s", d.r.Due(d.now))
			}
			c.settle(d)
			d.ended(c.word, c.code, c.step)
		})
	}

	// A read in flight is cut off; a waiting step too.
	d = create(t, job(`"parallel":true`, step("a", "read", "{}"), step("w", "read", "{}")))
	d.call("w", fails(envelope.CodeUpstreamUnavailable, envelope.Read))
	d.begin("a")
	d.expire()
	if d.r.CutRead("d2", d.now) != engine.Applied {
		t.Error("not cut off")
	}
	d.check()
	d.ended(envelope.NeedsHuman, envelope.CodeTimeExhausted, "a")
	if got := d.words(); !slices.Equal(got[1:], []string{"w needs_human TIME_EXHAUSTED", "a needs_human TIME_EXHAUSTED"}) {
		t.Errorf("%q", got)
	}
}

// The first decided reason is the reason: a cancel after the deadline changes nothing, and so on.
func TestFirstReasonStays(t *testing.T) {
	d := create(t, job("", step("a", "write", "{}"), step("b", "read", "{}")))
	d.begin("a")
	d.expire()
	d.cancel()
	d.reply("d1", ok("{}"))
	d.ended(envelope.NeedsHuman, envelope.CodeTimeExhausted, "b")

	d = create(t, job("", step("a", "write", "{}"), step("b", "read", "{}")))
	d.begin("a")
	d.cancel()
	d.pass(2 * time.Minute)
	if d.r.Next(d.now).Expired || d.r.Expire(d.now) != engine.Dropped {
		t.Error("the deadline overrides the cancel")
	}
	d.reply("d1", ok("{}"))
	d.ended(envelope.Cancelled, envelope.CodeCancelled, "b")
}

// When parallel steps fail together, the worst speaks for the run, and of equals the first in the job's order.
func TestParallelFailures(t *testing.T) {
	fatal := fails(envelope.CodeUpstreamDenied, envelope.Write)
	human := fails(envelope.CodeInternalError, envelope.Read)
	for _, c := range []struct {
		name    string
		tools   [3]string
		replies [3]envelope.Reply
		order   []int
		word    envelope.Word
		step    string
		open    int
	}{
		{"fatal first, human later", [3]string{"write", "read", "read"}, [3]envelope.Reply{fatal, human, ok("{}")}, []int{0, 1, 2}, envelope.NeedsHuman, "b", 2},
		{"two fatal, the later in order first", [3]string{"write", "write", "read"}, [3]envelope.Reply{fatal, fatal, ok("{}")}, []int{1, 0, 2}, envelope.Fatal, "a", 2},
		{"two for a person", [3]string{"read", "read", "write"}, [3]envelope.Reply{human, human, fatal}, []int{2, 1, 0}, envelope.NeedsHuman, "a", 3},
		{"an unknown write before all", [3]string{"read", "write", "none"}, [3]envelope.Reply{human, fatal, silent()}, []int{0, 1, 2}, envelope.NeedsHuman, "c", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := create(t, job(`"parallel":true`, step("a", c.tools[0], "{}"), step("b", c.tools[1], "{}"), step("c", c.tools[2], "{}")))
			ids := []engine.DispatchID{d.begin("a").ID, d.begin("b").ID, d.begin("c").ID}
			for i, k := range c.order {
				if d.reply(ids[k], c.replies[k]); i < 2 {
					d.goesOn() // one-end: not while anything is in flight
				}
			}
			if d.r.End == nil || d.r.End.Outcome != c.word || d.r.End.Step != c.step {
				t.Errorf("%+v", d.r.End)
			}
			if l := d.r.BuildLetter(); len(l.Open) != c.open || l.Step != c.step {
				t.Errorf("%d open, step %s", len(l.Open), l.Step)
			}
		})
	}
}

// A step whose failure decided the end is proven done before the episode ends: the run is as open as before.
func TestLateProofBeforeTheEnd(t *testing.T) {
	start := func(members string) *driver {
		d := create(t, job(`"parallel":true`+members, step("a", "none", "{}"), step("b", "read", "{}")))
		d.begin("a")
		d.begin("b")
		d.reply("d1", silent())
		d.state("a", run.NeedsHuman)
		d.goesOn()
		d.reply("d1", ok("{}"))
		d.state("a", run.OK)
		return d
	}
	d := start("")
	d.reply("d2", ok("{}"))
	d.ended(envelope.OK, "", "")

	d = start("")
	d.cancel()
	d.reply("d2", fails(envelope.CodeUpstreamUnavailable, envelope.Read))
	d.ended(envelope.Cancelled, envelope.CodeCancelled, "b")

	// In an open run a fatal step does not take its place.
	d = create(t, job(`"more":true,"parallel":true`, step("f", "read", "{}"), step("a", "none", "{}"), step("b", "read", "{}")))
	d.begin("f")
	d.begin("a")
	d.begin("b")
	d.reply("d1", fails(envelope.CodeUpstreamRejectedInput, envelope.Read))
	d.reply("d2", silent())
	d.reply("d2", ok("{}"))
	d.reply("d3", ok("{}"))
	d.goesOn()
}

// A job that kills whoever reads it: nothing of it is read any more, and after poison_after losses a person sees it.
func TestPoisonedJob(t *testing.T) {
	m := engine.Message{Seq: 1, Time: start, Queue: "default", Data: job("", step("a", "read", "{}"), step("b", "read", "{}"))}
	d := &driver{t: t, r: engine.Unread(runID, m, defaults(), 3, start), tools: tools(), now: start, seq: 1}
	d.check()
	d.goesOn()
	d.r.CountUnread(3, d.now)
	d.check()
	d.goesOn()
	if d.r.Next(d.now).Ready != nil {
		t.Error("something of an unread job starts")
	}
	d.r.CountUnread(3, d.now)
	d.check()
	d.ended(envelope.NeedsHuman, envelope.CodePoisonJob, "")
	if l := d.r.BuildLetter(); len(l.Open) != 0 || len(l.Raw) != len(m.Data) {
		t.Errorf("%+v", l)
	}

	d = &driver{t: t, r: engine.Unread(runID, m, defaults(), 3, start), tools: tools(), now: start, seq: 1}
	d.check()
	d.r.Read(m, defaults(), d.now)
	d.check()
	d.call("a", ok("{}"))
	d.call("b", ok("{}"))
	d.ended(envelope.OK, "", "")
}

func TestCancelBeforeTheJob(t *testing.T) {
	data := job("", step("a", "read", "{}"))
	r := engine.CreateCancelled(runID, engine.Message{Seq: 9, Time: start, Queue: "default", Data: data}, defaults(), "alice", "stop", start)
	d := &driver{t: t, r: r, tools: tools(), now: start, seq: 8}
	d.check()
	d.ended(envelope.Cancelled, envelope.CodeCancelled, "a")
	d.job(data) // sequence 9: the very job, whose steps the record knows although it was never accepted
	if got := d.refusals(); !slices.Equal(got, []string{"a RUN_CLOSED"}) {
		t.Errorf("the job that waited: %q", got)
	}
	d.job(data) // published again: a repetition of what is refused already
	if got := d.refusals(); len(got) > 1 {
		t.Errorf("published once more: %q", got)
	}
}

func TestAlerts(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(*driver)
		want deadletter.Severity
	}{
		{"ok", func(d *driver) { d.call("a", ok("{}")) }, deadletter.None},
		{"unknown", func(d *driver) {
			d.call("a", silent())
			for range 3 {
				d.looked("d1", undecided, false)
			}
		}, deadletter.Page},
		{"denied", func(d *driver) { d.call("a", fails(envelope.CodeUpstreamDenied, envelope.Write)) }, deadletter.Page},
		{"rejected", func(d *driver) { d.call("a", fails(envelope.CodeUpstreamRejectedInput, envelope.Write)) }, deadletter.None},
		{"time", func(d *driver) { d.expire() }, deadletter.Ticket},
		{"cancelled", func(d *driver) { d.cancel() }, deadletter.None},
	} {
		d := create(t, job("", step("a", "write", "{}")))
		c.run(d)
		if c.want == deadletter.None && d.r.Letter == nil {
			continue
		}
		if a, raised := engine.AlertOf(d.r.BuildLetter(), d.now); a.Severity != c.want || raised != (c.want != deadletter.None) {
			t.Errorf("%s: %+v", c.name, a)
		}
	}
}

// Due and Next say the same: whatever there is to do has its time.
func TestDue(t *testing.T) {
	d := create(t, job("", step("a", "read", "{}"), step("b", "write", "{}")))
	if d.r.Due(d.now) != d.now {
		t.Error("ready")
	}
	d.begin("a")
	if d.r.Due(d.now) != d.r.Deadline {
		t.Error("leased")
	}
	d.reply("d1", fails(envelope.CodeUpstreamUnavailable, envelope.Read))
	if d.r.Due(d.now) != d.now.Add(100*time.Millisecond) {
		t.Error("waiting")
	}
	d.pass(time.Second)
	d.call("a", ok("{}"))
	d.call("b", silent())
	if d.r.Due(d.now) != d.now {
		t.Error("unknown")
	}
	d.looked("d3", undecided, false)
	if d.r.Due(d.now) != d.now.Add(100*time.Millisecond) {
		t.Error("next lookup")
	}
	d.looked("d3", found("{}"), false)
	if d.r.Due(d.now) != 0 {
		t.Error("ended")
	}
	// Beside a long call an unknown write is looked up all the same; that needs no lease.
	d = create(t, job(`"parallel":true`, step("a", "read", "{}"), step("b", "write", "{}")))
	d.begin("a")
	d.call("b", silent())
	if d.r.Due(d.now) != d.now || d.r.Lease == nil {
		t.Error("unknown under a lease")
	}
}

// A write that waits to be sent again is not sent once the end is decided: it goes to a person in the same event, whatever
// decided. Nothing would come by later to do it.
func TestAResendEndsWithTheDecision(t *testing.T) {
	for what, decide := range map[string]func(*driver){
		"another step": func(d *driver) { d.reply("d2", fails(envelope.CodeUpstreamRejectedInput, envelope.Write)) },
		"a person":     func(d *driver) { d.cancel(); d.reply("d2", ok("{}")) },
		"the deadline": func(d *driver) { d.expire(); d.reply("d2", ok("{}")) },
	} {
		d := create(t, job(`"parallel":true`, step("a", "keyed", "{}"), step("b", "write", "{}")))
		d.begin("a")
		d.begin("b")
		d.reply("d1", silent())
		d.state("a", run.Unknown)
		decide(d)
		if s := d.r.Step("a"); s.State != run.NeedsHuman || s.Fail.Row.CommitState != envelope.Unknown {
			t.Errorf("%s decides: the step is %s", what, s.State)
		}
		d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")
	}
}
