package app

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// embeddedGC is the garbage collector's target of a process with a server in it, in percent of what is in use. Go's own,
// 100, lets the process grow to twice the server's block caches and subject trees; half of that costs about 5 % more CPU.
const embeddedGC = 50

// SpareMemory makes the collector run more often, unless GOGC says what is wanted: docs/performance.md has the figures.
func SpareMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(embeddedGC)
	}
}

// Of KeepMemory: docs/performance.md has the figures.
const (
	// busyRoom is how much garbage may pile up between two collections while there is work. A process without a server has
	// a few MB in use; to collect whenever they have doubled costs it a sixth of its CPU.
	busyRoom = 16 << 20
	// memoryLook is how often the process looks whether there is work: whether it has allocated busyBytes since.
	memoryLook = time.Second
	busyBytes  = 2 << 20
	// quietLooks without work in a row are a rest.
	quietLooks = 10

	gcDefault = 100 // Go's own target
	gcMost    = 800
)

// KeepMemory lets the garbage collector run less often while there is work, and gives memory back to the system when the
// work is over, until ctx ends. With a NATS server in the process it runs more often instead, as SpareMemory has it. With
// GOGC set, how often it runs is somebody else's to say. The collector is the process's: a command calls this, once.
func KeepMemory(ctx context.Context, server bool) {
	if server {
		SpareMemory()
	}
	k := newKeeper(!server)
	k.set(true) // to start is work
	go k.run(ctx)
}

func newKeeper(tune bool) *keeper {
	return &keeper{tune: tune && os.Getenv("GOGC") == "", percent: gcDefault}
}

type keeper struct {
	tune bool

	mu      sync.Mutex
	busy    bool
	ended   bool
	percent int
}

func (k *keeper) run(ctx context.Context) {
	ticker := time.NewTicker(memoryLook)
	defer ticker.Stop()
	if k.tune {
		k.afterCollection()
		defer k.end()
	}
	last, quiet := allocated(), 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := allocated()
		busy := now-last >= busyBytes
		last = now
		if busy {
			quiet = 0
		} else {
			quiet++
		}
		k.set(busy)
		if quiet == quietLooks {
			debug.FreeOSMemory()
			last = allocated()
		}
	}
}

// afterCollection aims anew after each collection: the target is a share of what is in use, which may have grown much
// since the last look. It goes on by itself.
func (k *keeper) afterCollection() {
	type mark struct{ _ [64]byte }
	runtime.AddCleanup(&mark{}, func(k *keeper) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !k.ended {
			k.aim()
			k.afterCollection()
		}
	}, k)
}

func (k *keeper) set(busy bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.busy = busy
	k.aim()
}

func (k *keeper) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.busy, k.ended = false, true
	k.aim()
}

// aim sets the collector's target; k.mu is held.
func (k *keeper) aim() {
	if !k.tune {
		return
	}
	p := gcDefault
	if k.busy {
		p = busyPercent(inUse())
	}
	if p != k.percent {
		k.percent = p
		debug.SetGCPercent(p)
	}
}

// busyPercent leaves busyRoom above what is in use, and never less than Go would.
func busyPercent(inUse uint64) int {
	p := min(busyRoom*100/max(inUse, 1), gcMost) / 10 * 10 // in steps, since setting it stops the process for a moment
	return max(int(p), gcDefault)
}

func allocated() uint64 { return metric("/gc/heap/allocs:bytes") }
func inUse() uint64     { return metric("/gc/heap/live:bytes") } // as of the last collection

func metric(name string) uint64 {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}
