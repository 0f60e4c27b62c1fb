package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/pkg/envelope"
)

// A job that repeats what is known already causes no outcome: if the stored ones say how it ended and nothing new comes
// for this long, they are the answer.
const quiet = 2 * time.Second

// seen is an outcome as it was received.
type seen struct {
	envelope.Outcome
	raw    []byte
	stored bool // it was in the stream before the job was published
}

// follower gathers the outcomes of one run, each once, and says when the job has its answer.
type follower struct {
	job     *job
	known   map[string]bool // outcome ids
	steps   map[string]*seen
	end     *seen // the run's end, unless a later outcome shows that the run goes on
	refused *seen // the job as a whole was refused
}

func newFollower(j *job) *follower {
	return &follower{job: j, known: map[string]bool{}, steps: map[string]*seen{}}
}

// add takes an outcome in; it is false for one that was there before.
func (f *follower) add(s *seen) bool {
	if f.known[s.ID] {
		return false
	}
	f.known[s.ID] = true
	switch {
	case s.Scope == envelope.RunScope:
		f.end = s
	case refusesJob(s):
		if !s.stored {
			f.refused = s
		}
	default:
		f.steps[s.Step] = s
		if f.end != nil && f.end.stored && !refusal(s) {
			f.end = nil // the run was opened again after that end
		}
	}
	return true
}

// refusesJob: the job could not be accepted at all, or its run has ended.
func refusesJob(s *seen) bool {
	return s.Step == "" || s.Envelope != nil && s.Envelope.Code == envelope.CodeRunClosed
}

func refusal(s *seen) bool {
	if s.Envelope == nil {
		return false
	}
	switch s.Envelope.Code {
	case envelope.CodeStepConflict, envelope.CodeIdenticalRetry, envelope.CodeRunClosed:
		return true
	}
	return false
}

// answer is the exit code, and whether it is certain (from outcomes that came after the job) or only likely so far.
func (f *follower) answer() (code int, known, certain bool) {
	switch {
	case f.refused != nil:
		return exitCode(f.refused.Outcome.Outcome), true, true
	case f.end != nil:
		return exitCode(f.end.Outcome.Outcome), true, !f.end.stored
	case len(f.job.Steps) == 0:
		return app.ExitOK, f.job.More, false
	}
	certain, refused := true, 0
	worst := envelope.OK
	for _, step := range f.job.Steps {
		s := f.steps[step.Step]
		if s == nil || !s.Terminal {
			return 0, false, false
		}
		certain = certain && !s.stored
		if !s.stored && refusal(s) {
			refused++
		}
		if rank[s.Outcome.Outcome] > rank[worst] {
			worst = s.Outcome.Outcome
		}
	}
	// Without more the run's own end follows, unless nothing of the job was taken up.
	if !f.job.More && refused < len(f.job.Steps) {
		return 0, false, false
	}
	return exitCode(worst), true, certain
}

var rank = map[envelope.Word]int{envelope.Cancelled: 1, envelope.Fatal: 2, envelope.NeedsHuman: 3}

