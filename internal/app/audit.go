package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/agentrun/executor/internal/audit"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/observe"
	"github.com/agentrun/executor/internal/operator"
	"github.com/agentrun/executor/internal/reconcile"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Audit checks everything that is stored against the nine rules. The error is about reading, not about what was found; a
// permission that the server refuses, or an account without the streams, ends it at once.
func Audit(ctx context.Context, c Connection, name string) (*audit.Report, error) {
	o := c.bus(name)
	o.Logger = slog.New(slog.DiscardHandler) // the error says it
	var report *audit.Report
	err := once(ctx, o, "the user auditor of deploy/nats/accounts.conf has it", func(ctx context.Context, conn *streams.Conn) (err error) {
		// Whoever serves waits for the streams; an audit of none would wait for ever.
		if err := conn.Require(ctx, topology.ResultsStream, topology.LettersStream, topology.RunsStream); err != nil {
			return fmt.Errorf("%w (is this a user of the fleet's account, and has a reconciler been started?)", err)
		}
		report, err = audit.All(ctx, conn, conn, envelope.TimeOf(time.Now()))
		return err
	})
	if err != nil {
		return nil, err
	}
	return report, nil
}

// Of the background audit.
const (
	sweepRunsEvery    = 5 * time.Second
	sweepRunsRate     = 2000 // records a second at most
	sweepLettersEvery = time.Minute
	letterGrace       = 30 * time.Second // an end's letter may be on its way for so long
)

// auditor looks at every record that was written, slowly and once each, for the metrics that must be zero.
type auditor struct {
	conn  *streams.Conn
	index *operator.Index
	rc    *reconcile.Reconciler
	log   *slog.Logger

	mu      sync.Mutex
	from    uint64
	flags   map[run.ID]audit.Flags
	broken  map[run.ID]bool          // records that break a rule
	waiting map[run.ID]waitingLetter // ended by a budget, and the letter's message not seen yet
}

type waitingLetter struct {
	episode int
	since   time.Time
}

func newAuditor(conn *streams.Conn, index *operator.Index, rc *reconcile.Reconciler, log *slog.Logger) *auditor {
	return &auditor{conn: conn, index: index, rc: rc, log: log, flags: map[run.ID]audit.Flags{}, broken: map[run.ID]bool{}, waiting: map[run.ID]waitingLetter{}}
}

// run audits until ctx ends.
func (a *auditor) run(ctx context.Context) {
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
func (a *auditor) sweepRuns(ctx context.Context, limit *rate.Limiter) {
	err := a.conn.ScanRuns(ctx, a.from, func(id run.ID, seq uint64, data []byte) {
		if limit.Wait(ctx) == nil {
			a.look(id, seq, data)
		}
	})
	if err != nil && ctx.Err() == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.from, a.flags, a.broken, a.waiting = 0, map[run.ID]audit.Flags{}, map[run.ID]bool{}, map[run.ID]waitingLetter{}
	}
}

func (a *auditor) look(id run.ID, seq uint64, data []byte) {
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
	if f := audit.FlagsOf(r); f != (audit.Flags{}) {
		a.flags[id] = f
	}
	if audit.EndedByBudget(r) && r.Letter != nil && r.Letter.Open {
		a.waiting[id] = waitingLetter{r.Episode, time.Now()}
	}
}

// sweepLetters finds letters whose message was removed by hand: nobody is told of a removal.
func (a *auditor) sweepLetters(ctx context.Context) {
	seen := a.index.Seen()
	there, err := a.conn.Lettered(ctx)
	if err != nil {
		return
	}
	for _, id := range a.index.Keep(there, seen) {
		a.rc.Missing(id)
	}
}

// result is what is broken at this moment.
func (a *auditor) result() observe.Audit {
	out := observe.Audit{RunsOverdue: a.rc.Overdue(), DeadLettersWithoutOwner: a.index.Unowned()}
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
