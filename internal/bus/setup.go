package bus

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// alertsAge is how long an alert can be read.
	alertsAge = 7 * 24 * time.Hour
	// windowMin is the server's minimum for its message-id window, which all tenants share: nothing relies on it.
	windowMin = 100 * time.Millisecond
	// maxAckPending and maxWaiting are far above what a fleet has in its hands at one time.
	maxAckPending = 100_000
	maxWaiting    = 8192
)

const (
	codeNoPeers             = 10005
	codeReplicasUnsupported = 10074
)

// Config is what the streams are made or checked by.
type Config struct {
	Replicas     int           // default 1
	RunRetention time.Duration // how long outcomes and large results stay; default 7 days
	MaxRuns      int64         // default 4,000,000
	MaxJobs      int64         // default 1,000,000
	MaxLetters   int64         // default 1,000,000
	Queues       []string      // consumers are made for these; none is legal (a reconciler makes none)
	AckWait      time.Duration // of the queues' consumers: twice the lease; default 60s
}

func (c Config) withDefaults() Config {
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.RunRetention == 0 {
		c.RunRetention = 7 * 24 * time.Hour
	}
	if c.MaxRuns == 0 {
		c.MaxRuns = 4_000_000
	}
	if c.MaxJobs == 0 {
		c.MaxJobs = 1_000_000
	}
	if c.MaxLetters == 0 {
		c.MaxLetters = 1_000_000
	}
	if c.AckWait == 0 {
		c.AckWait = time.Minute
	}
	return c
}

// Difference is a stream that exists and differs in what matters: it was not made for this, and is not touched.
type Difference struct {
	Stream, Field, Have, Want string
}

func (d *Difference) Error() string {
	return fmt.Sprintf("stream %s differs: %s is %s, must be %s", d.Stream, d.Field, d.Have, d.Want)
}

// streams are the six streams of contract §2. RUNS and DEADLETTERS are limited by messages and never by bytes: a
// growing update would be refused. JOBS allows no rollup, no schedules and no TTL headers, because publishers reach it.
func (c Config) streams() []jetstream.StreamConfig {
	base := func(name, prefix string) jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name: name, Subjects: []string{prefix + ">"}, Storage: jetstream.FileStorage, Replicas: c.Replicas,
			MaxMsgs: -1, MaxBytes: -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1, MaxConsumers: -1,
			Duplicates: windowMin, AllowDirect: c.Replicas == 1,
		}
	}
	jobs := base(JobsStream, jobsPrefix)
	jobs.Retention, jobs.Discard, jobs.MaxMsgs = jetstream.WorkQueuePolicy, jetstream.DiscardNew, c.MaxJobs

	wakes := base(WakesStream, wakesPrefix)
	wakes.Retention, wakes.Discard = jetstream.WorkQueuePolicy, jetstream.DiscardNew
	wakes.MaxMsgsPerSubject, wakes.DiscardNewPerSubject = 1, true

	runs := base(RunsStream, runsPrefix)
	runs.Discard, runs.MaxMsgs, runs.MaxMsgsPerSubject, runs.AllowMsgTTL = jetstream.DiscardNew, c.limit(c.MaxRuns), 1, true

	letters := base(LettersStream, lettersPrefix)
	letters.Discard, letters.MaxMsgs, letters.MaxMsgsPerSubject = jetstream.DiscardNew, c.limit(c.MaxLetters), 1

	results := base(ResultsStream, resultsPrefix)
	results.MaxAge = c.RunRetention

	alerts := base(AlertsStream, alertsPrefix)
	alerts.MaxAge, alerts.Duplicates = alertsAge, 2*time.Minute

	return []jetstream.StreamConfig{runs, letters, results, alerts, wakes, jobs}
}

// limit is the server's limit for a stream of registers. A single server lets an update through when the stream is full;
// a replicated stream counts it as one more and refuses it, so there the server's limit is above ours and admit keeps
// to ours.
func (c Config) limit(n int64) int64 {
	if c.Replicas > 1 {
		return n + n/10 + 1024
	}
	return n
}

