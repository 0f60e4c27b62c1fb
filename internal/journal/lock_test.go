package journal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Field case 30: a file system without locks, in the ways in which the system says so.
func TestWithoutLocksIsRefused(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOLCK, unix.ENOSYS, unix.EOPNOTSUPP, unix.EINVAL} {
		path := filepath.Join(t.TempDir(), "journal.db")
		_, err := Open(path, Options{flock: func(int, int) error { return errno }})
		if !errors.Is(err, ErrNoLocks) || !errors.Is(err, errno) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	path := filepath.Join(t.TempDir(), "journal.db")
	if _, err := Open(path, Options{flock: func(int, int) error { return unix.EBADF }}); err == nil || errors.Is(err, ErrNoLocks) {
		t.Errorf("another error of the lock: %v", err)
	}
}

// An interrupted system call is made again.
func TestInterruptedLock(t *testing.T) {
	n := 0
	j, err := Open(filepath.Join(t.TempDir(), "journal.db"), Options{flock: func(fd, how int) error {
		if n++; n < 3 {
			return unix.EINTR
		}
		return unix.Flock(fd, how)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// The journal was made, and its marker, between this process's look at the file and its look at the marker.
func TestMadeByAnotherMeanwhile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	j, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := create(path); err != nil {
		t.Error(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := create(path); !errors.Is(err, ErrDamaged) {
		t.Errorf("the file is gone, and its marker is there: %v", err)
	}
}

// Of executors that start at once on one new directory exactly one gets the journal, and nothing is left behind.
func TestOneOfManyOpenersWins(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data", "journal.db")
	var mu sync.Mutex
	var won []*Journal
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			j, err := Open(path, Options{LockTimeout: 1})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, j)
			} else if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), path) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d openers have the journal", len(won))
	}
	if err := won[0].Close(); err != nil {
		t.Fatal(err)
	}
	j, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if j.Holder()[17:] != "2" {
		t.Errorf("the second start is %s", j.Holder())
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(names) != 2 {
		t.Errorf("left: %v, %v", names, err)
	}
}
