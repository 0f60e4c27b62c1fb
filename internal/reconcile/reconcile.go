// Package reconcile is the reconciler's loop: it recovers leases that ended, asks the tools about unknown writes, wakes what
// is due, and publishes what a run still owes. It keeps nothing that it cannot rebuild from the streams. Any number may
// run; one is active, for load and for alerts that count, never for safety: every change is a compare-and-set bound to a
// dispatch.
package reconcile

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Tools are the tools of the config. Safe for concurrent use.
type Tools interface {
	run.Tools
	// Lookup asks what became of a dispatch; ok is false if this process has no lookup for the tool.
	Lookup(ctx context.Context, id run.ID, l *engine.Lookup, trace string) (answer envelope.Lookup, ok bool)
	// ReadyWithin is how long a lookup for the tool may take, at most, before its own time begins.
	ReadyWithin(tool string) time.Duration
}

// Store tells which store of records this is.
type Store interface {
	// Current is false while the store is not known to be the one that the fleet has settled with.
	Current() (token string, ok bool)
}

// Health says whether the process can do its work.
type Health interface {
	Block(name, reason string)
	Clear(name string)
}

// Config is what a reconciler is made of. All fields are required.
type Config struct {
	ID       string // the --id: for people
	Holder   string // random, for the lease on being active
	Lease    time.Duration
	Workers  int // runs looked at side by side
	Boot     func() time.Duration
	Random   func() float64
	Records  *record.Records
	Tools    Tools
	Watch    port.Watch
	Waker    port.Waker
	Fleet    port.Fleet
	Store    Store
	Health   Health
	Log      *slog.Logger
	OnActive func(bool) // told when this one becomes active or a standby; may be nil
}

// Reconciler watches all runs.
type Reconciler struct {
	Config

	mu      sync.Mutex
	runs    map[run.ID]*entry
	ends    map[run.ID]*entry // those of runs that have ended: few, while runs that wait may be many
	queue   schedule
	passed  map[run.ID]passage    // outcomes seen lately, for ends that are seen after them
	letters map[run.ID][]lettered // messages seen, by run: one, but for what a crash left behind
	open    map[run.ID]string     // owner of the letter that a record's header shows open
	through uint64                // highest revision seen
	settled uint64                // of ends at or below it nothing is owed
	sight
	active  bool
	kick    chan struct{}
	bursts  *bursts
	lookups *lookups
	aside   sync.WaitGroup // runs whose lookups are waited for
	overdue map[run.ID]bool
	refused map[run.ID]bool    // what they must write finds no room
	told    map[run.ID]telling // what its owner was told of, while its letter is open

	outdated bool // of lead: the fleet's record is one of a newer version
}

// entry is what is kept of a run that may need something.
type entry struct {
	id      run.ID
	seq     uint64
	h       port.Header
	lease   record.Lease // as last seen
	seen    time.Time    // since when it has been seen unchanged
	changed time.Time    // when the revision was first seen
	doubts  map[engine.DispatchID]time.Time
	at      time.Time // when to look next; zero: not scheduled
	index   int       // in the queue; -1: not in it
	busy    bool
	tries   int       // wakes of this revision that met an earlier one
	again   time.Time // when to wake it again for that; zero: not
}

type passage struct {
	n  int
	at time.Time
}

// New makes a reconciler; Run starts it.
func New(c Config) *Reconciler {
	return &Reconciler{
		Config: c, runs: map[run.ID]*entry{}, ends: map[run.ID]*entry{}, passed: map[run.ID]passage{}, letters: map[run.ID][]lettered{}, open: map[run.ID]string{},
		kick: make(chan struct{}, 1), bursts: newBursts(), lookups: &lookups{byTool: map[string]chan struct{}{}}, overdue: map[run.ID]bool{}, told: map[run.ID]telling{}, refused: map[run.ID]bool{}, sight: sight{another: make(chan struct{})},
	}
}

// Overdue is how many runs are known to be well past their deadline without an end.
func (rc *Reconciler) Overdue() int {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return len(rc.overdue)
}

// Run watches and acts until ctx ends.
func (rc *Reconciler) Run(ctx context.Context) error {
	state, _, err := rc.loadFleet(ctx)
	if err != nil {
		return err
	}
	rc.startsFrom(state)
	var wg sync.WaitGroup
	watch := func(name string, f func() error) {
		wg.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				rc.Log.Error("a watch has ended", "watch", name, "error", err)
			}
		})
	}
	watch("outcomes", func() error { return rc.follow(ctx, outcomes) })
	watch("letters", func() error { return rc.follow(ctx, letters) })
	watch("runs", func() error { return rc.follow(ctx, runs) })
	watch("fleet", func() error { return rc.lead(ctx) })
	rc.work(ctx)
	rc.aside.Wait()
	wg.Wait()
	return ctx.Err()
}

func (rc *Reconciler) poke() {
	select {
	case rc.kick <- struct{}{}:
	default:
	}
}

