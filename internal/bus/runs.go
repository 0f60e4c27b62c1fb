package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/pkg/run"
)

// The headers of a run record, so that a reconciler can watch headers only.
const (
	headerState    = "Agentrun-State"
	headerDue      = "Agentrun-Due" // Unix milliseconds
	headerLease    = "Agentrun-Lease"
	headerWorkflow = "Agentrun-Workflow"
	headerEpisode  = "Agentrun-Episode"
	headerLetter   = "Agentrun-Letter" // owner of the open letter
	headerTTL      = "Nats-TTL"
	headerExpect   = "Nats-Expected-Last-Subject-Sequence"
)

// RecordHeader is what a run record says about itself beside its body.
type RecordHeader struct {
	State    string
	Due      time.Time // whole milliseconds; zero: nothing is due
	Lease    string    // holder/id/renewal; empty: none
	Workflow string
	Episode  int
	Letter   string        // owner of the open letter; empty: none is open
	TTL      time.Duration // rounded up to whole seconds; 0: stays until overwritten
}

func (h RecordHeader) nats(expect uint64) nats.Header {
	out := newHeaders(8)
	out.set(headerExpect, strconv.FormatUint(expect, 10))
	out.set(headerState, h.State)
	if !h.Due.IsZero() {
		out.set(headerDue, strconv.FormatInt(h.Due.UnixMilli(), 10))
	}
	if h.Lease != "" {
		out.set(headerLease, h.Lease)
	}
	if h.Workflow != "" {
		out.set(headerWorkflow, h.Workflow)
	}
	if h.Episode > 0 {
		out.set(headerEpisode, strconv.Itoa(h.Episode))
	}
	if h.Letter != "" {
		out.set(headerLetter, h.Letter)
	}
	if h.TTL > 0 {
		out.set(headerTTL, strconv.FormatInt(int64((h.TTL+time.Second-1)/time.Second), 10))
	}
	return out.of
}

// headers collects single values, which share one array.
type headers struct {
	of     nats.Header
	values []string
}

func newHeaders(most int) *headers {
	return &headers{of: make(nats.Header, most), values: make([]string, 0, most)}
}

func (h *headers) set(key, value string) {
	h.values = append(h.values, value)
	h.of[key] = h.values[len(h.values)-1 : len(h.values) : len(h.values)]
}

func parseRecordHeader(h nats.Header) RecordHeader {
	out := RecordHeader{
		State: h.Get(headerState), Lease: h.Get(headerLease), Workflow: h.Get(headerWorkflow), Letter: h.Get(headerLetter),
	}
	out.Episode, _ = strconv.Atoi(h.Get(headerEpisode))
	if ms, err := strconv.ParseInt(h.Get(headerDue), 10, 64); err == nil {
		out.Due = time.UnixMilli(ms).UTC()
	}
	if s, err := strconv.ParseInt(h.Get(headerTTL), 10, 64); err == nil {
		out.TTL = time.Duration(s) * time.Second
	}
	return out
}

// Record is a run record as stored. Seq is its revision; Time is the server's.
type Record struct {
	Data   []byte
	Seq    uint64
	Time   time.Time
	Header RecordHeader
}

// Runs is the store of run records.
type Runs struct{ conn *Conn }

// Runs returns the store of run records.
func (c *Conn) Runs() *Runs { return &c.runs }

// Load reads the record at the leader. ErrNotFound if there is none; it asks until ctx ends.
func (r *Runs) Load(ctx context.Context, id run.ID) (Record, error) {
	if !literalRun(id) {
		return Record{}, fmt.Errorf("bus: load run %s: %w", id, ErrNotLiteral)
	}
	m, err := r.conn.last(ctx, RunsStream, RunSubject(id))
	if err != nil {
		return Record{}, fmt.Errorf("bus: load run %s: %w", id, err)
	}
	return Record{Data: m.Data, Seq: m.Seq, Time: m.Time, Header: parseRecordHeader(m.Header)}, nil
}

// LoadSeq is Load for the revision only: 0 if there is no record.
func (r *Runs) LoadSeq(ctx context.Context, id run.ID) (uint64, error) {
	rec, err := r.Load(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	return rec.Seq, err
}

// Save stores data as the record's next revision if expect is its present one (0: there must be none), and returns the
// new revision. An error is not an answer: the same bytes are sent again at the same expected revision until they are
// acknowledged or a leader read shows a newer revision; if that holds our bytes, it is ours.
//
// It returns only on an acknowledgement, ErrConflict, ErrStoreFull, ErrTooLarge, another *Refusal, or when ctx ends:
// then ErrUnsettled, if a copy may still land, with the context's error. What it acknowledges is as durable as the
// server's sync settings make it.
func (r *Runs) Save(ctx context.Context, id run.ID, data []byte, h RecordHeader, expect uint64) (uint64, error) {
	msg := &nats.Msg{Subject: RunSubject(id), Header: h.nats(expect), Data: data}
	var seq uint64
	err := ErrNotLiteral
	if literalRun(id) {
		seq, err = r.conn.compareAndSet(ctx, RunsStream, msg, expect)
	}
	if err != nil {
		return 0, fmt.Errorf("bus: save run %s at %d: %w", id, expect, err)
	}
	return seq, nil
}

// Delete removes the record if seq is still its revision; ErrNotFound if that revision is gone.
func (r *Runs) Delete(ctx context.Context, id run.ID, seq uint64) error {
	if err := r.conn.deleteMessage(ctx, RunsStream, seq); err != nil {
		return fmt.Errorf("bus: delete run %s at %d: %w", id, seq, err)
	}
	return nil
}

// compareAndSet publishes msg, which expects its subject's last sequence to be expect, until it is known what became
// of it.
func (c *Conn) compareAndSet(ctx context.Context, stream string, msg *nats.Msg, expect uint64) (revision uint64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if expect == 0 {
		settled, err := c.admit(ctx, stream)
		if err != nil {
			return 0, err
		}
		defer func() { settled(revision != 0) }()
	}
	p := c.publish(msg)
	defer p.close()
	for {
		seq, refused, err := p.settle(ctx)
		if err != nil {
			return 0, err
		}
		if refused == nil {
			if stream == RunsStream {
				c.saw(seq)
			}
			return seq, nil
		}
		full := errors.Is(refused.asError(), ErrStoreFull)
		if !full && !refused.wrongSequence() {
			return 0, refused.err()
		}
		if full && p.attempts == 1 {
			return 0, refused.err()
		}
		// A refusal may answer a second copy of what was stored from the first: only the subject knows.
		stored, err := c.last(ctx, stream, msg.Subject)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return 0, p.abandoned(err)
		}
		if err != nil {
			stored = &storedMessage{}
		}
		if stored.Seq > expect && bytes.Equal(stored.Data, msg.Data) {
			return stored.Seq, nil
		}
		if full {
			return 0, refused.err()
		}
		// A lower sequence than expected is believed only if the refusal names it too: a leader that was just
		// deposed may read stale, but it cannot refuse.
		last, told := refused.last()
		if stored.Seq > expect || told && stored.Seq == last && stored.Seq != expect {
			if stored.Seq < expect && stream == RunsStream {
				c.doubt() // what was known to be stored is gone: expired, or the store has gone back
			}
			return 0, ErrConflict
		}
		if err := p.again(ctx); err != nil {
			return 0, err
		}
	}
}
