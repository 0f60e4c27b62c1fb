package fleet

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/agentrun/executor/pkg/run"
)

// Scope is the scope of a rate that all executors share (contract: rate.scope). They greet one another every
// greetEvery on a hint subject and say whether they have calls of such a tool to make. Each keeps to its equal part: among
// all at first, and after greetGone among those that make such calls. One that has not been heard for greetGone is gone.
// While executors come and go the rate may be off for that long; nothing else depends on it.
const (
	Scope      = "fleet"
	greetHint  = "_executors"
	greetEvery = 500 * time.Millisecond
	greetGone  = 2 * time.Second
	greetBusy  = "busy"
	greetIdle  = "idle"
)

// Count counts the executors that share the fleet-wide rates, this one included.
type Count struct {
	name string

	mu     sync.Mutex
	others map[string]greeting
	since  time.Time // since when this one shares; zero: it does not
	now    func() time.Time
}

type greeting struct {
	at   time.Time
	busy bool
}

func newCount(name string) *Count {
	return &Count{name: name, others: map[string]greeting{}, now: time.Now}
}

// Executors is among how many a rate is divided for this one.
func (f *Count) Executors() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	settled := !f.since.IsZero() && f.now().Sub(f.since) >= greetGone
	n := 1
	for _, g := range f.others {
		if g.busy || !settled {
			n++
		}
	}
	return n
}

// All is how many executors there are.
func (f *Count) All() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return 1 + len(f.others)
}

// heard notes a greeting; its own is left out.
func (f *Count) heard(name string, busy bool) {
	if name == f.name {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.others[name] = greeting{f.now(), busy}
}

// tick notes that time has passed, and whether this one shares.
func (f *Count) tick(sharing bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	switch {
	case !sharing:
		f.since = time.Time{}
	case f.since.IsZero():
		f.since = now
	}
	for name, g := range f.others {
		if now.Sub(g.at) > greetGone {
			delete(f.others, name)
		}
	}
}

// Greet keeps the count until ctx ends and calls changed whenever it has changed. sharing says whether this executor has
// calls to make whose rate is shared.
func Greet(ctx context.Context, conn Conn, name string, log *slog.Logger, sharing func() bool, changed func()) *Count {
	f := newCount(name)
	stop, err := conn.OnHint(greetHint, func(id run.ID) { f.heard(id.Run, id.Tenant == greetBusy) })
	if err != nil {
		log.Error("other executors are not counted; a fleet-wide rate is kept as if this were the only one", "error", err)
		return f
	}
	go func() {
		defer stop()
		before := 1
		for tick := time.NewTicker(greetEvery); ; {
			word := greetIdle
			busy := sharing()
			if busy {
				word = greetBusy
			}
			_ = conn.Hint(greetHint, run.ID{Tenant: word, Run: name})
			f.tick(busy)
			if n := f.Executors(); n != before {
				before = n
				changed()
			}
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
