package operator

import (
	"context"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/run"
)

// assign hands letters to another owner.
func (o *Operator) assign(ctx context.Context, tenant string, q *AssignRequest) (any, error) {
	if !run.ValidID(q.To) {
		return nil, badRequest("to must name an owner: letters, digits, _ and -, at most 64, the first a letter or digit")
	}
	if q.Filter != nil {
		if q.RunID != "" || q.Letter != "" {
			return nil, badRequest("an assignment in bulk takes filter, limit, to, by and reason only")
		}
		return o.bulk(ctx, tenant, bulk{filter: q.Filter, limit: q.Limit, by: q.By, reason: q.Reason, to: q.To})
	}
	id, err := subject(tenant, q.RunID)
	if err != nil {
		return nil, err
	}
	if err := o.hand(ctx, id, engine.Call{Letter: q.Letter, By: q.By, Reason: q.Reason}, q.To, nil); err != nil {
		return nil, err
	}
	return ActionReply{OK: true, RunID: id.Run}, nil
}

// hand gives one letter to another owner: record first, then the message at the new owner's subject, then that at the former
// one's is removed, so that the letter is never at neither. A call that names no letter is bound to the one that it met first.
func (o *Operator) hand(ctx context.Context, id run.ID, c engine.Call, to string, chosen *Filter) error {
	if err := person(c.By); err != nil {
		return err
	}
	if err := why(c.Reason); err != nil {
		return err
	}
	former := ""
	h, err := o.change(ctx, id, func(h *record.Handle) (bool, error) {
		r := h.Run
		former = ""
		if r.Letter != nil && r.Letter.Open {
			if former = r.Letter.Owner; c.Letter == "" {
				c.Letter = r.Letter.ID
			}
		}
		if refused := elsewhere(r, chosen); refused != nil {
			return false, refused
		}
		c.At = o.Records.Now()
		changed, refused := r.Assign(c, to)
		if refused != nil {
			return false, refused
		}
		return changed, nil
	})
	if err != nil {
		return err
	}
	o.follow(ctx, h, "")
	if former != "" && former != to {
		if err := o.Records.RemoveLetter(ctx, id, former); err != nil {
			o.Log.Warn("left to the active reconciler", "tenant", id.Tenant, "run_id", id.Run, "error", err)
		}
	}
	return nil
}

// elsewhere refuses a letter that was chosen as one owner's and is another's by now.
func elsewhere(r *engine.Run, chosen *Filter) *engine.Refusal {
	if chosen == nil || chosen.Owner == "" || r.Letter == nil || !r.Letter.Open || r.Letter.Owner == chosen.Owner {
		return nil
	}
	return refuse(run.Conflict, "the dead letter was handed to %s", r.Letter.Owner)
}
