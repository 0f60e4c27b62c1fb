package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

func later(wait time.Duration) envelope.Lookup {
	return envelope.Lookup{Answer: envelope.Later, Row: envelope.RowFor(envelope.CodeUpstreamRateLimited, envelope.Read), RetryAfter: wait.Milliseconds()}
}

func pending(wait time.Duration) envelope.Lookup {
	return envelope.Lookup{Answer: envelope.Pending, RetryAfter: wait.Milliseconds()}
}

func gaveUp(code envelope.Code, category envelope.Category) envelope.Lookup {
	return envelope.Lookup{Answer: envelope.Failed, Row: envelope.Custom(code, category, envelope.NotCommitted, envelope.Write).NeverRetried()}
}

func doubted(t *testing.T, tool string) *driver {
	t.Helper()
	d := create(t, job("", step("a", tool, `{}`)))
	d.call("a", silent())
	d.state("a", run.Unknown)
	return d
}

// A lookup that is told to wait waits, uses up no attempt, and nobody is called for it while the run has time.
func TestLookupToldToWait(t *testing.T) {
	for name, answer := range map[string]func(time.Duration) envelope.Lookup{"later": later, "pending": pending} {
		t.Run(name, func(t *testing.T) {
			d := doubted(t, "write")
			for i := range 5 { // max_attempts is 3
				if l := d.r.Lookups(d.now); len(l) != 1 {
					t.Fatalf("look %d: %d lookups are due", i, len(l))
				}
				d.looked("d1", answer(5*time.Second), false)
				s := d.r.Step("a")
				if s.State != run.Unknown || s.Doubt.Lookups != 0 {
					t.Fatalf("look %d: %s, %d lookups are counted", i, s.State, s.Doubt.Lookups)
				}
				if l := d.r.Lookups(d.now.Add(5*time.Second - 1)); len(l) != 0 {
					t.Fatal("it is looked up before the time that the far side has named")
				}
				if due := d.r.Due(d.now); due != d.now.Add(5*time.Second) {
					t.Fatalf("due in %s", due.Sub(d.now))
				}
				d.pass(5 * time.Second)
			}
			lines := 0
			for _, e := range d.r.History {
				if e.Kind == engine.EventVerify {
					lines++
				}
			}
			if lines != 1 {
				t.Errorf("five answers that say the same take %d lines of the history", lines)
			}
			d.looked("d1", found(`{"id":"c"}`), false)
			d.ended(envelope.OK, "", "")
		})
	}
}

// What the far side asks for is bounded by the tool's max_retry_after and by the run's end.
func TestToldToWaitForLong(t *testing.T) {
	d := doubted(t, "write")
	d.tools["write"].Retry.MaxRetryAfter = 20 * time.Second
	d.looked("d1", later(time.Hour), false)
	if next := d.r.Step("a").Doubt.Next; next != d.now.Add(20*time.Second) {
		t.Fatalf("the next in %s", next.Sub(d.now))
	}
	d.pass(20 * time.Second)
	d.tools["write"].Retry.MaxRetryAfter = time.Hour
	far := later(0)
	far.RetryAfter = 1 << 62
	d.looked("d1", far, false)
	if next := d.r.Step("a").Doubt.Next; next != d.r.Deadline {
		t.Fatalf("the next is %s after the deadline", next.Sub(d.r.Deadline))
	}
}

// Without a time it is asked again by the tool's backoff.
func TestToldToWaitForNoTime(t *testing.T) {
	d := doubted(t, "write")
	for _, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		d.looked("d1", later(0), false)
		if wait := d.r.Step("a").Doubt.Next.Sub(d.now); wait != want*time.Millisecond {
			t.Fatalf("waits %s, not %dms", wait, want)
		}
		d.pass(want * time.Millisecond)
	}
}

// When the run's time is over such answers count, at the distance that the far side asks for or the tool's longest delay if
// that is shorter: a person gets to know.
func TestToldToWaitPastTheDeadline(t *testing.T) {
	for name, c := range map[string]struct {
		l    envelope.Lookup
		last string
	}{
		"later": {later(3 * time.Second), "UPSTREAM_RATE_LIMITED"}, "pending": {pending(3 * time.Second), "OPERATION_PENDING"},
		"much later": {later(time.Hour), "UPSTREAM_RATE_LIMITED"},
	} {
		t.Run(name, func(t *testing.T) {
			d := doubted(t, "write")
			d.tools["write"].Retry.MaxDelay = 3 * time.Second
			d.looked("d1", c.l, false)
			d.now = d.r.Deadline
			d.expire()
			for range 2 {
				d.looked("d1", c.l, true)
				d.state("a", run.Unknown)
				if wait := d.r.Step("a").Doubt.Next.Sub(d.now); wait != 3*time.Second {
					t.Fatalf("waits %s", wait)
				}
				d.pass(3 * time.Second)
			}
			d.looked("d1", c.l, true)
			d.ended(envelope.NeedsHuman, envelope.CodeVerificationUnavailable, "a")
			if last := d.r.End.Details["last_code"]; last != c.last {
				t.Errorf("the letter says %v was last", last)
			}
		})
	}
}

