package record

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// SetAside ends a run whose record breaks a rule or cannot be read; see engine.SetAside. The record as it was found is kept in the object store
// first, as long as large results are. owner is that of the letter which was open, "" for none. port.ErrNotFound, engine.ErrWhole.
func (rs *Records) SetAside(ctx context.Context, id run.ID, by, reason string) (h *Handle, owner string, err error) {
	for {
		server := rs.Store.Server()
		st, err := rs.Store.Load(ctx, id)
		if err != nil {
			return nil, "", err
		}
		owner = st.Header.Letter // a record that cannot be read has this alone
		found, err := engine.DecodeAsIs(st.Data)
		unreadable := errors.Is(err, engine.ErrUnreadable)
		switch {
		case unreadable:
			found = new(engine.Run)
		case err != nil:
			return nil, "", fmt.Errorf("record of %s at revision %d: %w", id, st.Seq, err)
		case len(found.Violations()) == 0:
			return nil, "", engine.ErrWhole
		}
		first := found.First
		if first == 0 {
			first = st.Seq
		}
		if found.Letter != nil && found.Letter.Open {
			owner = found.Letter.Owner
		}
		var last [2]engine.Published
		for i, scope := range []envelope.Scope{envelope.StepScope, envelope.RunScope} {
			o, err := rs.Store.LastOutcome(ctx, id, scope)
			if err != nil && !errors.Is(err, port.ErrNotFound) {
				return nil, "", err
			}
			if err == nil && (o.First == first || unreadable) {
				first = o.First // an unreadable record does not say of which revision its run began
				last[i] = engine.Published{N: o.N, Seq: o.Seq}
			}
		}
		kept := fmt.Sprintf("broken/%s/%s/%d", id.Tenant, id.Run, st.Seq)
		if err := rs.Store.PutObject(ctx, kept, st.Data); err != nil {
			return nil, "", err
		}
		r, err := engine.SetAside(id, st.Data, by, reason, port.ObjectsBucket+"/"+kept, last[0], last[1], rs.Now())
		if err != nil {
			return nil, "", err
		}
		r.First = first
		h := &Handle{ID: id, Run: r, Seq: st.Seq, server: server}
		if err = rs.Save(ctx, h); err == nil {
			return h, owner, nil
		}
		if !errors.Is(err, port.ErrConflict) {
			return nil, "", err
		}
	}
}
