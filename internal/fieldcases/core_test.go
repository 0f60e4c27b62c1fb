package fieldcases

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
)

var coreTools = []tool{
	{name: "invoice"},
	{name: "credit", write: true},
	{name: "draft"},
	{name: "lost", write: true},
	{name: "absent", write: true},
	{name: "flaky"},
	{name: "refused", write: true},
	{name: "slow", write: true, timeout: 30 * time.Second},
}

// coreFlows are the flows that every user has. Each gets a run id of its own.
var coreFlows = map[string]func(t *testing.T, w *world, id string){
	"billing case": func(t *testing.T, w *world, id string) {
		w.publish(id, nil, do("load", "invoice"),
			step{"step": "credit", "tool": "credit", "args": map[string]any{"invoice": map[string]any{"$from": "load#/id"}}},
			step{"step": "draft", "tool": "draft", "args": map[string]any{}, "optional": true})
		end := w.mustEnd(id, envelope.OK, "")
		calls := w.provider.callsOf(ref(id, "credit"))
		var got struct{ Invoice string }
		if len(calls) != 1 || json.Unmarshal([]byte(calls[0].Body), &got) != nil || got.Invoice != ref(id, "load")+"#1" || calls[0].Key != ref(id, "credit") {
			t.Errorf("the credit was asked for as %+v", calls)
		}
		if !lists(end, "credit") || len(end.RemainingSteps) != 0 {
			t.Errorf("effects %+v, remaining %v", end.CompletedEffects, end.RemainingSteps)
		}
	},
	"unknown, looked up, ok": func(t *testing.T, w *world, id string) {
		w.publish(id, nil, do("s", "lost"), do("next", "draft"))
		w.mustEnd(id, envelope.OK, "")
		w.mustStep(id, "s", envelope.UnknownNow)
		if n := len(w.provider.callsOf(ref(id, "s"))); n != 1 {
			t.Errorf("sent %d times", n)
		}
	},
	"unknown, absent, sent again": func(t *testing.T, w *world, id string) {
		w.publish(id, nil, do("s", "absent"))
		w.mustEnd(id, envelope.OK, "")
		calls := w.provider.callsOf(ref(id, "s"))
		if len(calls) != 2 || calls[0].Key != calls[1].Key {
			t.Errorf("calls %+v", calls)
		}
		if o := w.mustStep(id, "s", envelope.Retryable); o.ReasonCode != "verified_absent" {
			t.Errorf("reason %s", o.ReasonCode)
		}
	},
	"retry": func(t *testing.T, w *world, id string) {
		w.publish(id, nil, do("s", "flaky"))
		w.mustEnd(id, envelope.OK, "")
		if n := len(w.provider.callsOf(ref(id, "s"))); n != 3 {
			t.Errorf("called %d times, wanted 3", n)
		}
	},
	"parallel": func(t *testing.T, w *world, id string) {
		w.publish(id, map[string]any{"more": true}, do("first", "slow"))
		w.publish(id, map[string]any{"parallel": true}, do("a", "credit"), do("b", "invoice"), do("c", "draft"))
		end := w.mustEnd(id, envelope.OK, "")
		order := []string{}
		for _, o := range w.outcomes(id, envelope.StepScope) {
			order = append(order, o.Step)
		}
		if order[len(order)-1] != "first" || !lists(end, "a") || !lists(end, "first") {
			t.Errorf("steps ended in the order %v, effects %+v", order, end.CompletedEffects)
		}
	},
	"cancel": func(t *testing.T, w *world, id string) {
		w.publish(id, nil, do("s", "slow"), do("next", "credit"))
		w.mustCalls(ref(id, "s"), 1)
		w.ask("runs.cancel", map[string]any{"run_id": id, "by": "test", "reason": "enough"})
		end := w.mustEnd(id, envelope.Cancelled, "cancelled")
		if !lists(end, "s") || !slices.Equal(end.RemainingSteps, []string{"next"}) {
			t.Errorf("effects %+v, remaining %v", end.CompletedEffects, end.RemainingSteps)
		}
		if n := len(w.provider.callsOf(ref(id, "next"))); n != 0 {
			t.Errorf("the next step was called %d times after the cancel", n)
		}
	},
	"letter": func(t *testing.T, w *world, id string) {
		w.publish(id, nil, do("pay", "credit"), do("s", "refused"), do("next", "draft"))
		end := w.mustEnd(id, envelope.Fatal, "provider_denied")
		if end.FailedStep != "s" || !lists(end, "pay") {
			t.Errorf("failed step %s, effects %+v", end.FailedStep, end.CompletedEffects)
		}
		ctx, cancel := w.deadline()
		defer cancel()
		s, err := w.js.Stream(ctx, topology.LettersStream)
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.GetLastMsgForSubject(ctx, topology.LetterSubject(tenant, "oncall", id))
		if err != nil {
			t.Fatalf("the letter: %v", err)
		}
		var letter struct {
			RunID string `json:"run_id"`
			Code  string `json:"code"`
		}
		if err := json.Unmarshal(m.Data, &letter); err != nil || letter.RunID != id {
			t.Errorf("letter %s: %v", m.Data, err)
		}
	},
	"open run, one job after another": func(t *testing.T, w *world, id string) {
		for i := range 3 {
			w.publish(id, map[string]any{"more": true}, do(fmt.Sprintf("s%d", i), "credit"))
			w.mustStep(id, fmt.Sprintf("s%d", i), envelope.OK)
		}
		w.publish(id, nil)
		if end := w.mustEnd(id, envelope.OK, ""); len(end.CompletedEffects) != 3 {
			t.Errorf("effects %+v", end.CompletedEffects)
		}
	},
	"the same job twice": func(t *testing.T, w *world, id string) {
		w.publish(id, nil, do("s", "credit"))
		w.publish(id, nil, do("s", "credit"))
		w.mustEnd(id, envelope.OK, "")
		w.publish(id, nil, do("s", "credit"))
		w.idle()
		if n := len(w.provider.callsOf(ref(id, "s"))); n != 1 {
			t.Errorf("called %d times", n)
		}
		if n := len(w.outcomes(id, envelope.RunScope)); n != 1 {
			t.Errorf("%d ends", n)
		}
	},
}

