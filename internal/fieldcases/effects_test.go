package fieldcases

import (
	"slices"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/pkg/envelope"
)

// What a write has done is listed by everything that is said later, and a step that fails and succeeds after it never
// calls it again: whatever kind of step that is.
func TestCase01EffectsSurviveTheRetriesOfLaterSteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5*time.Second, tool{name: "pay", write: true}, tool{name: "flaky"}, tool{name: "flakywrite", write: true}, tool{name: "last"})
	w.both()
	w.provider.script(func(c call) plan {
		if (c.Tool == "flaky" || c.Tool == "flakywrite") && c.Nth <= 2 {
			return refuse(503)
		}
		return done()
	})
	for run, middle := range map[string]step{
		"read": do("middle", "flaky"), "write": do("middle", "flakywrite"),
		"optional": {"step": "middle", "tool": "flaky", "args": map[string]any{}, "optional": true},
		"parallel": {"step": "middle", "tool": "flaky", "args": map[string]any{}},
	} {
		w.publish(run, map[string]any{"parallel": run == "parallel"}, do("pay", "pay"), middle, do("end", "last"))
	}
	for _, run := range []string{"read", "write", "optional", "parallel"} {
		end := w.mustEnd(run, envelope.OK, "")
		if n := len(w.provider.callsOf(ref(run, "pay"))); n != 1 {
			t.Errorf("%s: the write's tool was called %d times", run, n)
		}
		if n := len(w.provider.callsOf(ref(run, "middle"))); n != 3 {
			t.Errorf("%s: the flaky step was called %d times, wanted 3", run, n)
		}
		paid := false
		for _, o := range append(w.outcomes(run, envelope.StepScope), end) {
			paid = paid || o.Step == "pay" && o.Outcome == envelope.OK
			if paid && !lists(o, "pay") {
				t.Errorf("%s: outcome %s (%s %s) lacks the write: %+v", run, o.ID, o.Step, o.Outcome, o.CompletedEffects)
			}
		}
	}
	w.balanced()
}

func lists(o *envelope.Outcome, step string) bool {
	return slices.ContainsFunc(o.CompletedEffects, func(e envelope.CompletedEffect) bool { return e.Step == step })
}

// The tool says ok and the lookup says absent: that is no ok, nothing after it starts, and it is not sent again.
func TestCase23SuccessThatNobodyCanSee(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5*time.Second,
		tool{name: "post", write: true, always: true, window: 300 * time.Millisecond}, tool{name: "next"})
	w.both()
	w.provider.script(func(c call) plan {
		if c.Tool == "post" && c.Ref == ref("lies", "post") {
			return nothing() // says done, does nothing
		}
		return done()
	})
	w.publish("lies", nil, do("post", "post"), do("next", "next"))
	w.publish("true", nil, do("post", "post"), do("next", "next"))
	end := w.mustEnd("lies", envelope.NeedsHuman, "external_outcome_disputed")
	if lists(end, "post") || !slices.Equal(end.RemainingSteps, []string{"next"}) {
		t.Errorf("effects %+v, remaining %v", end.CompletedEffects, end.RemainingSteps)
	}
	for _, o := range w.outcomes("lies", envelope.StepScope) {
		if o.Outcome == envelope.OK {
			t.Errorf("outcome %s says ok", o.ID)
		}
	}
	if calls := w.provider.callsOf(ref("lies", "post")); len(calls) != 1 {
		t.Errorf("sent %d times", len(calls))
	}
	if calls := w.provider.callsOf(ref("lies", "next")); len(calls) != 0 {
		t.Errorf("the next step was called %d times", len(calls))
	}
	w.mustEnd("true", envelope.OK, "")
	if w.provider.lookupsOf(ref("true", "post")) == 0 {
		t.Error("a success was believed without a lookup")
	}
	w.balanced()
}

// The NATS store is wiped after effects, the journals are kept, and the jobs are published again: while the executors
// run, or before they start. What was done is not done again; what may have been done is looked up first.
func TestCase16StoreWipedJournalsKept(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{true, false} {
		name := map[bool]string{true: "under running executors", false: "while all are down"}[running]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2*time.Second, tool{name: "pay", write: true}, tool{name: "read"})
			executor, reconciler := w.both()
			w.provider.script(func(c call) plan {
				if c.Ref == ref("hung", "pay") && c.Nth == 1 {
					return plan{Commit: true, Hang: true}
				}
				return done()
			})
			publish := func() {
				w.publish("done", nil, do("pay", "pay"))
				w.publish("more", map[string]any{"more": true}, do("read", "read"), do("pay", "pay"))
				w.publish("hung", nil, do("pay", "pay"))
			}
			publish()
			w.mustEnd("done", envelope.OK, "")
			w.mustStep("more", "pay", envelope.OK)
			w.mustCalls(ref("hung", "pay"), 1)
			if !running {
				executor.stop()
				reconciler.stop()
			}
			w.nats.Stop()
			w.nats.Wipe()
			w.nats.StartAgain()
			w.forget()
			if !running {
				executor.start()
				reconciler.start()
			}
			publish()
			w.publish("more", nil)
			for _, run := range []string{"done", "hung", "more"} {
				w.mustEnd(run, envelope.OK, "")
				if calls := w.provider.callsOf(ref(run, "pay")); len(calls) != 1 {
					t.Errorf("%s: the write was sent %d times", run, len(calls))
				}
			}
			w.balanced()
		})
	}
}

// A worker that has let go of a run takes its next job for a new run's, journals an intent, and is refused by the record.
// The journal must not keep that as something that may have been sent.
func TestRefusedStartLeavesNoDoubtInTheJournal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10*time.Second, tool{name: "pay", write: true})
	w.provider.script(func(c call) plan {
		if c.Ref == ref("r", "a") {
			return refuse(400)
		}
		return done()
	})
	data := t.TempDir()
	executor := w.executor("w1", "--data", data)
	w.reconciler("r1")
	w.follow()
	more := map[string]any{"more": true}
	w.publish("r", more, do("a", "pay"))
	w.mustStep("r", "a", envelope.Fatal)
	w.idle()
	w.publish("r", more, do("a", "pay")) // the same again: IDENTICAL_RETRY
	w.until("the repeat is refused", func() bool { return len(w.outcomes("r", envelope.StepScope)) == 2 })
	w.idle()
	w.publish("r", more, do("b", "pay"))
	w.mustStep("r", "b", envelope.OK)
	w.idle()
	executor.stop()
	facts, left := 0, 0
	err := journal.List(app.JournalPath(data), func(f engine.Fact) error {
		facts++
		if f.Effect == nil {
			t.Errorf("dispatch %s of step %s: an intent without an effect (settled: %t)", f.Intent.Dispatch, f.Intent.Step, f.Settled)
		} else if !f.NeverSent() {
			left++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if calls := len(w.provider.callsOf("")); calls != 2 || left != 2 || facts <= left {
		t.Errorf("%d calls; the journal has %d dispatches, %d of which left: the test shows nothing", calls, facts, left)
	}
}
