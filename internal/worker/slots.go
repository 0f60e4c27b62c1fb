package worker

import "sync"

// slots counts calls in flight. Every slot is in use by a loop, or offered to the puller, or on its way to a loop that
// waits for it: nothing is pulled that has no slot.
type slots struct {
	mu      sync.Mutex
	puller  Puller
	size    int
	used    int
	offered int
	queue   []chan struct{}
}

func newSlots(n int) *slots { return &slots{size: n} }

func (s *slots) start(p Puller) {
	s.mu.Lock()
	s.puller = p
	n := s.size - s.used
	s.offered = n
	s.mu.Unlock()
	p.Want(n)
}

// delivered turns an offered slot into a used one. It is false if the offer was taken back while the delivery was on its
// way: then the loop must acquire a slot.
func (s *slots) delivered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offered == 0 {
		return false
	}
	s.offered--
	s.used++
	return true
}

// acquire returns a channel that is closed when the caller has a slot. Loops that have work go before new jobs.
func (s *slots) acquire() <-chan struct{} {
	ch := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.offered > 0:
		s.offered--
		s.used++
		s.puller.Want(-1)
		close(ch)
	case s.used < s.size:
		s.used++
		close(ch)
	default:
		s.queue = append(s.queue, ch)
	}
	return ch
}

// abandon gives up waiting for a slot, or gives it back if it has come.
func (s *slots) abandon(ch <-chan struct{}) {
	s.mu.Lock()
	for i, q := range s.queue {
		if q == ch {
			s.queue = append(s.queue[:i], s.queue[i+1:]...)
			s.mu.Unlock()
			return
		}
	}
	s.mu.Unlock()
	s.release(1)
}

// release gives n slots back: to loops that wait, else to the puller.
func (s *slots) release(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; n > 0; n-- {
		if len(s.queue) > 0 {
			close(s.queue[0])
			s.queue = s.queue[1:]
			continue
		}
		s.used--
		if s.puller != nil && s.used+s.offered < s.size {
			s.offered++
			s.puller.Want(1)
		}
	}
}
