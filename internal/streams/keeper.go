// Package streams keeps the streams of a connection there, as the contract wants them: it makes them, checks them, finds out
// when they were lost, went back or were changed by hand, and knows how full they are and how deep the queues.
package streams

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
)

const (
	// observeEvery bounds how long a stream that disappeared, went back or was changed by hand stays unnoticed, and how
	// old a clock sample is.
	observeEvery = 8 * time.Second
	// checkGap is the least time between two checks that calls without an answer ask for.
	checkGap = 250 * time.Millisecond
	// keeperTimeout is for one check of everything.
	keeperTimeout = 5 * time.Second
)

// Conn is a connection whose streams are kept: it is its connection's bus.Keeper. Safe for concurrent use.
type Conn struct {
	*bus.Conn
	fleet []string // names of records of the fleet that every look at the streams reads
	wish  chan struct{}
	done  chan struct{}

	mu      sync.Mutex
	config  Config // of Setup
	ready   bool   // Setup has succeeded
	status  Status
	looked  []func(Status)
	doubts  uint64        // how often what the last look found was thrown away
	looking sync.Mutex    // one look at a time, so that followers are told in order
	single  atomic.Bool   // the streams have one replica each
	seen    atomic.Uint64 // the highest sequence of AGENTRUN_RUNS
}

var (
	_ bus.Keeper = (*Conn)(nil)
	_ port.Scan  = (*Conn)(nil)
)

// Options are those of the connection, and what is known from before.
type Options struct {
	bus.Options          // its Keeper is set here
	Fleet       []string // names of records of the fleet that every look at the streams reads
	Seen        uint64   // the highest sequence of AGENTRUN_RUNS that is known; a server that shows less has gone back
}

// Connect is bus.Connect, with the streams kept from Setup on.
func Connect(o Options) (*Conn, error) {
	c := &Conn{fleet: o.Fleet, wish: make(chan struct{}, 1), done: make(chan struct{})}
	c.seen.Store(o.Seen)
	o.Keeper = c
	var err error
	if c.Conn, err = bus.Connect(o.Options); err != nil {
		return nil, err
	}
	go c.keep()
	return c, nil
}

// Close is bus.Conn's; nothing is kept any more when it returns.
func (c *Conn) Close() {
	c.Conn.Close()
	<-c.done
}

// Check asks for a look at the streams soon; it never blocks.
func (c *Conn) Check() {
	select {
	case c.wish <- struct{}{}:
	default:
	}
}

// keep is the one goroutine that keeps streams and consumers there, the clock read and the status known.
func (c *Conn) keep() {
	defer close(c.done)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-c.Closed()
		cancel()
	}()
	ticker := time.NewTicker(observeEvery)
	defer ticker.Stop()
	stalled := false
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-c.wish:
		}
		if c.Connected() {
			c.once(ctx)
		}
		if err := c.Stalled(); (err != nil) != stalled {
			stalled = err != nil
			if stalled {
				c.Log().Error("nothing is stored", "error", err)
			} else {
				c.Log().Info("what is given is stored again")
			}
		}
		pause.For(ctx, checkGap)
	}
}

func (c *Conn) once(ctx context.Context) {
	c.mu.Lock()
	ready := c.ready
	c.mu.Unlock()
	if !ready {
		return
	}
	tryCtx, cancel := c.attempt(ctx)
	defer cancel()
	err := c.Ensure(tryCtx)
	var byHand *ChangedError
	found := errors.As(err, &byHand)
	if err == nil || found {
		err = errors.Join(err, c.observe(tryCtx))
	}
	switch {
	case found:
		time.AfterFunc(time.Second, c.Check) // it is mended by hand too
	case err != nil:
		c.Check()
	}
	if err != nil && errors.Is(tryCtx.Err(), context.Canceled) {
		return // the connection changed under it: that says nothing about the streams
	}
	c.mu.Lock()
	before := c.status.Problem
	c.status.Problem, c.status.Changed = err, byHand
	c.mu.Unlock()
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		c.Log().Error("streams are not as they must be", "error", err)
	case err == nil && before != nil:
		c.Log().Info("streams are as they must be again")
	}
}

