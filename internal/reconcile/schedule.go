package reconcile

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/agentrun/executor/pkg/run"
)

// schedule is a heap of entries by the time at which they must be looked at.
type schedule []*entry

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].at.Before(s[j].at) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

func (s *schedule) Push(x any) {
	e := x.(*entry)
	e.index = len(*s)
	*s = append(*s, e)
}

func (s *schedule) Pop() any {
	old := *s
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	e.index = -1
	return e
}

// schedule sets the time of an entry; rc.mu is held. An entry that is being looked at is scheduled when that is over.
func (rc *Reconciler) schedule(e *entry, at time.Time) {
	e.at = at
	if e.busy {
		return
	}
	if e.index < 0 {
		heap.Push(&rc.queue, e)
	} else {
		heap.Fix(&rc.queue, e.index)
	}
	if e.index == 0 {
		rc.poke()
	}
}

func (rc *Reconciler) unschedule(e *entry) {
	if e.index >= 0 {
		heap.Remove(&rc.queue, e.index)
	}
	e.at = time.Time{}
}

// work hands due entries to a bounded number of goroutines while this reconciler is active. An error on one run never
// delays another.
func (rc *Reconciler) work(ctx context.Context) {
	tasks := make(chan *entry)
	var wg sync.WaitGroup
	for range rc.Workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for e := range tasks {
				rc.look(ctx, e)
			}
		}()
	}
	defer wg.Wait()
	defer close(tasks)
	tidy := time.Now()
	for {
		if time.Since(tidy) > 10*time.Second { // also while something is always due
			tidy = time.Now()
			rc.sweep(tidy)
		}
		e, wait := rc.next(time.Now())
		if e != nil {
			select {
			case tasks <- e:
				continue
			case <-ctx.Done():
				return
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-rc.kick:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// next takes the first due entry, or says how long to wait for one.
func (rc *Reconciler) next(now time.Time) (*entry, time.Duration) {
	const idle = time.Second
	if !rc.current() {
		return nil, idle
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if !rc.active || !rc.seenAll() || len(rc.queue) == 0 {
		return nil, idle
	}
	e := rc.queue[0]
	if wait := e.at.Sub(now); wait > 0 {
		return nil, min(wait, idle)
	}
	heap.Pop(&rc.queue)
	e.busy = true
	return e, 0
}

// done ends a look: the entry is scheduled for its next one. A run stays due until its record changes: actions repeat
// every half lease, with jitter.
func (rc *Reconciler) done(e *entry, seq uint64, keep bool, at time.Time) {
	now := time.Now()
	rc.mu.Lock()
	defer rc.mu.Unlock()
	e.busy = false
	if rc.runs[e.id] != e {
		return // dropped, or made anew, meanwhile
	}
	if e.seq > seq {
		// A newer revision was seen meanwhile: it has its own time.
		at, keep = rc.plan(e, now)
	}
	if !keep {
		rc.drop(e.id)
		return
	}
	rc.schedule(e, at)
}

// drop forgets a run that needs nobody any more; rc.mu is held.
func (rc *Reconciler) drop(id run.ID) {
	delete(rc.runs, id)
	delete(rc.ends, id)
	delete(rc.overdue, id)
	rc.hasRoom(id)
}
