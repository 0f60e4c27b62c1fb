package engine

import (
	"github.com/agentrun/executor/pkg/run"
)

// Assign hands the open letter to another owner. A claim on it ends: who takes the letter up next is the new owner's to say.
// changed is false where the letter is that owner's already; the same call again so changes nothing, and gets the first
// answer even after the letter was settled.
func (r *Run) Assign(c Call, to string) (changed bool, refused *Refusal) {
	if !run.ValidID(to) {
		return false, refusal(run.BadRequest, "to must name an owner: letters, digits, _ and -, at most 64, the first a letter or digit")
	}
	if r.lastAssigned(c, to) {
		return false, nil
	}
	if _, err := r.admit(EventAssign, c); err != nil {
		return false, err
	}
	if r.Letter.Owner == to {
		return false, nil
	}
	r.Letter.Owner, r.Letter.Claim, r.Letter.Assigned = to, nil, c.At
	r.note(Event{At: c.At, Kind: EventAssign, By: c.By, Reason: c.Reason, Owner: to})
	r.UpdatedAt = c.At
	return true, nil
}

// lastAssigned reports whether the letter's latest assignment is this call's.
func (r *Run) lastAssigned(c Call, to string) bool {
	l := r.Letter
	if l == nil || l.Assigned == 0 || l.Owner != to || c.Letter != "" && c.Letter != l.ID {
		return false
	}
	for i := len(r.History) - 1; i >= 0; i-- {
		if e := &r.History[i]; e.Kind == EventAssign {
			return e.At == l.Assigned && e.By == c.By && e.Owner == to
		}
	}
	return false
}
