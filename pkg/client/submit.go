package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/propagation"

	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/run"
)

// DefaultQueue is where jobs go that name no queue.
const DefaultQueue = "default"

// Options say how a job is submitted. The zero value is good.
type Options struct {
	// Queue is the queue to publish to; "" is DefaultQueue.
	Queue string
	// Traceparent is the W3C trace context that executor, reconciler and tools go on with. Where it is "", that of the
	// OpenTelemetry span in ctx is taken, if there is one.
	Traceparent string
	// OnOutcome is told of each outcome that comes after the job, once and in order, and of those from before it on which
	// the answer rests. SubmitAndWait calls it from the calling goroutine. May be nil.
	OnOutcome func(*Outcome)
	// Enough is asked once, after what the stream has of the run was read and before the job is published: if it says that this
	// is the answer, nothing is published and the Result is that, Repeated. Its Run is the stored end, if there is one; its
	// Outcome is empty. May be nil.
	Enough func(known *Result) bool
	// OnPublished is told that the stream has the job. May be nil.
	OnPublished func(*Receipt)
}

// Prepared is a job ready to be published, as often as needed.
type Prepared struct {
	id    run.ID
	more  bool
	steps []string
	data  []byte
}

// ID names the job's run.
func (p *Prepared) ID() run.ID { return p.id }

// Prepare checks a job against every rule that needs no executor (contract §3) and encodes it. An empty Schema is filled in.
// The error is a *run.JobError, which names the field. Steps whose Args is nil get {}.
func Prepare(job *run.Job) (*Prepared, error) {
	j := *job
	if j.Schema == "" {
		j.Schema = run.JobSchema
	}
	if _, err := checkRun(j.Tenant, j.RunID); err != nil {
		return nil, &run.JobError{Problem: err.Error()}
	}
	data, err := json.Marshal(&j)
	if err != nil {
		return nil, &run.JobError{Problem: "cannot be encoded: " + err.Error()}
	}
	id := run.ID{Tenant: j.Tenant, Run: j.RunID}
	if _, err := run.ParseJob(data, id); err != nil {
		return nil, err
	}
	p := &Prepared{id: id, more: j.More, data: data}
	for _, s := range j.Steps {
		p.steps = append(p.steps, s.Step)
	}
	return p, nil
}

