package audit

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/operator"
	"github.com/agentrun/executor/internal/reconcile"
	"github.com/agentrun/executor/pkg/run"
)

// Of the background audit.
const (
	sweepRunsEvery    = 5 * time.Second
	sweepRunsRate     = 2000 // records a second at most
	sweepLettersEvery = time.Minute
	letterGrace       = 30 * time.Second // an end's letter may be on its way for so long
)

// Auditor looks at every record that was written, slowly and once each, for the metrics that must be zero.
type Auditor struct {
	store Store
	index *operator.Index
	rc    *reconcile.Reconciler
	log   *slog.Logger

	mu      sync.Mutex
	from    uint64
	flags   map[run.ID]Flags
	broken  map[run.ID]bool          // records that break a rule
	waiting map[run.ID]waitingLetter // ended by a budget, and the letter's message not seen yet
}

// Store is where the records and letters are.
type Store interface {
	// ScanRuns gives fn all records from this sequence on; an error is also that the stream is another one.
	ScanRuns(ctx context.Context, from uint64, fn func(id run.ID, seq uint64, data []byte)) error
	// Lettered are the runs that have a letter's message.
	Lettered(ctx context.Context) (map[run.ID]bool, error)
}

// Broken counts what is broken at a moment.
type Broken struct {
	RunsOverdue, OKWithoutResult, BudgetEndWithoutDeadLetter, DeadLettersWithoutOwner, BrokenRecords int
}

type waitingLetter struct {
	episode int
	since   time.Time
}

// NewAuditor makes an auditor that has looked at nothing yet; rc is told of letters that are missing.
func NewAuditor(store Store, index *operator.Index, rc *reconcile.Reconciler, log *slog.Logger) *Auditor {
	return &Auditor{store: store, index: index, rc: rc, log: log, flags: map[run.ID]Flags{}, broken: map[run.ID]bool{}, waiting: map[run.ID]waitingLetter{}}
}

// Run audits until ctx ends.
func (a *Auditor) Run(ctx context.Context) {
	limit := rate.NewLimiter(sweepRunsRate, sweepRunsRate/10)
	runs, letters := time.NewTicker(sweepRunsEvery), time.NewTicker(sweepLettersEvery)
	defer runs.Stop()
	defer letters.Stop()
	remade := a.index.Remade()
	for {
		select {
		case <-ctx.Done():
			return
		case <-runs.C:
			if now := a.index.Remade(); now != remade && a.index.Ready() {
				remade = now // the stream of the letters is another one: what it lacks is owed by the records
				a.sweepLetters(ctx)
			}
			a.sweepRuns(ctx, limit)
		case <-letters.C:
			a.index.Expire()
			a.sweepLetters(ctx)
		}
	}
}

// sweepRuns looks at the records written since the last time. A stream that was made anew is read from its beginning.
func (a *Auditor) sweepRuns(ctx context.Context, limit *rate.Limiter) {
	err := a.store.ScanRuns(ctx, a.from, func(id run.ID, seq uint64, data []byte) {
		if limit.Wait(ctx) == nil {
			a.look(id, seq, data)
		}
	})
	if err != nil && ctx.Err() == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.from, a.flags, a.broken, a.waiting = 0, map[run.ID]Flags{}, map[run.ID]bool{}, map[run.ID]waitingLetter{}
	}
}

func (a *Auditor) look(id run.ID, seq uint64, data []byte) {
	r, err := engine.Decode(data)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.from = seq + 1
	delete(a.flags, id)
	delete(a.waiting, id)
	delete(a.broken, id)
	if errors.Is(err, engine.ErrBroken) {
		a.broken[id] = true
		a.log.Error("a stored record breaks a rule; it is left alone until somebody settles it", "tenant", id.Tenant, "run_id", id.Run, "revision", seq, "error", err)
	}
	if err != nil {
		return
	}
	if f := FlagsOf(r); f != (Flags{}) {
		a.flags[id] = f
	}
	if EndedByBudget(r) && r.Letter != nil && r.Letter.Open {
		a.waiting[id] = waitingLetter{r.Episode, time.Now()}
	}
}

// sweepLetters finds letters whose message was removed by hand: nobody is told of a removal.
func (a *Auditor) sweepLetters(ctx context.Context) {
	seen := a.index.Seen()
	there, err := a.store.Lettered(ctx)
	if err != nil {
		return
	}
	for _, id := range a.index.Keep(there, seen) {
		a.rc.Missing(id)
	}
}

// Now is what is broken at this moment.
func (a *Auditor) Now() Broken {
	out := Broken{RunsOverdue: a.rc.Overdue(), DeadLettersWithoutOwner: a.index.Unowned()}
	a.mu.Lock()
	defer a.mu.Unlock()
	out.BrokenRecords = len(a.broken)
	for _, f := range a.flags {
		if f.OKWithoutResult {
			out.OKWithoutResult++
		}
		if f.BudgetEndWithoutLetter {
			out.BudgetEndWithoutDeadLetter++
		}
	}
	for id, w := range a.waiting {
		switch {
		case a.index.HasLetter(id, w.episode):
			delete(a.waiting, id)
		case time.Since(w.since) > letterGrace:
			out.BudgetEndWithoutDeadLetter++
		}
	}
	return out
}
