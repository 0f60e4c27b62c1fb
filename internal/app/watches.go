package app

import (
	"context"
	"encoding/json"
	"time"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/operator"
	"github.com/agentrun/executor/internal/reconcile"
	"github.com/agentrun/executor/internal/record"
)

// watches gives the reconciler its streams to follow. What they report goes to the operator calls' index too, so that
// each stream is watched once; a watch that begins reports all from the first.
type watches struct {
	conn  *bus.Conn
	index *operator.Index
}

func headerOf(h bus.RecordHeader) record.Header {
	return record.Header{
		State: h.State, Due: h.Due, Lease: h.Lease, Workflow: h.Workflow, Episode: h.Episode, Letter: h.Letter, TTL: h.TTL,
	}
}

var _ reconcile.Watch = watches{}

func kindOf(k bus.ChangeKind) reconcile.Kind {
	switch k {
	case bus.Current:
		return reconcile.Current
	case bus.Reset:
		return reconcile.Reset
	}
	return reconcile.Stored
}

func (w watches) Runs(ctx context.Context, fn func(reconcile.Change)) error {
	tellIndexOfRun(w.index, bus.Change{Kind: bus.Reset})
	return w.conn.WatchRuns(ctx, 0, func(c bus.Change) {
		tellIndexOfRun(w.index, c)
		fn(reconcile.Change{Kind: kindOf(c.Kind), ID: c.ID, Seq: c.Seq, Header: headerOf(c.Header)})
	})
}

func (w watches) Outcomes(ctx context.Context, from time.Time, fn func(reconcile.Outcome)) error {
	return w.conn.WatchRunResults(ctx, bus.StartAt{Time: from}, func(o bus.Outcome) {
		fn(reconcile.Outcome{Kind: kindOf(o.Kind), ID: o.ID, N: o.N})
	})
}

func (w watches) Letters(ctx context.Context, fn func(reconcile.Letter)) error {
	tellIndexOfLetter(w.index, bus.LetterChange{Kind: bus.Reset})
	return w.conn.WatchLetters(ctx, func(l bus.LetterChange) {
		tellIndexOfLetter(w.index, l)
		out := reconcile.Letter{Kind: kindOf(l.Kind), Owner: l.Owner, Seq: l.Seq}
		out.ID.Tenant, out.ID.Run = l.Tenant, l.RunID
		if l.Kind == bus.Stored {
			var body struct {
				Reason string `json:"reason_code"`
			}
			if json.Unmarshal(l.Data, &body) == nil {
				out.Reason = body.Reason
			}
		}
		fn(out)
	})
}

// fleet is the record of which reconciler is active.
type fleet struct{ conn *bus.Conn }

var _ reconcile.Fleet = fleet{}

func (f fleet) Load(ctx context.Context) ([]byte, uint64, error) {
	r, err := f.conn.Runs().Load(ctx, reconcile.FleetID)
	if err = said(err); err != nil {
		if isNotFound(err) {
			return nil, 0, nil
		}
		return nil, 0, err
	}
	return r.Data, r.Seq, nil
}

func (f fleet) Save(ctx context.Context, data []byte, lease string, expect uint64) (uint64, error) {
	seq, err := f.conn.Runs().Save(ctx, reconcile.FleetID, data, bus.RecordHeader{State: "fleet", Lease: lease}, expect)
	return seq, said(err)
}
