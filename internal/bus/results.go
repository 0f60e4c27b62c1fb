package bus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/pkg/run"
)

// The headers of an outcome.
const (
	headerN           = "Agentrun-N"
	headerRun         = "Agentrun-Run" // the first sequence of the run's record
	headerTraceparent = "traceparent"
	headerPublication = "Agentrun-Publication" // random, of one attempt to publish: tells whose copy was stored
)

// Outgoing is one numbered outcome to publish.
type Outgoing struct {
	ID    run.ID
	Scope string // ScopeStep or ScopeRun
	N     int    // from 1, without gaps

	// First is the sequence of the first revision of the run's record. It tells this run from an earlier one of the
	// same name.
	First uint64
	// Last is the sequence of message N-1 in AGENTRUN_RESULTS; 0 if N is 1 or it is not known.
	Last uint64
	// PublishedBefore says that the record knows of an earlier message on this subject. Then an empty subject means
	// that it has expired; without it, that it was never published.
	PublishedBefore bool

	Traceparent string // optional
	Data        []byte

	// New is set by Append: this very publication is what is stored, and was not there before. Of all that publish an
	// outcome one is told so, or none, if it ended before it was answered.
	New bool

	publication string
}

// Posted is an outcome's place in the stream.
type Posted struct {
	Seq uint64
	N   int
	Run uint64 // header Agentrun-Run; 0 if absent
}

// Results is the stream of outcomes.
type Results struct{ conn *Conn }

// Results returns the stream of outcomes.
func (c *Conn) Results() Results { return Results{c} }

// Append publishes outcomes, all sent together in the order given on one connection, and waits until it is known of
// each that it is in the stream. Messages of one subject must be in ascending order of N; a second one on a subject
// goes out when the first is acknowledged, because it must name its sequence, and everything after it then too.
//
// seqs has the sequence of each; 0 for one that a message with a higher N has already passed, and for those that did
// not get that far when err is not nil. Publishing again what is there changes nothing and returns its sequence.
// Errors: ErrGap (the subject's last message is older than N-1: publish the earlier ones first; the others may have
// been published), ErrTooLarge, ErrStoreFull, *Refusal, and ErrUnsettled with the context's error. Those sent but not
// named in seqs may be in the stream.
func (r Results) Append(ctx context.Context, out []Outgoing) (seqs []uint64, err error) {
	seqs = make([]uint64, len(out))
	for i := range out {
		if !literalRun(out[i].ID) {
			return seqs, fmt.Errorf("bus: publish outcome of %s: %w", out[i].ID, ErrNotLiteral)
		}
	}
	last := make(map[string]uint64, 2)
	for start := 0; start < len(out); {
		end := distinctSubjects(out, start)
		pubs := make([]*publication, 0, end-start)
		for i := start; i < end; i++ {
			expect := out[i].Last
			if known, ok := last[ResultSubject(out[i].ID, out[i].Scope)]; ok {
				expect = known
			}
			if expect == 0 && out[i].N > 1 && !out[i].PublishedBefore {
				// Expecting nothing would pass on an empty subject, which here is a gap.
				expect = noSequence
			}
			pubs = append(pubs, r.conn.publish(out[i].message(expect)))
		}
		for i, p := range pubs {
			o := &out[start+i]
			var failed error
			seqs[start+i], o.New, failed = r.confirm(ctx, o, p)
			p.close()
			if failed != nil && err == nil {
				err = fmt.Errorf("bus: publish outcome %s/%s/%d: %w", o.ID, o.Scope, o.N, failed)
			}
			if seqs[start+i] != 0 {
				last[ResultSubject(o.ID, o.Scope)] = seqs[start+i]
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
func distinctSubjects(out []Outgoing, start int) int {
	for end := start + 1; end < len(out); end++ {
		for i := start; i < end; i++ {
			if out[i].ID == out[end].ID && out[i].Scope == out[end].Scope {
				return end
			}
		}
	}
	return len(out)
}

func (o *Outgoing) message(expect uint64) *nats.Msg {
	h := newHeaders(5)
	h.set(headerExpect, strconv.FormatUint(expect, 10))
	h.set(headerN, strconv.Itoa(o.N))
	h.set(headerRun, strconv.FormatUint(o.First, 10))
	o.publication = strconv.FormatUint(rand.Uint64(), 36)
	h.set(headerPublication, o.publication)
	if o.Traceparent != "" {
		h.set(headerTraceparent, o.Traceparent)
	}
	return &nats.Msg{Subject: ResultSubject(o.ID, o.Scope), Header: h.of, Data: o.Data}
}

// confirm waits until the outcome is in the stream; a refusal is settled by the subject's last message. stored says that
// this publication put it there: a copy may have been stored although its acknowledgement was lost.
func (r Results) confirm(ctx context.Context, o *Outgoing, p *publication) (at uint64, stored bool, err error) {
	for {
		seq, refused, err := p.settle(ctx)
		if err != nil {
			return 0, false, err
		}
		if refused == nil {
			return seq, true, nil
		}
		if !refused.wrongSequence() {
			return 0, false, refused.err()
		}
		last, publication, err := r.last(ctx, o.ID, o.Scope)
		if errors.Is(err, ErrNotFound) {
			last = Posted{}
		} else if err != nil {
			return 0, false, p.abandoned(err)
		}
		before := last.N
		if last.Run != o.First {
			before = 0 // of another run with this id: counts as empty
		}
		switch {
		case last.Seq != 0 && before == o.N:
			return last.Seq, publication == o.publication, nil
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

// Last reads, at the leader, which message is the last of a result subject. ErrNotFound if there is none.
func (r Results) Last(ctx context.Context, id run.ID, scope string) (Posted, error) {
	p, _, err := r.last(ctx, id, scope)
	return p, err
}

func (r Results) last(ctx context.Context, id run.ID, scope string) (p Posted, publication string, err error) {
	m, err := r.conn.last(ctx, ResultsStream, ResultSubject(id, scope))
	if err != nil {
		return Posted{}, "", err
	}
	return postedOf(m.Seq, m.Header), m.Header.Get(headerPublication), nil
}

// Read returns the message at seq, for a result that its record keeps by sequence. ErrNotFound if it has expired.
func (r Results) Read(ctx context.Context, seq uint64) ([]byte, error) {
	m, err := r.conn.get(ctx, ResultsStream, getRequest{Seq: seq})
	if err != nil {
		return nil, fmt.Errorf("bus: read outcome at %d: %w", seq, err)
	}
	return m.Data, nil
}

func postedOf(seq uint64, h nats.Header) Posted {
	n, _ := strconv.Atoi(h.Get(headerN))
	first, _ := strconv.ParseUint(h.Get(headerRun), 10, 64)
	return Posted{Seq: seq, N: n, Run: first}
}
