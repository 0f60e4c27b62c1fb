package worker

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// The journal's disk is full when the answer to a write comes, and a next write would start. The record learns the answer at
// once, the next write waits, and goes out, once, when there is room.
func TestFullJournalKeepsNoAnswerFromTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{effect: envelope.Write}
		full := false
		var atHand *engine.Run
		w.journal = func(e engine.Entry) error {
			if full = full || e.Effect != nil && len(w.entries) == 1; full {
				return errDiskFull
			}
			return nil
		}
		w.saved = func(r *engine.Run) { atHand = r }
		d, how := delivery(jobOf("tool", "tool"))
		w.worker(t).Deliver(d)
		time.Sleep(time.Second) // of the bubble: a tenth of the lease
		w.mu.Lock()
		switch {
		case atHand.Step("s1").State != run.OK:
			t.Errorf("the first write was answered a second ago, and the record says %s", atHand.Step("s1").State)
		case atHand.Lease != nil || atHand.Step("s2").State == run.Executing:
			t.Errorf("the record says that the second write is executing, and no journal has its intent")
		case !slices.Equal(w.calls, []string{"s1"}):
			t.Errorf("called: %v", w.calls)
		}
		w.mu.Unlock()
		time.Sleep(time.Minute)
		w.mu.Lock()
		w.journal = nil
		w.mu.Unlock()
		if got := <-how; got != "acknowledged" {
			t.Errorf("%s", got)
		}
		if !slices.Equal(w.calls, []string{"s1", "s2"}) || atHand.State() != string(envelope.OK) {
			t.Errorf("called %v, the run is %s", w.calls, atHand.State())
		}
	})
}

// The journal is full before the first write: nothing leaves, and the record says of nothing that it is executing longer
// than it takes to find out.
func TestFullJournalStartsNoWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{effect: envelope.Write}
		leased := 0
		w.journal = func(engine.Entry) error { return errDiskFull }
		var atHand *engine.Run
		w.saved = func(r *engine.Run) {
			atHand = r
			if r.Lease != nil {
				leased++
			}
		}
		d, how := delivery(jobOf("tool"))
		wk := w.worker(t)
		wk.Deliver(d)
		time.Sleep(2 * time.Minute)
		w.mu.Lock()
		if len(w.calls) > 0 || atHand.State() != string(run.Ready) || leased > 1 {
			t.Errorf("called %v, the run is %s, and the record was leased %d times", w.calls, atHand.State(), leased)
		}
		if used := wk.slots.used; used != 1 {
			t.Errorf("%d slots in use by a run that waits to make one call", used)
		}
		w.journal = nil
		w.mu.Unlock()
		if got := <-how; got != "acknowledged" {
			t.Errorf("%s", got)
		}
		synctest.Wait()
		if !slices.Equal(w.calls, []string{"s1"}) || atHand.State() != string(envelope.OK) || wk.slots.used != 0 {
			t.Errorf("called %v, the run is %s, %d slots in use", w.calls, atHand.State(), wk.slots.used)
		}
	})
}

// The answer is known, the journal's disk is full and NATS is away: when the run is given up, what came back is handed to
// the journal once more, because there may be room by the time it writes.
func TestAnswerIsKeptForLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{effect: envelope.Write}
		w.journal = func(e engine.Entry) error {
			if e.Effect != nil {
				return errDiskFull
			}
			return nil
		}
		w.store = func(string) error {
			if len(w.calls) > 0 {
				return errors.New("no server")
			}
			return nil
		}
		d, how := delivery(jobOf("tool"))
		w.worker(t).Deliver(d)
		if got := <-how; got != "given back" {
			t.Fatalf("%s", got)
		}
		for _, e := range w.later {
			if e.Effect != nil && e.Effect.Reply.OK {
				return
			}
		}
		t.Errorf("the journal was told nothing of the committed write; later: %+v", w.later)
	})
}
