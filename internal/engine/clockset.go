package engine

import (
	"time"

	"github.com/agentrun/executor/pkg/run"
)

// clockSlack is by how much two processes' pictures of the server's clock may differ without anything being wrong.
const clockSlack = time.Second

// ClockSet cuts waits that were written while the server's clock was ahead of what it shows now. None lasts longer, from now
// on, than it was meant to last as a whole: a retry its backoff or Retry-After, a lookup or a resend the longest that its tool's
// policy allows. now must be a time that the server's clock has not passed. The deadline stays: it was promised as a time.
func (r *Run) ClockSet(tools run.Tools, now run.Time) Verdict {
	if r.closed() {
		return Dropped
	}
	v := Dropped
	for _, s := range r.Steps {
		tool, known := tools.Tool(s.Tool)
		switch {
		case s.State == run.Waiting && s.WaitFrom > now.Add(clockSlack):
			s.NotBefore, s.WaitFrom = now.Add(s.NotBefore.Sub(s.WaitFrom)), now
		case s.State == run.Waiting && s.WaitFrom == 0 && known && s.NotBefore > now.Add(longest(tool)):
			s.NotBefore, s.WaitFrom = now.Add(longest(tool)), now // written by an earlier version
		case s.State == run.Unknown && s.Doubt.WaitFrom > now.Add(clockSlack):
			s.Doubt.shift(now.Sub(s.Doubt.WaitFrom))
		case s.State == run.Unknown && known && s.Doubt.Next > now.Add(longest(tool)):
			s.Doubt.shift(now.Add(longest(tool)).Sub(s.Doubt.Next))
		default:
			continue
		}
		v = Applied
	}
	if v == Applied {
		r.conclude(now)
	}
	return v
}

// shift moves a wait in time.
func (d *Doubt) shift(by time.Duration) {
	d.Next = d.Next.Add(by)
	if d.NotBefore != 0 {
		d.NotBefore = d.NotBefore.Add(by)
	}
	if d.WaitFrom != 0 {
		d.WaitFrom = d.WaitFrom.Add(by)
	}
}

// longest is the longest wait that a tool's policy allows.
func longest(t *run.Tool) time.Duration {
	backoff := time.Duration(float64(t.Retry.MaxDelay) * (1 + t.Retry.Jitter))
	return max(backoff, t.Retry.MaxRetryAfter) + clockSlack
}
