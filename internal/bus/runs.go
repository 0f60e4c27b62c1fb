package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
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

func header(h port.Header, expect uint64) nats.Header {
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

func parseHeader(h nats.Header) port.Header {
	out := port.Header{
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

// Load is port.Store's; it asks until ctx ends.
func (c *Conn) Load(ctx context.Context, id run.ID) (port.Record, error) {
	if !topology.LiteralRun(id) {
		return port.Record{}, fmt.Errorf("bus: load run %s: %w", id, ErrNotLiteral)
	}
	m, err := c.last(ctx, topology.RunsStream, topology.RunSubject(id))
	if err != nil {
		return port.Record{}, fmt.Errorf("bus: load run %s: %w", id, err)
	}
	return port.Record{Data: m.Data, Seq: m.Seq, Time: m.Time, Header: parseHeader(m.Header)}, nil
}

// Save is port.Store's. The same bytes are sent again at the same expected revision until they are acknowledged or a
// leader read shows a newer revision; if that holds our bytes, it is ours.
//
// It returns only on an acknowledgement, port.ErrConflict, port.ErrFull, ErrTooLarge, another *Refusal, or when ctx ends:
// then ErrUnsettled, if a copy may still land, with the context's error. What it acknowledges is as durable as the
// server's sync settings make it.
func (c *Conn) Save(ctx context.Context, id run.ID, data []byte, h port.Header, expect uint64) (uint64, error) {
	msg := &nats.Msg{Subject: topology.RunSubject(id), Header: header(h, expect), Data: data}
	var seq uint64
	err := ErrNotLiteral
	if topology.LiteralRun(id) {
		seq, err = c.compareAndSet(ctx, topology.RunsStream, msg, expect)
	}
	if err != nil {
		return 0, fmt.Errorf("bus: save run %s at %d: %w", id, expect, err)
	}
	return seq, nil
}

// compareAndSet publishes msg, which expects its subject's last sequence to be expect, until it is known what became
// of it.
func (c *Conn) compareAndSet(ctx context.Context, stream string, msg *nats.Msg, expect uint64) (revision uint64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if expect == 0 {
		done, err := c.opts.Keeper.Admit(ctx, stream)
		if err != nil {
			return 0, err
		}
		defer func() { done(revision != 0) }()
	}
	p := c.publish(msg)
	defer p.close()
	for {
		seq, refused, err := p.stored(ctx)
		if err != nil {
			return 0, err
		}
		if refused == nil {
			if stream == topology.RunsStream {
				c.opts.Keeper.Saw(seq)
			}
			return seq, nil
		}
		full := errors.Is(refused.asError(), port.ErrFull)
		if !full && !refused.wrongSequence() {
			return 0, refused.err()
		}
		if full && p.attempts == 1 {
			return 0, refused.err()
		}
		// A refusal may answer a second copy of what was stored from the first: only the subject knows.
		stored, err := c.last(ctx, stream, msg.Subject)
		if err != nil && !errors.Is(err, port.ErrNotFound) {
			return 0, p.abandoned(err)
		}
		if err != nil {
			stored = &Stored{}
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
			if stored.Seq < expect && stream == topology.RunsStream {
				c.opts.Keeper.Doubt() // what was known to be stored is gone: expired, or the store has gone back
			}
			return 0, port.ErrConflict
		}
		if err := p.again(ctx); err != nil {
			return 0, err
		}
	}
}
