package run_test

import (
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/run"
)

func TestBackoff(t *testing.T) {
	p := run.Retry{InitialDelay: 100 * time.Millisecond, MaxDelay: 350 * time.Millisecond, Multiplier: 2, Jitter: 0.2}
	for n, want := range map[int]time.Duration{1: 100, 2: 200, 3: 350, 4: 350, 1000: 350} {
		if got := p.Delay(n, 0); got != want*time.Millisecond {
			t.Errorf("delay %d is %s", n, got)
		}
		if low, high := p.Delay(n, 0), p.Delay(n, 0.999); high < low || high > low*6/5 {
			t.Errorf("jitter of %d takes %s to %s", n, low, high)
		}
	}
}