// The end of the window, and a report, make a lookup due at once, but not before the far side wants to be asked again.
func TestWindowKeepsTheWait(t *testing.T) {
	for name, judge := range map[string]func(*driver){
		"window": func(d *driver) { d.windowOver("d1") },
		"report": func(d *driver) {
			if _, err := d.r.Report("a", 1, "webhook", resolution("not_committed"), d.tools, d.now); err != nil {
				d.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := doubted(t, "write")
			d.looked("d1", later(10*time.Second), false)
			until := d.now.Add(10 * time.Second)
			d.pass(2 * time.Second)
			judge(d)
			d.check()
			if next := d.r.Step("a").Doubt.Next; next != until {
				t.Errorf("the next lookup is %s before the time that the far side has named", until.Sub(next))
			}
		})
	}
}

// An answer that names no time ends the wait of the one before.
func TestWindowKeepsNoOldWait(t *testing.T) {
	d := doubted(t, "write")
	d.looked("d1", later(time.Second), false)
	d.pass(time.Second)
	d.looked("d1", absent, false)
	d.windowOver("d1")
	if len(d.r.Lookups(d.now)) != 1 {
		t.Error("no lookup is due when the window is over")
	}
}

// An operation that a lookup has seen under way cannot be absent.
func TestAbsentAfterPending(t *testing.T) {
	d := doubted(t, "write")
	d.looked("d1", pending(0), false)
	if code := d.r.Step("a").Fail.Row.Code; code != envelope.CodeOperationPending {
		t.Errorf("the step says %s", code)
	}
	d.looked("d1", absent, false) // inside the window: a replica that is behind
	d.state("a", run.Unknown)
	d.windowOver("d1")
	d.looked("d1", absent, true)
	d.ended(envelope.NeedsHuman, envelope.CodeOutcomeDisputed, "a")
}

func TestReportedAbsentAfterPending(t *testing.T) {
	d := doubted(t, "write")
	d.looked("d1", pending(0), false)
	d.windowOver("d1")
	if _, err := d.r.Report("a", 1, "webhook", resolution("not_committed"), d.tools, d.now); err != nil {
		t.Fatal(err)
	}
	d.ended(envelope.NeedsHuman, envelope.CodeOutcomeDisputed, "a")
}

// What a dispatch's own late refusal says is no more than that this request was refused.
func TestRefusedAfterPending(t *testing.T) {
	for _, code := range []envelope.Code{envelope.CodeUpstreamRateLimited, envelope.CodeUpstreamDenied, envelope.CodeStateConflict} {
		d := doubted(t, "write")
		d.looked("d1", pending(0), false)
		if v := d.reply("d1", fails(code, envelope.Write)); v != engine.Dropped {
			t.Errorf("%s: %s", code, v)
		}
		d.state("a", run.Unknown)
	}
}

// A lookup that comes late, and says that the operation is under way, stops what was about to send it again.
func TestPendingComesLate(t *testing.T) {
	for name, c := range map[string]struct {
		column func(*driver)
		then   func(*driver)
	}{
		"ready":           {readyAfterAbsent, func(*driver) {}},
		"waiting":         {waiting, func(*driver) {}},
		"later executing": {laterExecuting, func(d *driver) { d.goesOn(); d.leaseEnded() }},
		"later unknown":   {laterUnknown, func(*driver) {}},
	} {
		t.Run(name, func(t *testing.T) {
			d := create(t, job("", step("a", "write", `{}`)))
			c.column(d)
			d.looked("d1", pending(0), true)
			c.then(d)
			d.ended(envelope.NeedsHuman, envelope.CodeOutcomeDisputed, "a")
		})
	}
	t.Run("ended", func(t *testing.T) {
		d := create(t, job("", step("a", "write", `{}`)))
		d.call("a", ok(`{}`))
		if v := d.looked("d1", pending(0), true); v != engine.Dropped {
			t.Error(v)
		}
	})
}