// PrepareJSON takes a job as it stands, fields included that this version does not know, and checks what publishing
// relies on: one JSON object of at most run.MaxJobBytes with schema, tenant and run_id. The executor checks the rest, and
// answers a job that it cannot read with a fatal outcome.
func PrepareJSON(data []byte) (*Prepared, error) {
	if len(data) > run.MaxJobBytes {
		return nil, fmt.Errorf("the job is larger than %d bytes", run.MaxJobBytes)
	}
	var j struct {
		Schema string `json:"schema"`
		Tenant string `json:"tenant"`
		RunID  string `json:"run_id"`
		More   bool   `json:"more"`
		Steps  []struct {
			Step string `json:"step"`
		} `json:"steps"`
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&j); err != nil {
		return nil, fmt.Errorf("the job is not the JSON of a job: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("the job is followed by more data; submit one job at a time")
	}
	if j.Schema != run.JobSchema {
		return nil, fmt.Errorf("the job's schema is %q, must be %q", j.Schema, run.JobSchema)
	}
	id, err := checkRun(j.Tenant, j.RunID)
	if err != nil {
		return nil, fmt.Errorf("the job: %w", err)
	}
	p := &Prepared{id: id, more: j.More, data: data}
	for _, s := range j.Steps {
		p.steps = append(p.steps, s.Step)
	}
	return p, nil
}

// Receipt says where a job is.
type Receipt struct {
	Queue    string
	Sequence uint64 // of the message in AGENTRUN_JOBS
}

// Bounds of one submission.
const (
	ackWithin    = 5 * time.Second  // for one try
	submitWithin = 30 * time.Second // for all, where ctx has no deadline
	tryAgain     = 250 * time.Millisecond
)

// Submit publishes a job and returns once the stream has it. While there is no acknowledgement it publishes the job again,
// until ctx ends (30 seconds if ctx has no deadline): a job that arrives twice is done once, so Submit may also be called
// again, after any error and by another process.
//
// Errors: *run.JobError, ErrNoStreams, ErrQueueFull, ErrNotAllowed, ErrUnacknowledged (with the reason why ctx ended).
func (c *Client) Submit(ctx context.Context, job *run.Job, o Options) (*Receipt, error) {
	p, err := Prepare(job)
	if err != nil {
		return nil, err
	}
	return c.Publish(ctx, p, o)
}

// Publish is Submit for a job that is prepared.
func (c *Client) Publish(ctx context.Context, p *Prepared, o Options) (*Receipt, error) {
	queue := o.Queue
	if queue == "" {
		queue = DefaultQueue
	}
	if !run.ValidID(queue) {
		return nil, fmt.Errorf("%q is no queue name (letters, digits, _ and -, at most 64, the first a letter or digit)", queue)
	}
	msg := &nats.Msg{Subject: topology.JobSubject(queue, p.id), Data: p.data, Header: nats.Header{}}
	if o.Traceparent != "" {
		msg.Header["traceparent"] = []string{o.Traceparent}
	} else {
		propagation.TraceContext{}.Inject(ctx, header(msg.Header))
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, submitWithin)
		defer cancel()
	}
	for {
		ack, err := c.publishOnce(ctx, msg)
		if err == nil {
			return &Receipt{Queue: queue, Sequence: ack.Sequence}, nil
		}
		switch full := (*jetstream.APIError)(nil); {
		case errors.Is(err, ErrNotAllowed):
			return nil, fmt.Errorf("publishing %s: %w", p.id, err)
		case errors.Is(err, jetstream.ErrNoStreamResponse):
			return nil, fmt.Errorf("no stream takes %s: %w", msg.Subject, ErrNoStreams)
		case errors.As(err, &full) && isFull(full):
			return nil, fmt.Errorf("publishing %s: %w: %s", p.id, ErrQueueFull, full.Description)
		case errors.As(err, &full) && full.Code != unavailable:
			return nil, fmt.Errorf("publishing %s: %w", p.id, full)
		case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrMaxPayload):
			return nil, fmt.Errorf("publishing %s: %w", p.id, err)
		}
		if !pause.For(ctx, tryAgain) {
			return nil, fmt.Errorf("publishing %s: %w (%w)", p.id, ErrUnacknowledged, context.Cause(ctx))
		}
	}
}

func (c *Client) publishOnce(ctx context.Context, msg *nats.Msg) (*jetstream.PubAck, error) {
	ctx, cancel := context.WithTimeout(ctx, ackWithin)
	defer cancel()
	ctx, stop := c.unlessDenied(ctx, msg.Subject)
	defer stop()
	ack, err := c.js.PublishMsg(ctx, msg)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrNotAllowed) {
		return nil, cause
	}
	return ack, err
}

// unavailable is the code of a stream that changes its leader, or is not there yet after a start.
const unavailable = 503

// isFull: too many messages or bytes, or no room left in the account or on the server.
func isFull(e *jetstream.APIError) bool {
	switch e.ErrorCode {
	case 10077: // any failure to store, in the store's words
		return strings.HasPrefix(e.Description, "maximum ")
	case 10023, 10047:
		return true
	}
	return false
}

// header lets OpenTelemetry write into a message.
type header nats.Header

func (h header) Get(key string) string {
	if v := h[key]; len(v) > 0 {
		return v[0]
	}
	return ""
}

func (h header) Set(key, value string) { h[key] = []string{value} }

func (h header) Keys() []string {
	keys := make([]string, 0, len(h))
	for k := range h {
		keys = append(keys, k)
	}
	return keys
}
