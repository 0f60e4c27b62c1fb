package journal

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/agentrun/executor/internal/engine"
)

const (
	lazyDelay      = 100 * time.Millisecond // how long Later waits for a commit to join
	retryDelay     = time.Second            // between attempts while commits fail and nobody writes
	batchBytes     = 16 << 20               // of one transaction: bounds its memory and how long the last writer waits
	lazyMarks      = 200_000                // kept while commits fail; beyond it the oldest are dropped
	mappedBytes    = 32 << 20               // committed between two calls of forgetMapped
	fillPercent    = 0.9                    // keys come nearly in order: half-full pages would never be filled
	entryBytesMost = 64 << 20               // of one call of Write

	// A transaction costs over 100 µs of CPU, whatever it holds. When many write at once the next one therefore waits a
	// moment for company, in which those that the last one answered can come back; who writes alone never waits.
	companyFrom = 8                // calls of Write that the last transaction served
	companyWait = time.Millisecond // at most; no longer than the last transaction took
	// A crowd gains more by sharing than it loses by waiting: measured at 256 writers, four times as long as the last
	// transaction took saves a sixth of all CPU.
	crowdFrom  = 32
	crowdTimes = 4
	crowdWait  = 3 * time.Millisecond // at most
)

type opKind byte

const (
	opIntent opKind = iota
	opEffect
	opSettle
	opRemove // a settled fact
	opMeta
)

// op is one change, encoded by the goroutine that asks for it: the one that commits only puts bytes into pages.
type op struct {
	kind  opKind
	key   []byte
	value []byte
}

// request is what one caller wants to have in one transaction.
type request struct {
	ops     []op
	bytes   int
	entries int
	done    chan error // holds one
	removed int        // by opRemove, set before done
}

// committer is the queue before the one goroutine that commits.
type committer struct {
	mu      sync.Mutex
	queue   []*request
	lazy    []op
	seen    uint64 // see Journal.Saw
	seenDue bool   // it is higher than what the file has
	due     bool   // lazy marks have waited long enough, or a failed commit is to be tried again
	armed   bool   // a timer will set due
	closing bool
	failure error // of the last commit, nil if it succeeded
	broken  error // nothing more can be committed: bbolt panicked

	wake    chan struct{}
	stopped chan struct{}

	// Only the committing goroutine (and Open, before it) touches these.
	suspect   bool  // the last commit failed: what the meta pages say may not be on disk
	size      int64 // of the file, as remembered in it
	sizeDirty bool
	sinceMap  int // bytes committed since forgetMapped
}

func (c *committer) init() {
	c.wake, c.stopped = make(chan struct{}, 1), make(chan struct{})
}

// Write makes the entries durable, all or none: they are on disk when it returns nil. It may be called by thousands of
// goroutines; all that waits shares one transaction. ErrFull says that the disk is full and that nothing was written. If
// ctx ends first its error is returned and the entries may be in the journal or not.
func (j *Journal) Write(ctx context.Context, entries ...engine.Entry) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("journal: write: %w", err)
	}
	if len(entries) == 0 {
		return nil
	}
	r := &request{entries: len(entries)}
	var err error
	if r.ops, r.bytes, err = encode(entries); err != nil {
		return fmt.Errorf("journal: write: %w", err)
	}
	select {
	case err := <-j.enqueue(r):
		return err
	case <-ctx.Done():
		return fmt.Errorf("journal: write: %w", ctx.Err())
	}
}

// Later writes the entries with the next commit, or with one of its own after about 100 ms. It promises nothing and is
// meant for Settled; an entry that cannot be encoded is dropped.
func (j *Journal) Later(entries ...engine.Entry) {
	ops, _, err := encode(entries)
	if err != nil || len(ops) == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closing || j.broken != nil {
		return
	}
	j.lazy = append(j.lazy, ops...)
	if over := len(j.lazy) - lazyMarks; over > 0 {
		j.lazy = append([]op(nil), j.lazy[over:]...)
	}
	j.arm(lazyDelay)
}

// Err is why the last commit failed; nil after one that succeeded. While it is not nil the journal tries again by itself
// every second, so this is what readiness looks at.
func (j *Journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failure
}

