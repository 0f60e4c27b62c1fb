package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
)

// fault is what befalls one seam call.
type fault int

const (
	none        fault = iota
	crashBefore       // the process dies before the call takes effect
	crashAfter        // it dies when the call has taken effect, before it hears so
	failBefore        // an error, and nothing landed
	failAfter         // an error, and it landed all the same
	failLate          // an error, and it lands later if it still may
	hang              // it takes seconds
)

func (f fault) String() string {
	return [...]string{"none", "crash before", "crash after", "error, nothing landed", "error, landed", "error, lands later", "hangs"}[f]
}

// errors that fakes return for injected faults.
var (
	errDead     = errors.New("the process is dead")
	errInjected = errors.New("injected error")
)

// dice gives numbers that depend on the seed and on what they are drawn for, not on the order of drawing: goroutines that
// run side by side cannot change each other's fate.
type dice struct {
	seed  uint64
	mu    sync.Mutex
	times map[string]int
}

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func hashOf(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// draw is a number for the n-th time that something is drawn for this name.
func (d *dice) draw(name string) uint64 {
	d.mu.Lock()
	n := d.times[name]
	d.times[name]++
	d.mu.Unlock()
	return mix(mix(d.seed^hashOf(name)) + uint64(n))
}

// n draws from [0, n).
func (d *dice) n(name string, n int) int { return int(d.draw(name) % uint64(n)) }

// chance is true in p of a thousand cases.
func (d *dice) chance(name string, p int) bool { return d.n(name, 1000) < p }

// between draws a duration from [from, to).
func (d *dice) between(name string, from, to time.Duration) time.Duration {
	return from + time.Duration(d.draw(name)%uint64(max(to-from, 1)))
}

func (d *dice) float(name string) float64 { return float64(d.draw(name)%1_000_000) / 1_000_000 }

// world is one bubble's worth of truth: the server, the provider, the processes. mu guards all of its state and is never
// held while anything waits.
type world struct {
	t    testing.TB
	dice *dice
	mu   sync.Mutex
	zero time.Time

	plan   func(p *proc, op, key string) fault // what befalls a call
	behave func(d *engine.Dispatch) conduct    // what the provider does with a dispatch
	fast   bool                                // latencies are tiny and equal: for sweeps
	calls  int                                 // numbered seam calls so far

	disturbed atomic.Int64 // when something last befell somebody, Unix nanoseconds
	full      time.Time    // when an executor last had all its slots in use
	prompt    int          // steps that were due and whose start was looked at

	server
	provider
	procs     []*proc
	executors []*executor
	recons    []*reconciler

	names  map[engine.DispatchID]string
	trace  []string
	broken string
	over   chan struct{} // closed when a rule is broken
}

func newWorld(t testing.TB, seed uint64) *world {
	w := &world{
		t: t, dice: &dice{seed: seed, times: map[string]int{}}, zero: time.Now(), names: map[engine.DispatchID]string{},
		over: make(chan struct{}),
	}
	w.plan = func(*proc, string, string) fault { return none }
	w.server.init(w)
	w.provider.init(w)
	return w
}

// say writes a line of the trace; w.mu is not held.
func (w *world) say(format string, args ...any) {
	w.mu.Lock()
	w.sayLocked(format, args...)
	w.mu.Unlock()
}

func (w *world) sayLocked(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%9.4f ", time.Since(w.zero).Seconds())+fmt.Sprintf(format, args...))
}

// name is a short name of a dispatch id, the same in every run of a seed as long as the order is.
func (w *world) name(d engine.DispatchID) string {
	if d == "" {
		return "-"
	}
	n, ok := w.names[d]
	if !ok {
		n = fmt.Sprintf("d%d", len(w.names)+1)
		w.names[d] = n
	}
	return n
}

// violated notes the first broken rule; w.mu is held.
func (w *world) violated(rule, format string, args ...any) {
	if w.broken != "" {
		return
	}
	w.broken = rule + ": " + fmt.Sprintf(format, args...)
	w.sayLocked("BROKEN %s", w.broken)
	close(w.over)
}

func (w *world) isBroken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken != ""
}

