// Package pause is how one waits here before a next try: until a time is over or nobody waits for the result any more.
package pause

import (
	"context"
	"time"
)

// For waits for d, and reports false if ctx ended first.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// The pauses between tries of what must succeed in the end.
const (
	soonest = 50 * time.Millisecond
	latest  = 2 * time.Second
)

// Longer waits between such tries: each time twice as long. Its zero value waits the shortest time next.
type Longer struct{ last time.Duration }

// Wait is For with the next pause.
func (l *Longer) Wait(ctx context.Context) bool {
	l.last = max(min(2*l.last, latest), soonest)
	return For(ctx, l.last)
}
