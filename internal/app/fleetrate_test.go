package app_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// A fleet-wide rate holds over four executors: each keeps to its part of it. More than a tenth above it is too much. Less is
// what a busy machine makes of it; half of it would be a part that is wrong. TestFleetCount and TestGreetingsAreCounted
// pin the parts themselves.
func TestFleetRate(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: a rate shows over ten seconds of wall time only")
	}
	const perSecond, jobs = 40, 240
	s := newStack(t)
	config := strings.ReplaceAll(stackConfig, "PROVIDER", s.URL) + fmt.Sprintf(`  shared:
    effect: read
    http: {method: GET, url: "%s/shared"}
    rate: {per_second: %d, burst: 8, scope: fleet}
`, s.URL, perSecond)
	if err := os.WriteFile(s.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var at []time.Time
	all := make(chan struct{})
	s.answer(func(r *http.Request, _ string, _ int) (int, string) {
		mu.Lock()
		defer mu.Unlock()
		if at = append(at, time.Now()); len(at) == jobs {
			close(all)
		}
		return 200, `{"id":"x"}`
	})
	for i := range 4 {
		s.executor(fmt.Sprintf("w%d", i+1), "--concurrency", "64")
	}
	s.reconciler("rec")
	// The executors learn of one another by their greetings: that time is the subject here.
	time.Sleep(1500 * time.Millisecond)
	for i := range jobs {
		s.submit("acme", fmt.Sprintf("run-%d", i), []M{step("s", "shared", nil)})
	}
	select {
	case <-all:
	case <-time.After(time.Minute):
		t.Fatalf("%d of %d calls after a minute", len(at), jobs)
	}
	mu.Lock()
	defer mu.Unlock()
	// Without the beginning, in which they get to know one another, and the tail, for which some have no jobs left.
	const first, last = 80, 200
	rate := float64(last-first) / at[last].Sub(at[first]).Seconds()
	t.Logf("%.1f calls per second, configured are %d", rate, perSecond)
	if rate > 1.1*perSecond || rate < 0.5*perSecond {
		t.Fatalf("%.1f calls per second over four executors, configured are %d", rate, perSecond)
	}
}
