package journal

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentrun/executor/internal/engine"
)

func testIntent(d engine.DispatchID) engine.Entry {
	return engine.Entry{Intent: &engine.Intent{Dispatch: d, Tenant: "acme", RunID: "r", Step: "s", Tool: "t", Args: []byte(`{}`)}}
}

func openTemp(t *testing.T, o Options) (*Journal, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal.db")
	j, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j, path
}

// A failed sync fails the write, and what bbolt believes to be on disk is put there before anything else is written. The
// journal's descriptor is swapped for one of /dev/null: writes seem to work, and a sync is an error.
func TestFailedSync(t *testing.T) {
	j, path := openTemp(t, Options{})
	ctx := context.Background()
	if err := j.Write(ctx, testIntent("before")); err != nil {
		t.Fatal(err)
	}
	fd := int(j.file.Fd())
	real, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
		t.Fatal(err)
	}
	for _, d := range []engine.DispatchID{"lost 1", "lost 2"} { // the second meets the repair, which fails too
		if err := j.Write(ctx, testIntent(d)); err == nil || errors.Is(err, ErrFull) || j.Err() == nil {
			t.Errorf("a write whose sync failed: %v, %v", err, j.Err())
		}
	}
	if err := unix.Dup3(real, fd, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(real); err != nil {
		t.Fatal(err)
	}
	if err := j.Write(ctx, testIntent("after")); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	var got []engine.DispatchID
	if err := List(path, func(f engine.Fact) error { got = append(got, f.Intent.Dispatch); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0] != "after" || got[1] != "before" {
		t.Errorf("facts %q", got)
	}
}

// Damage that comes while the journal is open ends the writing and not the process: a page that is overwritten makes
// bbolt panic, a file that is cut off makes the mapped memory fault.
func TestDamageWhileOpen(t *testing.T) {
	for name, hurt := range map[string]func(path string) error{
		"overwritten": func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt(make([]byte, 16<<10), 2*int64(os.Getpagesize()))
			return errors.Join(err, f.Close())
		},
		"cut off": func(path string) error { return os.Truncate(path, 2*int64(os.Getpagesize())) },
	} {
		t.Run(name, func(t *testing.T) {
			j, path := openTemp(t, Options{})
			ctx := context.Background()
			if err := j.Write(ctx, testIntent("d")); err != nil {
				t.Fatal(err)
			}
			if err := hurt(path); err != nil {
				t.Fatal(err)
			}
			if _, _, err := j.Get("d"); !errors.Is(err, ErrDamaged) {
				t.Errorf("get: %v", err)
			}
			for range 2 {
				if err := j.Write(ctx, testIntent("e")); !errors.Is(err, ErrDamaged) {
					t.Errorf("write: %v", err)
				}
			}
			if !errors.Is(j.Err(), ErrDamaged) {
				t.Errorf("the last commit's error is %v", j.Err())
			}
			j.Later(engine.Entry{Settled: "d"})
			if err := j.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			if _, err := Open(path, Options{}); !errors.Is(err, ErrDamaged) {
				t.Errorf("open: %v", err)
			}
		})
	}
}

// A writer whose context ends while the commit before it is under way gets the context's error, and its entry may be
// there all the same.
func TestContextEndsWhileWaiting(t *testing.T) {
	under, goOn := make(chan struct{}), make(chan struct{})
	first := true
	j, _ := openTemp(t, Options{OnCommit: func(time.Duration, int) {
		if first {
			first = false
			close(under)
			<-goOn
		}
	}})
	done := make(chan error, 1)
	go func() { done <- j.Write(context.Background(), testIntent("a")) }()
	<-under
	ctx, cancel := context.WithCancel(context.Background())
	second := make(chan error, 1)
	go func() { second <- j.Write(ctx, testIntent("b")) }()
	for waiting := 0; waiting == 0; {
		j.mu.Lock()
		waiting = len(j.queue)
		j.mu.Unlock()
	}
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("the second write: %v", err)
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := j.Close(); err != nil { // commits what waits
		t.Fatal(err)
	}
	found := false
	if err := List(j.Path(), func(f engine.Fact) error { found = found || f.Intent.Dispatch == "b"; return nil }); err != nil || !found {
		t.Errorf("the entry that waited when the journal was closed: %v, %v", found, err)
	}
}

// What waits is committed in pieces of bounded size, and each call stays whole.
func TestLargeWritesAreSplit(t *testing.T) {
	c := committer{}
	c.init()
	for _, n := range []int{batchBytes + 1, 10, batchBytes - 5, batchBytes - 10, 10, 10} {
		c.enqueue(&request{bytes: n})
	}
	var got []int
	for len(c.queue) > 0 {
		reqs, _, _ := c.next()
		got = append(got, len(reqs))
	}
	if want := []int{1, 1, 1, 2, 1}; !slices.Equal(got, want) {
		t.Errorf("pieces of %v requests, want %v", got, want)
	}
}
