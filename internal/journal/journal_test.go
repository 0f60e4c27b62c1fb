package journal_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/journal/journaltest"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
)

func newDispatch() engine.DispatchID { return engine.DispatchID(uuid.Must(uuid.NewV7()).String()) }

func intent(d engine.DispatchID, at time.Time) engine.Entry {
	return engine.Entry{Intent: &engine.Intent{
		Dispatch: d, Tenant: "acme", RunID: "run_1042", Queue: "default", Workflow: "resolve_billing_case",
		Owner: "billing-oncall", Actor: "agent:support", Purpose: "Apply the approved goodwill credit and tell the customer",
		Budget: budget.Limits{MaxTurns: 12, MaxToolCalls: 8, MaxAttemptsPerStep: 3, MaxElapsedMillis: 45000, MaxInputTokens: 50000, MaxOutputTokens: 8000, MaxEstimatedCostMinorUnits: 25},
		Step:   "apply_credit", Tool: "apply_credit", Args: json.RawMessage(`{"invoice_id":"inv_7","amount_minor":500}`),
		Attempt: 1, Proposal: 1, Key: "acme/run_1042/apply_credit", At: envelope.TimeOf(at),
	}}
}

func effect(d engine.DispatchID, at time.Time) engine.Entry {
	return engine.Entry{Effect: &engine.EffectFact{
		Dispatch: d, Reply: envelope.Reply{OK: true, Result: json.RawMessage(`{"credit_id":"cr_3"}`), EvidenceRef: "cr_3"}, At: envelope.TimeOf(at),
	}}
}

func settled(d engine.DispatchID) engine.Entry { return engine.Entry{Settled: d} }

func write(t testing.TB, j *journal.Journal, entries ...engine.Entry) {
	t.Helper()
	if err := j.Write(context.Background(), entries...); err != nil {
		t.Fatal(err)
	}
}

func unsettled(t testing.TB, j *journal.Journal) []engine.Fact {
	t.Helper()
	facts, err := j.Unsettled()
	if err != nil {
		t.Fatal(err)
	}
	return facts
}

func TestFactsComeBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data", "journal.db")
	j := journaltest.OpenAt(t, path, journal.Options{})
	now := time.Now()
	a, b, c := newDispatch(), newDispatch(), newDispatch()
	other, orphan := engine.DispatchID("another-kind-of-id"), newDispatch()
	write(t, j, intent(a, now))
	write(t, j, effect(a, now), intent(b, now)) // one transaction: a step's effect and the next step's intent
	write(t, j, settled(a), intent(c, now), intent(other, now), effect(orphan, now))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}

	j = journaltest.OpenAt(t, path, journal.Options{})
	var got []engine.DispatchID
	for _, f := range unsettled(t, j) {
		got = append(got, f.Intent.Dispatch)
		if f.Settled || !reflect.DeepEqual(f.Intent, *intent(f.Intent.Dispatch, now).Intent) {
			t.Errorf("fact %+v", f)
		}
	}
	if want := []engine.DispatchID{b, c, other}; !reflect.DeepEqual(got, want) {
		t.Errorf("unsettled: %v, want %v", got, want)
	}
	var all []string
	err := j.Facts(func(f engine.Fact) error {
		all = append(all, fmt.Sprintf("%s effect=%v settled=%v tenant=%q", f.Intent.Dispatch, f.Effect != nil, f.Settled, f.Intent.Tenant))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		fmt.Sprintf("%s effect=true settled=true tenant=\"acme\"", a),
		fmt.Sprintf("%s effect=false settled=false tenant=\"acme\"", b),
		fmt.Sprintf("%s effect=false settled=false tenant=\"acme\"", c),
		fmt.Sprintf("%s effect=true settled=true tenant=\"\"", orphan),
		fmt.Sprintf("%s effect=false settled=false tenant=\"acme\"", other),
	}
	if !reflect.DeepEqual(all, want) {
		t.Errorf("facts:\n%s\nwant:\n%s", strings.Join(all, "\n"), strings.Join(want, "\n"))
	}
	f, ok, err := j.Get(a)
	if err != nil || !ok || !f.Settled || f.Effect == nil || !reflect.DeepEqual(*f.Effect, *effect(a, now).Effect) {
		t.Errorf("get: %+v, %v, %v", f, ok, err)
	}
	if _, ok, err := j.Get(newDispatch()); ok || err != nil {
		t.Errorf("get of an unknown dispatch: %v, %v", ok, err)
	}
	stop := errors.New("stop")
	if err := j.Facts(func(engine.Fact) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Facts gave %v", err)
	}
}

