package bus

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
)

// WatchRuns is port.Watch's: until ctx ends, and then its error, or ErrClosed.
func (c *Conn) WatchRuns(ctx context.Context, fn func(port.Change)) error {
	w := watch{
		conn: c, stream: topology.RunsStream, filter: topology.Runs + ">", headersOnly: true,
		mark: func(k port.Report) { fn(port.Change{Report: k}) },
		report: func(m *nats.Msg, meta Meta) {
			if id, ok := topology.ParseRunSubject(m.Subject); ok {
				fn(port.Change{ID: id, Seq: meta.Stream, Time: meta.At, Header: parseHeader(m.Header)})
			}
		},
	}
	return w.run(ctx)
}

// WatchOutcomes is port.Watch's, of agentrun.results.*.*.run and headers only. The rules of WatchRuns.
func (c *Conn) WatchOutcomes(ctx context.Context, from time.Time, fn func(port.Outcome)) error {
	w := watch{
		conn: c, stream: topology.ResultsStream, filter: topology.Results + "*.*." + string(envelope.RunScope), from: from, headersOnly: true,
		mark: func(k port.Report) { fn(port.Outcome{Report: k}) },
		report: func(m *nats.Msg, meta Meta) {
			if id, scope, ok := topology.ParseResultSubject(m.Subject); ok {
				fn(outcomeOf(id, scope, meta.Stream, meta.At, m.Header))
			}
		},
	}
	return w.run(ctx)
}

// WatchLetters is port.Watch's; removals are found by Lettered. The rules of WatchRuns, but after each reconnect it reports
// all letters again: a server that dies may forget a removal, and what comes back has its old sequence.
func (c *Conn) WatchLetters(ctx context.Context, fn func(port.Letter)) error {
	w := watch{
		conn: c, stream: topology.LettersStream, filter: topology.Letters + ">", again: true,
		mark:   func(k port.Report) { fn(port.Letter{Report: k}) },
		report: func(m *nats.Msg, meta Meta) { fn(letterOf(m.Subject, meta.Stream, meta.At, m.Header, m.Data)) },
	}
	return w.run(ctx)
}

const (
	watchHeartbeat = 2 * time.Second
	// watchSilence without anything, heartbeats included, means that the consumer is gone.
	watchSilence = 3 * watchHeartbeat
	// watchLinger is how long the server keeps the consumer of a process that died.
	watchLinger = 10 * time.Second
)

// watch follows one stream by ephemeral push consumers, one after another: flow control keeps the client from being
// overrun, and a gap in the consumer's numbers, silence or a reconnect starts a new one after the last message seen.
type watch struct {
	conn        *Conn
	stream      string
	filter      string
	first       uint64    // sequence to begin at; 0: the first
	from        time.Time // or the first that was stored at or after this; zero: the first
	headersOnly bool
	again       bool // each consumer begins at the first message
	mark        func(port.Report)
	report      func(*nats.Msg, Meta)

	created time.Time // of the stream
	seen    uint64    // the last stream sequence reported
	highest uint64    // the last stream sequence known
	begun   bool
	current bool
}

// round is the life of one consumer.
type round struct {
	watch    *watch
	mu       sync.Mutex // one report at a time, also across rounds
	over     bool
	consumer uint64 // the last consumer sequence
	active   atomic.Int64
	broken   chan struct{} // closed when a gap is seen
	once     sync.Once
}

func (w *watch) run(ctx context.Context) error {
	for attempt := 0; ; attempt++ {
		began := time.Now()
		err := w.once(ctx)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("bus: watch %s: %w", w.stream, ctx.Err())
		case w.conn.isClosing():
			return fmt.Errorf("bus: watch %s: %w", w.stream, ErrClosed)
		case err != nil:
			w.conn.log.Warn("watch begins again", "stream", w.stream, "error", err)
			w.conn.CheckStreams()
		}
		if time.Since(began) > time.Minute {
			attempt = 0
		}
		pause.For(ctx, min(pauseMin<<min(attempt, 8), time.Second))
	}
}

// once follows one consumer to its end.
func (w *watch) once(ctx context.Context) error {
	if err := w.conn.WaitConnected(ctx); err != nil {
		return err
	}
	changed, made := w.conn.next(&w.conn.changed), w.conn.next(&w.conn.made)
	if err := w.orient(ctx); err != nil {
		return err
	}
	r := &round{watch: w, broken: make(chan struct{})}
	r.touch()
	inbox := w.conn.nc.NewInbox()
	r.mu.Lock() // the first message waits until the answer about what is pending is known
	sub, err := w.conn.nc.Subscribe(inbox, r.receive)
	if err == nil {
		err = sub.SetPendingLimits(-1, -1) // flow control bounds it
	}
	if err != nil {
		r.mu.Unlock()
		return err
	}
	name, pending, err := w.createConsumer(ctx, inbox)
	if err == nil && pending == 0 {
		w.reachedEnd()
	}
	r.mu.Unlock()
	defer w.conn.dropConsumer(w.stream, name)
	defer r.end()
	defer func() { _ = sub.Unsubscribe() }()
	if err != nil {
		return err
	}
	return r.follow(ctx, changed, made)
}

// orient finds out whether the stream is still the one that was watched.
func (w *watch) orient(ctx context.Context) error {
	facts, err := w.conn.Facts(ctx, w.stream)
	if err != nil {
		return err
	}
	w.highest = max(w.highest, w.seen)
	if w.begun && (!facts.Created.Equal(w.created) || facts.State.LastSeq < w.highest) {
		w.conn.log.Warn("watched stream was made anew", "stream", w.stream)
		w.seen, w.highest, w.first, w.from, w.current = 0, 0, 0, time.Time{}, false
		w.mark(port.Reset)
	}
	if w.again {
		w.seen = 0
	}
	w.created, w.begun = facts.Created, true
	return nil
}

