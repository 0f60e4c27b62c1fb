package queue

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

func takeAll(a *ahead, tenant string) (seqs []uint64) {
	for a.has(tenant) {
		seqs = append(seqs, a.take(tenant))
	}
	return seqs
}

func TestHigherPriorityFirstAndTheLowestWithinABound(t *testing.T) {
	t.Parallel()
	a := newAhead()
	a.add(1, "acme", "low", 0)
	for i := range 100 {
		a.add(uint64(2+i), "acme", fmt.Sprint("high", i), 9)
	}
	got := takeAll(a, "acme")
	want := []uint64{2, 3, 4, 5, 6, 7, 8, 1, 9, 10}
	if !slices.Equal(got[:len(want)], want) {
		t.Errorf("taken in the order %v, wanted %v", got[:len(want)], want)
	}
	if len(got) != 101 {
		t.Errorf("%d of 101 were taken", len(got))
	}
}

func TestSamePriorityInTheirOrder(t *testing.T) {
	t.Parallel()
	a := newAhead()
	for i := range 50 {
		a.add(uint64(1+i), "acme", fmt.Sprint("r", i), 5)
	}
	if !a.plain() {
		t.Error("one tenant and one priority need no choice")
	}
	if got := takeAll(a, "acme"); !slices.IsSorted(got) || len(got) != 50 {
		t.Errorf("taken in the order %v", got)
	}
}

// A run's jobs keep their order, whatever their priorities say: only its first is taken out of turn, also when that has been
// taken before the next is seen.
func TestJobsOfOneRunKeepTheirOrder(t *testing.T) {
	t.Parallel()
	a := newAhead()
	a.add(1, "acme", "r", 2)
	a.add(2, "acme", "r", 9)
	a.add(3, "acme", "r", 0)
	a.add(4, "acme", "other", 5)
	if got := takeAll(a, "acme"); !slices.Equal(got, []uint64{4, 1}) {
		t.Errorf("taken in the order %v", got)
	}
	a.add(5, "acme", "r", 9)
	a.add(6, "globex", "r", 9) // another run of that name
	if got := append(takeAll(a, "acme"), takeAll(a, "globex")...); !slices.Equal(got, []uint64{6}) {
		t.Errorf("taken later: %v", got)
	}
	a.delivered(5)
	a.prune()
	a.add(7, "acme", "r", 5)
	if got := takeAll(a, "acme"); !slices.Equal(got, []uint64{7}) {
		t.Errorf("once all of its earlier ones were delivered: %v", got)
	}
}

func TestWhatWasDeliveredIsForgotten(t *testing.T) {
	t.Parallel()
	a := newAhead()
	for i := range 10 {
		a.add(uint64(1+i), "acme", fmt.Sprint("r", i), 9-i)
	}
	a.add(11, "globex", "r", 5)
	a.delivered(9)
	if head, ok := a.head(); !ok || head != (marked{10, "acme"}) {
		t.Errorf("the head is %v", head)
	}
	if !a.has("acme") || a.take("acme") != 10 || a.has("acme") {
		t.Error("the last was not delivered, and is there to take once")
	}
	a.delivered(11)
	a.prune()
	if len(a.lanes) != 0 || len(a.order) != 0 || len(a.taken) != 0 || len(a.runs) != 0 || a.n != 0 || !a.plain() {
		t.Errorf("left: %d lanes, %d in order, %d taken, %d in all", len(a.lanes), len(a.order), len(a.taken), a.n)
	}
}

// Whatever comes, is delivered and is taken in whatever order: each is taken at most once, none that was delivered, a
// run's in order, and in the end nothing is kept.
func TestAheadInAnyOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		a := newAhead()
		taken := map[uint64]bool{}
		last := map[string]uint64{}
		runOf := map[uint64]string{}
		seq := uint64(0)
		for range 500 {
			switch random.IntN(4) {
			case 0, 1:
				seq++
				tenant, run := fmt.Sprint("t", random.IntN(4)), fmt.Sprint("r", random.IntN(20))
				runOf[seq] = tenant + run
				a.add(seq, tenant, run, random.IntN(priorities))
			case 2:
				a.delivered(a.floor + uint64(random.IntN(3)))
			case 3:
				for tenant := range maps.Keys(a.lanes) {
					if !a.has(tenant) {
						continue
					}
					got := a.take(tenant)
					if taken[got] || got <= a.floor || got > seq || last[runOf[got]] > got {
						t.Fatalf("seed %d: %d taken (floor %d, before it of its run %d, twice: %t)", seed, got, a.floor, last[runOf[got]], taken[got])
					}
					taken[got], last[runOf[got]] = true, got
					break
				}
			}
		}
		a.delivered(seq)
		a.prune()
		if len(a.lanes) != 0 || len(a.order) != 0 || len(a.taken) != 0 || len(a.runs) != 0 || a.n != 0 {
			t.Fatalf("seed %d: left: %d lanes, %d in order, %d taken, %d in all", seed, len(a.lanes), len(a.order), len(a.taken), a.n)
		}
	}
}
