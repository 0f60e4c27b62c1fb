package bus

import (
	"sync"
	"time"
)

// driftPPM is how far a machine's clock may run off the server's, in microseconds a second. Ordinary quartz is within
// 100; slewing by NTP adds up to 500.
const driftPPM = 1000

// Clock keeps bounds on the server's time. No lease and no verdict depends on it. What must be no earlier is written
// from Upper and judged due by Lower.
type Clock struct {
	now func() time.Duration // monotonic

	mu      sync.Mutex
	samples uint64
	jumped  func(by time.Duration) // told of a jump; may be nil
	at      time.Duration          // of the latest sample
	lower   time.Time              // of the server's clock, at at
	upper   time.Time
}

// sample says that the server's clock showed ts at some moment between sent and received. A sample that contradicts
// what was known replaces it: another server answers now, or its clock was set.
func (c *Clock) sample(ts time.Time, sent, received time.Duration) {
	lower, upper := ts, ts.Add(received-sent)
	upper = upper.Add(drift(received - sent))
	c.mu.Lock()
	by := time.Duration(0)
	if c.samples > 0 {
		knownLower, knownUpper := c.bounds(received)
		switch {
		case knownLower.After(upper):
			by = upper.Sub(knownLower)
		case lower.After(knownUpper):
			by = lower.Sub(knownUpper)
		default:
			lower, upper = latest(lower, knownLower), earliest(upper, knownUpper)
		}
	}
	c.samples++
	c.at, c.lower, c.upper = received, lower, upper
	jumped := c.jumped
	c.mu.Unlock()
	if by.Abs() >= jumpLeast && jumped != nil {
		jumped(by)
	}
}

// jumpLeast is from when on it is said that the server's clock was set; servers of a cluster differ by less.
const jumpLeast = time.Second

// Heard says that the server's clock showed ts before now: a message that it stored then has come. One that is later than
// the server's clock can be is of another server, or the clock was set: the next sample tells.
func (c *Clock) Heard(ts time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.samples == 0 {
		return
	}
	now := c.now()
	if lower, upper := c.bounds(now); ts.After(lower) && !ts.After(upper) {
		c.at, c.lower, c.upper = now, ts, upper
	}
}

func (c *Clock) bounds(now time.Duration) (lower, upper time.Time) {
	passed := now - c.at
	return c.lower.Add(passed - drift(passed)), c.upper.Add(passed + drift(passed))
}

func drift(d time.Duration) time.Duration { return time.Duration(float64(d) * driftPPM / 1e6) }

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Known reports whether the server's time has been read at all. Setup returns with it known.
func (c *Clock) Known() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.samples > 0
}

// Lower is a time that the server's clock has certainly reached. While it is not Known, the zero time.
func (c *Clock) Lower() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.samples == 0 {
		return time.Time{}
	}
	lower, _ := c.bounds(c.now())
	return lower
}

// Upper is a time that the server's clock has certainly not passed. While it is not Known, the machine's own time.
func (c *Clock) Upper() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.samples == 0 {
		return time.Now()
	}
	_, upper := c.bounds(c.now())
	return upper
}

// Clock returns the bounds on the server's time.
func (c *Conn) Clock() *Clock { return &c.clock }

// OnClockSet calls fn, from any goroutine, when the server's clock is found to have been set by so much, or another server
// with such a clock answers: forward if by is positive. What is less than a second is not told. fn must not block.
func (c *Conn) OnClockSet(fn func(by time.Duration)) {
	c.clock.mu.Lock()
	defer c.clock.mu.Unlock()
	before := c.clock.jumped
	c.clock.jumped = func(by time.Duration) {
		if before != nil {
			before(by)
		}
		fn(by)
	}
}
