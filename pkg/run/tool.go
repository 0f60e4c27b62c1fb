package run

import (
	"encoding/json"
	"time"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
)

// Tool is what the core asks about a tool: its policy, and the checks that its config describes. All functions are pure
// and safe for concurrent use; a nil function allows everything.
type Tool struct {
	Name             string
	Effect           envelope.Effect
	Owner            string // wins over the run's owner for this tool's dead letters when set
	Timeout          time.Duration
	Retry            Retry
	Verify           *Verify // nil: the tool offers no lookup
	IdempotentFor    time.Duration
	KeyPerAttempt    bool
	RequiresApproval bool
	PoisonAfter      int // losses of one step in one episode before it is POISON_JOB
	MaxResultBytes   int

	// Allowed says whether this tenant and actor may use the tool.
	Allowed func(tenant, actor string) bool
	// Fits validates resolved args; on failure it returns the JSON Pointer of the first offending place and false.
	Fits func(args *strictjson.Args) (field string, ok bool)
	// CheckResult validates a result that a person or a program reported.
	CheckResult func(result json.RawMessage) bool
}

// Retry is a tool's policy for another attempt (contract §10).
type Retry struct {
	MaxAttempts   int
	InitialDelay  time.Duration
	MaxDelay      time.Duration
	Multiplier    float64
	Jitter        float64 // 0.2: up to a fifth longer
	MaxRetryAfter time.Duration
}

// Delay is the wait before the attempt that follows failure number n (from 1): the policy's backoff, lengthened by the
// jitter. r is a random number in [0, 1).
func (p Retry) Delay(n int, r float64) time.Duration {
	d := float64(p.InitialDelay)
	for i := 1; i < n && d < float64(p.MaxDelay); i++ {
		d *= p.Multiplier
	}
	if d > float64(p.MaxDelay) {
		d = float64(p.MaxDelay)
	}
	return time.Duration(d * (1 + p.Jitter*r))
}

// Verify is a tool's lookup (contract §10).
type Verify struct {
	Window      time.Duration // consistency window; 0: absence proves nothing by time, see HasWindow
	HasWindow   bool          // only then may a new attempt follow a proof of absence
	MaxAttempts int
	Always      bool
	Timeout     time.Duration
}

// Tools finds a tool by name. It must give the same answer for the length of one event.
type Tools interface {
	Tool(name string) (*Tool, bool)
}