func (w *world) report() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken + "\n  " + strings.Join(w.trace, "\n  ")
}

// proc is one life of a process: every seam call of it goes through here.
type proc struct {
	w      *world
	name   string
	ctx    context.Context // ends when the process dies
	cancel context.CancelFunc
	onDie  func()

	mu     sync.Mutex
	dead   bool
	readAt time.Time // the clock was read readN times at this moment
	readN  int
	paused chan struct{} // closed at the end of the pause; nil: it runs
}

func (w *world) newProc(name string) *proc {
	p := &proc{w: w, name: name}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	w.mu.Lock()
	w.procs = append(w.procs, p)
	w.mu.Unlock()
	return p
}

// die ends the process as SIGKILL does: nothing that its code still does has an effect.
func (p *proc) die(why string) {
	p.mu.Lock()
	was := p.dead
	p.dead = true
	if p.paused != nil {
		close(p.paused)
		p.paused = nil
	}
	p.mu.Unlock()
	if was {
		return
	}
	p.w.disturb()
	p.w.say("%s dies (%s)", p.name, why)
	p.w.cutAll(p)
	p.cancel()
	if p.onDie != nil {
		p.onDie()
	}
}

func (p *proc) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

func (p *proc) isPaused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused != nil
}

func (p *proc) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dead && p.paused == nil {
		p.paused = make(chan struct{})
	}
	p.w.disturb()
}

func (p *proc) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused != nil {
		close(p.paused)
		p.paused = nil
		p.w.disturb()
	}
}

// gate lets nobody through while the machine is paused. It reports whether the process still lives.
func (p *proc) gate() bool {
	for {
		p.mu.Lock()
		ch, dead := p.paused, p.dead
		p.mu.Unlock()
		if dead {
			return false
		}
		if ch == nil {
			return true
		}
		<-ch
	}
}

// travel is the time that a message is on its way.
func (p *proc) travel(ctx context.Context, op string, slow bool) error {
	d := 50 * time.Microsecond
	if !p.w.fast {
		d = p.w.dice.between(p.name+op, 100*time.Microsecond, 3*time.Millisecond)
	}
	if slow {
		d = p.w.dice.between(p.name+op+"slow", time.Second, 4*time.Second)
	}
	err := wait(ctx, d)
	if !p.gate() {
		return errDead
	}
	return err
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ways says which errors a seam's contract allows.
type ways struct{ before, after, late bool }

var (
	reads  = ways{before: true}
	writes = ways{before: true, after: true, late: true}
	local  = ways{before: true, after: true}
)

// befall asks the plan what befalls a seam call.
func (w *world) befall(p *proc, op, key string) fault {
	f := w.plan(p, op, key)
	if f != none {
		w.disturb()
	}
	return f
}

// do is one seam call: it may crash the process, fail, or be slow, as the plan says.
func (p *proc) do(ctx context.Context, op, key string, may ways, effect func() error) error {
	if !p.gate() {
		return errDead
	}
	f := p.w.befall(p, op, key)
	if f != none {
		p.w.say("%s %s %s: %s", p.name, op, key, f)
	}
	if f == crashBefore {
		p.die("before " + op)
		return errDead
	}
	if err := p.travel(ctx, op, f == hang); err != nil {
		return err
	}
	switch {
	case f == failBefore && may.before:
		return errInjected
	case f == failLate && may.late:
		go func() {
			time.Sleep(p.w.dice.between(p.name+op+"late", time.Millisecond, 3*time.Second))
			err := effect()
			p.w.say("%s %s %s lands late: %v", p.name, op, key, err)
			p.w.disturb()
		}()
		return errInjected
	}
	err := effect()
	if f == crashAfter {
		p.die("after " + op)
		return errDead
	}
	if f == failAfter && may.after {
		return errInjected
	}
	if terr := p.travel(ctx, op, false); terr != nil {
		return terr
	}
	return err
}
