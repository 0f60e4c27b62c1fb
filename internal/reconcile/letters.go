package reconcile

import (
	"context"
	"slices"
	"time"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/run"
)

// lettered is a letter's message that was seen. Removals are not seen: it may be gone.
type lettered struct {
	owner string
	seq   uint64
}

// letter takes a letter's message in. One that its record does not have open, as far as the headers tell, is looked into:
// its record may have been answered while the message was on its way.
func (rc *Reconciler) letter(l port.Letter) {
	now := time.Now()
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if !rc.heard(letters, l.Report) {
		return
	}
	switch l.Report {
	case port.Current:
		return
	case port.Reset:
		rc.letters = map[run.ID][]lettered{}
		rc.settled = 0
		return
	}
	rc.forgetLetter(l.ID, l.Owner, l.Seq)
	rc.letters[l.ID] = append(rc.letters[l.ID], lettered{l.Owner, l.Seq})
	if rc.open[l.ID] == l.Owner {
		return
	}
	e := rc.runs[l.ID]
	if e == nil {
		e = &entry{id: l.ID, index: -1}
		rc.runs[l.ID] = e
	}
	if at := now.Add(rc.Lease / 2); e.at.IsZero() || at.Before(e.at) {
		rc.schedule(e, at)
	}
}

// hasLetter reports whether a message at this owner's subject was seen; rc.mu is held.
func (rc *Reconciler) hasLetter(id run.ID, owner string) bool {
	return slices.ContainsFunc(rc.letters[id], func(l lettered) bool { return l.owner == owner })
}

// staleLetters are the messages that were seen although the run's open letter, if any, is another owner's; rc.mu is held.
func (rc *Reconciler) staleLetters(id run.ID, open string) []lettered {
	var out []lettered
	for _, l := range rc.letters[id] {
		if l.owner != open {
			out = append(out, l)
		}
	}
	return out
}

// forgetLetter forgets a message up to a sequence; rc.mu is held.
func (rc *Reconciler) forgetLetter(id run.ID, owner string, seq uint64) {
	all := rc.letters[id]
	for i, l := range all {
		if l.owner != owner || l.seq > seq {
			continue
		}
		if len(all) == 1 {
			delete(rc.letters, id)
		} else {
			rc.letters[id] = slices.Delete(all, i, i+1)
		}
		return
	}
}

// Missing tells that a run's open letter has no message: somebody has removed it by hand. It is made again.
func (rc *Reconciler) Missing(id run.ID) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	delete(rc.letters, id)
	e := rc.runs[id]
	if e == nil {
		e = &entry{id: id, index: -1}
		rc.runs[id] = e
	}
	rc.schedule(e, time.Now())
}

// tidyLetters removes the messages of letters that the record does not have open. h is nil if there is no record.
func (rc *Reconciler) tidyLetters(ctx context.Context, e *entry, h *record.Handle) error {
	open := ""
	if h != nil && h.Run.Letter != nil && h.Run.Letter.Open {
		open = h.Run.Letter.Owner
	}
	rc.mu.Lock()
	stale := rc.staleLetters(e.id, open)
	rc.mu.Unlock()
	for _, l := range stale {
		if err := rc.Records.RemoveLetter(ctx, e.id, l.owner); err != nil {
			return err
		}
		rc.mu.Lock()
		rc.forgetLetter(e.id, l.owner, l.seq)
		rc.mu.Unlock()
	}
	return nil
}