// attempt bounds one look at the streams: by keeperTimeout, and by the connection, because a request that was on a
// connection that is gone is never answered.
func (c *Conn) attempt(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, keeperTimeout)
	gone := c.Gone()
	go func() {
		select {
		case <-gone:
			cancel()
		case <-c.Closed():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Status is what readiness and the limits on intake are judged by.
type Status struct {
	Connected bool
	Changed   *ChangedError // what somebody has changed by hand and must be changed back; nil: nothing
	Problem   error         // of the last check of the streams; nil: as they must be
	Observed  time.Time     // when the counts were read, by the local clock; zero: never

	Runs, RunsMax       int64     // messages of AGENTRUN_RUNS and their limit
	Letters, LettersMax int64     // the same of AGENTRUN_DEADLETTERS
	Jobs, JobsMax       int64     // the same of AGENTRUN_JOBS
	Created             time.Time // of AGENTRUN_RUNS

	Queues map[string]int64 // how many jobs each queue of Setup has, those in an executor's hands included; not to be changed

	Asked  time.Time               // when the look began whose findings these are
	Last   uint64                  // the last sequence of AGENTRUN_RUNS
	Losses int                     // how often AGENTRUN_RUNS was found to have lost what was in it, since the connection began
	Loss   string                  // the latest of them, in words
	Fleet  map[string]FleetMessage // those of Options.Fleet that are there

	replicated            bool
	runsKept, lettersKept int64 // places for messages on their way
}

// Status returns the latest that is known, without asking anybody.
func (c *Conn) Status() Status {
	connected := c.Connected()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	s.Connected = connected
	return s
}

// Healthy returns nil if there is a connection, the streams are as they must be, and they store what they are given.
func (c *Conn) Healthy() error {
	s := c.Status()
	switch {
	case !s.Connected:
		return c.NotConnected()
	case s.Problem != nil:
		return s.Problem
	case s.Observed.IsZero():
		return errors.New("streams not checked yet")
	}
	return c.Stalled()
}

// observe reads clock, counts, and what tells which store this is. Whoever follows the looks is told before anybody can
// see that the streams have been looked at.
func (c *Conn) observe(ctx context.Context) error {
	c.looking.Lock()
	defer c.looking.Unlock()
	c.mu.Lock()
	doubts := c.doubts
	c.mu.Unlock()
	asked, seen := time.Now(), c.seen.Load()
	runs, err := c.Facts(ctx, topology.RunsStream)
	if err != nil {
		return err
	}
	letters, err := c.Facts(ctx, topology.LettersStream)
	if err != nil {
		return err
	}
	jobs, err := c.Facts(ctx, topology.JobsStream)
	if err != nil {
		return err
	}
	c.single.Store(runs.Config.Replicas == 1 && runs.Config.AllowDirect && letters.Config.AllowDirect)
	fleet, err := c.readFleet(ctx)
	if err != nil {
		return err
	}
	lost := false
	c.mu.Lock()
	s := &c.status
	s.Asked, s.Fleet, s.Last = asked, fleet, runs.State.LastSeq
	switch {
	case !s.Created.IsZero() && !s.Created.Equal(runs.Created):
		c.lostLocked(fmt.Sprintf("%s was made anew: it is of %s and was of %s", topology.RunsStream, runs.Created.Format(time.RFC3339), s.Created.Format(time.RFC3339)))
		lost = true
	case runs.State.LastSeq < seen:
		c.lostLocked(fmt.Sprintf("%s has gone back: it ends at sequence %d and had reached %d", topology.RunsStream, runs.State.LastSeq, seen))
		lost = true
	default:
		c.Saw(runs.State.LastSeq)
	}
	s.Created = runs.Created
	s.Runs, s.RunsMax = runs.State.Messages, ourLimit(runs.Config.MaxMsgs, runs.Config.Replicas)
	s.Letters, s.LettersMax = letters.State.Messages, ourLimit(letters.Config.MaxMsgs, letters.Config.Replicas)
	s.Jobs, s.JobsMax = jobs.State.Messages, jobs.Config.MaxMsgs
	s.replicated = runs.Config.Replicas > 1
	told, followers := *s, c.looked
	c.mu.Unlock()
	for _, fn := range followers {
		fn(told)
	}
	if lost { // not before those who tell others how far they have seen know of it
		c.seen.Store(runs.State.LastSeq)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.doubts != doubts {
		return errStale
	}
	c.status.Observed = time.Now()
	return nil
}

// errStale: the connection was lost, or something contradicted what was known, while the streams were looked at.
var errStale = errors.New("the streams must be looked at again")

// Forget throws away what the last look found.
func (c *Conn) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubts++
	c.status.Observed = time.Time{}
}

func (c *Conn) lostLocked(what string) {
	c.status.Losses++
	c.status.Loss = what
	c.Log().Error("the store of run records has lost what was in it", "what", what)
}

// Saw notes that AGENTRUN_RUNS has reached a sequence.
func (c *Conn) Saw(seq uint64) {
	for {
		known := c.seen.Load()
		if seq <= known || c.seen.CompareAndSwap(known, seq) {
			return
		}
	}
}

// Seen is the highest sequence of AGENTRUN_RUNS that is known.
func (c *Conn) Seen() uint64 { return c.seen.Load() }

// Doubt asks for a look at the streams, and lets nobody believe the last one until then: something contradicts it.
func (c *Conn) Doubt() {
	c.Forget()
	c.Check()
}

// Looked reports whether the streams have been looked at since the connection was made, and nothing has contradicted that.
func (c *Conn) Looked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.status.Observed.IsZero()
}

// LookNow looks at the streams and returns when that is done.
func (c *Conn) LookNow(ctx context.Context) error {
	if !c.Connected() {
		return errors.New("streams: not connected")
	}
	return c.observe(ctx)
}

// Single reports whether the streams have one replica each.
func (c *Conn) Single() bool { return c.single.Load() }

// Bucket is what the object store is made with, should it not be there.
func (c *Conn) Bucket() (replicas int, retention time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return choose(c.config.Replicas, 0, replicasDefault), choose(c.config.RunRetention, 0, retentionDefault)
}

// FleetMessage is a record of the fleet as stored.
type FleetMessage struct {
	Data []byte
	Seq  uint64
}

func (c *Conn) readFleet(ctx context.Context) (map[string]FleetMessage, error) {
	out := make(map[string]FleetMessage, len(c.fleet))
	for _, name := range c.fleet {
		data, seq, err := c.LoadFleet(ctx, name)
		if err != nil {
			return nil, err
		}
		if seq != 0 {
			out[name] = FleetMessage{data, seq}
		}
	}
	return out, nil
}

// OnLook calls fn after every look at the streams, from the goroutine that looks, and once at once if there has been one: a
// loss that was found before is not missed. fn must not block.
func (c *Conn) OnLook(fn func(Status)) {
	c.mu.Lock()
	c.looked = append(c.looked, fn)
	now := c.status
	c.mu.Unlock()
	if !now.Asked.IsZero() {
		fn(now)
	}
}
