package operator

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// decision is one of the core's answers to a letter.
type decision func(r *engine.Run, c engine.Call) (*engine.Answer, *engine.Refusal)

// settle answers a letter: record first, then its message, what is owed, a wake. The same call again gets the first
// answer. A call that names no letter is bound to the one that it met first, so that it never answers the next one after
// losing a race.
func (o *Operator) settle(ctx context.Context, id run.ID, c engine.Call, decide decision) (*engine.Answer, error) {
	if err := person(c.By); err != nil {
		return nil, err
	}
	if err := why(c.Reason); err != nil {
		return nil, err
	}
	var answer engine.Answer
	owner := ""
	h, err := o.change(ctx, id, func(h *record.Handle) (bool, error) {
		r := h.Run
		if r.Letter != nil {
			owner = r.Letter.Owner
			if c.Letter == "" && r.Letter.Open {
				c.Letter = r.Letter.ID
			}
		}
		c.At = o.Records.Now()
		before := len(r.Answers)
		a, refused := decide(r, c)
		if refused != nil {
			return false, refused
		}
		answer = *a
		return len(r.Answers) > before, nil
	})
	if err != nil {
		return nil, err
	}
	o.follow(ctx, h, owner)
	return &answer, nil
}

func (o *Operator) replay(ctx context.Context, tenant string, q *ReplayRequest) (any, error) {
	with, err := o.replayWith(q)
	if err != nil {
		return nil, err
	}
	decide := func(r *engine.Run, c engine.Call) (*engine.Answer, *engine.Refusal) { return r.Replay(c, with) }
	if q.Filter != nil {
		if q.RunID != "" || q.Letter != "" || q.Args != nil {
			return nil, badRequest("a replay in bulk takes filter, limit, by, reason and add_budget only")
		}
		return o.bulk(ctx, tenant, bulk{filter: q.Filter, limit: q.Limit, by: q.By, reason: q.Reason, replay: true, decide: decide})
	}
	id, err := subject(tenant, q.RunID)
	if err != nil {
		return nil, err
	}
	a, err := o.settle(ctx, id, engine.Call{Letter: q.Letter, By: q.By, Reason: q.Reason}, decide)
	if err != nil {
		return nil, err
	}
	return EpisodeReply{OK: true, RunID: id.Run, Episode: a.Episode}, nil
}

// replayWith reads what a replay may change.
func (o *Operator) replayWith(q *ReplayRequest) (engine.ReplayWith, error) {
	with := engine.ReplayWith{Args: q.Args, Max: o.Defaults().MaxBudget}
	if q.AddBudget != nil {
		with.Add = new(budget.Request)
		known := fieldsOf(reflect.ValueOf(with.Add).Elem())
		if q.AddBudget[0] != '{' || !onlyKnown(q.AddBudget, known) || json.Unmarshal(q.AddBudget, with.Add) != nil {
			return with, badRequest("add_budget must have the keys of a job's budget with whole numbers")
		}
	}
	return with, nil
}

func (o *Operator) discard(ctx context.Context, tenant string, q *DiscardRequest) (any, error) {
	decide := (*engine.Run).Discard
	if q.Filter != nil {
		if q.RunID != "" || q.Letter != "" {
			return nil, badRequest("a discard in bulk takes filter, limit, by and reason only")
		}
		return o.bulk(ctx, tenant, bulk{filter: q.Filter, limit: q.Limit, by: q.By, reason: q.Reason, decide: decide})
	}
	id, err := subject(tenant, q.RunID)
	if err != nil {
		return nil, err
	}
	if _, err := o.settle(ctx, id, engine.Call{Letter: q.Letter, By: q.By, Reason: q.Reason}, decide); err != nil {
		return nil, err
	}
	return EpisodeReply{OK: true}, nil
}

func (o *Operator) resolve(ctx context.Context, tenant string, q *ResolveRequest) (any, error) {
	id, err := subject(tenant, q.RunID)
	if err != nil {
		return nil, err
	}
	if q.Letter == "" {
		return nil, badRequest("letter is missing: name the letter that you have read by its id")
	}
	if err := evidence(q.CommitState, q.EvidenceRef); err != nil {
		return nil, err
	}
	res := engine.Resolution{CommitState: q.CommitState, Result: q.Result, EvidenceRef: q.EvidenceRef}
	var since envelope.Time
	var tool string
	a, err := o.settle(ctx, id, engine.Call{Letter: q.Letter, Step: q.Step, By: q.By, Reason: q.Reason}, func(r *engine.Run, c engine.Call) (*engine.Answer, *engine.Refusal) {
		since, tool = 0, ""
		before := len(r.Answers)
		at := endOf(r)
		a, refused := r.Resolve(c, res, o.Tools)
		if refused == nil && len(r.Answers) > before {
			since = at
			if s := r.Step(a.Step); s != nil {
				tool = s.Tool
			}
		}
		return a, refused
	})
	if err != nil {
		return nil, err
	}
	if tool != "" {
		o.Observe.UnknownResolved(tool, "person")
		o.Observe.SettleTime(o.Records.Now().Sub(since))
	}
	return EpisodeReply{OK: true, RunID: id.Run, Episode: a.Episode}, nil
}

