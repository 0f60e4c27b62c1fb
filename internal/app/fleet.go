package app

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/pkg/run"
)

// fleetScope is the scope of a rate that all executors share (contract: rate.scope). Each executor keeps to its equal part:
// they greet one another every greetEvery on a hint subject, and one that has not been heard for greetGone is gone. While
// executors come and go the rate may be off for that long; nothing else depends on it.
const (
	fleetScope = "fleet"
	fleetHint  = "_executors"
	greetEvery = time.Second
	greetGone  = 4 * time.Second
)

// fleetCount counts the executors that are there, this one included.
type fleetCount struct {
	holder string
	mu     sync.Mutex
	seen   map[string]time.Time
}

func (f *fleetCount) executors() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(1, len(f.seen))
}

func (f *fleetCount) heard(holder string, now time.Time) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, known := f.seen[holder]
	f.seen[holder] = now
	for h, at := range f.seen {
		if now.Sub(at) > greetGone {
			delete(f.seen, h)
			known = false
		}
	}
	return !known
}

// greet keeps the count until ctx ends and calls changed whenever it has changed.
func greet(ctx context.Context, conn *bus.Conn, name string, log *slog.Logger, changed func()) *fleetCount {
	f := &fleetCount{holder: name, seen: map[string]time.Time{name: time.Now()}}
	stop, err := conn.OnHint(fleetHint, func(id run.ID) {
		if f.heard(id.Run, time.Now()) {
			changed()
		}
	})
	if err != nil {
		log.Error("other executors are not counted; a fleet-wide rate is kept as if this were the only one", "error", err)
		return f
	}
	go func() {
		defer stop()
		for tick := time.NewTicker(greetEvery); ; {
			if f.heard(name, time.Now()) {
				changed()
			}
			_ = conn.Hint(fleetHint, run.ID{Tenant: "fleet", Run: name})
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	}()
	return f
}
