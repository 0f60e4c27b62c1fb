package bus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// The headers of an outcome.
const (
	headerN           = "Agentrun-N"
	headerRun         = "Agentrun-Run" // the first sequence of the run's record
	headerTraceparent = "traceparent"
	headerPublication = "Agentrun-Publication" // random, of one attempt to publish: tells whose copy was stored
)

// Append publishes outcomes, all sent together in the order given on one connection, and waits until it is known of
// each that it is in the stream. Messages of one subject must be in ascending order of N; a second one on a subject
// goes out when the first is acknowledged, because it must name its sequence, and everything after it then too.
//
// seqs has the sequence of each; 0 for one that a message with a higher N has already passed, and for those that did
// not get that far when err is not nil. Publishing again what is there changes nothing and returns its sequence.
// They are sent to one process of the server alone. Errors: port.ErrConflict (another is connected), ErrGap (the last
// message of the subject is older than N-1: publish the earlier ones first; the others may have been published),
// ErrTooLarge, port.ErrFull, *Refusal, and ErrUnsettled with the context's error. Those sent but not named in seqs may be
// in the stream.
func (c *Conn) Append(ctx context.Context, server string, out []port.Outgoing) (seqs []uint64, err error) {
	seqs = make([]uint64, len(out))
	for i := range out {
		if !topology.LiteralRun(out[i].Run()) {
			return seqs, fmt.Errorf("bus: publish outcome of %s: %w", out[i].Run(), ErrNotLiteral)
		}
	}
	last := make(map[string]uint64, 2)
	for start := 0; start < len(out); {
		end := distinctSubjects(out, start)
		pubs := make([]*publication, 0, end-start)
		for i := start; i < end; i++ {
			expect := out[i].Last
			if known, ok := last[topology.ResultSubject(out[i].Run(), out[i].Scope)]; ok {
				expect = known
			}
			if expect == 0 && out[i].N > 1 && !out[i].PublishedBefore {
				// Expecting nothing would pass on an empty subject, which here is a gap.
				expect = noSequence
			}
			pubs = append(pubs, c.publishTo(server, outcomeMessage(&out[i], expect)))
		}
		for i, p := range pubs {
			o := &out[start+i]
			var failed error
			seqs[start+i], o.New, failed = c.confirm(ctx, o, p)
			p.close()
			if failed != nil && err == nil {
				err = fmt.Errorf("bus: publish outcome %s/%s/%d: %w", o.Run(), o.Scope, o.N, failed)
			}
			if seqs[start+i] != 0 {
				last[topology.ResultSubject(o.Run(), o.Scope)] = seqs[start+i]
			}
		}
		if err != nil {
			return seqs, err
		}
		start = end
	}
	return seqs, nil
}

// noSequence is expected of a subject whose last sequence must be looked up: no message can have it.
const noSequence = 1 << 53

// distinctSubjects returns the end of the longest run of out from start on in which no subject comes twice.
func distinctSubjects(out []port.Outgoing, start int) int {
	for end := start + 1; end < len(out); end++ {
		for i := start; i < end; i++ {
			if out[i].Run() == out[end].Run() && out[i].Scope == out[end].Scope {
				return end
			}
		}
	}
	return len(out)
}

// outcomeMessage names its attempt to publish at random.
func outcomeMessage(o *port.Outgoing, expect uint64) *nats.Msg {
	h := newHeaders(5)
	h.set(headerExpect, strconv.FormatUint(expect, 10))
	h.set(headerN, strconv.Itoa(o.N))
	h.set(headerRun, strconv.FormatUint(o.First, 10))
	h.set(headerPublication, strconv.FormatUint(rand.Uint64(), 36))
	if o.Traceparent != "" {
		h.set(headerTraceparent, o.Traceparent)
	}
	return &nats.Msg{Subject: topology.ResultSubject(o.Run(), o.Scope), Header: h.of, Data: o.Data}
}

// confirm waits until the outcome is in the stream; a refusal is settled by the subject's last message. stored says that
// this publication put it there: a copy may have been stored although its acknowledgement was lost.
func (c *Conn) confirm(ctx context.Context, o *port.Outgoing, p *publication) (at uint64, stored bool, err error) {
	for {
		seq, refused, err := p.stored(ctx)
		if errors.Is(err, port.ErrConflict) && p.unsettled {
			return c.landed(ctx, o, p, err)
		}
		if err != nil {
			return 0, false, err
		}
		if refused == nil {
			return seq, true, nil
		}
		if !refused.wrongSequence() {
			return 0, false, refused.err()
		}
		last, publication, err := c.lastOutcome(ctx, o.Run(), o.Scope)
		if errors.Is(err, port.ErrNotFound) {
			last = port.Outcome{}
		} else if err != nil {
			return 0, false, p.abandoned(err)
		}
		before := last.N
		if last.First != o.First {
			before = 0 // of another run with this id: counts as empty
		}
		switch {
		case last.Seq != 0 && before == o.N:
			return last.Seq, publication == p.msg.Header[headerPublication][0], nil
		case before > o.N:
			return 0, false, nil
		case before != 0 && before < o.N-1, before == 0 && o.N > 1 && !o.PublishedBefore:
			return 0, false, ErrGap
		}
		expect := strconv.FormatUint(last.Seq, 10)
		if p.msg.Header[headerExpect][0] == expect {
			// What the read shows is what was expected: another write was in flight, or the read was stale.
			if err := p.again(ctx); err != nil {
				return 0, false, err
			}
			continue
		}
		p.msg.Header[headerExpect] = []string{expect}
		p.renew()
	}
}

// landed looks whether the outcome was stored before the server was another; if not, err says so.
func (c *Conn) landed(ctx context.Context, o *port.Outgoing, p *publication, err error) (at uint64, stored bool, _ error) {
	last, publication, lost := c.lastOutcome(ctx, o.Run(), o.Scope)
	switch {
	case lost == nil && publication == p.msg.Header[headerPublication][0]:
		return last.Seq, true, nil
	case lost != nil && !errors.Is(lost, port.ErrNotFound):
		return 0, false, p.abandoned(lost)
	}
	return 0, false, err
}

// LastOutcome is port.Store's.
func (c *Conn) LastOutcome(ctx context.Context, id run.ID, scope envelope.Scope) (port.Outcome, error) {
	o, _, err := c.lastOutcome(ctx, id, scope)
	return o, err
}

func (c *Conn) lastOutcome(ctx context.Context, id run.ID, scope envelope.Scope) (o port.Outcome, publication string, err error) {
	m, err := c.last(ctx, topology.ResultsStream, topology.ResultSubject(id, scope))
	if err != nil {
		return port.Outcome{}, "", err
	}
	return outcomeOf(id, scope, m.Seq, m.Time, m.Header), m.Header.Get(headerPublication), nil
}

// ReadOutcome is port.Store's.
func (c *Conn) ReadOutcome(ctx context.Context, seq uint64) ([]byte, error) {
	m, err := c.get(ctx, topology.ResultsStream, getRequest{Seq: seq})
	if err != nil {
		return nil, fmt.Errorf("bus: read outcome at %d: %w", seq, err)
	}
	return m.Data, nil
}

func outcomeOf(id run.ID, scope envelope.Scope, seq uint64, at time.Time, h nats.Header) port.Outcome {
	n, _ := strconv.Atoi(h.Get(headerN))
	first, _ := strconv.ParseUint(h.Get(headerRun), 10, 64)
	return port.Outcome{ID: id, Scope: scope, N: n, First: first, Seq: seq, Time: at}
}