func endOf(r *engine.Run) envelope.Time {
	if r.End == nil {
		return r.UpdatedAt
	}
	return r.End.At
}

func evidence(c envelope.CommitState, ref string) error {
	switch {
	case c == "":
		return badRequest("commit_state is missing")
	case c != envelope.Committed && c != envelope.NotCommitted:
		return badRequest("commit_state must be committed or not_committed")
	case len(ref) > engine.MaxEvidenceBytes:
		return badRequest("evidence_ref must be at most %d bytes", engine.MaxEvidenceBytes)
	}
	return nil
}

func (o *Operator) approve(ctx context.Context, tenant string, q *ApproveRequest) (any, error) {
	id, err := subject(tenant, q.RunID)
	if err != nil {
		return nil, err
	}
	if q.Letter == "" {
		return nil, badRequest("letter is missing: name the letter that you have read by its id")
	}
	a, err := o.settle(ctx, id, engine.Call{Letter: q.Letter, Step: q.Step, By: q.By, Reason: q.Reason}, (*engine.Run).Approve)
	if err != nil {
		return nil, err
	}
	return EpisodeReply{OK: true, RunID: id.Run, Episode: a.Episode}, nil
}

// bulk is one call about many letters.
type bulk struct {
	filter     *Filter
	limit      *int
	by, reason string
	replay     bool
	decide     decision
	to         string // the new owner, of an assignment; decide is nil then
}

// Bounds of a call in bulk.
const (
	bulkOtherwise = 100
	bulkMost      = 1000
	bulkAtOnce    = 32
)

// bulk answers the letters that a filter chooses, each by itself and bound to the letter that was chosen: interrupted, each
// is either open or settled once.
func (o *Operator) bulk(ctx context.Context, tenant string, b bulk) (any, error) {
	if err := person(b.by); err != nil {
		return nil, err
	}
	if err := why(b.reason); err != nil {
		return nil, err
	}
	limit, err := within(b.limit, bulkOtherwise, bulkMost)
	if err != nil {
		return nil, err
	}
	if err := o.await(ctx, tenant); err != nil {
		return nil, err
	}
	chosen := o.choose(tenant, b.filter, limit, b.replay)
	results := make([]Result, len(chosen))
	next := make(chan int)
	done := make(chan struct{})
	for range min(bulkAtOnce, len(chosen)) {
		go func() {
			for i := range next {
				results[i] = o.one(ctx, chosen[i], &b)
			}
			done <- struct{}{}
		}()
	}
	for i := range chosen {
		next <- i
	}
	close(next)
	for range min(bulkAtOnce, len(chosen)) {
		<-done
	}
	o.Index.mu.Lock()
	defer o.Index.mu.Unlock()
	return bulkReply{OK: true, Results: results, Left: o.Index.letters.total(tenant, b.filter)}, nil
}

// one answers one letter of many.
func (o *Operator) one(ctx context.Context, l *letter, b *bulk) Result {
	out := Result{Tenant: l.id.Tenant, RunID: l.id.Run}
	call := engine.Call{Letter: l.letterID, By: b.by, Reason: b.reason}
	var err error
	if b.to != "" {
		err = o.hand(ctx, l.id, call, b.to, b.filter)
	} else {
		var a *engine.Answer
		a, err = o.settle(ctx, l.id, call, func(r *engine.Run, c engine.Call) (*engine.Answer, *engine.Refusal) {
			if refused := elsewhere(r, b.filter); refused != nil {
				return nil, refused
			}
			return b.decide(r, c)
		})
		if err == nil {
			out.Episode = a.Episode
		}
	}
	var refused *engine.Refusal
	switch {
	case err == nil:
		out.OK = true
	case errors.As(err, &refused):
		out.Code = refused.Code
		if refused.Code == run.NotFound {
			o.Index.dropped(l.id)
		}
	default:
		o.Log.Warn("letter not answered", "tenant", l.id.Tenant, "run_id", l.id.Run, "error", err)
		out.Code = Unavailable
	}
	return out
}

// choose finds the letters of a call in bulk, oldest first; those that do not offer a replay come last, so that they never
// keep the others from being reached.
func (o *Operator) choose(tenant string, f *Filter, limit int, replay bool) []*letter {
	x := o.Index
	x.mu.Lock()
	defer x.mu.Unlock()
	var chosen, rest []*letter
	x.letters.each(tenant, f, place{}, len(x.letters.byID)*2+64, func(l *letter) bool {
		if replay && !l.replayable {
			if len(rest) < limit {
				rest = append(rest, l)
			}
			return true
		}
		chosen = append(chosen, l)
		return len(chosen) < limit
	})
	return append(chosen, rest[:min(len(rest), limit-len(chosen))]...)
}
