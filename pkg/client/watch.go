package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Outcome is one message of a run's results (contract §5).
type Outcome struct {
	envelope.Outcome
	Raw    json.RawMessage // as it was published, without white space between tokens
	Stored bool            // it was in the stream before the watch began
}

// Watch reads the outcomes of one run in the order of the stream, each once. It is used from one goroutine at a time.
type Watch struct {
	c       *Client
	id      run.ID
	subject string

	sub      *nats.Subscription
	messages chan *nats.Msg
	status   chan nats.Status
	open     bool
	live     bool        // no consumer may be made: what is published while watching, and the last outcomes
	found    []*nats.Msg // last outcomes that were read beside what is live
	consumed uint64      // messages that the consumer has sent
	after    uint64      // sequence in the stream of the last one; 0: read from the beginning
	backlog  uint64      // of these, how many were in the stream when the consumer was made
	begun    bool        // the first backlog has been read
	heard    time.Time   // when something last came, heartbeats included
	n        map[envelope.Scope]int
}

// Bounds of reading the stream.
const (
	inFlight     = 1024            // messages that wait for Next; beyond it they are read again
	createWithin = 3 * time.Second // for the stream to answer
	createTries  = 2               // on a connection that works, before a watch is content with what is live
	heartbeat    = 2 * time.Second // of the stream, when it has nothing to send
	silentFor    = 5 * time.Second // without a heartbeat the stream is asked anew
	lingers      = 5 * time.Second // a consumer that nobody listens to
)

// Watch begins to read a run's outcomes, with those that are in the stream already, if any; the run need not exist yet.
// Once it has returned, no outcome of a job that is published afterwards can be missed. Nothing is lost, repeated or
// reordered when the connection breaks or a server restarts: what was missed is read from the stream. Outcomes are kept
// for seven days. A caller that falls behind by more than 1,024 messages makes the connection report a slow consumer to its
// error handler; what was dropped is read again. Call Stop.
//
// A user without the right to make a consumer gets what is published while the watch lasts (Live reports this) and, with
// the right to $JS.API.DIRECT.GET.AGENTRUN_RESULTS.agentrun.results.<tenant>.*.*, the last outcome of the run and of its
// steps: at the beginning, after a broken connection, and in between. So the run's end is never missed, but outcomes of
// steps that are published while the connection is away are, all but the last.
//
// Errors: ErrNoStreams, ErrNotAllowed (not even live), the reason why ctx ended.
func (c *Client) Watch(ctx context.Context, tenant, runID string) (*Watch, error) {
	id, err := checkRun(tenant, runID)
	if err != nil {
		return nil, err
	}
	w := &Watch{c: c, id: id, subject: topology.ResultSubject(id, ">"), n: map[envelope.Scope]int{}}
	w.status = c.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	if err := w.begin(ctx); err != nil {
		w.Stop()
		return nil, err
	}
	return w, nil
}

// Live reports that this user may not make a consumer, so that outcomes of steps can be missed, see Client.Watch.
func (w *Watch) Live() bool { return w.live }

// Stop ends the watch. It may be called more than once; Next must not be running.
func (w *Watch) Stop() {
	w.leave()
	if w.status != nil {
		w.c.nc.RemoveStatusListener(w.status)
		w.status = nil
	}
}

