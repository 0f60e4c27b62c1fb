package fieldcases

import (
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
)

// A provider that answers 202 and works on it: lookups that are told to come again, and those that find it under way, use up
// no attempt (three are allowed), and what the provider gives up in the end was sent once and ends the step.
func TestAcceptedAndLookedUp(t *testing.T) {
	t.Parallel()
	jobs := tool{name: "pay", write: true, window: 200 * time.Millisecond, lookups: 3, delay: 50 * time.Millisecond, verify: `      pending: "status == 200 && has(body.state) && body.state == 'running'"
      failed: [{when: "status == 200 && has(body.state) && body.state == 'failed'", code: JOB_DIED, category: dependency}]
`}
	for name, last := range map[string]*plan{"done": nil, "failed": {Body: `{"state":"failed","items":7}`}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 5*time.Second, jobs)
			w.both()
			w.provider.script(func(call) plan { return plan{Status: 202, Body: `{"state":"queued"}`, Commit: last == nil} })
			w.provider.scriptLookups(func(_ string, n int) *plan {
				switch {
				case n == 1:
					return &plan{Status: 429, RetryAfter: "1", Body: `{}`}
				case n == 2:
					return &plan{Status: 503, RetryAfter: "0", Body: `{}`}
				case n < 8:
					return &plan{Body: `{"state":"running","items":7}`}
				}
				return last
			})
			w.publish("r", nil, do("s", "pay"))
			if last == nil {
				w.mustEnd("r", envelope.OK, "")
			} else {
				w.mustEnd("r", envelope.Fatal, "job_died")
				mustLetters(w, 1)
			}
			if n := len(w.provider.callsOf(ref("r", "s"))); n != 1 {
				t.Errorf("sent %d times", n)
			}
			if gap := w.provider.lookupAt(1).Sub(w.provider.lookupAt(0)); gap < 990*time.Millisecond {
				t.Errorf("it was told to come again in 1s and came after %s", gap)
			}
			codes := map[envelope.Code]int{}
			for _, e := range w.record("r").History {
				if e.Kind == engine.EventVerify {
					codes[e.Code]++
				}
			}
			if codes[envelope.CodeOperationPending] != 1 || codes[envelope.CodeUpstreamRateLimited] != 1 || codes[envelope.CodeUpstreamUnavailable] != 1 {
				t.Errorf("the history has %v", codes)
			}
		})
	}
}