func coreScript(c call) plan {
	switch {
	case c.Tool == "lost":
		return plan{Commit: true, Drop: true}
	case c.Tool == "absent" && c.Nth == 1:
		return plan{Drop: true}
	case c.Tool == "flaky" && c.Nth <= 2:
		return refuse(503)
	case c.Tool == "refused":
		return refuse(403)
	case c.Tool == "slow":
		return slow(1500 * time.Millisecond)
	}
	return done()
}

// The core's flows end to end, with streams of one replica on one server, and of three replicas on three.
func TestCoreOnOneServerAndOnThree(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{1, 3} {
		t.Run(fmt.Sprintf("R%d", replicas), func(t *testing.T) {
			t.Parallel()
			w := newWorldOf(t, replicas, 10*time.Second, coreTools...)
			w.provider.script(coreScript)
			w.executor("w1")
			w.reconciler("r1")
			w.follow()
			t.Run("flows", func(t *testing.T) {
				n := 0
				for name, flow := range coreFlows {
					n++
					id := fmt.Sprintf("run_%d", n)
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						flow(t, w, id)
					})
				}
			})
			if w.cluster != nil { // and with a server less
				w.cluster.Servers[0].Stop()
				coreFlows["unknown, looked up, ok"](t, w, "two_of_three")
				coreFlows["billing case"](t, w, "two_of_three_too")
				w.cluster.Servers[0].StartAgain()
			}
			w.idle()
			w.balanced()
		})
	}
}

// ask makes an operator call and fails the test if it is refused.
func (w *world) ask(verb string, request map[string]any) {
	w.t.Helper()
	data, err := json.Marshal(request)
	if err != nil {
		w.t.Fatal(err)
	}
	reply, err := w.nc.Request("agentrun.op."+verb+"."+tenant, data, 20*time.Second)
	if err != nil {
		w.t.Fatalf("%s: %v", verb, err)
	}
	var refused struct {
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &refused); err != nil || refused.Error != nil {
		w.t.Fatalf("%s: %s", verb, reply.Data)
	}
}