// follow publishes the job and shows its outcomes, each once, until the answer is known. It returns the exit code and the
// run's end, if that was the answer. status is told now and then what is being waited for.
func follow(ctx context.Context, nc *nats.Conn, queue string, j *job, data []byte, show func(*seen), status func(string)) (code int, end *seen, err error) {
	f := newFollower(j)
	live := make(chan *nats.Msg, 1024)
	back := make(chan struct{}, 1)
	signal := func() {
		select {
		case back <- struct{}{}:
		default:
		}
	}
	nc.SetReconnectHandler(func(*nats.Conn) { signal() })
	subject := bus.ResultSubject(j.id(), ">") // step and run
	// Subscribed before publishing, so that no outcome is missed; the server has it once the flush returns.
	sub, err := nc.ChanSubscribe(subject, live)
	if err != nil {
		return 0, nil, fmt.Errorf("subscribing to %s: %w", subject, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.FlushWithContext(ctx); err != nil {
		return 0, nil, fmt.Errorf("subscribing to %s: %w", subject, err)
	}
	old, err := stored(ctx, nc, subject)
	if err != nil && !errors.Is(err, errUnread) {
		return 0, nil, err
	}
	for _, s := range old {
		s.stored = true
		f.add(s)
	}
	if _, err := publish(ctx, nc, queue, j, data); err != nil {
		return 0, nil, err
	}
	defer status("")
	w := watch{follower: f, nc: nc, subject: subject, live: live, back: back, again: signal, show: show, status: status}
	code, err = w.run(ctx)
	return code, f.end, err
}

// watch is the wait for a job's answer.
type watch struct {
	*follower
	nc      *nats.Conn
	subject string
	live    <-chan *nats.Msg
	back    <-chan struct{} // the connection is there again
	again   func()          // what sends to back
	show    func(*seen)
	status  func(string)
}

func (w *watch) run(ctx context.Context) (int, error) {
	begun := time.Now()
	silence := time.NewTimer(quiet)
	defer silence.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		code, known, certain := w.answer()
		if known && certain {
			return code, nil
		}
		var news []*seen
		select {
		case m := <-w.live:
			if s, err := received(m); err == nil {
				news = append(news, s)
			}
		case <-w.back:
			// What was published while the connection was away is in the stream.
			missed, err := stored(ctx, w.nc, w.subject)
			if err != nil {
				time.AfterFunc(time.Second, w.again)
			}
			news = missed
		case <-silence.C:
			if known {
				w.showStored()
				return code, nil
			}
			silence.Reset(quiet)
		case now := <-tick.C:
			w.status(fmt.Sprintf("waiting for %s, %s", w.job.id(), now.Sub(begun).Round(time.Second)))
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		for _, s := range news {
			if w.add(s) {
				w.show(s)
				silence.Reset(quiet)
			}
		}
	}
}

// showStored shows the outcomes that the answer rests on and that were not shown yet.
func (w *watch) showStored() {
	if w.end != nil {
		if w.end.stored {
			w.show(w.end)
		}
		return
	}
	for _, step := range w.job.Steps {
		if s := w.steps[step.Step]; s != nil && s.stored {
			w.show(s)
		}
	}
}

func received(m *nats.Msg) (*seen, error) {
	s := &seen{}
	if err := json.Unmarshal(m.Data, &s.Outcome); err != nil {
		return nil, err
	}
	var line bytes.Buffer
	if err := json.Compact(&line, m.Data); err != nil {
		return nil, err
	}
	s.raw = line.Bytes()
	return s, nil
}

// storedWithin bounds one reading of the stream: a publisher without the right to read later gets no answer at all.
const storedWithin = 3 * time.Second

// errUnread: the stream gave no answer, for want of a connection or of the right to read it.
var errUnread = errors.New("no answer from the result stream")

// stored reads what the result stream holds of the run, with a consumer that needs no right but to be created: the
// server pushes to an inbox, and nothing is acknowledged. On an error, what was read so far comes too.
func stored(ctx context.Context, nc *nats.Conn, subject string) ([]*seen, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, storedWithin, errUnread)
	defer cancel()
	all, err := readStored(ctx, nc, subject)
	if err != nil && errors.Is(context.Cause(ctx), errUnread) {
		err = errUnread
	}
	if err != nil {
		return all, fmt.Errorf("reading earlier outcomes: %w", err)
	}
	return all, nil
}

func readStored(ctx context.Context, nc *nats.Conn, subject string) (all []*seen, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	consumer, err := js.CreatePushConsumer(ctx, bus.ResultsStream, jetstream.ConsumerConfig{
		FilterSubject: subject, DeliverSubject: inbox, DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckNonePolicy,
		InactiveThreshold: 5 * time.Second, MemoryStorage: true,
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, errors.New("there is no stream " + bus.ResultsStream + ": start an executor or a reconciler on this NATS server first, they make the streams")
	}
	if err != nil {
		return nil, err
	}
	info := consumer.CachedInfo()
	for left := info.NumPending + info.Delivered.Consumer; left > 0; {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return all, err
		}
		meta, err := m.Metadata()
		if err != nil {
			continue // no message of the stream: an idle heartbeat or the like
		}
		left = meta.NumPending
		if s, err := received(m); err == nil {
			all = append(all, s)
		}
	}
	return all, nil
}
