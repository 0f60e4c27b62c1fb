package worker

import (
	"math/rand/v2"
	"testing"

	"github.com/agentrun/executor/internal/fair"
)

// offers is a puller that keeps count of what it was offered.
type offers struct {
	n     int
	waits string
}

func (o *offers) Want(n int)            { o.n += n }
func (o *offers) Waits() (string, bool) { return o.waits, o.waits != "" }
func (o *offers) Stop()                 {}

func newTestSlots(n int, limits map[string]fair.Limit) (*slots, *offers) {
	s := newSlots(n, fair.New(func(tenant string) fair.Limit { return limits[tenant] }))
	o := &offers{}
	s.start(o)
	return s, o
}

func TestLoopsGoBeforeNewJobsUnlessItIsAnothersTurn(t *testing.T) {
	s, o := newTestSlots(2, nil)
	for i, want := range []bool{true, true, false} {
		if s.delivered("acme") != want {
			t.Fatalf("delivery %d of two slots", i+1)
		}
	}
	o.n = 0 // the puller took them
	more := s.acquire("acme")
	s.release("acme", 1)
	if !isClosed(more) || o.n != 0 {
		t.Fatal("nobody else waits: the loop that has work goes on")
	}
	more = s.acquire("acme")
	o.waits = "globex"
	s.release("acme", 1)
	if isClosed(more) || o.n != 1 {
		t.Fatalf("another tenant waits in the queue and has nothing running; offered %d", o.n)
	}
	// It turns out to be gone: the loop must not wait for ever.
	o.waits = ""
	s.again()
	if !isClosed(more) || o.n != 0 {
		t.Fatal("what the slot was offered for is gone, and the loop still waits")
	}
}

func TestWhoIsAtItsCapWaitsAndOthersGoOn(t *testing.T) {
	s, o := newTestSlots(4, map[string]fair.Limit{"acme": {Concurrency: 1}})
	if !s.delivered("acme") || s.delivered("acme") {
		t.Fatal("one may run")
	}
	o.n-- // the first was taken; the second's was offered again
	second, third := s.acquire("acme"), s.acquire("acme")
	if !s.delivered("globex") || isClosed(second) || isClosed(third) {
		t.Fatal("only acme has a cap")
	}
	s.release("acme", 1)
	if !isClosed(second) || isClosed(third) {
		t.Fatal("one place is free for one")
	}
	s.abandon("acme", second) // it had come
	if !isClosed(third) {
		t.Fatal("the next gets it")
	}
}

// Whatever happens, no slot is lost, none is used twice, no cap is passed, and nobody waits beside a free slot.
func TestNoSlotIsLost(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 3))
		caps := map[string]fair.Limit{"a": {Concurrency: 3}, "b": {Weight: 2}}
		s, o := newTestSlots(8, caps)
		tenants := []string{"a", "b", "c"}
		held := map[string]int{}
		waiting := map[string][]chan struct{}{}
		for range 2000 {
			tenant := tenants[random.IntN(3)]
			switch random.IntN(5) {
			case 0:
				if o.n > 0 {
					o.n--
					if s.delivered(tenant) {
						held[tenant]++
					}
				}
			case 1:
				waiting[tenant] = append(waiting[tenant], s.acquire(tenant))
			case 2:
				if held[tenant] > 0 {
					held[tenant]--
					s.release(tenant, 1)
				}
			case 3:
				if n := len(waiting[tenant]); n > 0 {
					i := random.IntN(n)
					ch := waiting[tenant][i]
					waiting[tenant] = append(waiting[tenant][:i:i], waiting[tenant][i+1:]...)
					s.abandon(tenant, ch)
				}
			case 4:
				o.waits = []string{"", "a", "b", "c"}[random.IntN(4)]
				s.again()
			}
			for _, tenant := range tenants {
				keep := waiting[tenant][:0]
				for _, ch := range waiting[tenant] {
					if isClosed(ch) {
						held[tenant]++
					} else {
						keep = append(keep, ch)
					}
				}
				waiting[tenant] = keep
				if limit := caps[tenant].Concurrency; limit > 0 && held[tenant] > limit {
					t.Fatalf("seed %d: %d of %s hold a slot, its cap is %d", seed, held[tenant], tenant, limit)
				}
			}
			if sum := held["a"] + held["b"] + held["c"]; sum != s.used || s.used+s.offered != s.size || o.n != s.offered {
				t.Fatalf("seed %d: %d hold a slot, %d count as used, %d as offered (the puller has %d), of %d", seed, sum, s.used, s.offered, o.n, s.size)
			}
		}
		o.waits = ""
		s.again()
		for _, ch := range append(waiting["b"], waiting["c"]...) {
			if s.used < s.size && !isClosed(ch) {
				t.Fatalf("seed %d: a loop waits beside free slots", seed)
			}
		}
	}
}
