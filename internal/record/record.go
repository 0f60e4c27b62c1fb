// Package record keeps run records for the drivers: it loads, saves and publishes them. Lines 7 and 8 of the one order are
// written here, once, for executor, reconciler and operator calls alike.
package record

import (
	"context"
	"fmt"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Clock gives bounds on the server's time.
type Clock interface {
	Lower() time.Time
	Upper() time.Time
}

// Records loads, saves and publishes run records. Safe for concurrent use; a Handle is not.
type Records struct {
	Store     port.Store
	Clock     Clock
	Retention time.Duration // how long an ended run is remembered
	// MessageMax is how many bytes one message may have at the server that is connected now, without its headers; 0 is as
	// many as the contract allows. nil is always that.
	MessageMax func() int
	Secrets    func() [][]byte // replaced by [redacted] in everything that is published; may be nil
	Observe    Observer        // told of what is stored; may be nil
}

// Handle is one run's record in this process's hands.
type Handle struct {
	ID  run.ID
	Run *engine.Run
	Seq uint64    // revision; 0: not stored yet
	At  time.Time // when the revision was stored, where it was read; by the server's clock

	server string // that has shown or stored the revision; see port.Store.Append

	unsure bool // it was read with outcomes owed: they may be in the stream already
	doubts []doubt
}

// Now is the time for what must be no earlier: the upper bound of the server's time.
func (rs *Records) Now() envelope.Time { return envelope.TimeNotBefore(rs.Clock.Upper()) }

// Due is the time by which something counts as due: the lower bound of the server's time.
func (rs *Records) Due() envelope.Time { return envelope.TimeOf(rs.Clock.Lower()) }

// Load reads a run's record. port.ErrNotFound.
func (rs *Records) Load(ctx context.Context, id run.ID) (*Handle, error) {
	server := rs.Store.Server()
	st, err := rs.Store.Load(ctx, id)
	if err != nil {
		return nil, err
	}
	r, err := engine.Decode(st.Data)
	if err != nil {
		return nil, fmt.Errorf("record of %s at revision %d: %w", id, st.Seq, err)
	}
	if r.First == 0 {
		r.First = st.Seq
	}
	r.LimitMessages(rs.messageMax())
	return &Handle{ID: id, Run: r, Seq: st.Seq, At: st.Time, server: server, unsure: len(r.Owed) > 0, doubts: doubtsOf(r)}, nil
}

// Save writes the record as the next revision: line 7 of the order. On port.ErrConflict the handle is worthless: load again.
func (rs *Records) Save(ctx context.Context, h *Handle) error {
	// The stream forgets before a letter does: what the steps of an ended run still name comes back into its record.
	if err := rs.readBack(ctx, h, h.Run.WantsBack()); err != nil {
		return err
	}
	data, err := h.Run.Encode()
	if err != nil {
		return err
	}
	server := rs.Store.Server()
	seq, err := rs.Store.Save(ctx, h.ID, data, rs.header(h.Run), h.Seq)
	if err != nil {
		return err
	}
	h.Seq, h.server = seq, server
	if h.Run.First == 0 {
		h.Run.First = seq
	}
	rs.countSettled(h)
	return nil
}

func (rs *Records) messageMax() int {
	if rs.MessageMax == nil {
		return 0
	}
	return rs.MessageMax()
}

func (rs *Records) header(r *engine.Run) port.Header {
	now := rs.Now()
	h := port.Header{State: r.State(), Workflow: r.Workflow, Episode: r.Episode, Lease: LeaseHeader(r.Lease)}
	if due := r.Due(now); due != 0 {
		h.Due = due.Time()
	}
	if r.Letter != nil && r.Letter.Open {
		h.Letter = r.Letter.Owner
	}
	if until := r.RemembersUntil(rs.Retention); until != 0 {
		h.TTL = max(until.Sub(now), time.Second)
	}
	return h
}

// Letter is the image of the record's letter as it is published: the bytes of its message.
func (rs *Records) Letter(r *engine.Run) ([]byte, error) {
	data, err := strictjson.Marshal(r.BuildLetter())
	if err != nil {
		return nil, fmt.Errorf("letter %s: %w", r.Letter.ID, err)
	}
	return rs.redact(data), nil
}

// Redact replaces exact occurrences of the config's secrets in what leaves the process another way.
func (rs *Records) Redact(data []byte) []byte { return rs.redact(data) }