// Next returns the next outcome. It waits until there is one or ctx ends, and returns the reason why ctx ended; the watch
// goes on with the next call. nats.ErrConnectionClosed is final.
func (w *Watch) Next(ctx context.Context) (*Outcome, error) {
	silence := time.NewTimer(silentFor)
	defer silence.Stop()
	for {
		if !w.open {
			if err := w.reopen(ctx); err != nil {
				return nil, err
			}
		}
		if len(w.messages) == 0 && len(w.found) > 0 { // after what came before it
			m := w.found[0]
			w.found = w.found[1:]
			o, err := w.take(m)
			if o != nil {
				o.Stored = !w.begun
			}
			w.begun = w.begun || len(w.found) == 0
			if o != nil || err != nil {
				return o, err
			}
		}
		silence.Reset(time.Until(w.heard.Add(silentFor)))
		select {
		case m := <-w.messages:
			w.heard = time.Now()
			if o, err := w.take(m); o != nil || err != nil {
				return o, err
			}
		case s := <-w.status:
			if s == nats.CLOSED || w.c.nc.IsClosed() {
				return nil, fmt.Errorf("watching %s: %w", w.id, nats.ErrConnectionClosed)
			}
			w.anew(ctx) // what was published while the connection was away is in the stream
		case w.heard = <-silence.C:
			w.anew(ctx)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// All returns the outcomes as they come, until the loop is left or ctx ends; the last pair then has the error.
func (w *Watch) All(ctx context.Context) iter.Seq2[*Outcome, error] {
	return func(yield func(*Outcome, error) bool) {
		for {
			o, err := w.Next(ctx)
			if !yield(o, err) || err != nil {
				return
			}
		}
	}
}

// anew makes the next look read the stream from the beginning: a run has few outcomes, what was seen is known by its number,
// and no position of a stream that was made anew meanwhile can be wrong.
func (w *Watch) anew(ctx context.Context) {
	w.open, w.after = w.live, 0
	if w.live {
		w.found = w.last(ctx)
	}
}

// caughtUp reports whether everything has been returned that was in the stream when the watch began.
func (w *Watch) caughtUp() bool { return w.begun }

// take makes an outcome of a message; it is nil for a heartbeat, for what was there before, and after a gap.
func (w *Watch) take(m *nats.Msg) (*Outcome, error) {
	stored := false
	if !w.live {
		if m.Header.Get("Status") != "" {
			last := m.Header.Get("Nats-Last-Consumer")
			w.open = last == "" || last == strconv.FormatUint(w.consumed, 10)
			w.begun = w.begun || w.open // the stream has nothing to send
			return nil, nil
		}
		meta, err := m.Metadata()
		if err != nil {
			return nil, nil
		}
		if meta.Sequence.Consumer != w.consumed+1 {
			w.open = false
			return nil, nil
		}
		w.consumed, w.after = w.consumed+1, meta.Sequence.Stream
		stored = !w.begun
		w.begun = w.begun || w.consumed >= w.backlog
	}
	o := &Outcome{Stored: stored}
	var line bytes.Buffer
	err := json.Unmarshal(m.Data, &o.Outcome)
	if err == nil {
		err = json.Compact(&line, m.Data)
	}
	if err != nil {
		return nil, fmt.Errorf("an outcome on %s cannot be read: %w", m.Subject, err)
	}
	o.Raw = line.Bytes()
	if o.N <= w.n[o.Scope] {
		return nil, nil // seen before: read again after a gap, or published again after a lost acknowledgement
	}
	w.n[o.Scope] = o.N
	return o, nil
}

// begin opens the watch for the first time, and settles for what is live where the stream may not be read.
func (w *Watch) begin(ctx context.Context) error {
	if _, denied := w.c.denials.Load(consumerOf + w.id.Tenant); denied {
		return w.listen(ctx)
	}
	for try := 1; ; {
		err := w.consume(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, jetstream.ErrStreamNotFound):
			return fmt.Errorf("no stream %s: %w", topology.ResultsStream, ErrNoStreams)
		case errors.Is(err, ErrNotAllowed):
			w.c.denials.Store(consumerOf+w.id.Tenant, true)
			return w.listen(ctx)
		case w.c.nc.IsConnected() && try >= createTries:
			return w.listen(ctx)
		case w.c.nc.IsClosed():
			return fmt.Errorf("watching %s: %w", w.id, nats.ErrConnectionClosed)
		case w.c.nc.IsConnected():
			try++
		}
		if !pause.For(ctx, tryAgain) {
			return context.Cause(ctx)
		}
	}
}

// reopen reads the stream again, from where it stopped, until it answers.
func (w *Watch) reopen(ctx context.Context) error {
	for {
		err := w.consume(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, ErrNotAllowed):
			return err
		case w.c.nc.IsClosed():
			return fmt.Errorf("watching %s: %w", w.id, nats.ErrConnectionClosed)
		}
		if !pause.For(ctx, tryAgain) {
			return context.Cause(ctx)
		}
	}
}

// consume makes a consumer that needs no right but to be created: the server pushes to an inbox, nothing is acknowledged,
// and the server removes it when nobody listens.
func (w *Watch) consume(ctx context.Context) error {
	w.leave()
	inbox := w.c.nc.NewInbox()
	w.messages = make(chan *nats.Msg, inFlight)
	sub, err := w.c.nc.ChanSubscribe(inbox, w.messages)
	if err != nil {
		return err
	}
	w.sub = sub
	name := inbox[strings.LastIndexByte(inbox, '.')+1:] // random
	ctx, cancel := context.WithTimeout(ctx, createWithin)
	defer cancel()
	ctx, stop := w.c.unlessDenied(ctx, w.c.api.Subject("CONSUMER.CREATE."+topology.ResultsStream+"."+name+"."+w.subject), inbox)
	defer stop()
	config := jetstream.ConsumerConfig{
		Name: name, FilterSubject: w.subject, DeliverSubject: inbox, DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy: jetstream.AckNonePolicy, IdleHeartbeat: heartbeat, InactiveThreshold: lingers, MemoryStorage: true,
	}
	if w.after > 0 {
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, w.after+1
	}
	consumer, err := w.c.js.CreatePushConsumer(ctx, topology.ResultsStream, config)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrNotAllowed) {
		return cause
	}
	if err != nil {
		return err
	}
	info := consumer.CachedInfo()
	w.consumed, w.backlog, w.heard, w.open = 0, info.NumPending+info.Delivered.Consumer, time.Now(), true
	w.begun = w.begun || w.backlog == 0
	return nil
}

