package worker

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/agentrun/executor/internal/fair"
	"github.com/agentrun/executor/pkg/envelope"
)

// gates keeps what each tool can bear on this executor: calls at once, calls per second, and a breaker. Who waits at a
// gate holds no slot. Only tools that the executor has get a gate of their own: names come from publishers, who could fill
// its memory with them.
type gates struct {
	limits  func(tool string) (l Limits, has bool)
	share   func(tenant string) fair.Limit // of which only the weight counts
	told    func(tool string, open bool)
	mu      sync.Mutex
	byTool  map[string]*gate
	nowhere *gate          // of every name that is no tool here: open, and asked only so that the step can be refused
	parked  map[*loop]bool // runs that hold no slot and wait for a tool
}

func newGates(limits func(string) (Limits, bool), share func(string) fair.Limit, told func(string, bool)) *gates {
	g := &gates{limits: limits, share: share, told: told, byTool: map[string]*gate{}, parked: map[*loop]bool{}}
	g.nowhere = g.make("")
	g.nowhere.end()
	return g
}

// limitsOf are the limits of a tool that the executor has.
func limitsOf(t Tools) func(string) (Limits, bool) {
	return func(name string) (Limits, bool) {
		if _, has := t.Tool(name); !has {
			return Limits{}, false
		}
		return t.Limits(name), true
	}
}

// of returns the tool's gate.
func (g *gates) of(tool string) *gate {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t := g.byTool[tool]; t != nil {
		return t
	}
	limits, has := g.limits(tool)
	if !has {
		return g.nowhere
	}
	t := g.make(tool)
	t.set(limits)
	g.byTool[tool] = t
	return t
}

func (g *gates) make(tool string) *gate {
	shares := fair.New(func(tenant string) fair.Limit { return fair.Limit{Weight: g.share(tenant).Weight} })
	return &gate{told: func(open bool) { g.told(tool, open) }, shares: shares, queue: fair.NewQueue[chan struct{}](shares)}
}

// refresh asks for every tool's limits again: the config, or the size of the fleet, has changed. The gate of a tool that is
// gone lets everyone through, to be refused, and is forgotten: who is at it still holds it.
func (g *gates) refresh() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for tool, t := range g.byTool {
		limits, has := g.limits(tool)
		t.set(limits)
		if !has {
			t.end()
			delete(g.byTool, tool)
		}
	}
}

// sharingFor is how long after its last call an executor still counts as sharing a tool's rate.
const sharingFor = time.Second

// sharing reports whether any tool whose rate the fleet shares is wanted here.
func (g *gates) sharing(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range g.byTool {
		if t.wanted(now) {
			return true
		}
	}
	return false
}

// park notes that a run waits here without a slot; at most this many may. It is false for one too many.
func (g *gates) park(l *loop, most int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.parked[l] && len(g.parked) >= most {
		return false
	}
	g.parked[l] = true
	return true
}

// unpark notes that a run has its slot, or has left.
func (g *gates) unpark(l *loop) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.parked, l)
}

// gate lets calls of one tool through in the order in which they came, and each tenant in its turn.
type gate struct {
	told   func(open bool)
	shares *fair.Shares

	mu      sync.Mutex
	most    int // 0: any number
	inside  int
	tokens  *rate.Limiter // nil: any rate
	queue   *fair.Queue[chan struct{}]
	timer   *time.Timer
	breaker breaker
	slows   bool          // what was told of it
	probe   chan struct{} // of the call that was let in while the breaker was open: its end decides
	shared  bool
	lastIn  time.Time
	pace    time.Duration // how long a call takes, about
	ended   bool          // the tool is gone: nothing slows anybody down any more
	handed  int           // runs that were handed over because too many waited, and have not been seen again
}

func (g *gate) set(l Limits) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.most, g.shared = l.Concurrency, l.Shared
	g.breaker.most = min(max(l.RetryDelay, breakerLeast), breakerMost)
	switch burst := max(l.Burst, 1); {
	case l.PerSecond <= 0:
		g.tokens = nil
	case g.tokens == nil:
		g.tokens = rate.NewLimiter(rate.Limit(l.PerSecond), burst)
	default:
		g.tokens.SetLimit(rate.Limit(l.PerSecond))
		g.tokens.SetBurst(burst)
	}
	g.pump()
}

// end opens the gate of a tool that is gone, for good.
func (g *gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	g.breaker = breaker{}
	g.pump()
}

func (g *gate) wanted(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shared && (g.queue.Len() > 0 || g.inside > 0 || now.Sub(g.lastIn) < sharingFor)
}

// enter returns a channel that is closed when a call of the tenant's may leave.
func (g *gate) enter(tenant string) chan struct{} {
	ch := make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue.Push(tenant, ch)
	g.pump()
	return ch
}

// leave ends a call, or gives up waiting for one. A nil gate is a lookup's: it has none.
func (g *gate) leave(tenant string, ch chan struct{}) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.queue.Remove(tenant, ch) {
		return
	}
	g.inside--
	g.shares.End(tenant)
	if ch == g.probe {
		g.probe, g.breaker.probing = nil, false // it was given up, or has said what it had to say
	}
	g.pump()
}

// learn tells the gate how the attempt that was let in by ch ended and how long it took; it does not end the call's place
// inside.
func (g *gate) learn(ch chan struct{}, reply *envelope.Reply, attempt int, took time.Duration) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pace == 0 {
		g.pace = took
	}
	g.pace += (took - g.pace) / 8
	if g.ended {
		return
	}
	g.breaker.learn(reply, attempt, ch == g.probe, time.Now())
	g.pump()
}

