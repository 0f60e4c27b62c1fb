package engine

import (
	"errors"
	"fmt"

	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// ErrWhole: the record breaks no rule, so that nothing is to be set aside.
var ErrWhole = errors.New("the record breaks no rule")

// SetAside ends a run whose stored record breaks a rule, under the name of the person who has looked at it. What the record
// proves stays: the steps that are done, the effects, the history and what was published. The rest stops as it is, with its
// dispatch, so that late evidence still finds its step; nothing of the run is sent again. kept says where the record lies
// as it was found. The numbers go on after stepN and runN, the last outcomes in the stream. Of a record that cannot be read
// nothing is known but its name. ErrWhole; another error is a record that cannot be made whole.
func SetAside(id run.ID, data []byte, by, reason, kept string, stepN, runN Published, now run.Time) (*Run, error) {
	r, err := DecodeAsIs(data)
	switch {
	case errors.Is(err, ErrUnreadable):
		r = blank(id, nil, Message{}, Defaults{}, now)
	case err != nil:
		return nil, err
	default:
		broken := r.Violations()
		if len(broken) == 0 {
			return nil, ErrWhole
		}
		err = broken[0]
	}
	r.Lease, r.Decided, r.End, r.Owed, r.Alarms, r.More, r.Pending = nil, nil, nil, nil, nil, false, false
	r.StepPub, r.RunPub = later(r.StepPub, stepN), later(r.RunPub, runN)
	r.StepN, r.Episode = r.StepPub.N, max(r.Episode, r.RunPub.N+1, 1)
	for _, s := range r.Steps {
		s.setAside()
		r.Budget.MaxAttemptsPerStep = max(r.Budget.MaxAttemptsPerStep, int64(s.Used))
	}
	r.Budget.MaxToolCalls = max(r.Budget.MaxToolCalls, r.Spent.ToolCalls)
	if r.Letter != nil && r.Letter.Open {
		r.Letter.Open, r.Letter.Settled, r.Letter.Claim = false, now, nil
	}
	r.note(Event{At: now, Kind: EventDiscard, By: by, Reason: reason + " (" + err.Error() + "; kept as " + kept + ")"})
	row := envelope.RowFor(envelope.CodeCancelled, envelope.Read)
	r.end(End{Outcome: row.Outcome, Row: &row, At: now})
	r.UpdatedAt = now
	if v := r.Violations(); len(v) > 0 {
		return nil, fmt.Errorf("run record %s/%s cannot be made whole: %w", r.Tenant, r.RunID, v[0])
	}
	return r, nil
}

func later(a, b Published) Published {
	if b.N > a.N {
		return b
	}
	return a
}

// setAside stops a step that is not proven done.
func (s *Step) setAside() {
	s.Proposal = max(s.Proposal, s.Proposals, 1)
	if s.State == run.OK && s.Proof != "" {
		s.Doubt = nil
		return
	}
	s.State, s.Doubt, s.NotBefore, s.Unsettled, s.Postponed = run.Cancelled, nil, 0, false, false
}
