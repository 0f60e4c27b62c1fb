package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/run"
)

// Settle brings what the journal knows into the records before anything is pulled: effects as evidence, intents without an
// effect as unknown. "Proven unsent" cannot exist after a restart. It goes on over errors of single runs only by trying
// again; it returns when all is settled or ctx ends.
func (w *Worker) Settle(ctx context.Context) error {
	facts, err := w.Journal.Unsettled()
	if err != nil {
		return fmt.Errorf("worker: journal: %w", err)
	}
	var order []run.ID
	byRun := map[run.ID][]engine.Fact{}
	for _, f := range facts {
		id := run.ID{Tenant: f.Intent.Tenant, Run: f.Intent.RunID}
		if byRun[id] == nil {
			order = append(order, id)
		}
		byRun[id] = append(byRun[id], f)
	}
	for _, id := range order {
		if err := w.settleRun(ctx, id, byRun[id]); err != nil {
			return err
		}
	}
	return nil
}

func (w *Worker) settleRun(ctx context.Context, id run.ID, facts []engine.Fact) error {
	for tries := (pause.Longer{}); ; {
		token, err := w.awaitStore(ctx)
		if err != nil {
			return err
		}
		err = w.settleOnce(ctx, id, facts)
		if now, ok := w.Store.Current(); err == nil && (!ok || now != token) {
			continue // what was found, or not found, was perhaps that of a store that has lost records
		}
		if err == nil {
			for _, f := range facts {
				w.Journal.Later(engine.Entry{Settled: f.Intent.Dispatch})
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if w.untouchable(id, err) {
			return nil
		}
		if !errors.Is(err, port.ErrConflict) {
			w.Log.Warn("journal entry not settled yet", "tenant", id.Tenant, "run_id", id.Run, "error", err)
			if !tries.Wait(ctx) {
				return ctx.Err()
			}
		}
	}
}

// untouchable: the record was written by a newer version, or breaks a rule, and must be left alone. What the journal knows
// of it stays there, not settled, for a start of that version or after a person has settled it; meanwhile a reconciler of
// the newer version ends the lease and looks the writes up.
func (w *Worker) untouchable(id run.ID, err error) bool {
	switch {
	case errors.Is(err, engine.ErrNewer):
		w.Log.Error("journal entry left for a newer version of the executor", "tenant", id.Tenant, "run_id", id.Run, "error", err)
	case errors.Is(err, engine.ErrBroken):
		w.Log.Error("journal entry left until somebody settles its run's record", "tenant", id.Tenant, "run_id", id.Run, "error", err)
	default:
		return false
	}
	return true
}

func (w *Worker) settleOnce(ctx context.Context, id run.ID, facts []engine.Fact) error {
	h, err := w.Records.Load(ctx, id)
	if errors.Is(err, port.ErrNotFound) {
		return w.forgotten(ctx, id, facts)
	}
	if err != nil {
		return err
	}
	if facts, err = w.offloaded(ctx, facts); err != nil {
		return err
	}
	changed, prevented := w.evidence(h.Run, facts)
	if !changed {
		return nil
	}
	if err := w.Records.Save(ctx, h); err != nil {
		return err
	}
	for _, tool := range prevented {
		w.Observe.DuplicatePrevented(tool)
	}
	return w.Records.Publish(ctx, h)
}

// forgotten: same store, no record, so the run has expired or was removed. Nothing is created; a write that was done and that
// no record has is told to its owner, once for its dispatch. It stays in the journal as not settled until that is published.
func (w *Worker) forgotten(ctx context.Context, id run.ID, facts []engine.Fact) error {
	for _, f := range facts {
		if f.Effect == nil || !f.Effect.Reply.OK {
			continue
		}
		w.Log.Error("the journal has an effect whose run is forgotten", "tenant", id.Tenant, "run_id", id.Run, "step", f.Intent.Step, "tool", f.Intent.Tool)
		d, at := w.Defaults(), w.Records.Now()
		a := deadletter.Alert{
			Schema: deadletter.AlertSchema, Tenant: id.Tenant, Owner: cmp.Or(f.Intent.Owner, d.Owner), ReasonCode: deadletter.ReasonForgotten,
			Severity: engine.SeverityOf(deadletter.ReasonForgotten), RunID: id.Run, Workflow: cmp.Or(f.Intent.Workflow, d.Workflow),
			Tool: f.Intent.Tool, Count: 1, FirstAt: f.Effect.At, At: at, Summary: engine.SummaryOf(deadletter.ReasonForgotten),
		}
		if err := w.Records.Alert(ctx, a, id.Tenant+"/"+id.Run+"/forgotten/"+string(f.Intent.Dispatch)); err != nil {
			return err
		}
	}
	return nil
}

// offloaded puts the large results of facts into the object store, as the call's own end would have.
func (w *Worker) offloaded(ctx context.Context, facts []engine.Fact) ([]engine.Fact, error) {
	out := slices.Clone(facts)
	for i := range out {
		f := &out[i]
		if f.Effect == nil {
			continue
		}
		id := run.ID{Tenant: f.Intent.Tenant, Run: f.Intent.RunID}
		ref, err := w.Records.Offload(ctx, id, f.Intent.Step, f.Intent.Dispatch, f.Effect.Reply.Result, nil)
		if errors.Is(err, port.ErrRefused) {
			// The record will say that the result is too large; what was committed stays committed.
			w.Log.Error("large result not kept", "tenant", id.Tenant, "run_id", id.Run, "step", f.Intent.Step, "error", err)
			continue
		}
		if err != nil {
			return nil, err
		}
		if ref != nil {
			effect := *f.Effect
			effect.Reply.Ref, effect.Reply.Result = ref, nil
			f.Effect = &effect
		}
	}
	return out, nil
}

// evidence applies facts to a record. It reports whether the record changed, and the tools whose writes would have been
// unknown without the journal, or sent again.
func (w *Worker) evidence(r *engine.Run, facts []engine.Fact) (changed bool, prevented []string) {
	src := engine.Source{By: w.ID, Random: w.Random(), At: w.Records.Now()}
	for _, f := range facts {
		if f.Effect == nil || f.NeverSent() {
			continue
		}
		v := r.Reply(f.Intent.Dispatch, f.Effect.Reply, w.Tools, src)
		changed = changed || v != engine.Dropped
		if v == engine.Applied && f.Effect.Reply.OK {
			prevented = append(prevented, f.Intent.Tool)
		}
	}
	for _, f := range facts {
		s := r.Carrying(f.Intent.Dispatch)
		if f.Effect != nil || s == nil || s.State != run.Executing || r.Lease == nil {
			continue
		}
		// The intent is ours, so the lease is an earlier start's: the whole of it has ended with that process.
		if r.LeaseEnded(w.Tools, src) == engine.Applied {
			changed = true
		}
	}
	if r.Lease != nil && sameJournal(r.Lease.Holder, w.Holder) && r.Lease.Holder != w.Holder && r.LeaseEnded(w.Tools, src) == engine.Applied {
		changed = true
	}
	return changed, prevented
}

// Restore brings everything that the journal still knows into a store that was made anew or comes from an older copy:
// effects make their steps ok, intents without an effect make them unknown. It may be called at any time. Store must say
// that it is not current until it has returned: a job that comes again must meet what was done for it.
func (w *Worker) Restore(ctx context.Context) error {
	const lanes = 16
	var queues [lanes]chan []engine.Fact
	failed := make(chan error, lanes)
	for i := range queues {
		q := make(chan []engine.Fact, 8)
		queues[i] = q
		go func() {
			var err error
			for facts := range q {
				if err == nil {
					err = w.restoreRun(ctx, facts)
				}
			}
			failed <- err
		}()
	}
	n := 0
	err := w.byRun(func(id run.ID, facts []engine.Fact) error {
		n += len(facts)
		h := fnv.New32a()
		_, _ = h.Write([]byte(id.String()))
		select {
		case queues[h.Sum32()%lanes] <- facts:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	for i := range queues {
		close(queues[i])
	}
	for range queues {
		err = errors.Join(err, <-failed)
	}
	if err != nil {
		return fmt.Errorf("worker: restore: %w", err)
	}
	if n > 0 {
		w.Log.Warn("the store of run records is not the one this journal knew: its facts are restored", "facts", n)
	}
	return nil
}

// byRun calls fn with all that the journal knows of each run. The journal has them in the order of their time, so that few
// runs are held at once; what has come in between the two readings follows at the end.
func (w *Worker) byRun(fn func(run.ID, []engine.Fact) error) error {
	of := func(f engine.Fact) run.ID { return run.ID{Tenant: f.Intent.Tenant, Run: f.Intent.RunID} }
	left := map[run.ID]int{}
	if err := w.Journal.Facts(func(f engine.Fact) error {
		left[of(f)]++
		return nil
	}); err != nil {
		return err
	}
	held := map[run.ID][]engine.Fact{}
	if err := w.Journal.Facts(func(f engine.Fact) error {
		id := of(f)
		held[id] = append(held[id], f)
		if left[id]--; left[id] != 0 {
			return nil
		}
		facts := held[id]
		delete(held, id)
		delete(left, id)
		return fn(id, facts)
	}); err != nil {
		return err
	}
	for id, facts := range held {
		if err := fn(id, facts); err != nil {
			return err
		}
	}
	return nil
}

func (w *Worker) restoreRun(ctx context.Context, facts []engine.Fact) error {
	id := run.ID{Tenant: facts[0].Intent.Tenant, Run: facts[0].Intent.RunID}
	for tries := (pause.Longer{}); ; {
		err := w.restoreOnce(ctx, id, facts)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if w.untouchable(id, err) {
			return nil
		}
		if errors.Is(err, port.ErrConflict) {
			continue
		}
		w.Log.Warn("journal entries not restored yet", "tenant", id.Tenant, "run_id", id.Run, "error", err)
		if !tries.Wait(ctx) {
			return ctx.Err()
		}
	}
}

func (w *Worker) restoreOnce(ctx context.Context, id run.ID, facts []engine.Fact) error {
	src := engine.Source{By: w.ID, Random: w.Random(), At: w.Records.Now()}
	h, err := w.Records.Load(ctx, id)
	if errors.Is(err, port.ErrNotFound) {
		h, err = &record.Handle{ID: id, Run: engine.Restored(facts[0], w.Defaults(), src.At)}, nil
	}
	if err != nil {
		return err
	}
	if facts, err = w.offloaded(ctx, facts); err != nil {
		return err
	}
	if h.Run.MergeAll(facts, w.Tools, src) == engine.Dropped {
		return nil
	}
	if err := w.Records.Save(ctx, h); err != nil {
		return err
	}
	return w.Records.Publish(ctx, h)
}

// current reports whether the store is known to be the one that the fleet has agreed on.
func (w *Worker) current() bool {
	_, ok := w.Store.Current()
	return ok
}

// awaitStore waits until the store is agreed on, and returns its token.
func (w *Worker) awaitStore(ctx context.Context) (token string, err error) {
	for {
		token, ok := w.Store.Current()
		if ok {
			return token, nil
		}
		if !pause.For(ctx, storeDelay/2) {
			return "", ctx.Err()
		}
	}
}
