// Package record keeps run records for the drivers: it loads, saves and publishes them. Lines 7 and 8 of the one order are
// written here, once, for executor, reconciler and operator calls alike.
package record

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// What callers branch on.
var (
	// ErrNotFound: there is no record, message or letter.
	ErrNotFound = errors.New("not found")
	// ErrConflict: a newer revision exists; nothing of ours was stored. Load and decide again.
	ErrConflict = errors.New("a newer revision exists")
	// ErrFull: the store has no room. The run waits.
	ErrFull = errors.New("the store is full")
	// ErrRefused: the store does not take this, now or later: it is too large, or this user may not write it.
	ErrRefused = errors.New("refused by the store")
)

// Header is what a record says about itself beside its body, so that a reconciler can watch headers only.
type Header struct {
	State    string
	Due      time.Time // zero: nothing is due
	Lease    string    // see ParseLease; empty: none
	Workflow string
	Episode  int
	Letter   string // owner of the open letter; empty: none is open
	TTL      time.Duration
}

// Stored is a record or a letter as it lies in its stream.
type Stored struct {
	Data []byte
	Seq  uint64
	Time time.Time
}

// Outgoing is one numbered outcome on its way.
type Outgoing struct {
	ID              run.ID
	Scope           envelope.Scope
	N               int
	First           uint64 // the first revision of the run's record
	Last            uint64 // sequence of message N-1, 0 if there is none or it is not known
	PublishedBefore bool
	Traceparent     string
	Data            []byte
	New             bool // set by Append: this publication is what is stored, and it was not there before
}

// Store is what the records need of NATS. All methods are safe for concurrent use and return when the outcome is known or
// ctx ends.
type Store interface {
	// Load reads at the leader. ErrNotFound.
	Load(ctx context.Context, id run.ID) (Stored, error)
	// Save is a compare-and-set on the revision (0: there must be none): an error is not an answer, so the same bytes are
	// sent again until they are known to be stored or refused. ErrConflict, ErrFull.
	Save(ctx context.Context, id run.ID, data []byte, h Header, expect uint64) (uint64, error)
	// Append publishes outcomes, sent together in order, and waits for all; publishing again what is there changes
	// nothing. The result has the sequence of each, 0 where a later one has passed it; New is set in out, also of those
	// that were stored before an error.
	Append(ctx context.Context, out []Outgoing) ([]uint64, error)
	// LastOutcome says which outcome is the last of a result subject, and whose: the first revision of its run's record.
	// ErrNotFound if there is none.
	LastOutcome(ctx context.Context, id run.ID, scope envelope.Scope) (n int, seq, first uint64, err error)
	// ReadOutcome reads an outcome by its sequence. ErrNotFound if it has expired.
	ReadOutcome(ctx context.Context, seq uint64) ([]byte, error)
	// PutLetter stores a letter at its subject if expect is the subject's last sequence. ErrConflict, ErrFull.
	PutLetter(ctx context.Context, id run.ID, owner string, data []byte, letterID string, expect uint64) (uint64, error)
	// GetLetter reads the letter at a subject and the letter id it was stored with. ErrNotFound.
	GetLetter(ctx context.Context, id run.ID, owner string) (s Stored, letterID string, err error)
	// PutAlert publishes an alert. id names its cause: the same again is one message where the server still remembers it.
	PutAlert(ctx context.Context, tenant, owner, reason string, data []byte, id string) error
	// PutObject keeps a large result under a name; the same name again replaces it by the same. ErrRefused.
	PutObject(ctx context.Context, name string, data []byte) error
	// GetObject reads a large result. ErrNotFound if it has expired.
	GetObject(ctx context.Context, name string) ([]byte, error)
	// DeleteLetter removes a letter by its sequence; one that is gone already is no error.
	DeleteLetter(ctx context.Context, seq uint64) error
}

// Clock gives bounds on the server's time.
type Clock interface {
	Lower() time.Time
	Upper() time.Time
}

// Records loads, saves and publishes run records. Safe for concurrent use; a Handle is not.
type Records struct {
	Store     Store
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
	Run *run.Run
	Seq uint64    // revision; 0: not stored yet
	At  time.Time // when the revision was stored, where it was read; by the server's clock

	unsure bool // it was read with outcomes owed: they may be in the stream already
	doubts []doubt
}

// Now is the time for what must be no earlier: the upper bound of the server's time.
func (rs *Records) Now() envelope.Time { return envelope.TimeNotBefore(rs.Clock.Upper()) }

// Due is the time by which something counts as due: the lower bound of the server's time.
func (rs *Records) Due() envelope.Time { return envelope.TimeOf(rs.Clock.Lower()) }

// Load reads a run's record. ErrNotFound.
func (rs *Records) Load(ctx context.Context, id run.ID) (*Handle, error) {
	st, err := rs.Store.Load(ctx, id)
	if err != nil {
		return nil, err
	}
	r, err := run.Decode(st.Data)
	if err != nil {
		return nil, fmt.Errorf("record of %s at revision %d: %w", id, st.Seq, err)
	}
	if r.First == 0 {
		r.First = st.Seq
	}
	r.LimitMessages(rs.messageMax())
	return &Handle{ID: id, Run: r, Seq: st.Seq, At: st.Time, unsure: len(r.Owed) > 0, doubts: doubtsOf(r)}, nil
}

// Save writes the record as the next revision: line 7 of the order. On ErrConflict the handle is worthless: load again.
func (rs *Records) Save(ctx context.Context, h *Handle) error {
	// The stream forgets before a letter does: what the steps of an ended run still name comes back into its record.
	if err := rs.readBack(ctx, h, h.Run.WantsBack()); err != nil {
		return err
	}
	data, err := h.Run.Encode()
	if err != nil {
		return err
	}
	seq, err := rs.Store.Save(ctx, h.ID, data, rs.header(h.Run), h.Seq)
	if err != nil {
		return err
	}
	h.Seq = seq
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

func (rs *Records) header(r *run.Run) Header {
	now := rs.Now()
	h := Header{State: r.State(), Workflow: r.Workflow, Episode: r.Episode, Lease: LeaseHeader(r.Lease)}
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
func (rs *Records) Letter(r *run.Run) ([]byte, error) {
	data, err := strictjson.Marshal(r.BuildLetter())
	if err != nil {
		return nil, fmt.Errorf("letter %s: %w", r.Letter.ID, err)
	}
	return rs.redact(data), nil
}

// Redact replaces exact occurrences of the config's secrets in what leaves the process another way.
func (rs *Records) Redact(data []byte) []byte { return rs.redact(data) }