// Reading goes in pieces; the seams between them neither lose nor repeat a fact.
func TestMoreFactsThanOnePiece(t *testing.T) {
	j := journaltest.Open(t)
	const n = 1000
	entries := make([]engine.Entry, 0, n)
	want := make([]engine.DispatchID, n)
	for i := range want {
		want[i] = newDispatch()
		entries = append(entries, intent(want[i], time.Now()))
	}
	write(t, j, entries...)
	var all, open []engine.DispatchID
	if err := j.Facts(func(f engine.Fact) error { all = append(all, f.Intent.Dispatch); return nil }); err != nil {
		t.Fatal(err)
	}
	for _, f := range unsettled(t, j) {
		open = append(open, f.Intent.Dispatch)
	}
	if !reflect.DeepEqual(all, want) || !reflect.DeepEqual(open, want) {
		t.Errorf("%d facts and %d unsettled, want %d in order", len(all), len(open), n)
	}
}

func TestHolderIsNewAtEachStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	var holders []string
	for range 3 {
		j := journaltest.OpenAt(t, path, journal.Options{})
		holders = append(holders, j.Holder())
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	id, _, _ := strings.Cut(holders[0], ".")
	if want := []string{id + ".1", id + ".2", id + ".3"}; len(id) != 16 || !reflect.DeepEqual(holders, want) {
		t.Errorf("holders %v, want %v", holders, want)
	}
	if other := journaltest.Open(t).Holder(); strings.HasPrefix(other, id) {
		t.Errorf("two journals are both called %s", id)
	}
}

func TestTheStoreIsRemembered(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	j := journaltest.OpenAt(t, path, journal.Options{})
	if got, err := j.Known(); err != nil || got != (port.Known{}) {
		t.Fatalf("a new journal remembers a store: %+v, %v", got, err)
	}
	want := port.Known{Created: time.Date(2026, 12, 1, 10, 0, 0, 123456789, time.UTC), Generation: "g", Member: 7, Joined: time.Date(2026, 12, 1, 11, 0, 0, 5, time.UTC), Seen: 100}
	if err := j.Adopt(want); err != nil {
		t.Fatal(err)
	}
	again := func(want port.Known) {
		t.Helper()
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		j = journaltest.OpenAt(t, path, journal.Options{})
		if got, err := j.Known(); err != nil || got != want {
			t.Fatalf("remembered %+v, %v, want %+v", got, err, want)
		}
	}
	again(want)
	j.Saw(90) // lower than what is remembered: nothing
	again(want)
	j.Saw(120)
	want.Joined = want.Joined.Add(time.Hour)
	j.Joined(110, want.Joined)
	want.Member, want.Seen = 110, 120
	again(want)
	j.Saw(200)
	want.Generation, want.Seen = "h", 60 // the store went back, and the journal has settled with that
	if err := j.Adopt(want); err != nil {
		t.Fatal(err)
	}
	again(want)
	j.Saw(61)
	want.Seen = 61
	if got, err := j.Met(); err != nil || got != nil {
		t.Fatalf("whom nobody has met: %q, %v", got, err)
	}
	j.Meet([]byte("nobody"))
	j.Meet([]byte("others"))
	again(want)
	if got, err := j.Met(); err != nil || string(got) != "others" {
		t.Fatalf("met %q, %v", got, err)
	}
}

