// Package worker is the executor's loop: it takes jobs in, brings each run forward by the one order of durable steps, and
// hands it over when it rests. Each run that this process works on has one goroutine, so that all its record writes go
// through one place; a second delivery of a run goes to the loop that has it.
package worker

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/fair"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Journal is what the worker needs of the executor's journal.
type Journal interface {
	// Write makes the entries durable: they are on disk when it returns nil. Safe for concurrent use.
	Write(ctx context.Context, entries ...engine.Entry) error
	// Later joins a later commit; nothing is promised.
	Later(entries ...engine.Entry)
	// Unsettled lists, oldest first, what was not settled when the process ended.
	Unsettled() ([]engine.Fact, error)
	// Facts calls fn with everything the journal still knows, oldest first.
	Facts(fn func(engine.Fact) error) error
	// Saw says that the store of records has reached this revision; it is on disk soon.
	Saw(revision uint64)
}

// Tools are the tools of the config. Safe for concurrent use.
type Tools interface {
	run.Tools
	// Call makes at most one request and returns its end; ctx bounds it, and the tool's timeout from when the request can leave.
	Call(ctx context.Context, d *engine.Dispatch, info CallInfo) envelope.Reply
	// Lookup asks what became of a dispatch; ok is false if this process has no lookup for the tool.
	Lookup(ctx context.Context, id run.ID, l *engine.Lookup, trace string) (answer envelope.Lookup, ok bool)
	// Limits are the tool's own limits on this executor.
	Limits(tool string) Limits
	// ReadyWithin is how long a call or a lookup of the tool may take, at most, before its own time begins.
	ReadyWithin(tool string) time.Duration
}

// CallInfo is what a call needs besides its dispatch.
type CallInfo struct {
	ID    run.ID
	Trace string
	// Last is called as the last statement before the request leaves; an error forbids it.
	Last func() error
}

// Limits are a tool's own limits; zero is none.
type Limits struct {
	Concurrency int
	PerSecond   float64
	Burst       int
	Shared      bool          // the rate is this executor's part of one that the fleet shares
	RetryDelay  time.Duration // the longest between attempts: how long a tool that is down is left alone
}

// Puller pulls deliveries for free slots.
type Puller interface {
	// Want offers n more slots, or takes -n back. It may be called from Waits' caller, and waits for nothing.
	Want(n int)
	// Waits is the tenant whose turn it is among those that are known to wait in the queues, if any.
	Waits() (tenant string, ok bool)
	// Stop ends pulling; when it returns nothing more is delivered.
	Stop()
}

// Store tells which store of records this is.
type Store interface {
	// Current is a token of the store; ok is false while it is not known to be the one that the fleet has agreed on: since
	// a reconnect, until it was looked at, and while what it has lost is being restored. After that it has another token.
	Current() (token string, ok bool)
	// Vanished says that a record is gone that was there and must be.
	Vanished(what string)
	// Sent says that a write has been sent whose record must not be lost.
	Sent()
}

// Observer is told of every transition. All methods are safe for concurrent use and return at once.
type Observer interface {
	ToolCall(tool string, effect envelope.Effect, code envelope.Code, took time.Duration)
	RunsInFlight(change int)
	DuplicatePrevented(tool string)
	// Breaker is told when a tool is slowed down for everyone on this executor, and when that is over.
	Breaker(tool string, open bool)
	// RetryLate is told how long after its time an attempt that waited leaves.
	RetryLate(late time.Duration)
	// PassedOn is told each time that a run is given back for another executor, which has the tool.
	PassedOn(tool string)
}

// Ready says whether the process can do its work. Runs meet the same trouble side by side: the process is not ready while
// any of them, named by who, has not cleared what it set.
type Ready interface {
	BlockFor(name, who, reason string)
	ClearFor(name, who string)
}

// Config is what a worker is made of. All fields are required but Shares, without which all tenants are alike, and
// Elsewhere with its UnknownToolGrace.
type Config struct {
	ID           string // the --id: for people
	Holder       string // the journal's random id and the process's start number, with a dot between: for leases
	Lease        time.Duration
	Concurrency  int
	DrainTimeout time.Duration
	PoisonAfter  int
	Defaults     func() engine.Defaults
	Shares       func(tenant string) fair.Limit // each tenant's part of the slots
	Boot         func() time.Duration           // a clock that counts suspension
	Random       func() float64                 // in [0, 1)
	// Elsewhere says whether another executor that takes the queue has, or had a short while ago, a tool that this one does
	// not know; nil: no other has.
	Elsewhere func(queue, tool string) bool
	// UnknownToolGrace is for how long a run waits for such an executor.
	UnknownToolGrace func() time.Duration

	Records *record.Records
	Journal Journal
	Tools   Tools
	Hints   port.Hints
	Store   Store
	Observe Observer
	Ready   Ready
	Log     *slog.Logger
}

