package app_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
)

// cloned copies the data directory of an executor that is stopped.
func (s *stack) cloned(id, as string) {
	s.t.Helper()
	if err := os.CopyFS(filepath.Join(s.dir, as), os.DirFS(filepath.Join(s.dir, id))); err != nil {
		s.t.Fatal(err)
	}
}

// begin starts an executor and returns what its serve returns, and the channel that is closed when it is ready.
func (s *stack) begin(id string) (ready chan struct{}, ended chan error) {
	s.t.Helper()
	var c app.ExecutorConfig
	all := append([]string{"--nats", s.server.URL, "--config", s.config, "--id", id, "--http", "127.0.0.1:0", "--data", filepath.Join(s.dir, id)}, s.args...)
	if err := app.Defaults(&c, all); err != nil {
		s.t.Fatal(err)
	}
	ready, ended = make(chan struct{}), make(chan error, 1)
	c.OnReady = func(string) { close(ready) }
	ctx, cancel := context.WithCancel(context.Background())
	s.t.Cleanup(cancel)
	go func() { ended <- app.Executor(ctx, c) }()
	return ready, ended
}

// Two executors on copies of one journal: the second does not start, and says whose copy it has. A restart is no copy.
func TestACopyOfAJournalIsRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	if err := s.executor("e1").stop(); err != nil {
		t.Fatal(err)
	}
	s.cloned("e1", "e2")
	e1 := s.executor("e1") // its own journal again: nobody is in its way
	ready, ended := s.begin("e2")
	select {
	case <-ready:
		t.Fatal("an executor starts on a copy of a journal that is in use")
	case err := <-ended:
		for _, want := range []string{"another executor works on a copy of this journal: e1 on ", ", and so has e2 on ", "empty --data directory"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not in %v", want, err)
			}
		}
	}
	if status, body := s.readyz(e1); status != 200 {
		t.Errorf("the first: %s", body)
	}
}

// Both start while they cannot hear each other: when they can, one stops, and one goes on.
func TestTwoCopiesThatStartAtOnce(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	if err := s.executor("e1").stop(); err != nil {
		t.Fatal(err)
	}
	s.cloned("e1", "e2")
	_, ended1 := s.begin("e1")
	_, ended2 := s.begin("e2")
	var first error
	var left chan error
	select {
	case first = <-ended1:
		left = ended2
	case first = <-ended2:
		left = ended1
	}
	if first == nil || !strings.Contains(first.Error(), "a copy of this journal") {
		t.Fatalf("one ended with %v", first)
	}
	s.submit("acme", "r", []M{step("p", "pay", nil)})
	bustest.Eventually(t, "the other one works", func() bool { return s.count("POST /pay") == 1 })
	select {
	case err := <-left:
		t.Fatalf("the other one ended too: %v", err)
	default:
	}
}