func TestWriteRefusals(t *testing.T) {
	j := journaltest.Open(t)
	done, cancel := context.WithCancel(context.Background())
	cancel()
	d := newDispatch()
	if err := j.Write(done, intent(d, time.Now())); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	both := intent(d, time.Now())
	both.Settled = d
	nan := effect(d, time.Now())
	nan.Effect.Reply.Details = envelope.Details{"f": func() {}}
	for name, e := range map[string]engine.Entry{"empty": {}, "two fields": both, "no dispatch": intent("", time.Now()), "details": nan} {
		if err := j.Write(context.Background(), intent(newDispatch(), time.Now()), e); err == nil {
			t.Errorf("%s: written", name)
		}
	}
	if facts := unsettled(t, j); len(facts) != 0 {
		t.Errorf("refused writes left %d facts", len(facts))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.Write(context.Background(), intent(d, time.Now())); !errors.Is(err, journal.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
	if _, err := j.Unsettled(); !errors.Is(err, journal.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
	j.Later(settled(d))
}

func TestOptionsAreValidated(t *testing.T) {
	for _, o := range []journal.Options{{LockTimeout: -1}, {Retention: -1}} {
		if _, err := journal.Open(filepath.Join(t.TempDir(), "journal.db"), o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// While one commit is on its way to the disk, all others gather for the next: many writers need few commits.
func TestWritersShareCommits(t *testing.T) {
	var mu sync.Mutex
	commits, entries := 0, 0
	path := filepath.Join(t.TempDir(), "journal.db")
	j := journaltest.OpenAt(t, path, journal.Options{OnCommit: func(d time.Duration, n int) {
		mu.Lock()
		defer mu.Unlock()
		commits, entries = commits+1, entries+n
	}})
	const writers, each = 2000, 3
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				d := newDispatch()
				if err := j.Write(context.Background(), intent(d, time.Now())); err != nil {
					t.Error(err)
				}
				j.Later(settled(d))
			}
		})
	}
	wg.Wait()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if want := 2 * writers * each; entries != want {
		t.Errorf("%d entries were committed, want %d", entries, want)
	}
	if most := writers * each / 10; commits > most {
		t.Errorf("%d writes took %d commits, want at most %d", writers*each, commits, most)
	}
	if r := journaltest.Verify(t, path); r.Intents != writers*each || r.Unsettled != 0 {
		t.Errorf("report %+v", r)
	}
}

// Later commits by itself when nobody else does, and the journal's timers run in a bubble.
func TestLaterCommitsByItself(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	synctest.Test(t, func(t *testing.T) {
		committed := make(chan int, 10)
		j, err := journal.Open(path, journal.Options{OnCommit: func(_ time.Duration, n int) { committed <- n }})
		if err != nil {
			t.Fatal(err)
		}
		d := newDispatch()
		write(t, j, intent(d, time.Now()))
		<-committed
		began := time.Now()
		j.Later(settled(d))
		j.Later(settled(newDispatch()))
		if n := <-committed; n != 2 {
			t.Errorf("%d entries, want 2", n)
		}
		if waited := time.Since(began); waited < 50*time.Millisecond || waited > 200*time.Millisecond {
			t.Errorf("committed after %s", waited)
		}
		if facts := unsettled(t, j); len(facts) != 0 {
			t.Errorf("still unsettled: %v", facts)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	})
	journaltest.Verify(t, path)
}

func TestFreeSpace(t *testing.T) {
	free, err := journaltest.Open(t).FreeSpace()
	if err != nil || free <= 0 || free > 1 {
		t.Errorf("free space %v, %v", free, err)
	}
}

func TestFilesArePrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data", "journal.db")
	journaltest.OpenAt(t, path, journal.Options{})
	for name, want := range map[string]os.FileMode{filepath.Dir(path): 0o700, path: 0o600, path + ".exists": 0o600} {
		s, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", name, got, want)
		}
	}
	names, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(names) != 2 {
		t.Errorf("%d files, want the journal and its marker: %v, %v", len(names), names, err)
	}
}
