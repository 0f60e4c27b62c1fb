package app_test

import (
	"testing"

	"github.com/agentrun/executor/internal/bus/bustest"
)

// Executors that were idle since the copy was made see no loss by themselves. They hear of it from the one that joined after
// it, and did all the writes, or wait for it.
func TestIdleExecutorsAndAnOlderCopy(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	idle := []*process{s.executor("e1"), s.executor("e2")}
	putBack := s.copied()
	for _, p := range idle {
		bustest.Eventually(t, "they are connected again", func() bool { status, _ := s.readyz(p); return status == 200 })
	}
	s.executor("e3")
	s.reconciler("r1")
	s.submitWrites()
	s.onceEach()
	putBack()
	s.submitWrites()
	s.onceEach()
}
