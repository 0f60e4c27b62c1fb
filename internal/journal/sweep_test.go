package journal_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/journal/journaltest"
)

func TestSweepKeepsWhatIsYoungOrUnsettled(t *testing.T) {
	now := time.Now()
	j := journaltest.OpenAt(t, filepath.Join(t.TempDir(), "journal.db"),
		journal.Options{Retention: time.Hour, Now: func() time.Time { return now }})
	old, young := now.Add(-2*time.Hour), now.Add(-time.Minute)
	ids := map[string]engine.DispatchID{}
	add := func(name string, at, effectAt time.Time, done bool) {
		d := newDispatch()
		if name == "old, other id" || name == "young, other id" {
			d = engine.DispatchID(name)
		}
		ids[name] = d
		write(t, j, intent(d, at))
		if !effectAt.IsZero() {
			write(t, j, effect(d, effectAt))
		}
		if done {
			write(t, j, settled(d))
		}
	}
	add("old and settled", old, old, true)
	add("old and settled without effect", old, time.Time{}, true)
	add("old and unsettled", old, old, false)
	add("old with a young effect", old, young, true)
	orphan := newDispatch()
	write(t, j, effect(orphan, old))
	add("last old", old, old, true)
	add("young", young, young, true)
	add("young and unsettled", young, time.Time{}, false)
	add("old, other id", old, old, true)
	add("young, other id", young, young, true)

	removed, err := j.Sweep(context.Background())
	if err != nil || removed != 5 {
		t.Errorf("removed %d, %v; want 5", removed, err)
	}
	gone := []string{"old and settled", "old and settled without effect", "last old", "old, other id"}
	for name, d := range ids {
		if _, ok, err := j.Get(d); err != nil || ok == slices.Contains(gone, name) {
			t.Errorf("%s: there is %v, %v", name, ok, err)
		}
	}
	if _, ok, err := j.Get(orphan); ok || err != nil {
		t.Errorf("an old effect without intent is there: %v, %v", ok, err)
	}
	if again, err := j.Sweep(context.Background()); err != nil || again != 0 {
		t.Errorf("a second sweep removed %d, %v", again, err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := j.Sweep(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}

// More than one transaction's worth, with unsettled facts among it.
func TestSweepGoesOnBehindWhatItKeeps(t *testing.T) {
	now := time.Now()
	j := journaltest.OpenAt(t, filepath.Join(t.TempDir(), "journal.db"),
		journal.Options{Retention: time.Hour, Now: func() time.Time { return now.Add(2 * time.Hour) }})
	var entries []engine.Entry
	want := 0
	for i := range 4000 {
		d := newDispatch()
		entries = append(entries, intent(d, now))
		if i > 1500 && i%7 != 0 {
			entries = append(entries, settled(d))
			want++
		}
	}
	write(t, j, entries...)
	if removed, err := j.Sweep(context.Background()); err != nil || removed != want {
		t.Errorf("removed %d, %v; want %d", removed, err, want)
	}
	if left := len(unsettled(t, j)); left != 4000-want {
		t.Errorf("%d unsettled are left, want %d", left, 4000-want)
	}
}

// Field case 28: 200,000 jobs with a short retention. The file stays bounded, and a commit at the end takes about as long
// as one of a new journal. Under -short a twentieth of the jobs and of the retention.
func TestManyJobsWithShortRetention(t *testing.T) {
	const writers = 64
	jobs, keep := 200_000, 5_000 // keep: jobs within the retention
	if testing.Short() {
		jobs, keep = jobs/20, keep/20
	}
	path := filepath.Join(t.TempDir(), "journal.db")
	var mu sync.Mutex
	clock := time.Now()
	j := journaltest.OpenAt(t, path, journal.Options{
		Retention: time.Duration(keep) * time.Second, // a job a second, by the test's clock
		Now:       func() time.Time { mu.Lock(); defer mu.Unlock(); return clock },
	})
	var size int64 // when the journal is as full as it gets
	work := make(chan time.Time, writers)
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for at := range work {
				d := newDispatch()
				if err := j.Write(context.Background(), intent(d, at)); err != nil {
					t.Error(err)
				}
				if err := j.Write(context.Background(), effect(d, at)); err != nil {
					t.Error(err)
				}
				j.Later(settled(d))
			}
		})
	}
	for n := 1; n <= jobs; n++ {
		mu.Lock()
		clock = clock.Add(time.Second)
		at := clock
		mu.Unlock()
		work <- at
		if n%(keep/5) == 0 {
			if _, err := j.Sweep(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if n == 4*keep {
			size = fileSize(t, path)
		}
	}
	close(work)
	wg.Wait()
	if end := fileSize(t, path); end > 2*size {
		t.Errorf("the file grew from %d to %d bytes", size, end)
	}
	// Its commits beside those of a journal without a past, in turn: whatever else the machine does slows both down.
	fresh := journaltest.OpenAt(t, filepath.Join(t.TempDir(), "journal.db"), journal.Options{})
	var old, young []time.Duration
	commit := func(j *journal.Journal) time.Duration {
		began := time.Now()
		if err := j.Write(context.Background(), intent(newDispatch(), clock)); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	for range 300 {
		old, young = append(old, commit(j)), append(young, commit(fresh))
	}
	slices.Sort(old)
	slices.Sort(young)
	t.Logf("a commit after %d jobs takes %s, in a new journal %s", jobs, old[len(old)/2], young[len(young)/2])
	if old[len(old)/2] > 4*young[len(young)/2] {
		t.Errorf("the median commit takes %s, in a new journal %s", old[len(old)/2], young[len(young)/2])
	}
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	s, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return s.Size()
}