func (w *watch) reachedEnd() {
	if !w.current {
		w.current = true
		w.mark(port.Current)
	}
}

func (w *watch) createConsumer(ctx context.Context, inbox string) (name string, pending uint64, err error) {
	type config struct {
		Name          string        `json:"name"`
		DeliverPolicy string        `json:"deliver_policy"`
		OptStartSeq   uint64        `json:"opt_start_seq,omitempty"`
		OptStartTime  *time.Time    `json:"opt_start_time,omitempty"`
		AckPolicy     string        `json:"ack_policy"`
		MaxDeliver    int           `json:"max_deliver"`
		FilterSubject string        `json:"filter_subject"`
		ReplayPolicy  string        `json:"replay_policy"`
		FlowControl   bool          `json:"flow_control"`
		Heartbeat     time.Duration `json:"idle_heartbeat"`
		HeadersOnly   bool          `json:"headers_only,omitempty"`
		Deliver       string        `json:"deliver_subject"`
		Inactive      time.Duration `json:"inactive_threshold"`
		Replicas      int           `json:"num_replicas"`
		Memory        bool          `json:"mem_storage"`
	}
	name = "watch-" + inbox[strings.LastIndexByte(inbox, '.')+1:]
	cfg := config{
		Name: name, DeliverPolicy: "all", AckPolicy: "none", MaxDeliver: -1, FilterSubject: w.filter,
		ReplayPolicy: "instant", FlowControl: true, Heartbeat: watchHeartbeat, HeadersOnly: w.headersOnly,
		Deliver: inbox, Inactive: watchLinger, Replicas: 1, Memory: true,
	}
	switch from := max(w.seen+1, w.first); {
	case from > 1:
		cfg.DeliverPolicy, cfg.OptStartSeq = "by_start_sequence", from
	case !w.from.IsZero():
		cfg.DeliverPolicy, cfg.OptStartTime = "by_start_time", &w.from
	}
	ask := struct {
		Stream string `json:"stream_name"`
		Config config `json:"config"`
		Action string `json:"action"`
	}{w.stream, cfg, ""}
	var reply struct {
		Pending   uint64 `json:"num_pending"`
		Delivered struct {
			ConsumerSeq uint64 `json:"consumer_seq"`
		} `json:"delivered"`
	}
	request := "CONSUMER.CREATE." + w.stream + "." + name + "." + w.filter
	if err := w.conn.Ask(ctx, request, ask, &reply); err != nil {
		return name, 0, fmt.Errorf("create consumer: %w", err)
	}
	return name, reply.Pending + reply.Delivered.ConsumerSeq, nil
}

// dropConsumer removes an ephemeral consumer; if that fails the server does it after watchLinger.
func (c *Conn) dropConsumer(stream, name string) {
	_ = c.nc.Publish(c.opts.API.Subject("CONSUMER.DELETE."+stream+"."+name), nil)
}

func (r *round) touch() { r.active.Store(time.Now().UnixNano()) }

func (r *round) end() {
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
}

func (r *round) breakOff() { r.once.Do(func() { close(r.broken) }) }

func (r *round) follow(ctx context.Context, changed, made <-chan struct{}) error {
	ticker := time.NewTicker(watchHeartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.watch.conn.closed:
			return nil
		case <-changed:
			return nil
		case <-made:
			return nil
		case <-r.broken:
			return nil
		case now := <-ticker.C:
			if now.Sub(time.Unix(0, r.active.Load())) > watchSilence {
				return fmt.Errorf("no heartbeat for %s", watchSilence)
			}
		}
	}
}

func (r *round) receive(m *nats.Msg) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.touch()
	defer r.touch()
	if r.over {
		return
	}
	meta, ok := ParseReply(m.Reply)
	if !ok {
		r.status(m, m.Header.Get("Status"))
		return
	}
	if meta.Consumer != r.consumer+1 {
		r.over = true
		r.breakOff()
		return
	}
	r.consumer = meta.Consumer
	r.watch.conn.clock.Heard(meta.At)
	if r.watch.stream == topology.RunsStream {
		r.watch.conn.opts.Keeper.Saw(meta.Stream)
	}
	if meta.Stream <= r.watch.seen {
		return
	}
	r.watch.seen = meta.Stream
	r.watch.report(m, meta)
	if meta.Pending == 0 {
		r.watch.reachedEnd()
	}
}

// status answers flow control and notices by a heartbeat that messages were dropped on the way.
func (r *round) status(m *nats.Msg, status string) {
	switch {
	case status != "" && status != "100":
		r.over = true
		r.breakOff()
	case m.Reply != "":
		_ = r.watch.conn.nc.Publish(m.Reply, nil)
	default:
		stalled := m.Header.Get("Nats-Consumer-Stalled")
		if stalled != "" {
			_ = r.watch.conn.nc.Publish(stalled, nil)
		}
		last, err := strconv.ParseUint(m.Header.Get("Nats-Last-Consumer"), 10, 64)
		switch {
		case err == nil && last != r.consumer:
			r.over = true
			r.breakOff()
		case err == nil && stalled == "":
			// The server is idle: nothing is left, even if what it had counted as pending was removed meanwhile.
			r.watch.reachedEnd()
		}
	}
}
