// Package record keeps run records for the drivers: it loads, saves and publishes them. Lines 7 and 8 of the one order are
// written here, once, for executor, reconciler and operator calls alike.
package record

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentrun/executor/pkg/deadletter"
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
	// nothing. The result has the sequence of each, 0 where a later one has passed it.
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
	// PutObject keeps a large result under a name; the same name again replaces it by the same.
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
	Retention time.Duration   // how long an ended run is remembered
	Secrets   func() [][]byte // replaced by [redacted] in everything that is published; may be nil
}

// Handle is one run's record in this process's hands.
type Handle struct {
	ID  run.ID
	Run *run.Run
	Seq uint64 // revision; 0: not stored yet

	unsure bool // it was read with outcomes owed: they may be in the stream already
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
	return &Handle{ID: id, Run: r, Seq: st.Seq, unsure: len(r.Owed) > 0}, nil
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
	return nil
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

// Publish makes everything known that the record owes: line 8 of the order. The letter goes first and is waited for, since
// the outcomes speak of it; then the outcomes, together and in order. What is in the stream already changes nothing. The
// handle's run remembers what is published; its next revision drops it.
func (rs *Records) Publish(ctx context.Context, h *Handle) error {
	r := h.Run
	if err := rs.publishAlarms(ctx, r); err != nil {
		return err
	}
	if err := rs.findPublished(ctx, h); err != nil {
		return err
	}
	if len(r.Owed) == 0 {
		return nil
	}
	if r.Letter != nil && r.Letter.Open && owesEnd(r) {
		if err := rs.PublishLetter(ctx, h); err != nil {
			return err
		}
	}
	out := make([]Outgoing, len(r.Owed))
	var kept []string
	for i := range r.Owed {
		o := &r.Owed[i]
		data, err := envelope.Marshal(r.Outcome(o))
		if err != nil {
			return fmt.Errorf("outcome %s/%s/%d: %w", h.ID, o.Scope, o.N, err)
		}
		clean := rs.redact(data)
		if len(clean) != len(data) || !bytes.Equal(clean, data) {
			kept = append(kept, o.Step)
		}
		before := r.PublishedBefore(o.Scope)
		out[i] = Outgoing{
			ID: h.ID, Scope: o.Scope, N: o.N, First: r.First, PublishedBefore: before.N > 0, Traceparent: r.Trace,
			Data: clean,
		}
		if before.N == o.N-1 {
			out[i].Last = before.Seq
		}
	}
	seqs, err := rs.Store.Append(ctx, out)
	if err != nil {
		return err
	}
	for i := range out {
		r.Published(out[i].Scope, out[i].N, seqs[i])
	}
	for _, step := range kept {
		r.KeepResult(step) // $from must see the original, which the stream does not have
	}
	return nil
}

// Alert publishes an alert; id names its cause.
func (rs *Records) Alert(ctx context.Context, a deadletter.Alert, id string) error {
	data, err := envelope.Marshal(a)
	if err != nil {
		return fmt.Errorf("alert %s: %w", id, err)
	}
	return rs.Store.PutAlert(ctx, a.Tenant, a.Owner, a.ReasonCode, rs.redact(data), id)
}

// publishAlarms publishes the alerts that the record owes besides those that follow from its end.
func (rs *Records) publishAlarms(ctx context.Context, r *run.Run) error {
	for _, a := range r.AlarmsOwed() {
		if err := rs.Alert(ctx, r.AlarmAlert(a), fmt.Sprintf("%s/%s/alarm/%d", r.Tenant, r.RunID, a.N)); err != nil {
			return err
		}
		r.AlarmPublished(a.N)
	}
	return nil
}

// FetchDoubts reads back what the args of the unknown writes refer to, so that they are looked up as they were sent.
func (rs *Records) FetchDoubts(ctx context.Context, h *Handle) error {
	for _, s := range h.Run.Steps {
		if s.State != run.InDoubt {
			continue
		}
		if err := rs.Fetch(ctx, h, s.Name); err != nil {
			return err
		}
	}
	return nil
}

// findPublished asks the stream which of the outcomes that a record was read with are there already. Publishing them again
// would be refused, but whoever listens live would see them twice.
func (rs *Records) findPublished(ctx context.Context, h *Handle) error {
	if !h.unsure {
		return nil
	}
	for _, scope := range []envelope.Scope{envelope.StepScope, envelope.RunScope} {
		if !owes(h.Run, scope) {
			continue
		}
		n, seq, first, err := rs.Store.LastOutcome(ctx, h.ID, scope)
		switch {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			return err
		case first == h.Run.First:
			h.Run.Published(scope, n, seq)
		}
	}
	h.unsure = false
	return nil
}

func owes(r *run.Run, scope envelope.Scope) bool {
	for i := range r.Owed {
		if r.Owed[i].Scope == scope {
			return true
		}
	}
	return false
}

func owesEnd(r *run.Run) bool {
	for i := range r.Owed {
		if r.Owed[i].Scope == envelope.RunScope && r.Owed[i].N == r.Episode {
			return true
		}
	}
	return false
}

// Letter is the image of the record's letter as it is published: the bytes of its message.
func (rs *Records) Letter(r *run.Run) ([]byte, error) {
	data, err := envelope.Marshal(r.BuildLetter())
	if err != nil {
		return nil, fmt.Errorf("letter %s: %w", r.Letter.ID, err)
	}
	return rs.redact(data), nil
}

// PublishLetter makes the letter's message the image of the record: it creates it, or replaces what is there.
func (rs *Records) PublishLetter(ctx context.Context, h *Handle) error {
	data, err := rs.Letter(h.Run)
	if err != nil {
		return err
	}
	owner := h.Run.Letter.Owner
	expect := uint64(0)
	for {
		_, err := rs.Store.PutLetter(ctx, h.ID, owner, data, h.Run.Letter.ID, expect)
		if !errors.Is(err, ErrConflict) {
			return err
		}
		st, _, err := rs.Store.GetLetter(ctx, h.ID, owner)
		switch {
		case errors.Is(err, ErrNotFound):
			expect = 0
		case err != nil:
			return err
		case bytes.Equal(st.Data, data):
			return nil
		default:
			expect = st.Seq
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// RemoveLetter removes the message of a letter that the record does not have open any more. The record is read after the
// message: a run that has ended anew meanwhile has its next letter at the same subject, and that one stays.
func (rs *Records) RemoveLetter(ctx context.Context, id run.ID, owner string) error {
	st, _, err := rs.Store.GetLetter(ctx, id, owner)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	h, err := rs.Load(ctx, id)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	if err == nil && h.Run.Letter != nil && h.Run.Letter.Open && h.Run.Letter.Owner == owner {
		return nil
	}
	return rs.Store.DeleteLetter(ctx, st.Seq)
}

// readBack reads results by the sequences of their outcomes and gives them to the run.
func (rs *Records) readBack(ctx context.Context, h *Handle, want map[string]uint64) error {
	for name, seq := range want {
		data, err := rs.Store.ReadOutcome(ctx, seq)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		var o struct {
			Step     string `json:"step"`
			RunID    string `json:"run_id"`
			Envelope struct {
				Result json.RawMessage `json:"result"`
			} `json:"envelope"`
		}
		if err == nil && (json.Unmarshal(data, &o) != nil || o.Step != name || o.RunID != h.ID.Run) {
			o.Envelope.Result = nil // another stream's message at this sequence
		}
		h.Run.Fetched(name, o.Envelope.Result)
	}
	return nil
}

// Fetch reads back the results that a step's references need and that the record has left in AGENTRUN_RESULTS.
func (rs *Records) Fetch(ctx context.Context, h *Handle, step string) error {
	if err := rs.readBack(ctx, h, h.Run.Fetch(step)); err != nil {
		return err
	}
	for name, ref := range h.Run.FetchObjects(step) {
		data, err := rs.Store.GetObject(ctx, ref.Object)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		h.Run.Fetched(name, data)
	}
	return nil
}

// ObjectBucket is the object store that keeps large results.
const ObjectBucket = "AGENTRUN_OBJECTS"

// InlineResult is up to how many bytes a result travels in outcomes and lies in the record (contract §12).
const InlineResult = 256 << 10

// Offload keeps a result that is too large for the record in the object store and returns its place; nil if it is small.
// The name comes from the dispatch, so that doing it again changes nothing. What the config keeps secret is redacted, since
// the object can be read by whoever reads the outcome.
func (rs *Records) Offload(ctx context.Context, id run.ID, step string, d run.DispatchID, result json.RawMessage) (*envelope.ObjectRef, error) {
	if len(result) <= InlineResult {
		return nil, nil
	}
	data := rs.redact(result)
	sum := sha256.Sum256(data)
	ref := &envelope.ObjectRef{
		Bucket: ObjectBucket, Object: id.Tenant + "/" + id.Run + "/" + step + "/" + string(d), Size: len(data), SHA256: hex.EncodeToString(sum[:]),
	}
	for {
		err := rs.Store.PutObject(ctx, ref.Object, data)
		if err == nil {
			return ref, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("result of %s/%s: %w", id, step, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

var redacted = []byte("[redacted]")

// Redact replaces exact occurrences of the config's secrets in what leaves the process another way.
func (rs *Records) Redact(data []byte) []byte { return rs.redact(data) }

// redact replaces exact occurrences of the config's secrets in what is published.
func (rs *Records) redact(data []byte) []byte {
	if rs.Secrets == nil {
		return data
	}
	for _, s := range rs.Secrets() {
		if bytes.Contains(data, s) {
			data = bytes.ReplaceAll(data, s, redacted)
		}
	}
	return data
}

// Redactions prepares the values of the config for Records.Secrets: each as it is and as JSON writes it.
func Redactions(values []string) [][]byte {
	var out [][]byte
	for _, v := range values {
		out = append(out, []byte(v))
		if quoted, err := envelope.Marshal(v); err == nil && string(quoted) != `"`+v+`"` {
			out = append(out, quoted[1:len(quoted)-1])
		}
	}
	return out
}
