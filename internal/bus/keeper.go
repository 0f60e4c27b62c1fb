package bus

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// observeEvery bounds how long a stream that disappeared without anybody asking for it stays unnoticed, and how old
	// a clock sample is.
	observeEvery = 10 * time.Second
	// checkGap is the least time between two checks that calls without an answer ask for.
	checkGap = 250 * time.Millisecond
	// keeperTimeout is for one check of everything.
	keeperTimeout = 5 * time.Second
)

// keeper is the one goroutine that keeps streams and consumers there, the clock read and the status known.
type keeper struct {
	conn *Conn
	wish chan struct{}
	done chan struct{}
}

func newKeeper(c *Conn) *keeper {
	return &keeper{conn: c, wish: make(chan struct{}, 1), done: make(chan struct{})}
}

// check asks for a check soon; it never blocks.
func (k *keeper) check() {
	select {
	case k.wish <- struct{}{}:
	default:
	}
}

func (k *keeper) wait() { <-k.done }

func (k *keeper) run() {
	defer close(k.done)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-k.conn.closed
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
		case <-k.wish:
		}
		if k.conn.nc.IsConnected() {
			k.once(ctx)
		}
		if err := k.conn.stalled(); (err != nil) != stalled {
			stalled = err != nil
			if stalled {
				k.conn.log.Error("nothing is stored", "error", err)
			} else {
				k.conn.log.Info("what is given is stored again")
			}
		}
		gap := time.NewTimer(checkGap)
		select {
		case <-ctx.Done():
		case <-gap.C:
		}
		gap.Stop()
	}
}

func (k *keeper) once(ctx context.Context) {
	c := k.conn
	c.mu.Lock()
	ready := c.ready
	c.mu.Unlock()
	if !ready {
		return
	}
	tryCtx, cancel := c.attempt(ctx)
	defer cancel()
	err := c.Ensure(tryCtx)
	if err == nil {
		err = c.observe(tryCtx)
	}
	if err != nil {
		k.check()
		if errors.Is(tryCtx.Err(), context.Canceled) {
			return // the connection changed under it: that says nothing about the streams
		}
	}
	c.mu.Lock()
	before := c.status.Problem
	c.status.Problem = err
	c.mu.Unlock()
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		c.log.Error("streams are not as they must be", "error", err)
	case err == nil && before != nil:
		c.log.Info("streams are as they must be again")
	}
}