// What the far side has ended for good is not sent again, whether the window is over or not.
func TestFailedForGood(t *testing.T) {
	for name, tool := range map[string]string{"window": "write", "no window": "blind", "always": "always"} {
		t.Run(name, func(t *testing.T) {
			d := create(t, job("", step("a", tool, `{}`)))
			reply := silent()
			reply.Details = envelope.Details{"job": "j-1"}
			d.call("a", reply)
			d.looked("d1", pending(0), false)
			d.looked("d1", gaveUp("CARD_DECLINED", envelope.Conflict), false)
			d.ended(envelope.Fatal, "CARD_DECLINED", "a")
			if c := d.r.End.Row.CommitState; c != envelope.NotCommitted {
				t.Errorf("the letter says %s", c)
			}
			if d.r.End.Details["job"] != "j-1" {
				t.Errorf("the letter has lost the details: %v", d.r.End.Details)
			}
			if got := strings.Join(actions(d), " "); !strings.Contains(got, "replay") {
				t.Errorf("a person may %s", got)
			}
			if v := d.looked("d1", found(`{}`), true); v != engine.Noted || len(d.r.AlarmsOwed()) != 1 {
				t.Error("found after all, and nobody is told")
			}
		})
	}
}

func TestFailedIsNeverRetried(t *testing.T) {
	d := doubted(t, "write")
	l := gaveUp("JOB_DIED", envelope.Dependency)
	l.Row = envelope.Custom("JOB_DIED", envelope.Dependency, envelope.NotCommitted, envelope.Write)
	d.looked("d1", l, false)
	d.ended(envelope.Fatal, "JOB_DIED", "a")
	d = doubted(t, "write")
	d.looked("d1", envelope.Lookup{Answer: envelope.Failed}, false) // a lookup that says no more
	d.ended(envelope.Fatal, envelope.CodeUpstreamError, "a")
}

// Where an earlier dispatch of the operation was in doubt too, the far side may be telling of that one: what it says counts
// only from a lookup that was sent after the window, as absence does.
func TestFailedMayBeAnEarlierOne(t *testing.T) {
	d := doubted(t, "write")
	d.looked("d1", gaveUp("JOB_DIED", envelope.Dependency), false)
	a := d.by("alice")
	if _, err := d.r.Replay(a, engine.ReplayWith{}); err != nil {
		t.Fatal(err)
	}
	d.call("a", silent())
	if v := d.looked("d2", gaveUp("JOB_DIED", envelope.Dependency), false); v != engine.Applied {
		t.Fatal(v)
	}
	d.state("a", run.Unknown)
	if n := d.r.Step("a").Doubt.Lookups; n != 0 {
		t.Errorf("%d lookups are counted", n)
	}
	d.windowOver("d2")
	d.looked("d2", gaveUp("JOB_DIED", envelope.Dependency), false)
	d.state("a", run.Unknown)
	d.looked("d2", gaveUp("JOB_DIED", envelope.Dependency), true)
	d.ended(envelope.Fatal, "JOB_DIED", "a")
}

// A cancelled run waits for what is under way, and ends as cancelled.
func TestPendingOfACancelledRun(t *testing.T) {
	d := doubted(t, "write")
	d.cancel()
	d.looked("d1", pending(0), false)
	d.goesOn()
	d.looked("d1", gaveUp("JOB_DIED", envelope.Dependency), false)
	if d.r.End == nil || d.r.End.Outcome != envelope.Cancelled {
		t.Errorf("%+v", d.r.End)
	}
}

// The view says until when an unknown write waits for its next lookup, and what it waits for.
func TestViewOfWaiting(t *testing.T) {
	d := doubted(t, "write")
	d.looked("d1", pending(7*time.Second), false)
	v := d.r.View(d.now)
	s, e := v.Steps[0], v.History[len(v.History)-1]
	if s.NotBefore != d.now.Add(7*time.Second) || s.Code != envelope.CodeOperationPending {
		t.Errorf("%+v", s)
	}
	if e.Kind != engine.EventVerify || e.Code != envelope.CodeOperationPending || e.CommitState != envelope.Unknown {
		t.Errorf("%+v", e)
	}
}

// A wait that was written while the server's clock was ahead lasts no longer than it was meant to.
func TestClockSetCutsAWaitForALookup(t *testing.T) {
	d := doubted(t, "write")
	d.looked("d1", later(30*time.Second), false)
	d.now = d.now.Add(-time.Hour)
	if v := d.r.ClockSet(d.tools, d.now); v != engine.Applied {
		t.Fatal(v)
	}
	d.check()
	s := d.r.Step("a")
	if wait := s.Doubt.Next.Sub(d.now); wait != 30*time.Second {
		t.Errorf("it waits %s", wait)
	}
	if v := d.r.ClockSet(d.tools, d.now.Add(time.Second)); v != engine.Dropped {
		t.Error("what is cut is cut again")
	}
	d.pass(2 * time.Second)
	d.windowOver("d1")
	if wait := d.r.Step("a").Doubt.Next.Sub(d.now); wait != 28*time.Second {
		t.Errorf("when the window is over it waits %s", wait)
	}
}
