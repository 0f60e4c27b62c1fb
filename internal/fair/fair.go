// Package fair decides whose turn it is when several tenants want more than there is.
//
// A tenant's turn comes the sooner the less of it is running for its weight, and, where that is equal, the less it has been
// served: start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996), with what runs now before what has been served. A
// tenant that was away gets its turn at once, and no credit for the time that it did not use.
package fair

import (
	"hash/maphash"
	"iter"
	"sync"
)

// Limit is one tenant's part. The zero value is no cap, and the weight 1.
type Limit struct {
	Concurrency int // at most so many at once; 0: any number
	Weight      int // share beside others; 0 counts as 1
}

// Shares keeps what each tenant has running. Safe for concurrent use; no method waits or calls out, except to the function
// that New was given and to the iterator that First was given.
type Shares struct {
	limit func(tenant string) Limit
	seed  maphash.Seed

	mu    sync.Mutex
	of    map[string]*share
	clock float64 // the start tag of the latest start
}

type share struct {
	running  int
	promised int
	finish   float64 // the finish tag of the tenant's latest start
}

// New makes Shares. limit is asked each time, so that a reloaded config counts at once; nil: every tenant is alike.
func New(limit func(tenant string) Limit) *Shares {
	if limit == nil {
		limit = func(string) Limit { return Limit{} }
	}
	return &Shares{limit: limit, seed: maphash.MakeSeed(), of: map[string]*share{}}
}

func (l Limit) weight() float64 { return float64(max(l.Weight, 1)) }

func (l Limit) full(n int) bool { return l.Concurrency > 0 && n >= l.Concurrency }

// turn is a tenant's place in the order; the least comes first.
type turn struct {
	load, start, finish float64
	tie                 uint64
}

func (a turn) before(b turn) bool {
	switch {
	case a.load != b.load:
		return a.load < b.load
	case a.start != b.start:
		return a.start < b.start
	case a.finish != b.finish:
		return a.finish < b.finish // of those that the clock has overtaken, who was served least
	}
	return a.tie < b.tie
}

// turnOf is asked with s.mu held.
func (s *Shares) turnOf(tenant string) (t turn, full bool) {
	l := s.limit(tenant)
	t = turn{start: s.clock, tie: maphash.String(s.seed, tenant)}
	if h := s.of[tenant]; h != nil {
		t.load = float64(h.running+h.promised) / l.weight()
		t.start, t.finish = max(t.start, h.finish), h.finish
		full = l.full(h.running + h.promised)
	}
	return t, full
}

// First returns the one of these tenants whose turn it is; those that have reached their cap have none.
func (s *Shares) First(tenants iter.Seq[string]) (first string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var best turn
	for tenant := range tenants {
		if t, full := s.turnOf(tenant); !full && (!ok || t.before(best)) {
			best, first, ok = t, tenant, true
		}
	}
	return first, ok
}

// Before reports whether a's turn comes strictly before b's; never if a has reached its cap, always if only b has.
func (s *Shares) Before(a, b string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ta, full := s.turnOf(a)
	if full {
		return false
	}
	tb, full := s.turnOf(b)
	return full || ta.before(tb)
}

// Even reports whether tenant may be served in first's turn without being unfair: it has no more running for its weight, was
// not to begin later, and is at most the one start ahead that it would get now.
func (s *Shares) Even(tenant, first string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, full := s.turnOf(tenant)
	f, _ := s.turnOf(first)
	return !full && t.load <= f.load && t.start <= f.start && t.finish <= f.finish+1/s.limit(tenant).weight()
}

// Capped reports whether the tenant has a cap at all.
func (s *Shares) Capped(tenant string) bool { return s.limit(tenant).Concurrency > 0 }

// Full reports whether the tenant has reached its cap.
func (s *Shares) Full(tenant string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, full := s.turnOf(tenant)
	return full
}

// Start notes that one more of the tenant's runs; End, that it has ended.
func (s *Shares) Start(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.get(tenant)
	h.running++
	s.clock = max(s.clock, h.finish)
	h.finish = s.clock + 1/s.limit(tenant).weight()
}

// End is the opposite of Start.
func (s *Shares) End(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.get(tenant).running--
	s.forget()
}

// Promise counts one of the tenant's as running that is about to start; Unpromise ends that, whether or not it has started.
func (s *Shares) Promise(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.get(tenant).promised++
}

// Unpromise is the opposite of Promise.
func (s *Shares) Unpromise(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.get(tenant).promised--
	s.forget()
}

func (s *Shares) get(tenant string) *share {
	h := s.of[tenant]
	if h == nil {
		h = &share{}
		s.of[tenant] = h
	}
	return h
}

// remembered is how many tenants are kept before those are forgotten of whom nothing is left to know.
const remembered = 1024

func (s *Shares) forget() {
	if len(s.of) <= remembered {
		return
	}
	for tenant, h := range s.of {
		if h.running == 0 && h.promised == 0 && (h.finish <= s.clock || len(s.of) > 2*remembered) {
			delete(s.of, tenant)
		}
	}
}