// Worker brings runs forward.
type Worker struct {
	Config
	shares *fair.Shares
	slots  *slots
	gates  *gates

	ctx      context.Context // ends when the process must stop at once
	stop     context.CancelFunc
	draining chan struct{} // closed: start nothing new
	cutoff   chan struct{} // closed: the drain time is over, cut off what is in flight

	mu     sync.Mutex
	loops  map[run.ID]*loop
	warned map[string]time.Time // by tool, see warnOf
	left   map[run.ID]left      // by the loops that gave their runs up
	wg     sync.WaitGroup
	ended  bool
}

// New makes a worker; Start connects it to a puller.
func New(c Config) *Worker {
	ctx, stop := context.WithCancel(context.Background())
	if c.Shares == nil {
		c.Shares = func(string) fair.Limit { return fair.Limit{} }
	}
	shares := fair.New(c.Shares)
	return &Worker{
		Config: c, shares: shares, slots: newSlots(c.Concurrency, shares), gates: newGates(limitsOf(c.Tools), c.Shares, c.Observe.Breaker), ctx: ctx, stop: stop,
		draining: make(chan struct{}), cutoff: make(chan struct{}), loops: map[run.ID]*loop{}, warned: map[string]time.Time{}, left: map[run.ID]left{},
	}
}

// Shares is what each tenant has running here; the puller decides by it too.
func (w *Worker) Shares() *fair.Shares { return w.shares }

// Unused decides anew who gets the slots that the puller was offered, because what it was offered them for may be gone.
func (w *Worker) Unused() { w.slots.again() }

// Start begins to pull. Settle must have returned before.
func (w *Worker) Start(p Puller) { w.slots.start(p) }

// Deliver takes a delivery from the puller. It does not wait.
func (w *Worker) Deliver(d port.Delivery) {
	if !d.Valid {
		d.ID = record.Unaddressed(d.ID.Tenant, d.Subject, d.Data)
	}
	granted := w.slots.delivered(d.ID.Tenant)
	w.mu.Lock()
	if away := !w.current(); away || w.ended || w.isDraining() {
		w.mu.Unlock()
		delay := time.Duration(0)
		if away {
			delay = storeDelay // the journal has not been settled with this store yet
		}
		if granted {
			// The slot is away as long as its job: else the whole queue would go through it meanwhile.
			time.AfterFunc(delay, func() { w.slots.release(d.ID.Tenant, 1) })
		}
		_ = d.Release(delay)
		return
	}
	l, known := w.loops[d.ID]
	if !known {
		l = newLoop(w, d.ID)
		l.left = w.left[d.ID]
		delete(w.left, d.ID)
		w.loops[d.ID] = l
		w.wg.Add(1)
	}
	l.arrive(d)
	w.mu.Unlock()
	if known {
		if granted {
			w.slots.release(d.ID.Tenant, 1)
		}
		return
	}
	l.held = 0
	if granted {
		l.held = 1
	}
	w.Observe.RunsInFlight(1)
	go l.run()
}

// Hinted makes the loop that has the run, if any, read its record now.
func (w *Worker) Hinted(id run.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.loops[id]; l != nil {
		l.hint()
	}
}

// Busy reports how many runs this process works on.
func (w *Worker) Busy() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.loops)
}

func (w *Worker) isDraining() bool {
	select {
	case <-w.draining:
		return true
	default:
		return false
	}
}

// Drain stops pulling at once, gives back what has not started, lets calls finish within the drain time, then cuts them
// off and writes what is known of them. It returns when no run is in this process's hands any more, or when ctx ends.
func (w *Worker) Drain(ctx context.Context, p Puller) {
	w.mu.Lock()
	if !w.isDraining() {
		close(w.draining)
	}
	for _, l := range w.loops {
		l.poke() // who waits for a slot of its tool gives the job back
	}
	w.mu.Unlock()
	if p != nil {
		p.Stop()
	}
	done := make(chan struct{})
	go func() {
		w.wg.Wait()
		close(done)
	}()
	timer := time.NewTimer(w.DrainTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return
	case <-timer.C:
	case <-ctx.Done():
	}
	close(w.cutoff)
	// What is written at the end needs the store; without it the leases end by themselves.
	grace := time.NewTimer(max(w.Lease, 5*time.Second))
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
		w.stop()
		<-done
	}
}

// Stop ends everything at once, without a drain: as a crash would, but with goroutines gone.
func (w *Worker) Stop() {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	w.stop()
	w.wg.Wait()
}

// leaving removes the loop unless something has come for it meanwhile.
func (w *Worker) leaving(l *loop) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.pending() {
		return false
	}
	delete(w.loops, l.id)
	w.gates.unpark(l)
	return true
}

// storeDelay is after how long a delivery comes again that met a store which the journal is not settled with.
const storeDelay = 100 * time.Millisecond

// newID is a random id; ids of one process sort by time, which suits the journal.
func newID() string {
	id, err := uuid.NewV7()
	if err != nil {
		panic("worker: no random numbers: " + err.Error())
	}
	return id.String()
}

// Refresh asks for the limits of tools and tenants again, after the config or the size of the fleet has changed.
func (w *Worker) Refresh() {
	w.gates.refresh()
	w.slots.again()
}

// Sharing reports whether this executor has, or just had, calls to make whose rate the fleet shares.
func (w *Worker) Sharing() bool { return w.gates.sharing(time.Now()) }
