package operator

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

func (o *Operator) getRun(ctx context.Context, tenant string, q *RunRequest) (any, error) {
	id, err := subject(tenant, q.RunID)
	if err != nil {
		return nil, err
	}
	h, err := o.load(ctx, id)
	if err != nil {
		return nil, err
	}
	now := o.Records.Now()
	v := h.Run.View(now)
	v.Lease = h.Run.Held(envelope.TimeOf(h.At), now)
	return RunReply{OK: true, Run: v}, nil
}

// getPayload shows what the steps of a run were asked and gave. It is a call of its own so that NATS permissions can keep it
// from those who may see the rest. The reply stays within one message: what does not fit is named instead.
func (o *Operator) getPayload(ctx context.Context, tenant string, q *RunRequest) (any, error) {
	id, err := subject(tenant, q.RunID)
	if err != nil {
		return nil, err
	}
	h, err := o.load(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := o.Records.FetchAll(ctx, h); err != nil {
		return nil, err
	}
	reply := PayloadReply{OK: true, Steps: h.Run.Payloads()}
	left := replyMax
	for i := range reply.Steps {
		p := &reply.Steps[i]
		for name, v := range map[string]*json.RawMessage{"args": &p.Args, "result": &p.Result} {
			if len(*v) > left {
				*v, p.Omitted = nil, append(p.Omitted, name)
			}
			left -= len(*v)
		}
		slices.Sort(p.Omitted)
	}
	data, err := strictjson.Marshal(reply)
	return json.RawMessage(o.Records.Redact(data)), err
}

// states are the words that runs.list may be asked for.
var states = []string{
	run.StateOpen, run.StateReady, run.StateRunning, run.StateWaiting, run.StateUnknown, run.StateCancelling,
	string(envelope.OK), string(envelope.Fatal), string(envelope.NeedsHuman), string(envelope.Cancelled),
}

func (o *Operator) listRuns(ctx context.Context, tenant string, q *RunsRequest) (any, error) {
	limit, err := within(q.Limit, pageOtherwise, lookMost)
	if err != nil {
		return nil, err
	}
	limit = min(limit, pageMost)
	if q.State != "" && !slices.Contains(states, q.State) {
		return nil, badRequest("state must be one of %v", states)
	}
	after := uint64(0)
	if q.After != "" {
		if after, err = strconv.ParseUint(q.After, 36, 64); err != nil {
			return nil, badRequest("after is not what a page gave")
		}
	}
	asked := tenant
	if asked == port.AllTenants {
		asked = ""
	}
	stored, err := o.Streams.LastRun(ctx, asked)
	if err != nil {
		return nil, err
	}
	o.Index.wait(ctx, 0, stored)
	chosen, last, more := o.chooseRuns(tenant, q, limit, after)
	return o.showRuns(ctx, chosen, last, more)
}

// chosenRun is a run of a page, as the index had it.
type chosenRun struct {
	id              run.ID
	seq             uint64
	state, workflow string
	episode         int
}

func (o *Operator) chooseRuns(tenant string, q *RunsRequest, limit int, after uint64) (chosen []chosenRun, last uint64, more bool) {
	x := o.Index
	x.mu.Lock()
	defer x.mu.Unlock()
	last, more = x.runs.each(tenant, after, lookMost, x.now(), func(k *known) bool {
		if q.State != "" && q.State != k.state || q.Workflow != "" && q.Workflow != k.workflow {
			return true
		}
		if len(chosen) == limit {
			return false
		}
		chosen = append(chosen, chosenRun{k.id, k.seq, k.state, k.workflow, k.episode})
		return true
	})
	return chosen, last, more
}

// shownRun is a run in a list: what get shows, without the history.
type shownRun struct {
	*run.View
	History *struct{} `json:"history,omitempty"`
}

// showRuns reads the records of a page. It ends the page early where the reply would become too large.
func (o *Operator) showRuns(ctx context.Context, chosen []chosenRun, last uint64, more bool) (any, error) {
	const atOnce = 16
	shown := make([]json.RawMessage, len(chosen))
	failed := make([]error, len(chosen))
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, c := range chosen {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			h, err := o.Records.Load(ctx, c.id)
			if err == nil {
				shown[i], err = strictjson.Marshal(shownRun{View: h.Run.View(o.Records.Now())})
			} else if errors.Is(err, engine.ErrNewer) || errors.Is(err, engine.ErrBroken) {
				// One run of a newer version, or whose record is broken, must not take the others from the list: its header says what there is to say.
				shown[i], err = strictjson.Marshal(shownRun{View: &run.View{
					Tenant: c.id.Tenant, RunID: c.id.Run, Workflow: c.workflow, State: c.state, Episode: c.episode, Steps: []run.StepView{}, CompletedEffects: []envelope.CompletedEffect{},
				}})
			}
			if !errors.Is(err, port.ErrNotFound) {
				failed[i] = err
			}
		})
	}
	wg.Wait()
	page := RunPage{OK: true, Runs: []json.RawMessage{}}
	size := 0
	for i, data := range shown {
		if failed[i] != nil {
			return nil, failed[i]
		}
		if size > 0 && size+len(data) > replyMax {
			last, more = chosen[i-1].seq, true
			break
		}
		if data != nil {
			size += len(data)
			page.Runs = append(page.Runs, data)
		}
	}
	if more {
		page.After = strconv.FormatUint(last, 36)
	}
	return page, nil
}