// admit takes a place inside if the limits allow it now; g.mu is held. Otherwise it sees to it that pump comes again.
func (g *gate) admit() bool {
	if g.most > 0 && g.inside >= g.most {
		return false
	}
	wait, ok := g.breaker.admits(time.Now())
	if !ok {
		if wait > 0 {
			g.wake(wait)
		}
		return false
	}
	if g.tokens != nil {
		res := g.tokens.Reserve()
		if wait := res.Delay(); wait > 0 {
			res.Cancel()
			g.wake(wait)
			return false
		}
	}
	g.breaker.admitted()
	if g.shared {
		g.lastIn = time.Now()
	}
	g.inside++
	return true
}

// pump lets in whom the limits allow; g.mu is held.
func (g *gate) pump() {
	for g.queue.Len() > 0 && g.admit() {
		tenant, _ := g.queue.First()
		g.shares.Start(tenant)
		ch := g.queue.Pop(tenant)
		if g.breaker.probing {
			g.probe = ch
		}
		close(ch)
	}
	g.show()
}

// show tells whether the breaker slows anybody down; g.mu is held. Once its time has passed and nobody has come, nothing is
// known of the tool any more, and the next call is not held up.
func (g *gate) show() {
	left := time.Until(g.breaker.until)
	slows := g.breaker.open() && (left > 0 || g.breaker.probing || g.queue.Len() > 0)
	if slows && left > 0 && g.queue.Len() == 0 {
		g.wake(left)
	}
	if slows != g.slows {
		g.slows = slows
		g.told(slows)
	}
}

// Bounds on when a run is due again that found too many others waiting for its tool.
const (
	againSoonest = 50 * time.Millisecond
	againLatest  = 5 * time.Minute
)

// handOver says when a run that cannot wait here should try again: spread over the time that those who wait, and those
// who were handed over before it, will take. random is in [0, 1).
func (g *gate) handOver(random float64) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.handed++
	each := g.pace
	if g.most > 0 {
		each /= time.Duration(g.most)
	}
	if g.tokens != nil {
		each = max(each, time.Duration(float64(time.Second)/float64(g.tokens.Limit())))
	}
	// They come back one after another from when those who wait here are nearly through.
	due := each*time.Duration(g.queue.Len())*3/4 + time.Duration(random*float64(each)*float64(g.handed))
	if wait := time.Until(g.breaker.until); g.breaker.open() && wait > 0 {
		due += wait
	}
	return min(max(due, againSoonest), againLatest)
}

// back notes that a run which was handed over has got its turn.
func (g *gate) back() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.handed = max(0, g.handed-1)
}

func (g *gate) wake(wait time.Duration) {
	if g.timer != nil {
		g.timer.Stop()
	}
	g.timer = time.AfterFunc(wait, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.pump()
	})
}

// breaker slows a tool down for every run of this executor when the tool says or shows that it can take no more, instead
// of burning each run's attempts: closed, open until a time, then one probe whose end decides.
//
// It opens by first attempts: a repeated one that fails again may be that request's own fault, and its run's retry delay
// slows it already. A few requests that can never succeed would otherwise, once the others are done, look like an outage.
type breaker struct {
	most     time.Duration // bounds wait
	failures int           // first attempts, in a row
	wait     time.Duration // of the last opening
	until    time.Time     // zero: closed
	probing  bool
}

const (
	breakerAfter = 10 // failures in a row, where the tool names no time
	breakerFirst = time.Second
	breakerMost  = 30 * time.Second // and no longer than the tool's own longest retry delay
	breakerLeast = 100 * time.Millisecond
)

func (b *breaker) open() bool { return !b.until.IsZero() }

// admits reports whether a call may go out now; if not, when to ask again (0: when the probe has ended).
func (b *breaker) admits(now time.Time) (wait time.Duration, ok bool) {
	if !b.open() {
		return 0, true
	}
	if wait := b.until.Sub(now); wait > 0 {
		return wait, false
	}
	return 0, !b.probing
}

func (b *breaker) admitted() {
	if b.open() {
		b.probing = true
	}
}

// learn counts what a call's end says about the tool. Only failures that are the tool's own count; a refusal of one
// request is a sign of life. While the breaker is open the probe's end decides: a call that was let in before says how the
// tool was then, so that its success closes nothing, and many failures of such calls are one sign, not many.
func (b *breaker) learn(reply *envelope.Reply, attempt int, probe bool, now time.Time) {
	failure := !reply.OK && overload(reply)
	if b.open() && !probe && !failure {
		return
	}
	if !failure {
		*b = breaker{most: b.most}
		return
	}
	if attempt == 1 || reply.Row.Code == envelope.CodeUpstreamRateLimited {
		b.failures++
	}
	after := min(time.Duration(reply.RetryAfter)*time.Millisecond, breakerMost)
	if b.open() && !probe {
		b.until = later(b.until, now.Add(after))
		return
	}
	b.probing = false
	if reply.Row.Code == envelope.CodeUpstreamRateLimited && after > 0 {
		b.until = later(b.until, now.Add(after))
		return
	}
	if b.failures < breakerAfter && !b.open() {
		return
	}
	b.wait = min(max(2*b.wait, breakerFirst), b.most)
	b.until = later(b.until, now.Add(max(b.wait, after)))
}

func overload(reply *envelope.Reply) bool {
	switch reply.Row.Code {
	case envelope.CodeUpstreamRateLimited, envelope.CodeUpstreamUnavailable, envelope.CodeUpstreamTimeout, envelope.CodeOutcomeUnknown:
		return true
	}
	return reply.NoReply
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
