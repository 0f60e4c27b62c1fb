package fair

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func of(limits map[string]Limit) *Shares {
	return New(func(tenant string) Limit { return limits[tenant] })
}

func TestWhoIsAwayComesFirstAndGetsNoCredit(t *testing.T) {
	s := of(nil)
	for range 1000 {
		s.Start("a")
		s.End("a")
	}
	for range 3 {
		s.Start("a")
	}
	if first, ok := s.First(slices.Values([]string{"a", "b"})); !ok || first != "b" {
		t.Fatalf("%s is first", first)
	}
	// b takes its turns now, and not for the thousand that it did not want.
	served := map[string]int{}
	for range 3 {
		s.End("a")
	}
	for range 100 {
		who, _ := s.First(slices.Values([]string{"a", "b"}))
		s.Start(who)
		s.End(who)
		served[who]++
	}
	if served["b"] > 52 || served["a"] > 52 {
		t.Errorf("served %v", served)
	}
}

// What is served is in proportion to the weights, one at a time and many at once.
func TestServedByWeight(t *testing.T) {
	limits := map[string]Limit{"a": {Weight: 3}, "b": {}, "c": {Weight: 2}}
	for _, slots := range []int{1, 6, 60} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			s := of(limits)
			random := rand.New(rand.NewPCG(1, uint64(slots)))
			var running []string
			served := map[string]int{}
			const n = 60_000
			for range n {
				who, _ := s.First(slices.Values([]string{"a", "b", "c"}))
				s.Start(who)
				served[who]++
				if running = append(running, who); len(running) == slots {
					i := random.IntN(len(running))
					s.End(running[i])
					running = slices.Delete(running, i, i+1)
				}
			}
			for tenant, l := range limits {
				want := float64(n) * l.weight() / 6
				if got := float64(served[tenant]); got < 0.95*want || got > 1.05*want {
					t.Errorf("%s was served %v times, wanted about %v", tenant, got, want)
				}
			}
		})
	}
}

// Some are served out of turn, so that the clock overtakes the others. They are served in turn all the same: nobody is left
// behind by chance.
func TestOvertakenTenantsAreServedInTurn(t *testing.T) {
	s := of(nil)
	random := rand.New(rand.NewPCG(7, 7))
	tenants := make([]string, 500)
	for i := range tenants {
		tenants[i] = fmt.Sprint("t", i)
	}
	served := map[string]int{}
	serve := func(tenant string) {
		s.Start(tenant)
		s.End(tenant)
		served[tenant]++
	}
	for range 20 * len(tenants) {
		first, _ := s.First(slices.Values(tenants))
		serve(first)
		if random.IntN(20) == 0 {
			serve(tenants[random.IntN(10)]) // whose messages come by themselves
		}
	}
	for _, tenant := range tenants[10:] {
		if n := served[tenant]; n < 17 || n > 25 {
			t.Errorf("%s was served %d times in twenty rounds", tenant, n)
		}
	}
}

func TestCapIsNeverPassed(t *testing.T) {
	s := of(map[string]Limit{"a": {Concurrency: 2}})
	for range 2 {
		if first, ok := s.First(slices.Values([]string{"a"})); !ok || first != "a" || s.Full("a") {
			t.Fatal("two may run")
		}
		s.Start("a")
	}
	if _, ok := s.First(slices.Values([]string{"a"})); ok || !s.Full("a") || s.Before("a", "b") || s.Even("a", "a") {
		t.Fatal("a third may not")
	}
	s.Start("b")
	s.Start("b")
	s.Start("b")
	if !s.Before("b", "a") {
		t.Error("who has reached its cap has no turn before anybody")
	}
	s.End("a")
	s.Promise("a")
	if !s.Full("a") {
		t.Error("what is promised counts")
	}
	s.Unpromise("a")
	if s.Full("a") {
		t.Error("a promise that is kept counts no more")
	}
}

func TestTenantsAreForgotten(t *testing.T) {
	s := of(nil)
	s.Start("busy")
	for i := range 10 * remembered {
		tenant := fmt.Sprint("t", i)
		s.Start(tenant)
		s.End(tenant)
	}
	if len(s.of) > 2*remembered+1 {
		t.Errorf("%d tenants are kept", len(s.of))
	}
	if s.of["busy"] == nil || s.of["busy"].running != 1 {
		t.Error("one that runs was forgotten")
	}
}

func TestQueueGoesRoundTheTenants(t *testing.T) {
	s := of(map[string]Limit{"capped": {Concurrency: 1}})
	q := NewQueue[int](s)
	for i := range 100 {
		q.Push("a", i)
		q.Push("capped", 1000+i)
	}
	q.Push("b", 500)
	if !q.Remove("a", 3) || q.Remove("a", 3) || q.Remove("nobody", 1) {
		t.Fatal("what waits can be taken out once")
	}
	var got []int
	for range 8 {
		tenant, ok := q.First()
		if !ok {
			t.Fatal("nobody waits")
		}
		s.Start(tenant)
		got = append(got, q.Pop(tenant))
	}
	if i := slices.Index(got, 500); i < 0 || i > 2 {
		t.Errorf("b came as number %d of %v", i, got)
	}
	if capped := slices.DeleteFunc(slices.Clone(got), func(v int) bool { return v < 1000 }); len(capped) != 1 {
		t.Errorf("%v of the capped one ran at once", capped)
	}
	if own := slices.DeleteFunc(slices.Clone(got), func(v int) bool { return v >= 500 }); !slices.Equal(own, []int{0, 1, 2, 4, 5, 6}) {
		t.Errorf("a's own came as %v", own)
	}
	if q.Len() != 201-1-8 {
		t.Errorf("%d wait", q.Len())
	}
}

func BenchmarkFirstOfAThousand(b *testing.B) {
	s := of(nil)
	tenants := make([]string, 1000)
	for i := range tenants {
		tenants[i] = fmt.Sprint("tenant-", i)
	}
	for b.Loop() {
		who, _ := s.First(slices.Values(tenants))
		s.Start(who)
		s.End(who)
	}
}
