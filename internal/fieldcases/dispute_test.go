package fieldcases

import (
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
)

// A lookup says absent, its window ends and a new attempt goes out; then it turns out that the first one was done after
// all, so that there may be two. The run stops for a person, the history keeps both, and there is no third try.
func TestCase06AbsentAndThenTwo(t *testing.T) {
	t.Parallel()
	two := tool{name: "pay", write: true, window: 300 * time.Millisecond, lookups: 3, delay: 100 * time.Millisecond}
	t.Run("a callback proves the first while the second is out", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 5*time.Second, two)
		w.both()
		w.provider.script(func(c call) plan {
			if c.Nth == 1 {
				return plan{Drop: true}
			}
			return plan{Commit: true, Delay: 2 * time.Second}
		})
		w.publish("r", nil, do("s", "pay"))
		w.mustCalls(ref("r", "s"), 2)
		w.ask("runs.report", map[string]any{
			"run_id": "r", "step": "s", "attempt": 1, "commit_state": "committed", "evidence_ref": "late", "by": "callback", "result": map[string]any{"id": "late"},
		})
		w.disputed("r")
	})
	t.Run("a lookup shows two", func(t *testing.T) {
		t.Parallel()
		// The lookup's rules know that one operation has at most one row; two rows fit neither.
		one := two
		one.verify = "      disputed: \"status == 200 && size(body.items) > 1\"\n"
		w := newWorld(t, 5*time.Second, one)
		w.both()
		w.twice[ref("r", "s")] = true
		w.provider.script(func(c call) plan {
			if c.Nth == 1 {
				return plan{Drop: true, CommitAfter: 1500 * time.Millisecond} // after every lookup that the window allows for
			}
			return plan{Commit: true, Drop: true, Delay: 2 * time.Second}
		})
		w.publish("r", nil, do("s", "pay"))
		w.disputed("r")
		if n := len(w.provider.rowsOf(ref("r", "s"))); n != 2 {
			t.Errorf("%d rows, the case needs two", n)
		}
	})
}

// disputed: the run is held, both attempts are in its history, and there is no third.
func (w *world) disputed(id string) {
	w.t.Helper()
	w.mustEnd(id, envelope.NeedsHuman, "external_outcome_disputed")
	if n := len(w.provider.callsOf(ref(id, "s"))); n != 2 {
		w.t.Errorf("sent %d times, wanted 2", n)
	}
	dispatches, absent := 0, 0
	for _, e := range w.record(id).History {
		if e.Kind == engine.EventDispatch {
			dispatches++
		}
		if e.Code == envelope.CodeVerifiedAbsent {
			absent++
		}
	}
	if dispatches != 2 || absent != 1 {
		w.t.Errorf("the history has %d dispatches and %d absent", dispatches, absent)
	}
	mustLetters(w, 1)
	w.balanced()
}