// cancel stops a run, wherever it is: in a queue, at work, at rest.
func (o *Operator) cancel(ctx context.Context, tenant string, q *CancelRequest) (any, error) {
	id, err := subject(tenant, q.RunID)
	if err != nil {
		return nil, err
	}
	if err := person(q.By); err != nil {
		return nil, err
	}
	if err := why(q.Reason); err != nil {
		return nil, err
	}
	for attempt := 0; ; attempt++ {
		changed := false
		h, err := o.change(ctx, id, func(h *record.Handle) (bool, error) {
			changed = h.Run.CancelRun(q.By, q.Reason, o.Records.Now()) == engine.Applied
			return changed, nil
		})
		var refused *engine.Refusal
		switch {
		case err == nil:
			if changed || h.Run.End == nil {
				o.follow(ctx, h, "")
			}
			return StateReply{OK: true, State: h.Run.State()}, nil
		case !errors.As(err, &refused) || refused.Code != run.NotFound:
			return nil, err
		}
		h, err = o.cancelQueued(ctx, id, q)
		switch {
		case err == nil:
			o.follow(ctx, h, "")
			return StateReply{OK: true, State: h.Run.State()}, nil
		case !errors.Is(err, port.ErrConflict):
			return nil, err
		}
		if err := o.giveWay(ctx, attempt); err != nil { // its job was accepted meanwhile
			return nil, err
		}
	}
}

// setAside ends a run whose record breaks a rule and is left alone by everybody else.
func (o *Operator) setAside(ctx context.Context, tenant string, q *SetAsideRequest) (any, error) {
	id, err := subject(tenant, q.RunID)
	if err != nil {
		return nil, err
	}
	if err := person(q.By); err != nil {
		return nil, err
	}
	if err := why(q.Reason); err != nil {
		return nil, err
	}
	h, owner, err := o.Records.SetAside(ctx, id, q.By, q.Reason)
	switch {
	case errors.Is(err, port.ErrNotFound):
		return nil, refuse(run.NotFound, "there is no run %s of tenant %s", id.Run, id.Tenant)
	case errors.Is(err, engine.ErrWhole):
		return nil, refuse(run.NotAllowed, "the record of run %s breaks no rule: cancel the run, or settle its letter", id.Run)
	case err != nil:
		return nil, err
	}
	o.Log.Warn("a run whose record broke a rule was ended", "tenant", id.Tenant, "run_id", id.Run, "by", q.By)
	o.Index.saved(h)
	o.follow(ctx, h, owner)
	return StateReply{OK: true, State: h.Run.State()}, nil
}

// cancelQueued makes the record of a run that still waits in a queue, ended. Its job stays there and is answered
// RUN_CLOSED. port.ErrConflict: it has a record by now.
func (o *Operator) cancelQueued(ctx context.Context, id run.ID, q *CancelRequest) (*record.Handle, error) {
	j, err := o.Streams.FindJob(ctx, id)
	if errors.Is(err, port.ErrNotFound) {
		return nil, refuse(run.NotFound, "there is no run %s of tenant %s, and no job of it in any queue", id.Run, id.Tenant)
	}
	if err != nil {
		return nil, err
	}
	now := o.Records.Now()
	h := &record.Handle{ID: id, Run: engine.CreateCancelled(id, j, o.Defaults(), q.By, q.Reason, now)}
	if err := o.Records.Save(ctx, h); err != nil {
		return nil, err
	}
	return h, nil
}

// report records what a program learned about a write.
func (o *Operator) report(ctx context.Context, tenant string, q *ReportRequest) (any, error) {
	id, err := subject(tenant, q.RunID)
	if err != nil {
		return nil, err
	}
	if err := person(q.By); err != nil {
		return nil, err
	}
	if q.Step == "" {
		return nil, badRequest("step is missing")
	}
	if err := evidence(q.CommitState, q.EvidenceRef); err != nil {
		return nil, err
	}
	attempt := 0
	if q.Attempt != nil {
		if attempt = *q.Attempt; attempt < 1 {
			return nil, badRequest("attempt must be at least 1")
		}
	}
	res := engine.Resolution{CommitState: q.CommitState, Result: q.Result, EvidenceRef: q.EvidenceRef}
	h, err := o.change(ctx, id, func(h *record.Handle) (bool, error) {
		if _, refused := h.Run.Report(q.Step, attempt, q.By, res, o.Tools, o.Records.Now()); refused != nil {
			return false, refused
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	o.follow(ctx, h, "")
	return StateReply{OK: true, State: h.Run.State()}, nil
}
