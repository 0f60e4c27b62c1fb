package reconcile

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

type exact struct{}

func (exact) Lower() time.Time { return time.Now() }
func (exact) Upper() time.Time { return time.Now() }

// waker answers each wake as it is told.
type waker struct {
	fresh bool
	n     int
	hints []string // to whom
}

func (w *waker) Hint(holder string, _ run.ID) error {
	w.hints = append(w.hints, holder)
	return nil
}

func (w *waker) Wake(context.Context, string, run.ID) (bool, error) {
	w.n++
	return w.fresh, nil
}

// ready is a reconciler that looks at a run whose first step is ready, of which an executor must be told; it may take so long.
func ready(t *testing.T, elapsed time.Duration) (*Reconciler, *waker, *entry, *record.Handle) {
	t.Helper()
	id := run.ID{Tenant: "acme", Run: "run_1"}
	now := envelope.TimeOf(time.Now())
	r := engine.Create(id, engine.Message{Seq: 1, Time: now, Queue: "default", Data: []byte(
		`{"schema":"agentrun.job/v1","tenant":"acme","run_id":"run_1","steps":[{"step":"s","tool":"t","args":{}}]}`)},
		engine.Defaults{Owner: "o", Workflow: "w", Actor: "a", Budget: budget.Limits{
			MaxTurns: 9, MaxToolCalls: 9, MaxAttemptsPerStep: 3, MaxElapsedMillis: elapsed.Milliseconds(), MaxInputTokens: 9, MaxOutputTokens: 9,
			MaxEstimatedCostMinorUnits: 9,
		}}, now)
	if got := r.Next(now).Ready; len(got) != 1 {
		t.Fatalf("ready is %q, of %+v", got, r)
	}
	w := &waker{}
	rc := New(Config{
		Lease: 30 * time.Second, Random: func() float64 { return 0 }, Records: &record.Records{Clock: exact{}}, Waker: w,
		Log: slog.New(slog.DiscardHandler),
	})
	e := &entry{id: id, seq: 1, index: -1}
	rc.runs[id] = e
	return rc, w, e, &record.Handle{ID: id, Run: r, Seq: 1}
}

// look goes on with the run as after a look that began now, and says after how long it is looked at again.
func goOn(t *testing.T, rc *Reconciler, e *entry, h *record.Handle) time.Duration {
	t.Helper()
	if err := rc.onward(t.Context(), e, h, moment{time.Now(), rc.Records.Due()}); err != nil {
		t.Fatal(err)
	}
	return time.Until(e.at)
}

// A wake that was there already may just be answered by an executor that knew less: the run is woken again soon, a few times.
func TestAWakeThatMeetsAnEarlierOneIsRepeatedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc, w, e, h := ready(t, time.Hour)
		for i, want := range append(wakeAgain[:], rc.Lease/2) {
			if got := goOn(t, rc, e, h); got != want {
				t.Fatalf("after refusal %d it is looked at again in %s, wanted %s", i+1, got, want)
			}
		}
		rc.change(port.Change{ID: h.ID, Seq: 2, Header: port.Header{State: "waiting", Due: time.Now()}})
		h.Seq = 2
		if got := goOn(t, rc, e, h); got != wakeAgain[0] {
			t.Fatalf("at a new revision it is looked at again in %s, wanted %s", got, wakeAgain[0])
		}
		w.fresh = true
		if got := goOn(t, rc, e, h); got != rc.Lease/2 {
			t.Fatalf("a wake of its own is waited for %s, wanted %s", got, rc.Lease/2)
		}
		if w.n != len(wakeAgain)+3 {
			t.Fatalf("woken %d times", w.n)
		}
	})
}

// A step that somebody has been woken for does not hide what else becomes due, here the deadline.
func TestWhatIsTriedDoesNotHideWhatComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc, w, e, h := ready(t, 5*time.Second)
		w.fresh = true
		if got := goOn(t, rc, e, h); got < 5*time.Second || got > 5100*time.Millisecond {
			t.Fatalf("looked at again in %s, the deadline is in 5s", got)
		}
	})
}

type anyTool struct{}

func (anyTool) Tool(name string) (*run.Tool, bool) {
	return &run.Tool{Name: name, Effect: envelope.Read, Timeout: time.Minute}, true
}

// saving stores whatever comes.
type saving struct{ port.Store }

func (saving) Server() string { return "" }

func (saving) Save(context.Context, run.ID, []byte, port.Header, uint64) (uint64, error) {
	return 2, nil
}

// Who holds the run while this process settles another of its steps is told to read the record: the step after that one may
// be ready. Without a holder nobody is told; a wake follows.
func TestTheHolderIsToldOfWhatIsWritten(t *testing.T) {
	for _, holder := range []string{"", "a.1"} {
		rc, w, _, h := ready(t, time.Hour)
		rc.Records.Store = saving{}
		if holder != "" {
			h.Run.Begin("s", anyTool{}, engine.Start{Dispatch: "d", LeaseID: "l", Holder: holder, Seconds: 30}, rc.Records.Now())
		}
		if err := rc.write(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(w.hints, ","); got != holder {
			t.Errorf("held by %q: told is %q", holder, got)
		}
	}
}