// Setup makes the streams and consumers, or checks those that are there: what differs in what matters is a *Difference,
// ages and limits are updated. From then on the connection keeps them there: one that disappears is made again. It
// needs a connection and waits for one until ctx ends, and returns with the clock read.
func (c *Conn) Setup(ctx context.Context, cfg Config) error {
	cfg = cfg.withDefaults()
	for {
		if err := c.WaitConnected(ctx); err != nil {
			return err
		}
		tryCtx, cancel := c.attempt(ctx)
		err := c.ensure(tryCtx, cfg)
		cancel()
		if err == nil {
			break
		}
		if hopeless(err) || ctx.Err() != nil {
			return fmt.Errorf("bus: set up: %w", err)
		}
		c.log.Warn("streams are not ready", "error", err)
		select {
		case <-time.After(250 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("bus: set up: %w: %w", ctx.Err(), err)
		case <-c.closed:
			return ErrClosed
		}
	}
	c.mu.Lock()
	c.config, c.ready = cfg, true
	c.mu.Unlock()
	if err := c.observe(ctx); err != nil {
		return fmt.Errorf("bus: set up: %w", err)
	}
	return nil
}

// hopeless reports whether trying again cannot help: the configuration is refused, not the moment.
func hopeless(err error) bool {
	var differs *Difference
	var api *jetstream.APIError
	switch {
	case errors.As(err, &differs):
		return true
	case !errors.As(err, &api):
		return false
	case api.ErrorCode == codeReplicasUnsupported:
		return true
	}
	// A cluster that just starts has no peers for a replicated stream yet, and says so with a 400.
	return api.Code < 500 && api.Code != 404 && api.ErrorCode != codeNoPeers
}

// Ensure makes again what has disappeared since Setup. The connection calls it by itself: regularly, after each
// reconnect, and when a stream or consumer does not answer.
func (c *Conn) Ensure(ctx context.Context) error {
	c.mu.Lock()
	cfg, ready := c.config, c.ready
	c.mu.Unlock()
	if !ready {
		return nil
	}
	if err := c.ensure(ctx, cfg); err != nil {
		return fmt.Errorf("bus: ensure: %w", err)
	}
	return nil
}

func (c *Conn) ensure(ctx context.Context, cfg Config) error {
	for _, want := range cfg.streams() {
		if err := c.ensureStream(ctx, want); err != nil {
			return err
		}
	}
	for _, queue := range cfg.Queues {
		if err := c.ensureConsumer(ctx, JobsStream, queueFilter(jobsPrefix, queue), queue, cfg); err != nil {
			return err
		}
		if err := c.ensureConsumer(ctx, WakesStream, queueFilter(wakesPrefix, queue), queue, cfg); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) ensureStream(ctx context.Context, want jetstream.StreamConfig) error {
	stream, err := c.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		// Several processes start at once: the same config made by another is a success here too.
		if _, err = c.js.CreateStream(ctx, want); err == nil {
			c.log.Info("stream made", "stream", want.Name)
			c.signal(&c.made)
			return nil
		}
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return fmt.Errorf("make stream %s: %w", want.Name, err)
		}
		stream, err = c.js.Stream(ctx, want.Name)
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", want.Name, err)
	}
	have := stream.CachedInfo().Config
	if err := compare(have, want); err != nil {
		return err
	}
	next, changed := merge(have, want)
	if !changed {
		return nil
	}
	if _, err := c.js.UpdateStream(ctx, next); err != nil {
		return fmt.Errorf("update stream %s: %w", want.Name, err)
	}
	c.log.Info("stream updated", "stream", want.Name)
	return nil
}

// compare names the first difference that an update cannot or must not remove: another meaning, not another size.
func compare(have, want jetstream.StreamConfig) error {
	type field struct {
		name       string
		have, want any
	}
	haveSubjects, wantSubjects := slices.Sorted(slices.Values(have.Subjects)), slices.Sorted(slices.Values(want.Subjects))
	fields := []field{
		{"retention", have.Retention, want.Retention},
		{"subjects", strings.Join(haveSubjects, ", "), strings.Join(wantSubjects, ", ")},
		{"storage", have.Storage, want.Storage},
		// These cannot be switched off by an update.
		{"allow_msg_ttl", have.AllowMsgTTL && !want.AllowMsgTTL, false},
		{"allow_msg_schedules", have.AllowMsgSchedules, false},
		{"allow_msg_counter", have.AllowMsgCounter, false},
		{"deny_delete", have.DenyDelete, false},
		{"sealed", have.Sealed, false},
		{"mirror", have.Mirror != nil, false},
		{"sources", len(have.Sources), 0},
		{"subject_transform", have.SubjectTransform != nil, false},
	}
	for _, f := range fields {
		if f.have != f.want {
			return &Difference{Stream: want.Name, Field: f.name, Have: fmt.Sprint(f.have), Want: fmt.Sprint(f.want)}
		}
	}
	return nil
}

// merge returns have with the limits, ages and switches of want. What has no flag (a byte limit on jobs, placement,
// metadata) is the operator's and stays, except where it would break a promise.
func merge(have, want jetstream.StreamConfig) (next jetstream.StreamConfig, changed bool) {
	next = have
	next.MaxMsgs, next.MaxAge, next.Replicas, next.Duplicates = want.MaxMsgs, want.MaxAge, want.Replicas, want.Duplicates
	next.Discard, next.DiscardNewPerSubject = want.Discard, want.DiscardNewPerSubject
	next.MaxMsgsPerSubject, next.MaxMsgSize = want.MaxMsgsPerSubject, want.MaxMsgSize
	next.AllowMsgTTL, next.AllowRollup, next.NoAck = want.AllowMsgTTL, want.AllowRollup, want.NoAck
	next.AllowDirect = want.AllowDirect
	if want.Name != JobsStream {
		next.MaxBytes = want.MaxBytes
	}
	return next, !reflect.DeepEqual(next, have)
}

func (c *Conn) ensureConsumer(ctx context.Context, stream, filter, queue string, cfg Config) error {
	name := ConsumerName(queue)
	want := jetstream.ConsumerConfig{
		Durable: name, Name: name, FilterSubject: filter,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: cfg.AckWait,
		MaxDeliver: -1, MaxAckPending: maxAckPending, MaxWaiting: maxWaiting,
	}
	have, err := c.js.Consumer(ctx, stream, name)
	if err == nil {
		got := have.CachedInfo().Config
		if got.FilterSubject == filter && got.AckPolicy == want.AckPolicy && got.AckWait == want.AckWait &&
			got.MaxDeliver == want.MaxDeliver && got.MaxAckPending == want.MaxAckPending {
			return nil
		}
		want.MaxWaiting = got.MaxWaiting // cannot be updated
	} else if !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("consumer %s of %s: %w", name, stream, err)
	}
	if _, err := c.js.CreateOrUpdateConsumer(ctx, stream, want); err != nil {
		return fmt.Errorf("make consumer %s of %s: %w", name, stream, err)
	}
	c.log.Info("consumer made", "stream", stream, "consumer", name)
	return nil
}