// Many mixed jobs at full concurrency: the calls that were counted at the tools are the attempts in the histories,
// exactly.
func TestCase03CallsAreAttempts(t *testing.T) {
	t.Parallel()
	jobs := sized(500, 200)
	w := newWorld(t, 10*time.Second, append(slices.Clone(coreTools), tool{name: "always", attempts: 4})...)
	w.both()
	w.provider.script(func(c call) plan {
		if c.Tool == "slow" {
			return slow(100 * time.Millisecond)
		}
		// A tool that fails for every second run of those that need it is not taken to be down as a whole.
		var i int
		if _, err := fmt.Sscanf(c.Ref, tenant+"/r%d/", &i); err != nil || i%16 >= 8 {
			return done()
		}
		if c.Tool == "always" {
			return refuse(503)
		}
		return coreScript(c)
	})
	names := []string{"invoice", "credit", "lost", "absent", "flaky", "refused", "slow", "always"}
	for i := range jobs {
		w.publish(fmt.Sprintf("r%d", i), map[string]any{"parallel": i%3 == 0}, do("a", names[i%8]), do("b", names[(i/8)%8]), do("c", "credit"))
	}
	for i := range jobs {
		id := fmt.Sprintf("r%d", i)
		w.until(id+" ends", func() bool { return w.end(id, 1) != nil })
	}
	w.idle()
	counted, attempts, spent := len(w.provider.callsOf("")), 0, 0
	for i := range jobs {
		id := fmt.Sprintf("r%d", i)
		r := w.record(id)
		spent += int(w.end(id, 1).Spent.ToolCalls)
		for _, s := range r.Steps {
			dispatched := 0
			for _, e := range r.History {
				if e.Step == s.Name && e.Kind == engine.EventDispatch {
					dispatched++
				}
			}
			attempts += dispatched
			if n := len(w.provider.callsOf(ref(id, s.Name))); n != dispatched || n != s.Attempt {
				t.Errorf("%s/%s (%s): %d calls at the tool, %d dispatches in the history, attempt %d", id, s.Name, s.Tool, n, dispatched, s.Attempt)
			}
		}
	}
	if counted != attempts || counted != spent {
		t.Errorf("%d calls at the tools, %d attempts in the histories, %d tool calls charged", counted, attempts, spent)
	}
	t.Logf("%d runs, %d calls", jobs, counted)
	w.balanced()
}

// Every tenth of 200 jobs always fails, at once or by its last attempt: on one server and on three, exactly those have a
// letter, the work queues are empty, and nothing is in them that nobody would deliver.
func TestCase12EveryTenthFails(t *testing.T) {
	t.Parallel()
	const jobs = 200
	for _, replicas := range []int{1, 3} {
		t.Run(fmt.Sprintf("R%d", replicas), func(t *testing.T) {
			t.Parallel()
			w := newWorldOf(t, replicas, 10*time.Second, tool{name: "load"})
			w.provider.script(func(c call) plan {
				var i int
				switch _, err := fmt.Sscanf(c.Ref, tenant+"/r%d/", &i); {
				case err != nil || i%10 != 0:
					return done()
				case i%20 == 0:
					return refuse(403)
				}
				return refuse(503)
			})
			w.both()
			var bad []string
			for i := range jobs {
				id := fmt.Sprintf("r%03d", i)
				if i%10 == 0 {
					bad = append(bad, id)
				}
				w.publish(id, nil, do("s", "load"))
			}
			for i := range jobs {
				id := fmt.Sprintf("r%03d", i)
				word, reason := envelope.OK, ""
				switch i % 20 {
				case 0:
					word, reason = envelope.Fatal, "provider_denied"
				case 10:
					word, reason = envelope.NeedsHuman, "attempt_budget_exhausted"
				}
				w.mustEnd(id, word, reason)
			}
			for _, stream := range []string{topology.JobsStream, topology.WakesStream} {
				bustest.Eventually(t, stream+" is empty, its consumers too", func() bool { return w.waiting(stream) == 0 && w.undelivered(stream) == 0 })
			}
			if got := w.letters(); !slices.Equal(got, bad) {
				t.Errorf("letters of %v, wanted %v", got, bad)
			}
			w.balanced()
		})
	}
}
