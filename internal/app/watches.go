package app

import (
	"context"
	"encoding/json"
	"time"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/reconcile"
	"github.com/agentrun/executor/internal/record"
)

// watches gives the reconciler its streams to follow.
type watches struct{ conn *bus.Conn }

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
	return w.conn.WatchRuns(ctx, 0, func(c bus.Change) {
		fn(reconcile.Change{Kind: kindOf(c.Kind), ID: c.ID, Seq: c.Seq, Header: record.Header{
			State: c.Header.State, Due: c.Header.Due, Lease: c.Header.Lease, Workflow: c.Header.Workflow,
			Episode: c.Header.Episode, Letter: c.Header.Letter, TTL: c.Header.TTL,
		}})
	})
}

func (w watches) Outcomes(ctx context.Context, from time.Time, fn func(reconcile.Outcome)) error {
	return w.conn.WatchRunResults(ctx, bus.StartAt{Time: from}, func(o bus.Outcome) {
		fn(reconcile.Outcome{Kind: kindOf(o.Kind), ID: o.ID, N: o.N})
	})
}

func (w watches) Letters(ctx context.Context, fn func(reconcile.Letter)) error {
	return w.conn.WatchLetters(ctx, func(l bus.LetterChange) {
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
