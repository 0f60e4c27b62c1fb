package worker

import (
	"sync"

	"github.com/agentrun/executor/internal/fair"
)

// slots counts calls in flight. Every slot is in use by a loop, or offered to the puller, or on its way to a loop that
// waits for it: nothing is pulled that has no slot. Who is next is decided by the tenants' shares, among the loops that wait
// and what the puller knows to wait in the queues.
type slots struct {
	shares  *fair.Shares
	mu      sync.Mutex
	puller  Puller
	size    int
	used    int
	offered int
	queue   *fair.Queue[chan struct{}]
}

func newSlots(n int, shares *fair.Shares) *slots {
	return &slots{size: n, shares: shares, queue: fair.NewQueue[chan struct{}](shares)}
}

func (s *slots) start(p Puller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.puller = p
	s.assign()
}

// delivered turns an offered slot into one that the tenant uses. It is false if the offer was taken back while the delivery
// was on its way, or if the tenant has reached its cap: then the loop must acquire a slot.
func (s *slots) delivered(tenant string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offered == 0 {
		return false
	}
	s.offered--
	if s.shares.Full(tenant) {
		s.assign()
		return false
	}
	s.use(tenant)
	return true
}

func (s *slots) use(tenant string) {
	s.used++
	s.shares.Start(tenant)
}

// acquire returns a channel that is closed when the caller has a slot. Loops that have work go before new jobs, unless it
// is another tenant's turn.
func (s *slots) acquire(tenant string) chan struct{} {
	ch := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.Push(tenant, ch)
	s.assign()
	return ch
}

// abandon gives up waiting for a slot, or gives it back if it has come.
func (s *slots) abandon(tenant string, ch chan struct{}) {
	s.mu.Lock()
	waited := s.queue.Remove(tenant, ch)
	s.mu.Unlock()
	if !waited {
		s.release(tenant, 1)
	}
}

// release gives n slots of the tenant's back.
func (s *slots) release(tenant string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		s.used--
		s.shares.End(tenant)
	}
	s.assign()
}

// again decides anew: what the puller was offered a slot for may be gone.
func (s *slots) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.assign()
}

// assign hands slots that are not in use to loops that wait, and offers the others to the puller; s.mu is held.
func (s *slots) assign() {
	for s.used < s.size {
		tenant, ok := s.queue.First()
		if !ok || s.theirs(tenant) {
			break
		}
		if s.used+s.offered >= s.size {
			s.offered--
			s.puller.Want(-1)
		}
		s.use(tenant)
		close(s.queue.Pop(tenant))
	}
	if n := s.size - s.used - s.offered; s.puller != nil && n > 0 {
		s.offered += n
		s.puller.Want(n)
	}
}

// theirs reports whether it is the turn of a tenant in the queues, before this one's.
func (s *slots) theirs(tenant string) bool {
	if s.puller == nil {
		return false
	}
	waits, ok := s.puller.Waits()
	return ok && s.shares.Before(waits, tenant)
}