func encode(entries []engine.Entry) (ops []op, bytes int, err error) {
	ops = make([]op, 0, len(entries))
	for i := range entries {
		var o op
		e := &entries[i]
		switch {
		case e.Intent != nil && e.Effect == nil && e.Settled == "":
			if o.key, err = keyOf(e.Intent.Dispatch); err == nil {
				o.kind, o.value = opIntent, seal(tagIntent, o.key, encodeIntent(e.Intent))
			}
		case e.Effect != nil && e.Intent == nil && e.Settled == "":
			if o.key, err = keyOf(e.Effect.Dispatch); err != nil {
				break
			}
			if o.value, err = encodeEffect(e.Effect); err == nil {
				o.kind, o.value = opEffect, seal(tagEffect, o.key, o.value)
			}
		case e.Settled != "" && e.Intent == nil && e.Effect == nil:
			o.kind = opSettle
			o.key, err = keyOf(e.Settled)
		default:
			err = errors.New("exactly one field of an entry is set")
		}
		if err != nil {
			return nil, 0, fmt.Errorf("entry %d: %w", i, err)
		}
		ops = append(ops, o)
		bytes += len(o.key) + len(o.value)
	}
	if bytes > entryBytesMost {
		return nil, 0, fmt.Errorf("%d bytes are above the limit of %d", bytes, entryBytesMost)
	}
	return ops, bytes, nil
}

func (c *committer) enqueue(r *request) <-chan error {
	r.done = make(chan error, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.broken != nil:
		r.done <- c.broken
	case c.closing:
		r.done <- ErrClosed
	default:
		c.queue = append(c.queue, r)
		c.signal()
	}
	return r.done
}

func (c *committer) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// arm makes the committer look at the lazy marks, or try again, after d. The caller holds mu.
func (c *committer) arm(d time.Duration) {
	if c.armed || c.due {
		return
	}
	c.armed = true
	time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.armed, c.due = false, true
		c.signal()
	})
}

// shut lets no more in and reports whether it was the first to.
func (c *committer) shut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return false
	}
	c.closing = true
	c.signal()
	return true
}

// next takes what the next transaction holds; last says that nothing may follow it.
func (c *committer) next() (reqs []*request, lazy []op, last bool) {
	for {
		c.mu.Lock()
		if len(c.queue) > 0 || c.due || c.closing {
			n, size := 0, 0
			for n < len(c.queue) && (n == 0 || size+c.queue[n].bytes <= batchBytes) {
				size += c.queue[n].bytes
				n++
			}
			reqs = c.queue[:n:n]
			if c.queue = c.queue[n:]; len(c.queue) == 0 {
				c.queue = nil
			}
			lazy, c.lazy, c.due = c.lazy, nil, false
			if c.seenDue {
				lazy, c.seenDue = append(lazy, seenOp(c.seen)), false
			}
			last = c.closing && len(c.queue) == 0
			c.mu.Unlock()
			return reqs, lazy, last
		}
		c.mu.Unlock()
		<-c.wake
	}
}

// run is the one goroutine that writes to the file.
func (j *Journal) run() {
	debug.SetPanicOnFault(true)
	defer close(j.stopped)
	for {
		reqs, lazy, last := j.next()
		if j.broken != nil {
			return // what came in between has its answer; nothing comes any more
		}
		if last && len(reqs) == 0 && len(lazy) == 0 && !j.sizeDirty {
			return
		}
		began := time.Now()
		j.commit(reqs, lazy)
		if last {
			return
		}
		for _, r := range reqs {
			j.sinceMap += r.bytes
		}
		if j.sinceMap >= mappedBytes && j.broken == nil {
			j.sinceMap = 0
			_ = j.forgetMapped() // saves memory only
		}
		switch took := time.Since(began); {
		case len(reqs) >= crowdFrom:
			time.Sleep(min(crowdTimes*took, crowdWait))
		case len(reqs) >= companyFrom:
			time.Sleep(min(took, companyWait))
		}
	}
}

func (j *Journal) commit(reqs []*request, lazy []op) {
	began := time.Now()
	all, entries := reqs, len(lazy)
	if len(lazy) > 0 {
		// Marks were asked for before what waits now: they go first.
		all = append([]*request{{ops: lazy}}, reqs...)
	}
	for _, r := range reqs {
		entries += r.entries
	}
	err := j.transact(all)
	j.mu.Lock()
	j.failure = err
	if err != nil && !j.closing && j.broken == nil {
		j.lazy = append(lazy, j.lazy...)
		j.arm(retryDelay)
	}
	j.mu.Unlock()
	if err == nil && j.opts.OnCommit != nil {
		j.opts.OnCommit(time.Since(began), entries)
	}
	for _, r := range reqs {
		r.done <- err
	}
}
