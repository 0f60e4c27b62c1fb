package main

import (
	"sync"
	"time"
)

// Kind is what was done to a process.
type Kind string

// The kinds of faults.
const (
	KillExecutor    Kind = "executor killed"
	LoseJournal     Kind = "executor killed, journal lost"
	KillReconciler  Kind = "reconciler killed"
	KillNATS        Kind = "NATS killed"
	KillGateway     Kind = "gateway killed"
	RestoreNATS     Kind = "NATS killed, an older copy of its store put back"
	Drain           Kind = "executor drained"
	PauseExecutor   Kind = "executor paused"
	PauseReconciler Kind = "reconciler paused"
	PauseNATS       Kind = "NATS paused"
	Deafen          Kind = "NATS replies lost"
	OwnEnd          Kind = "ended by itself"
)

// death says whether a fault is an injected death.
func (k Kind) death() bool {
	return k == KillExecutor || k == LoseJournal || k == KillReconciler || k == KillNATS || k == KillGateway || k == RestoreNATS
}

// Fault is one thing that was done.
type Fault struct {
	Kind    Kind
	Process string // name and start number
	At      time.Time
	Until   time.Time // of a pause
	Detail  string
}

// Chronicle is everything that was done, in order. Safe for concurrent use.
type Chronicle struct {
	mu     sync.Mutex
	faults []Fault
}

// Note adds a fault and returns its number.
func (c *Chronicle) Note(f Fault) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, f)
	return len(c.faults) - 1
}

// Ends notes when a fault was over.
func (c *Chronicle) Ends(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults[n].Until = time.Now()
}

// Count is how many faults of each kind there were.
func (c *Chronicle) Count() map[Kind]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[Kind]int{}
	for i := range c.faults {
		out[c.faults[i].Kind]++
	}
	return out
}

// OwnEnds are the processes that ended although nobody asked them to, each with its last words.
func (c *Chronicle) OwnEnds() (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.faults {
		if f := &c.faults[i]; f.Kind == OwnEnd {
			out = append(out, f.Process+": "+f.Detail)
		}
	}
	return out
}

// Deaths is how many processes were killed.
func (c *Chronicle) Deaths() int {
	n := 0
	for k, count := range c.Count() {
		if k.death() {
			n += count
		}
	}
	return n
}

// Between are the faults that touch a span of time.
func (c *Chronicle) Between(from, to time.Time) (out []Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.faults {
		until := f.Until
		if until.IsZero() {
			until = f.At
		}
		if !until.Before(from) && !f.At.After(to) {
			out = append(out, f)
		}
	}
	return out
}

// PausedBefore says whether a worker went on, from a pause that outlasted its lease, at the moment t or shortly before: a
// request that arrives then may have left after its lease.
func (c *Chronicle) PausedBefore(worker string, t time.Time, lease time.Duration) bool {
	const before, after = 50 * time.Millisecond, 500 * time.Millisecond
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.faults {
		if f.Kind != PauseExecutor || f.Process != worker || f.Until.Sub(f.At) < lease-lease/5 {
			continue
		}
		if t.After(f.Until.Add(-before)) && t.Before(f.Until.Add(after)) {
			return true
		}
	}
	return false
}
