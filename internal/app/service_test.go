package app

import (
	"sync"
	"sync/atomic"
	"testing"
)

// A call that comes while the service ends is answered before its end, or not at all: after it the connection is closed.
func TestNoCallIsAnsweredAfterTheServiceHasEnded(t *testing.T) {
	t.Parallel()
	for range 200 {
		s := &service{slots: make(chan struct{}, 4), ended: make(chan struct{})}
		var over, late atomic.Bool
		var callers sync.WaitGroup
		begin := make(chan struct{})
		for range 16 {
			callers.Go(func() {
				<-begin
				s.take(func() {
					if over.Load() {
						late.Store(true)
					}
				})
			})
		}
		close(begin)
		s.end()
		over.Store(true)
		callers.Wait()
		if late.Load() {
			t.Fatal("a call was answered after the end")
		}
	}
}
