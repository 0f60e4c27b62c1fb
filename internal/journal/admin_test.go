package journal_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/journal/journaltest"
	"github.com/agentrun/executor/internal/port"
)

func TestCompactKeepsEverything(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	now := time.Now()
	j := journaltest.OpenAt(t, path, journal.Options{})
	var entries []engine.Entry
	for i := range 5000 {
		d := newDispatch()
		entries = append(entries, effect(d, now))
		if i%10 != 0 {
			entries = append(entries, intent(d, now))
		}
		if i%2 == 0 {
			entries = append(entries, settled(d))
		}
	}
	write(t, j, entries...)
	known := port.Known{Created: now.Add(-time.Hour).Round(0).UTC(), Generation: "g", Seen: 5, Joined: now.Round(0).UTC()}
	if err := j.Adopt(known); err != nil {
		t.Fatal(err)
	}
	holder := j.Holder()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	was, wasContents := journaltest.Verify(t, path), contents(t, path)

	before, after, err := journal.Compact(path)
	if err != nil || before != was.FileBytes || after <= 0 {
		t.Fatalf("compact: %d → %d, %v", before, after, err)
	}
	r := journaltest.Verify(t, path)
	if r.FileBytes != after || r.ID != was.ID || r.Starts != was.Starts || r.Intents != was.Intents || r.Effects != was.Effects || r.Unsettled != was.Unsettled {
		t.Errorf("after: %+v, before: %+v", r, was)
	}
	if contents(t, path) != wasContents {
		t.Error("the compacted journal has other facts")
	}
	names, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(names) != 2 {
		t.Errorf("left: %v, %v", names, err)
	}

	j = journaltest.OpenAt(t, path, journal.Options{})
	if j.Holder()[:16] != holder[:16] || j.Holder() == holder {
		t.Errorf("holder %s after %s", j.Holder(), holder)
	}
	if got, err := j.Known(); err != nil || got != known {
		t.Errorf("it knows the store %+v, %v", got, err)
	}
	write(t, j, intent(newDispatch(), now))
}

func TestCompactGivesSpaceBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	now := time.Now()
	j := journaltest.OpenAt(t, path, journal.Options{Retention: time.Hour, Now: func() time.Time { return now }})
	var entries []engine.Entry
	for range 20_000 {
		d := newDispatch()
		entries = append(entries, intent(d, now.Add(-2*time.Hour)), effect(d, now.Add(-2*time.Hour)), settled(d))
	}
	write(t, j, entries...)
	if n, err := j.Sweep(context.Background()); err != nil || n != 20_000 {
		t.Fatalf("sweep: %d, %v", n, err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	before, after, err := journal.Compact(path)
	if err != nil || after*10 > before {
		t.Errorf("compact: %d → %d, %v", before, after, err)
	}
	journaltest.OpenAt(t, path, journal.Options{})
}

// The commands never make a journal where there is none.
func TestAdminOfAMissingJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	_, check := journal.Check(path)
	list := journal.List(path, func(engine.Fact) error { return nil })
	_, _, compact := journal.Compact(path)
	for name, err := range map[string]error{"check": check, "list": list, "compact": compact} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if names, err := os.ReadDir(filepath.Dir(path)); err != nil || len(names) != 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}
