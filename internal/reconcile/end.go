package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
)

// overdueGrace is how far a run may be past its deadline, for an unknown write that is being verified, before somebody is
// told.
const overdueGrace = time.Minute

// tendEnd publishes what an ended run still owes: outcomes, letter, alert. Each is published once: what is in the stream
// already changes nothing.
func (rc *Reconciler) tendEnd(ctx context.Context, e *entry, h *record.Handle) error {
	if err := rc.Records.Publish(ctx, h); err != nil {
		return err
	}
	r := h.Run
	rc.mu.Lock()
	fresh := e.seq > rc.settled
	rc.mu.Unlock()
	open := r.Letter != nil && r.Letter.Open
	if err := rc.tidyLetters(ctx, e, h); err != nil {
		return err
	}
	if open && !rc.seesLetter(r) {
		if err := rc.Records.PublishLetter(ctx, h); err != nil {
			return err
		}
	}
	if open && fresh && rc.untold(r) {
		if err := rc.alert(ctx, h); err != nil {
			return err
		}
	}
	rc.mu.Lock()
	if settled := e.seq > h.Seq && rc.open[e.id] == ""; open && !settled {
		rc.told[e.id] = tellingOf(r)
	} else {
		delete(rc.told, e.id)
	}
	delete(rc.overdue, e.id)
	rc.mu.Unlock()
	rc.done(e, h.Seq, false, time.Time{})
	return nil
}

// telling is what an owner is told of once: the end of an episode, and that its letter was handed to another owner.
type telling struct {
	episode  int
	assigned envelope.Time
}

func tellingOf(r *engine.Run) telling { return telling{r.Episode, r.Letter.Assigned} }

// untold: the letter's owner was not told of this end yet. A claim, a report or a refused job changes the record of an ended
// run too.
func (rc *Reconciler) untold(r *engine.Run) bool {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return rc.told[r.ID()] != tellingOf(r)
}

// seesLetter reports whether the message of the run's open letter was seen.
func (rc *Reconciler) seesLetter(r *engine.Run) bool {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return rc.hasLetter(r.ID(), r.Letter.Owner)
}

// alert raises what the end raises by itself, or counts it towards a burst. Whoever has claimed the letter knows of it, and
// yet it counts. The letter's id is the alert's, so that the same alert again within the stream's window is one.
func (rc *Reconciler) alert(ctx context.Context, h *record.Handle) error {
	r := h.Run
	now := rc.Records.Now()
	letter := r.BuildLetter()
	a, id, ok := deadletter.Alert{}, letter.ID, true
	if at := r.Letter.Assigned; at != 0 {
		a, id = engine.Assigned(letter, now), fmt.Sprintf("%s/assigned/%d", letter.ID, at)
	} else {
		a, ok = engine.AlertOf(letter, now)
	}
	if ok {
		if r.Letter.Claim != nil {
			return nil
		}
		return rc.Records.Alert(ctx, a, id)
	}
	if r.End.Outcome != envelope.Fatal {
		return nil
	}
	a, id, ok = rc.bursts.add(letter, now)
	if !ok {
		return nil
	}
	return rc.Records.Alert(ctx, a, id)
}

// watchDeadline tells somebody of a run that is past its deadline without an end, once.
func (rc *Reconciler) watchDeadline(r *engine.Run, due envelope.Time) {
	id := r.ID()
	rc.mu.Lock()
	if r.Deadline == 0 || due.Sub(r.Deadline) < overdueGrace {
		delete(rc.overdue, id) // another episode, with a deadline of its own
		rc.mu.Unlock()
		return
	}
	told := rc.overdue[id]
	rc.overdue[id] = true
	rc.mu.Unlock()
	if told {
		return
	}
	a := deadletter.Alert{
		Schema: deadletter.AlertSchema, Tenant: id.Tenant, Owner: r.Owner, ReasonCode: deadletter.ReasonOverdue, Severity: deadletter.Page,
		RunID: id.Run, Workflow: r.Workflow, Count: 1, FirstAt: due, At: due, Summary: engine.SummaryOf(deadletter.ReasonOverdue),
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := rc.Records.Alert(ctx, a, fmt.Sprintf("%s/%s/overdue/%d", id.Tenant, id.Run, r.Episode)); err != nil {
		rc.Log.Warn("alert not published yet", "error", err)
		rc.mu.Lock()
		delete(rc.overdue, id) // the next look tries again
		rc.mu.Unlock()
	}
}