// change takes a record's new revision in.
func (rc *Reconciler) change(c port.Change) {
	now := time.Now()
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if !rc.heard(runs, c.Report) {
		return
	}
	switch c.Report {
	case port.Current:
		return
	case port.Reset:
		rc.runs, rc.ends, rc.queue = map[run.ID]*entry{}, map[run.ID]*entry{}, nil
		rc.open, rc.through, rc.settled = map[run.ID]string{}, 0, 0
		rc.told, rc.overdue = map[run.ID]telling{}, map[run.ID]bool{} // an end of the new store is another end
		return
	}
	rc.through = max(rc.through, c.Seq)
	if c.ID == port.ActiveID {
		return
	}
	e := rc.runs[c.ID]
	if e == nil {
		e = &entry{id: c.ID, index: -1}
	}
	if c.Seq < e.seq {
		return
	}
	e.seq, e.h, e.changed, e.tries = c.Seq, c.Header, now, 0
	if c.Header.Letter != "" {
		rc.open[c.ID] = c.Header.Letter
	} else {
		delete(rc.open, c.ID)
		delete(rc.told, c.ID) // however the letter was settled
	}
	if lease, ok := record.ParseLease(c.Header.Lease); !ok {
		e.lease = record.Lease{}
	} else if lease != e.lease {
		e.lease, e.seen = lease, now
	}
	at, keep := rc.plan(e, now)
	if !keep {
		rc.unschedule(e)
		rc.drop(c.ID)
		return
	}
	rc.runs[c.ID] = e
	if run.Ended(e.h.State) {
		rc.ends[c.ID] = e
	} else {
		delete(rc.ends, c.ID) // another episode
	}
	rc.schedule(e, at)
}

// ClockSet is told that the server's clock was set back: what waits for a time of the former clock is looked at within a
// lease, and not when that time comes. Safe for concurrent use.
func (rc *Reconciler) ClockSet() {
	now := time.Now()
	rc.mu.Lock()
	defer rc.mu.Unlock()
	for _, e := range rc.runs {
		if !run.Ended(e.h.State) {
			rc.schedule(e, now.Add(time.Duration(rc.Random()*float64(rc.Lease))))
		}
	}
}

// plan says when an entry must be looked at next, and whether it must be kept at all.
func (rc *Reconciler) plan(e *entry, now time.Time) (at time.Time, keep bool) {
	if run.Ended(e.h.State) {
		if len(rc.staleLetters(e.id, e.h.Letter)) > 0 {
			return now, true
		}
		if e.seq <= rc.settled {
			if e.h.Letter == "" || rc.hasLetter(e.id, e.h.Letter) || !rc.ready[letters] {
				return time.Time{}, false
			}
			return now.Add(rc.Lease), true
		}
		if p, ok := rc.passed[e.id]; ok && p.n >= e.h.Episode {
			if e.h.State == string(envelope.OK) || e.h.State == string(envelope.Cancelled) {
				return time.Time{}, false
			}
			return now, true // its letter and its alert
		}
		return now.Add(rc.Lease), true
	}
	at = now.Add(time.Hour)
	if !e.h.Due.IsZero() {
		at = now.Add(e.h.Due.Sub(rc.Records.Clock.Lower()))
	}
	if e.h.State == "open" || e.h.State == string(run.Waiting) {
		// It rests, and may owe an outcome whose writer died before it had published it: a look tells, and nothing else
		// would bring somebody here before its time.
		if soon := now.Add(rc.Lease); soon.Before(at) {
			at = soon
		}
	}
	if e.lease.ID != "" {
		if end := e.seen.Add(e.lease.Length); end.Before(at) {
			at = end
		}
	}
	for _, end := range e.doubts {
		if end.Before(at) && end.After(now) {
			at = end
		}
	}
	if t := now.Add(rc.Lease / 2); t.Before(at) && len(rc.staleLetters(e.id, "")) > 0 {
		at = t // whoever answered the letter is about to remove it
	}
	return at, true
}

// outcome takes a run's terminal outcome in: that end is published.
func (rc *Reconciler) outcome(o port.Outcome) {
	now := time.Now()
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if !rc.heard(outcomes, o.Report) {
		return
	}
	switch o.Report {
	case port.Current:
		return
	case port.Reset:
		rc.passed, rc.settled = map[run.ID]passage{}, 0
		return
	}
	e := rc.runs[o.ID]
	if e == nil || !run.Ended(e.h.State) || e.h.Episode > o.N {
		rc.passed[o.ID] = passage{o.N, now}
		return
	}
	rc.passed[o.ID] = passage{o.N, now}
	if at, keep := rc.plan(e, now); keep {
		rc.schedule(e, at)
	} else {
		rc.unschedule(e)
		rc.drop(o.ID)
	}
}

// sweep forgets outcomes that passed long ago; an end that is seen later than that is looked at once more.
func (rc *Reconciler) sweep(now time.Time) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	for id, p := range rc.passed {
		if now.Sub(p.at) > 2*rc.Lease+10*time.Second {
			delete(rc.passed, id)
		}
	}
}