// attempt bounds one look at the streams: by keeperTimeout, and by the connection, because a request that was on a
// connection that is gone is never answered.
func (c *Conn) attempt(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, keeperTimeout)
	gone := c.next(&c.gone)
	go func() {
		select {
		case <-gone:
			cancel()
		case <-c.closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Status is what readiness and the limits on intake are judged by.
type Status struct {
	Connected bool
	Problem   error     // of the last check of the streams; nil: as they must be
	Observed  time.Time // when the counts were read, by the local clock; zero: never

	Runs, RunsMax       int64     // messages of AGENTRUN_RUNS and their limit
	Letters, LettersMax int64     // the same of AGENTRUN_DEADLETTERS
	Jobs, JobsMax       int64     // the same of AGENTRUN_JOBS
	Created             time.Time // of AGENTRUN_RUNS

	replicated            bool
	runsKept, lettersKept int64 // places for messages on their way
}

// Status returns the latest that is known, without asking anybody.
func (c *Conn) Status() Status {
	connected := c.nc.IsConnected()
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
		return c.notConnected()
	case s.Problem != nil:
		return s.Problem
	case s.Observed.IsZero():
		return errors.New("streams not checked yet")
	}
	return c.stalled()
}

// streamFacts is the part of a stream's info that matters here.
type streamFacts struct {
	Created time.Time `json:"created"`
	Now     time.Time `json:"ts"`
	Config  struct {
		MaxMsgs     int64 `json:"max_msgs"`
		Replicas    int   `json:"num_replicas"`
		AllowDirect bool  `json:"allow_direct"`
	} `json:"config"`
	State struct {
		Messages int64  `json:"messages"`
		FirstSeq uint64 `json:"first_seq"`
		LastSeq  uint64 `json:"last_seq"`
	} `json:"state"`
}

// facts reads a stream's info, and the clock with it.
func (c *Conn) facts(ctx context.Context, stream string) (streamFacts, error) {
	var f streamFacts
	sent := c.clock.now()
	if err := c.api(ctx, "$JS.API.STREAM.INFO."+stream, nil, &f); err != nil {
		return streamFacts{}, fmt.Errorf("stream %s: %w", stream, err)
	}
	if !f.Now.IsZero() {
		c.clock.sample(f.Now, sent, c.clock.now())
	}
	return f, nil
}

// observe reads clock, counts and the creation time of AGENTRUN_RUNS.
func (c *Conn) observe(ctx context.Context) error {
	runs, err := c.facts(ctx, RunsStream)
	if err != nil {
		return err
	}
	letters, err := c.facts(ctx, LettersStream)
	if err != nil {
		return err
	}
	jobs, err := c.facts(ctx, JobsStream)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.single.Store(runs.Config.Replicas == 1 && runs.Config.AllowDirect && letters.Config.AllowDirect)
	before := c.status.Created
	c.status.Created = runs.Created
	c.status.Runs, c.status.RunsMax = runs.State.Messages, ourLimit(runs.Config.MaxMsgs, runs.Config.Replicas)
	c.status.Letters, c.status.LettersMax = letters.State.Messages, ourLimit(letters.Config.MaxMsgs, letters.Config.Replicas)
	c.status.Jobs, c.status.JobsMax = jobs.State.Messages, jobs.Config.MaxMsgs
	c.status.replicated = runs.Config.Replicas > 1
	c.status.Observed = time.Now()
	watchers := c.replaced
	c.mu.Unlock()
	if !before.IsZero() && !before.Equal(runs.Created) {
		c.log.Warn("the store of run records was made anew", "was", before, "is", runs.Created)
		for _, fn := range watchers {
			fn(runs.Created)
		}
	}
	return nil
}

// admit keeps a place for a new message of a stream of registers until settled is called, with whether it was stored. In a
// replicated stream it refuses one beyond our limit (see serverLimit). What others have added since the last look is not
// counted: the server's own limit bounds that.
func (c *Conn) admit(ctx context.Context, stream string) (settled func(stored bool), err error) {
	for fresh := false; ; fresh = true {
		c.mu.Lock()
		count, limit, kept := &c.status.Runs, c.status.RunsMax, &c.status.runsKept
		if stream == LettersStream {
			count, limit, kept = &c.status.Letters, c.status.LettersMax, &c.status.lettersKept
		}
		room := !c.status.replicated || *count+*kept < limit
		if room {
			*kept++
		}
		c.mu.Unlock()
		if room {
			return func(stored bool) {
				c.mu.Lock()
				defer c.mu.Unlock()
				*kept--
				if stored {
					*count++ // exact again at the next look
				}
			}, nil
		}
		if fresh {
			return nil, fmt.Errorf("%w: %s has %d messages", ErrStoreFull, stream, limit)
		}
		if err := c.observe(ctx); err != nil {
			return nil, err
		}
	}
}

// LettersFull reads whether the stream of letters is at its limit: what ends then waits for room, and is not lost.
func (c *Conn) LettersFull(ctx context.Context) (bool, error) {
	f, err := c.facts(ctx, LettersStream)
	if err != nil {
		return false, fmt.Errorf("bus: size of the letters: %w", err)
	}
	limit := ourLimit(f.Config.MaxMsgs, f.Config.Replicas)
	return limit > 0 && f.State.Messages >= limit, nil
}

// StreamCreated reads when AGENTRUN_RUNS was made. A journal that remembers another time has outlived a loss of the
// store.
func (c *Conn) StreamCreated(ctx context.Context) (time.Time, error) {
	f, err := c.facts(ctx, RunsStream)
	if err != nil {
		return time.Time{}, fmt.Errorf("bus: creation time: %w", err)
	}
	return f.Created, nil
}

// OnReplaced calls fn, from the connection's own goroutine, whenever AGENTRUN_RUNS is found to have been made anew
// while this process runs. fn must not block.
func (c *Conn) OnReplaced(fn func(created time.Time)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replaced = append(c.replaced, fn)
}
