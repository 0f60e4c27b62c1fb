package journal_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/journal/journaltest"
)

// smallDisk mounts a file system of 20 MB for the test.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	// Cleanups run last in first out: this one after those that close the journals.
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=20m"); err != nil {
		t.Skipf("a full disk cannot be tested: mounting a tmpfs needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// outcome of every write, as its caller saw it.
type outcomes struct {
	mu            sync.Mutex
	acked, failed []engine.DispatchID
}

// fillUp writes with 16 goroutines until each has been told that the disk is full.
func (o *outcomes) fillUp(t *testing.T, j *journal.Journal) {
	t.Helper()
	args := json.RawMessage(`"` + strings.Repeat("x", 10_000) + `"`)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 10_000 {
				d := newDispatch()
				e := intent(d, time.Now())
				e.Intent.Args = args
				err := j.Write(context.Background(), e)
				o.mu.Lock()
				if err == nil {
					o.acked = append(o.acked, d)
				} else {
					o.failed = append(o.failed, d)
				}
				o.mu.Unlock()
				if err != nil {
					if !errors.Is(err, journal.ErrFull) || !strings.Contains(err.Error(), "journal.db") {
						t.Errorf("a write to a full disk: %v", err)
					}
					return
				}
			}
			t.Error("the disk never was full")
		})
	}
	wg.Wait()
}

func (o *outcomes) check(t *testing.T, j *journal.Journal) {
	t.Helper()
	for _, d := range o.acked {
		if _, ok, err := j.Get(d); err != nil || !ok {
			t.Fatalf("an acknowledged write is there: %v, %v", ok, err)
		}
	}
	for _, d := range o.failed {
		if _, ok, err := j.Get(d); err != nil || ok {
			t.Fatalf("a refused write is there: %v, %v", ok, err)
		}
	}
}

// Field case 29: the journal's disk is full, and later freed. Writes say so, nothing that was acknowledged is lost,
// nothing that was refused is there, and the journal goes on by itself.
func TestFullDisk(t *testing.T) {
	dir := smallDisk(t)
	ballast := filepath.Join(dir, "ballast")
	path := filepath.Join(dir, "data", "journal.db")
	if err := os.WriteFile(ballast, make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	committed := make(chan struct{}, 1)
	opts := journal.Options{OnCommit: func(time.Duration, int) {
		select {
		case committed <- struct{}{}:
		default:
		}
	}}
	j := journaltest.OpenAt(t, path, opts)
	var o outcomes
	for round := range 3 {
		o.fillUp(t, j)
		o.check(t, j)
		if err := j.Err(); !errors.Is(err, journal.ErrFull) {
			t.Errorf("round %d: the last commit's error is %v", round, err)
		}
		if free, err := j.FreeSpace(); err != nil || free > 0.1 {
			t.Errorf("round %d: free space %v, %v", round, free, err)
		}
	}
	if len(o.acked) < 100 {
		t.Fatalf("only %d writes before the disk was full", len(o.acked))
	}

	select {
	case <-committed:
	default:
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	select {
	case <-committed: // nobody writes: the journal tries by itself
	case <-time.After(30 * time.Second):
		t.Fatal("the journal did not go on")
	}
	d := newDispatch()
	write(t, j, intent(d, time.Now()))
	o.acked = append(o.acked, d)
	if err := j.Err(); err != nil {
		t.Errorf("after a commit: %v", err)
	}
	o.fillUp(t, j)
	o.check(t, j)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}

	// An executor can be started again on the full disk.
	journaltest.Verify(t, path)
	o.check(t, journaltest.OpenAt(t, path, opts))
}
