package worker

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// losing is a store that is said to have lost records, when the test says so.
type losing struct {
	quiet
	mu    sync.Mutex
	token string
	away  bool
	gone  chan string
}

func (s *losing) Current() (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token, !s.away
}

func (s *losing) Vanished(what string) {
	s.mu.Lock()
	s.away = true
	s.mu.Unlock()
	s.gone <- what
}

func (s *losing) is(token string, away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token, s.away = token, away
}

// While the journal is settled at the start, the store is lost: that there is no record says nothing, and the entry stays
// unsettled until it was looked for in the store that the fleet has agreed on.
func TestSettlingOutlivesALossOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{effect: envelope.Write}
		wk := w.worker(t)
		store := &losing{token: "the one", gone: make(chan string, 1)}
		wk.Store = store
		w.facts = []engine.Fact{{Intent: engine.Intent{Dispatch: "d", Tenant: "t", RunID: "r", Step: "s", Tool: "tool"}}}
		asked := 0
		w.store = func(op string) error {
			if asked++; asked == 1 {
				store.is("another", true) // made anew while the record is asked for
			}
			return nil
		}
		done := make(chan error, 1)
		go func() { done <- wk.Settle(t.Context()) }()
		time.Sleep(time.Minute)
		if synctest.Wait(); len(done) > 0 || asked != 1 || len(w.later) > 0 {
			t.Fatalf("with a store that is not known: ended %d, asked %d times, settled %+v", len(done), asked, w.later)
		}
		store.is("another", false)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if asked != 2 || len(w.later) != 1 || w.later[0].Settled != "d" {
			t.Errorf("asked %d times, settled %+v", asked, w.later)
		}
	})
}

// A record that is removed while its run is worked on is no run that was never there: the store has lost it, and nothing is
// decided before the journals are restored.
func TestARecordThatVanishesIsALoss(t *testing.T) {
	w := &world{effect: envelope.Write}
	wk := w.worker(t)
	store := &losing{token: "the one", gone: make(chan string, 1)}
	wk.Store = store
	removed := false
	w.store = func(op string) error {
		// The second write finds that the record of the first is gone.
		if op == "save" && len(w.calls) == 1 && !removed {
			removed = true
			delete(w.records, run.ID{Tenant: "t", Run: "r"})
			return port.ErrConflict
		}
		return nil
	}
	wk.Start(idle{})
	d, _ := delivery(`{"schema":"agentrun.job/v1","tenant":"t","run_id":"r","steps":[{"step":"a","tool":"tool","args":{}}]}`)
	wk.Deliver(d)
	select {
	case what := <-store.gone:
		if what != "the record of run t/r was removed while it was worked on" {
			t.Errorf("told %q", what)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nobody is told that the record is gone")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.calls) != 1 {
		t.Errorf("called %v", w.calls)
	}
}

type idle struct{}

func (idle) Want(int)              {}
func (idle) Waits() (string, bool) { return "", false }
func (idle) Stop()                 {}
