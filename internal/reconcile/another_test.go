package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// oneStore is a store with a token.
type oneStore struct {
	token string
}

func (s *oneStore) Current() (string, bool) { return s.token, s.token != "" }

// The store is found to be another generation: until the watches have begun again, nothing that they report counts, and what
// is told of ends that are settled is of that store only.
func TestAnotherStoreIsReadAgain(t *testing.T) {
	s := &oneStore{token: "A"}
	rc := watching()
	rc.Store, rc.Log = s, slog.New(slog.DiscardHandler)
	rc.active = true
	id := run.ID{Tenant: "t", Run: "r"}
	end := func(seq uint64) {
		rc.change(port.Change{ID: id, Seq: seq, Header: port.Header{State: "ok", Episode: 1}})
	}
	end(7)
	rc.outcome(port.Outcome{ID: id, N: 1})
	if !rc.current() || !rc.Ready() {
		t.Fatal("not ready with the first store that is seen")
	}
	if seq, store := rc.settledThrough(fleetState{}, true); seq != 7 || store != "A" {
		t.Fatalf("settled through %d of %q", seq, store)
	}

	s.token = "" // a look found it to have gone back
	if rc.current() || !rc.Ready() {
		t.Fatal("it is not known yet what it has gone back to")
	}
	s.token = "B"
	another := rc.another
	if !rc.current() || rc.Ready() {
		t.Fatal("ready with another store, of which nothing has been seen")
	}
	select {
	case <-another:
	default:
		t.Error("the watches are not told")
	}
	// What was on its way.
	end(9)
	rc.change(port.Change{Report: port.Current})
	rc.letter(port.Letter{Report: port.Current})
	rc.outcome(port.Outcome{Report: port.Current})
	if rc.Ready() {
		t.Error("ready by what was reported of the former store")
	}
	if seq, store := rc.settledThrough(fleetState{SettledThrough: 7, Store: "A"}, true); seq != 0 || store != "B" {
		t.Errorf("settled through %d of %q, by what was true of A", seq, store)
	}
	if e, _ := rc.next(time.Now()); e != nil {
		t.Errorf("a look at %v before all has been seen", e.id)
	}

	// The run is not at its end in this store, at a revision that is lower than what was seen of it before.
	rc.change(port.Change{Report: port.Reset})
	rc.letter(port.Letter{Report: port.Reset})
	rc.outcome(port.Outcome{Report: port.Reset})
	rc.change(port.Change{ID: id, Seq: 5, Header: port.Header{State: "open", Due: time.Unix(1, 0)}})
	rc.change(port.Change{Report: port.Current})
	rc.letter(port.Letter{Report: port.Current})
	if rc.Ready() {
		t.Error("ready before the outcomes have been read again")
	}
	rc.outcome(port.Outcome{Report: port.Current})
	if e, _ := rc.next(time.Now()); e == nil || e.id != id {
		t.Errorf("the run that is open again is not looked at: %+v", e)
	}
	if !rc.current() || !rc.Ready() {
		t.Error("the same store is read again")
	}
}

// fixed is a fleet's record.
type fixed []byte

func (f fixed) LoadFleet(context.Context, string) ([]byte, uint64, error) { return f, 1, nil }
func (fixed) SaveFleet(context.Context, string, []byte, port.Header, uint64) (uint64, error) {
	return 0, port.ErrConflict
}

// What another reconciler had established is taken for the store that it says.
func TestSettledIsOfOneStore(t *testing.T) {
	for token, want := range map[string]uint64{"A": 7, "B": 0} {
		s := &oneStore{token: token}
		rc := watching()
		rc.Store, rc.Log = s, slog.New(slog.DiscardHandler)
		state, _, err := (&Reconciler{Config: Config{Fleet: fixed(`{"schema":"agentrun.fleet/v1","settled_through":7,"store":"A"}`)}}).loadFleet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		rc.startsFrom(state)
		if rc.current(); rc.settled != want {
			t.Errorf("in %s settled through %d, want %d", token, rc.settled, want)
		}
	}
}

// asked is a watch that counts how often it has begun, and how.
type asked struct {
	port.Watch
	began chan time.Time
}

func (a asked) WatchOutcomes(ctx context.Context, from time.Time, fn func(port.Outcome)) error {
	a.began <- from
	fn(port.Outcome{Report: port.Current})
	<-ctx.Done()
	return ctx.Err()
}

// A watch begins again with each store, and ends with the reconciler.
func TestAWatchBeginsAgainWithTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := &oneStore{token: "A"}, asked{began: make(chan time.Time, 1)}
		rc := watching()
		rc.Store, rc.Watch, rc.Log, rc.ready = s, w, slog.New(slog.DiscardHandler), [3]bool{}
		rc.startsFrom(fleetState{Store: "A", At: envelope.TimeOf(time.Now())})
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- rc.follow(ctx, outcomes) }()
		if from := <-w.began; from.IsZero() {
			t.Error("all outcomes are read, and those up to then are settled")
		}
		rc.current()
		synctest.Wait()
		if !rc.ready[outcomes] {
			t.Error("the first store has been seen")
		}
		for _, token := range []string{"B", "C"} {
			s.token = token
			rc.current()
			if from := <-w.began; !from.IsZero() {
				t.Errorf("in %s only outcomes from %s on are read", token, from)
			}
			synctest.Wait()
			if !rc.ready[outcomes] {
				t.Errorf("%s has been seen", token)
			}
		}
		end()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