// listen subscribes to the results themselves.
func (w *Watch) listen(ctx context.Context) error {
	w.leave()
	w.messages = make(chan *nats.Msg, 64*inFlight)
	sub, err := w.c.nc.ChanSubscribe(w.subject, w.messages)
	if err != nil {
		return fmt.Errorf("watching %s: %w", w.id, err)
	}
	w.sub = sub
	ctx, cancel := context.WithTimeout(ctx, createWithin)
	defer cancel()
	// The server has the subscription, or has said that it refuses it, once the flush returns.
	if err := w.c.nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("watching %s: %w", w.id, err)
	}
	if w.c.denied(w.subject) {
		return fmt.Errorf("watching %s: %w: this NATS user has no permission for %s", w.id, ErrNotAllowed, w.subject)
	}
	w.live, w.open, w.heard = true, true, time.Now()
	w.found = w.last(ctx)
	w.begun = len(w.found) == 0
	return nil
}

// Kinds of Client.denials.
const (
	consumerOf = "consumer "
	directOf   = "direct "
)

// last reads the last outcome of the steps and of the run, as far as this user may and the stream answers direct reads.
func (w *Watch) last(ctx context.Context) (out []*nats.Msg) {
	if _, denied := w.c.denials.Load(directOf + w.id.Tenant); denied {
		return nil
	}
	for _, scope := range []envelope.Scope{envelope.StepScope, envelope.RunScope} {
		m, err := w.direct(ctx, topology.ResultSubject(w.id, scope))
		if errors.Is(err, ErrNotAllowed) {
			w.c.denials.Store(directOf+w.id.Tenant, true)
			return nil
		}
		if err == nil && m.Header.Get("Status") == "" && len(m.Data) > 0 {
			out = append(out, m)
		}
	}
	return out
}

func (w *Watch) direct(ctx context.Context, subject string) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, createWithin)
	defer cancel()
	subject = w.c.api.Subject("DIRECT.GET." + topology.ResultsStream + "." + subject)
	ctx, stop := w.c.unlessDenied(ctx, subject)
	defer stop()
	m, err := w.c.nc.RequestWithContext(ctx, subject, nil)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrNotAllowed) {
		return nil, cause
	}
	return m, err
}

// leave ends the subscription; the server removes the consumer by itself.
func (w *Watch) leave() {
	w.open = false
	if w.sub != nil {
		_ = w.sub.Unsubscribe() // on a closed connection there is none left
		w.sub = nil
	}
}
