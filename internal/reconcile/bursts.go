package reconcile

import (
	"fmt"
	"sync"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
)

// bursts counts runs of a tenant that end for one fatal reason, to tell somebody once per window. What is counted is lost
// with the process; the next active one begins to count anew.
type bursts struct {
	mu   sync.Mutex
	seen map[[2]string]*burst
}

type burst struct {
	at   []envelope.Time // ends within the window, oldest first
	told envelope.Time
}

func newBursts() *bursts { return &bursts{seen: map[[2]string]*burst{}} }

// add counts one end; ok is true for the one that makes it a burst.
func (b *bursts) add(l *deadletter.Letter, now envelope.Time) (a deadletter.Alert, id string, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := [2]string{l.Tenant, l.ReasonCode}
	w := b.seen[key]
	if w == nil {
		if len(b.seen) > 10_000 {
			clear(b.seen)
		}
		w = &burst{}
		b.seen[key] = w
	}
	from := now.Add(-engine.BurstWindow)
	for len(w.at) > 0 && w.at[0] < from {
		w.at = w.at[1:]
	}
	w.at = append(w.at, now)
	if len(w.at) > 100 {
		w.at = w.at[1:]
	}
	if len(w.at) < engine.BurstRuns || w.told > from {
		return deadletter.Alert{}, "", false
	}
	w.told = now
	id = fmt.Sprintf("%s/%s/burst/%d", l.Tenant, l.ReasonCode, now)
	return engine.Burst(l.Tenant, l.Owner, l.ReasonCode, len(w.at), w.at[0], now), id, true
}
