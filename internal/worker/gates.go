package worker

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// gates keeps each tool's own limits: calls at once, and calls per second. Who waits at a gate holds no slot.
type gates struct {
	limits func(tool string) Limits
	mu     sync.Mutex
	byTool map[string]*gate
}

func newGates(limits func(string) Limits) *gates {
	return &gates{limits: limits, byTool: map[string]*gate{}}
}

// of returns the tool's gate, nil if it has no limits.
func (g *gates) of(tool string) *gate {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t, ok := g.byTool[tool]; ok {
		return t
	}
	l := g.limits(tool)
	var t *gate
	if l.Concurrency > 0 || l.PerSecond > 0 {
		t = &gate{most: l.Concurrency}
		if l.PerSecond > 0 {
			t.tokens = rate.NewLimiter(rate.Limit(l.PerSecond), max(l.Burst, 1))
		}
	}
	g.byTool[tool] = t
	return t
}

// gate lets calls of one tool through in the order in which they came.
type gate struct {
	mu     sync.Mutex
	most   int // 0: any number
	inside int
	tokens *rate.Limiter // nil: any rate
	queue  []chan struct{}
	timer  *time.Timer
}

// enter returns a channel that is closed when the caller may call. A nil gate is open.
func (g *gate) enter() <-chan struct{} {
	ch := make(chan struct{})
	if g == nil {
		close(ch)
		return ch
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue = append(g.queue, ch)
	g.pump()
	return ch
}

// leave ends a call, or gives up waiting for one.
func (g *gate) leave(ch <-chan struct{}) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, q := range g.queue {
		if q == ch {
			g.queue = append(g.queue[:i], g.queue[i+1:]...)
			return
		}
	}
	g.inside--
	g.pump()
}

// pump lets in whom the limits allow; g.mu is held.
func (g *gate) pump() {
	for len(g.queue) > 0 && (g.most == 0 || g.inside < g.most) {
		if g.tokens != nil {
			res := g.tokens.Reserve()
			if wait := res.Delay(); wait > 0 {
				res.Cancel()
				g.wake(wait)
				return
			}
		}
		g.inside++
		close(g.queue[0])
		g.queue = g.queue[1:]
	}
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
