package app

import (
	"context"
	"fmt"
	"time"

	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/observe"
	"github.com/agentrun/executor/internal/streams"
)

// Intake stops while a store that running work needs is this full, so that what runs can always be finished; from half of
// --max-runs it is time to size the retention anew.
const (
	fullPercent = 90
	warnPercent = 50
	intakeEvery = time.Second
	sweepEvery  = 10 * time.Minute
)

// room is what is known about the places where an executor writes.
type room struct {
	streams streams.Status
	free    float64 // of the journal's disk, 0 to 1
	failure error   // of the journal's last commit
}

// judge says why no new work is to be taken in, "" if it may be, and what to warn of.
func (r room) judge() (reason, warning string) {
	switch {
	case r.failure != nil:
		reason = "the journal cannot be written: " + r.failure.Error()
	case r.free < 1-fullPercent/100.0:
		reason = fmt.Sprintf("the journal's disk has %.0f %% free, below %d %%", r.free*100, 100-fullPercent)
	default:
		reason = full(r.streams, fullPercent)
	}
	if reason == "" {
		warning = full(r.streams, warnPercent)
	}
	return reason, warning
}

// shown is what the metrics say of it.
func (r room) shown() observe.Room {
	ratio := func(n, limit int64) float64 {
		if limit <= 0 {
			return 0
		}
		return float64(n) / float64(limit)
	}
	s := r.streams
	return observe.Room{
		JournalFree: r.free,
		Runs:        ratio(s.Runs, s.RunsMax), Letters: ratio(s.Letters, s.LettersMax), Jobs: ratio(s.Jobs, s.JobsMax),
	}
}

// queues are those that this executor takes.
func (r room) queues() []observe.Queue {
	var out []observe.Queue
	for name, n := range r.streams.Queues {
		out = append(out, observe.Queue{Name: name, Waiting: n, Pulled: true})
	}
	return out
}

// full says which of the streams that runs need has filled up to this part of its limit, in percent; "" for none.
func full(s streams.Status, percent int64) string {
	if s.RunsMax > 0 && s.Runs*100 >= s.RunsMax*percent {
		return fmt.Sprintf("%d runs are remembered, --max-runs is %d: raise it, or shorten --run-retention", s.Runs, s.RunsMax)
	}
	if s.LettersMax > 0 && s.Letters*100 >= s.LettersMax*percent {
		return fmt.Sprintf("%d dead letters are open, --max-letters is %d: settle some, or raise it", s.Letters, s.LettersMax)
	}
	return ""
}

// watchRoom looks every second whether there is room, shows it in /readyz and tells pause when it changes. It ends with
// ctx.
func (p *process) watchRoom(ctx context.Context, look func() room, pause func(bool)) {
	var stood, warned string
	for tick := time.NewTicker(intakeEvery); ; {
		now := look()
		p.observer.Room(now.shown())
		p.observer.Queues(now.queues(), 0)
		reason, warning := now.judge()
		if reason != stood {
			p.ready.Block("room", reason)
			pause(reason != "")
			if reason != "" {
				p.log.Error("no new work is taken in", "reason", reason)
			} else {
				p.log.Info("new work is taken in again")
			}
			stood = reason
		}
		if warning != warned {
			p.ready.Warn("room", warning)
			if warned == "" {
				p.log.Warn("a store fills up", "reason", warning)
			}
			warned = warning
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
	}
}

// roomOf looks at the streams and at the journal.
func (p *process) roomOf(conn *streams.Conn, j *journal.Journal) func() room {
	return func() room {
		free, err := j.FreeSpace()
		if failure := j.Err(); failure != nil {
			err = failure
		}
		return room{streams: conn.Status(), free: free, failure: err}
	}
}

// sweep forgets, now and then, what the journal has kept long enough. It ends with ctx.
func (p *process) sweep(ctx context.Context, j *journal.Journal) {
	for tick := time.NewTicker(sweepEvery); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		switch n, err := j.Sweep(ctx); {
		case err != nil && ctx.Err() == nil:
			p.log.Warn("journal.sweep", "error", err)
		case n > 0:
			p.log.Debug("journal.sweep", "removed", n)
		}
	}
}

// observeJournal is told of each commit.
func observeJournal(o *observe.Observer) func(time.Duration, int) {
	return func(took time.Duration, _ int) { o.JournalCommit(took) }
}
