package engine

import (
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Unread makes the record of a run whose first job was delivered before and left none: perhaps it kills whoever decodes
// it. Nothing of the job is read, nothing is started, one loss is counted. Read goes on from there; after poison losses
// the run ends as a poison job.
func Unread(id run.ID, m Message, d Defaults, poison int, now run.Time) *Run {
	r := blank(id, nil, m, d, now)
	r.Pending, r.More = true, true
	r.Deadline = now.Add(d.Budget.Elapsed())
	r.Invalid = &InvalidJob{Raw: m.Data[:min(len(m.Data), r.rawMax())], Size: len(m.Data)}
	r.CountUnread(poison, now)
	return r
}

// CountUnread counts one more delivery that left the job unread.
func (r *Run) CountUnread(poison int, now run.Time) {
	if !r.Pending {
		return
	}
	r.Losses++
	r.note(Event{At: now, Kind: EventLost})
	if poison <= 0 {
		poison = defaultPoison
	}
	if r.Losses >= poison && r.End == nil {
		row := envelope.RowFor(envelope.CodePoisonJob, envelope.Read)
		r.Pending = false
		r.end(End{Outcome: row.Outcome, Row: &row, At: now})
	}
	r.conclude(now)
}

// Read takes the first job into a record that was made without reading it.
func (r *Run) Read(m Message, d Defaults, now run.Time) {
	if !r.Pending {
		return
	}
	if r.closed() {
		r.Pending = false
		r.Append(m, d, now)
		return
	}
	n := Create(r.ID(), m, d, now)
	n.First, n.Losses, n.StepPub, n.RunPub = r.First, r.Losses, r.StepPub, r.RunPub
	n.History = append(r.History, n.History[1:]...)
	n.size, n.Foreign, n.foreign = r.size, r.Foreign, r.foreign
	*r = *n
}

// CreateUnaddressed makes the record of a job on a subject whose tokens are no identifiers: it ends at once, with a letter
// and without outcomes, because it has no result subject (contract §3).
func CreateUnaddressed(id run.ID, m Message, d Defaults, now run.Time) *Run {
	r := createInvalid(id, nil, m, d, nil, now)
	r.Owed = nil
	return r
}
