package queue

import (
	"hash/maphash"
	"iter"
)

const (
	// aheadMost bounds how many messages of one queue are known ahead of their delivery.
	aheadMost = 1 << 18
	// oldestEach: of this many jobs that a tenant gets started out of order, one is its oldest, whatever its priority.
	oldestEach = 8

	priorities = 10
)

var runSeed = maphash.MakeSeed()

// ahead is what is known of the messages of one consumer that have not been delivered to anybody yet: which tenant each is
// of, and its priority. It may be behind what is true: a message that it names can be gone.
type ahead struct {
	floor uint64 // all up to here have been delivered
	next  uint64 // the first that has not been looked at
	lanes map[string]*lane
	runs  map[uint64]uint64 // of each run that has been seen here the latest message
	order []marked          // all of them, oldest first, and some that are gone
	taken map[uint64]bool
	n     int
}

type marked struct {
	seq    uint64
	tenant string
}

// lane has the messages of one tenant, by priority. Of each run it has the oldest only, so that a run's jobs keep their order: the
// others are delivered in their turn.
type lane struct {
	byPriority [priorities][]entry
	n          int // in byPriority
	outOfTurn  int // taken since the oldest was
}

type entry struct {
	seq      uint64
	run      uint64
	priority int
}

func newAhead() *ahead {
	return &ahead{lanes: map[string]*lane{}, runs: map[uint64]uint64{}, taken: map[uint64]bool{}}
}

// add appends a message; they come in the order of their sequences.
func (a *ahead) add(seq uint64, tenant, runID string, priority int) {
	a.next = seq + 1
	if seq <= a.floor {
		return
	}
	run, seen := a.see(seq, tenant, runID)
	if seen {
		return
	}
	l := a.lanes[tenant]
	if l == nil {
		l = &lane{}
		a.lanes[tenant] = l
	}
	l.byPriority[priority] = append(l.byPriority[priority], entry{seq, run, priority})
	l.n++
	a.order = append(a.order, marked{seq, tenant})
	a.n++
}

// see notes a message of a run, and reports whether an earlier one has been seen; nothing of the run is taken out of its
// order until all of them have been delivered.
func (a *ahead) see(seq uint64, tenant, runID string) (run uint64, seen bool) {
	a.next = seq + 1
	run = maphash.String(runSeed, tenant+"."+runID)
	_, seen = a.runs[run]
	a.runs[run] = seq
	return run, seen
}

// drop removes the oldest of a priority.
func (a *ahead) drop(tenant string, l *lane, priority int) {
	l.byPriority[priority] = l.byPriority[priority][1:]
	l.n--
	a.n--
	if l.n == 0 {
		delete(a.lanes, tenant)
	}
}

// delivered notes that everything up to seq has been delivered to somebody. It is cheap; prune does the work.
func (a *ahead) delivered(seq uint64) {
	if seq > a.floor {
		a.floor = seq
		a.trim()
	}
}

// prune forgets what has been delivered.
func (a *ahead) prune() {
	for tenant := range a.lanes {
		a.has(tenant)
	}
	if len(a.runs) <= 2*a.n {
		return
	}
	for run, seq := range a.runs {
		if seq <= a.floor {
			delete(a.runs, run)
		}
	}
}

// has reports whether the tenant has something that has not been delivered, and forgets what has.
func (a *ahead) has(tenant string) bool {
	l := a.lanes[tenant]
	if l == nil {
		return false
	}
	for p := range l.byPriority {
		for len(l.byPriority[p]) > 0 && l.byPriority[p][0].seq <= a.floor {
			a.drop(tenant, l, p)
		}
	}
	return l.n > 0
}

// trim forgets, at the front of the order, what is gone.
func (a *ahead) trim() {
	for len(a.order) > 0 && (a.order[0].seq <= a.floor || a.taken[a.order[0].seq]) {
		delete(a.taken, a.order[0].seq)
		a.order = a.order[1:]
	}
}

// tenants are those that have something.
func (a *ahead) tenants() iter.Seq[string] {
	return func(yield func(string) bool) {
		for tenant := range a.lanes {
			if !yield(tenant) {
				return
			}
		}
	}
}

// head is the oldest, what a pull request would be answered with; ok is false if nothing is known.
func (a *ahead) head() (m marked, ok bool) {
	if len(a.order) == 0 {
		return m, false
	}
	return a.order[0], true
}

// peek is the message of a tenant whose turn it is: of the highest priority the oldest, or the oldest of all if others
// have gone before it often enough. The tenant must have one: see has.
func (a *ahead) peek(tenant string) entry {
	l := a.lanes[tenant]
	var first, oldest entry
	for p := priorities - 1; p >= 0; p-- {
		if line := l.byPriority[p]; len(line) > 0 {
			if first.seq == 0 {
				first = line[0]
			}
			if oldest.seq == 0 || line[0].seq < oldest.seq {
				oldest = line[0]
			}
		}
	}
	if l.outOfTurn >= oldestEach-1 {
		return oldest
	}
	return first
}

// take removes what peek returns.
func (a *ahead) take(tenant string) uint64 {
	e := a.peek(tenant)
	l := a.lanes[tenant]
	oldest := true
	for p := range l.byPriority {
		oldest = oldest && (len(l.byPriority[p]) == 0 || l.byPriority[p][0].seq >= e.seq)
	}
	if l.outOfTurn++; oldest {
		l.outOfTurn = 0
	}
	a.taken[e.seq] = true
	a.drop(tenant, l, e.priority)
	a.trim()
	return e.seq
}

// plain reports whether the order in which they came is as good as any: one tenant, one priority.
func (a *ahead) plain() bool {
	if len(a.lanes) != 1 {
		return len(a.lanes) == 0
	}
	for _, l := range a.lanes {
		used := 0
		for p := range l.byPriority {
			if len(l.byPriority[p]) > 0 {
				used++
			}
		}
		return used == 1
	}
	return true
}
