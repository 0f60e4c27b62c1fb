package journal_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/journal/journaltest"
)

// roleEnv makes the test binary play another process: "hold" opens the journal and waits for the end of its input,
// "write" writes for ever and prints each dispatch once it is acknowledged.
const roleEnv = "JOURNAL_TEST_ROLE"

func TestMain(m *testing.M) {
	if role, path, ok := strings.Cut(os.Getenv(roleEnv), ":"); ok {
		if err := play(role, path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func play(role, path string) error {
	j, err := journal.Open(path, journal.Options{})
	if err != nil {
		return err
	}
	fmt.Println("open")
	if role == "hold" {
		_, err := io.Copy(io.Discard, os.Stdin)
		return errors.Join(err, j.Close())
	}
	var mu sync.Mutex
	for range 32 {
		go func() {
			for {
				d := newDispatch()
				if j.Write(context.Background(), intent(d, time.Now())) != nil || j.Write(context.Background(), effect(d, time.Now())) != nil {
					os.Exit(1)
				}
				mu.Lock()
				fmt.Println(d)
				mu.Unlock()
			}
		}()
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// process starts the test binary in a role and returns the lines that it prints.
func process(t *testing.T, role, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleEnv+"="+role+":"+path)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // stays open until the process ends
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "open" {
		t.Fatalf("the process said %q", lines.Text())
	}
	return cmd, lines
}

func TestSecondProcessIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	cmd, _ := process(t, "hold", path)
	began := time.Now()
	_, err := journal.Open(path, journal.Options{})
	if !errors.Is(err, journal.ErrLocked) || !strings.Contains(err.Error(), path) {
		t.Errorf("open: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("refused after %s", took)
	}
	if _, err := journal.Check(path); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("check: %v", err)
	}
	if _, _, err := journal.Compact(path); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("compact: %v", err)
	}
	// A killed owner leaves no lock behind.
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	journaltest.OpenAt(t, path, journal.Options{})
}

// A process is killed while 32 goroutines write, again and again: every dispatch that it saw acknowledged is there with
// its intent and its effect, and the journal opens each time.
func TestKilledWriterLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	acked := map[engine.DispatchID]bool{}
	for round := range 5 {
		cmd, lines := process(t, "write", path)
		for n := 0; n < 200+300*round && lines.Scan(); n++ {
			acked[engine.DispatchID(lines.Text())] = true
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // printed before it died
			if d := lines.Text(); len(d) == 36 {
				acked[engine.DispatchID(d)] = true
			}
		}
		_ = cmd.Wait()

		journaltest.Verify(t, path)
		found := 0
		err := journal.List(path, func(f engine.Fact) error {
			if acked[f.Intent.Dispatch] && f.Effect != nil && f.Intent.Tenant == "acme" {
				found++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if found != len(acked) {
			t.Fatalf("round %d: %d of %d acknowledged dispatches are there", round, found, len(acked))
		}
	}
}

// The disk as it is at any moment is a journal: a copy of the file, made while it is written to between two commits, has
// what was acknowledged before.
func TestCopyOfARunningJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	j := journaltest.OpenAt(t, path, journal.Options{})
	for n := 1; n <= 20; n++ {
		d := newDispatch()
		write(t, j, intent(d, time.Now()))
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		again := journaltest.OpenAt(t, place(t, b), journal.Options{})
		if got := unsettled(t, again); len(got) != n || got[n-1].Intent.Dispatch != d {
			t.Fatalf("the copy after %d writes has %d facts", n, len(got))
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
