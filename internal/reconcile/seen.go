package reconcile

import (
	"context"
	"time"

	"github.com/agentrun/executor/internal/port"
)

// The streams that are watched.
const (
	runs = iota
	letters
	outcomes
)

// sight is which store the watches have reported. Reconciler.mu guards it.
type sight struct {
	token   string        // of that store; empty: of none yet
	from    time.Time     // outcomes stored before it are settled; zero: all count
	ready   [3]bool       // all that was in the stream has been reported
	void    [3]bool       // what is reported is of another store, until the Reset
	another chan struct{} // closed and replaced when the store is another
}

// startsFrom takes over what the last active one had established, of the store that it says.
func (rc *Reconciler) startsFrom(s fleetState) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.settled, rc.token = s.SettledThrough, s.Store
	if s.At != 0 {
		rc.from = s.At.Time().Add(-time.Minute)
	}
}

// Ready reports whether everything that was in the streams has been seen.
func (rc *Reconciler) Ready() bool {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return rc.seenAll()
}

// seenAll is Ready; rc.mu is held.
func (rc *Reconciler) seenAll() bool { return rc.ready == [3]bool{true, true, true} }

// current reports whether the store is the one that the fleet has settled with. What was seen of another is void, and all
// is read again: a store that has gone back may pass the place where a watch was before that watch looks, which cannot see
// it then.
func (rc *Reconciler) current() bool {
	token, ok := rc.Store.Current()
	if !ok {
		return false
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if rc.token != "" && rc.token != token {
		rc.Log.Info("all runs are read again: the store is another than the one that was seen")
		rc.ready, rc.void = [3]bool{}, [3]bool{true, true, true}
		rc.settled, rc.from = 0, time.Time{}
		close(rc.another)
		rc.another = make(chan struct{})
	}
	rc.token = token
	return true
}

// follow watches a stream until ctx ends, from the start again when the store is another.
func (rc *Reconciler) follow(ctx context.Context, stream int) error {
	for {
		rc.mu.Lock()
		another, void, from := rc.another, rc.void[stream], rc.from
		rc.mu.Unlock()
		wctx, cancel := context.WithCancel(ctx)
		go func() {
			select {
			case <-another:
				cancel()
			case <-wctx.Done():
			}
		}()
		err := rc.watch(wctx, stream, void, from)
		cancel()
		select {
		case <-another:
		default:
			return err
		}
		if ctx.Err() != nil {
			return err
		}
	}
}

// watch watches a stream until ctx ends; void: what was reported of it before is.
func (rc *Reconciler) watch(ctx context.Context, stream int, void bool, from time.Time) error {
	switch stream {
	case runs:
		if void {
			rc.change(port.Change{Report: port.Reset})
		}
		return rc.Watch.WatchRuns(ctx, rc.change)
	case letters:
		if void {
			rc.letter(port.Letter{Report: port.Reset})
		}
		return rc.Watch.WatchLetters(ctx, rc.letter)
	default:
		if void {
			rc.outcome(port.Outcome{Report: port.Reset})
		}
		return rc.Watch.WatchOutcomes(ctx, from, rc.outcome)
	}
}

// heard takes in what a watch says of itself, and reports whether its message counts; rc.mu is held.
func (rc *Reconciler) heard(stream int, k port.Report) bool {
	switch {
	case k == port.Reset:
		rc.ready[stream], rc.void[stream] = false, false
	case k == port.Current && !rc.void[stream]:
		rc.ready[stream] = true
		rc.poke()
	}
	return !rc.void[stream]
}
