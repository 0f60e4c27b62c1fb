package record

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Publish makes everything known that the record owes: line 8 of the order. The letter goes first and is waited for, since
// the outcomes speak of it; then the outcomes, together and in order. What is in the stream already changes nothing. The
// handle's run remembers what is published; its next revision drops it. What is owed is owed where the record is: after a
// restart of the server, which may have another record of the run, port.ErrConflict says to load it again.
func (rs *Records) Publish(ctx context.Context, h *Handle) error {
	r := h.Run
	if err := rs.publishAlarms(ctx, r); err != nil {
		return err
	}
	if err := rs.findPublished(ctx, h); err != nil {
		return err
	}
	if len(r.Owed) == 0 {
		return nil
	}
	if r.OwesLetter() {
		if err := rs.PublishLetter(ctx, h); err != nil {
			return err
		}
	}
	out := make([]port.Outgoing, len(r.Owed))
	var kept []string
	for i := range r.Owed {
		o := &r.Owed[i]
		out[i] = port.Outgoing{Outcome: r.Outcome(o), First: r.First, Traceparent: r.Trace}
		data, err := out[i].Outcome.Append(nil)
		if err != nil {
			return fmt.Errorf("outcome %s/%s/%d: %w", h.ID, o.Scope, o.N, err)
		}
		out[i].Data = rs.redact(data)
		if !bytes.Equal(out[i].Data, data) {
			kept = append(kept, o.Step)
		}
		before := r.PublishedBefore(o.Scope)
		out[i].PublishedBefore = before.N > 0
		if before.N == o.N-1 {
			out[i].Last = before.Seq
		}
	}
	seqs, err := rs.Store.Append(ctx, h.server, out)
	rs.countStored(r, out)
	if err != nil {
		return err
	}
	for i := range out {
		r.Published(out[i].Scope, out[i].N, seqs[i])
	}
	for _, step := range kept {
		r.KeepResult(step) // $from must see the original, which the stream does not have
	}
	return nil
}

// Alert publishes an alert; id names its cause.
func (rs *Records) Alert(ctx context.Context, a deadletter.Alert, id string) error {
	data, err := strictjson.Marshal(a)
	if err != nil {
		return fmt.Errorf("alert %s: %w", id, err)
	}
	return rs.Store.PutAlert(ctx, a.Tenant, a.Owner, a.ReasonCode, rs.redact(data), id)
}

// publishAlarms publishes the alerts that the record owes besides those that follow from its end.
func (rs *Records) publishAlarms(ctx context.Context, r *engine.Run) error {
	for _, a := range r.AlarmsOwed() {
		if err := rs.Alert(ctx, r.AlarmAlert(a), fmt.Sprintf("%s/%s/alarm/%d", r.Tenant, r.RunID, a.N)); err != nil {
			return err
		}
		r.AlarmPublished(a.N)
	}
	return nil
}

// findPublished asks the stream which of the outcomes that a record was read with are there already. Publishing them again
// would be refused, but whoever listens live would see them twice.
func (rs *Records) findPublished(ctx context.Context, h *Handle) error {
	if !h.unsure {
		return nil
	}
	for _, scope := range []envelope.Scope{envelope.StepScope, envelope.RunScope} {
		if !owes(h.Run, scope) {
			continue
		}
		last, err := rs.Store.LastOutcome(ctx, h.ID, scope)
		switch {
		case errors.Is(err, port.ErrNotFound):
		case err != nil:
			return err
		case last.First == h.Run.First:
			h.Run.Published(scope, last.N, last.Seq)
		}
	}
	h.unsure = false
	return nil
}

func owes(r *engine.Run, scope envelope.Scope) bool {
	for i := range r.Owed {
		if r.Owed[i].Scope == scope {
			return true
		}
	}
	return false
}

// PublishLetter makes the letter's message the image of the record: it creates it, or replaces what is there.
func (rs *Records) PublishLetter(ctx context.Context, h *Handle) error {
	data, err := rs.Letter(h.Run)
	if err != nil {
		return err
	}
	owner := h.Run.Letter.Owner
	expect := uint64(0)
	for {
		_, err := rs.Store.PutLetter(ctx, h.ID, owner, data, h.Run.Letter.ID, expect)
		if !errors.Is(err, port.ErrConflict) {
			return err
		}
		l, err := rs.Store.GetLetter(ctx, h.ID, owner)
		switch {
		case errors.Is(err, port.ErrNotFound):
			expect = 0
		case err != nil:
			return err
		case bytes.Equal(l.Data, data):
			return nil
		default:
			expect = l.Seq
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// RemoveLetter removes the message of a letter that the record does not have open any more. The record is read after the
// message: a run that has ended anew meanwhile has its next letter at the same subject, and that one stays.
func (rs *Records) RemoveLetter(ctx context.Context, id run.ID, owner string) error {
	l, err := rs.Store.GetLetter(ctx, id, owner)
	if errors.Is(err, port.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	h, err := rs.Load(ctx, id)
	if err != nil && !errors.Is(err, port.ErrNotFound) {
		return err
	}
	if err == nil && h.Run.Letter != nil && h.Run.Letter.Open && h.Run.Letter.Owner == owner {
		return nil
	}
	return rs.Store.DeleteLetter(ctx, l.Seq)
}
