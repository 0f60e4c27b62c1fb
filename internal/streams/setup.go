package streams

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/topology"
)

const (
	// alertsAge is how long an alert can be read, alertsWindow how long its id is remembered.
	alertsAge    = 7 * 24 * time.Hour
	alertsWindow = 2 * time.Minute
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

// Config is what the streams are made or checked by. A zero value stands for the default when a stream is made, and
// leaves one that exists as it is: of several processes only those that were told a size change it.
type Config struct {
	Replicas     int           // default 1
	RunRetention time.Duration // how long outcomes and large results stay; default 7 days
	MaxRuns      int64         // default 4,000,000
	MaxJobs      int64         // default 1,000,000
	MaxLetters   int64         // default 1,000,000
	Queues       []string      // consumers are made for these; none is legal (a reconciler makes none)
	AckWait      time.Duration // of the queues' consumers: twice the lease; default 60s. That of wakes is an eighth of it.
}

const (
	replicasDefault   = 1
	retentionDefault  = 7 * 24 * time.Hour
	maxRunsDefault    = 4_000_000
	maxJobsDefault    = 1_000_000
	maxLettersDefault = 1_000_000
	ackWaitDefault    = time.Minute
)

// Difference is a stream that exists and differs in what matters: it was not made for this, and is not touched.
type Difference struct {
	Stream, Field, Have, Want string
}

func (d *Difference) Error() string {
	return fmt.Sprintf("stream %s differs: %s is %s, must be %s", d.Stream, d.Field, d.Have, d.Want)
}

// streamNames in the order in which they are made: publishers reach the queue last.
var streamNames = []string{topology.RunsStream, topology.LettersStream, topology.ResultsStream, topology.AlertsStream, topology.WakesStream, topology.JobsStream}

// stream is what the stream of that name must be; have is what it is, nil if it is not there. RUNS and DEADLETTERS are
// limited by messages and never by bytes: a growing update would be refused. JOBS allows no rollup, no schedules and no
// TTL headers, because publishers reach it.
func (c Config) stream(name string, have *jetstream.StreamConfig) jetstream.StreamConfig {
	if have == nil {
		have = &jetstream.StreamConfig{}
	}
	replicas := choose(c.Replicas, have.Replicas, replicasDefault)
	s := jetstream.StreamConfig{
		Name: name, Storage: jetstream.FileStorage, Replicas: replicas,
		MaxMsgs: -1, MaxBytes: -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1, MaxConsumers: -1,
		Duplicates: windowMin, AllowDirect: replicas == 1,
	}
	switch name {
	case topology.RunsStream:
		s.Subjects, s.Discard, s.MaxMsgsPerSubject, s.AllowMsgTTL = []string{topology.Runs + ">"}, jetstream.DiscardNew, 1, true
		s.MaxMsgs = choose(serverLimit(c.MaxRuns, replicas), have.MaxMsgs, serverLimit(maxRunsDefault, replicas))
	case topology.LettersStream:
		s.Subjects, s.Discard, s.MaxMsgsPerSubject = []string{topology.Letters + ">"}, jetstream.DiscardNew, 1
		s.MaxMsgs = choose(serverLimit(c.MaxLetters, replicas), have.MaxMsgs, serverLimit(maxLettersDefault, replicas))
	case topology.ResultsStream:
		s.Subjects = []string{topology.Results + ">"}
		s.MaxAge = choose(c.RunRetention, have.MaxAge, retentionDefault)
		s.AllowDirect = true // for publishers who may only read so; what decides here is read at the leader
	case topology.AlertsStream:
		s.Subjects, s.MaxAge, s.Duplicates = []string{topology.Alerts + ">"}, alertsAge, alertsWindow
	case topology.WakesStream:
		s.Subjects, s.Retention, s.Discard = []string{topology.Wakes + ">"}, jetstream.WorkQueuePolicy, jetstream.DiscardNew
		s.MaxMsgsPerSubject, s.DiscardNewPerSubject = 1, true
		s.AllowDirect = true // to look ahead: queue.Puller
	case topology.JobsStream:
		// A subject without a tenant would be in no queue's consumer: the stream refuses it. Everything else is answered.
		s.Subjects, s.Retention, s.Discard = []string{topology.Jobs + "*.>"}, jetstream.WorkQueuePolicy, jetstream.DiscardNew
		s.MaxMsgs = choose(c.MaxJobs, have.MaxMsgs, maxJobsDefault)
		s.MaxBytes = choose(0, have.MaxBytes, -1) // no flag: the operator's
		s.AllowDirect = true                      // to look ahead: queue.Puller
	}
	return s
}

// choose returns the first that is set: what was asked for, what is there, the default.
func choose[T int | int64 | time.Duration](asked, have, otherwise T) T {
	switch {
	case asked > 0:
		return asked
	case have > 0:
		return have
	}
	return otherwise
}

// Setup makes the streams and consumers, or checks those that are there: what differs in what matters is a *Difference,
// ages and limits are updated. From then on the connection keeps them there: one that disappears is made again. It
// needs a connection and waits for one until ctx ends, and returns with the clock read.
func (c *Conn) Setup(ctx context.Context, cfg Config) error {
	for {
		if err := c.WaitConnected(ctx); err != nil {
			return err
		}
		tryCtx, cancel := c.attempt(ctx)
		err := c.ensure(tryCtx, cfg, true)
		cancel()
		if err == nil {
			break
		}
		if hopeless(err) || ctx.Err() != nil {
			return fmt.Errorf("streams: set up: %w", err)
		}
		if bus.Unanswered(err) {
			c.Log().Warn("JetStream does not answer", "asked", c.API().Subject(">"), "error", err, "remedy", bus.ElsewhereRemedy)
		} else {
			c.Log().Warn("streams are not ready", "error", err)
		}
		select {
		case <-time.After(250 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("streams: set up: %w: %w", ctx.Err(), err)
		case <-c.Closed():
			return bus.ErrClosed
		}
	}
	c.mu.Lock()
	c.config, c.ready = cfg, true
	c.mu.Unlock()
	if err := c.observe(ctx); err != nil {
		return fmt.Errorf("streams: set up: %w", err)
	}
	return nil
}

// Require returns an error that names the first of these streams that this user's account does not have, or nil.
func (c *Conn) Require(ctx context.Context, streams ...string) error {
	for _, name := range streams {
		if _, err := c.JetStream().Stream(ctx, name); err != nil {
			return fmt.Errorf("streams: stream %s: %w", name, err)
		}
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
	if err := c.ensure(ctx, cfg, false); err != nil {
		return fmt.Errorf("streams: ensure: %w", err)
	}
	return nil
}

// ensure makes what is missing. Only Setup also updates sizes: processes with different flags would go on undoing each
// other's.
func (c *Conn) ensure(ctx context.Context, cfg Config, update bool) error {
	for _, name := range streamNames {
		if err := c.ensureStream(ctx, name, cfg, update); err != nil {
			return err
		}
	}
	for _, queue := range cfg.Queues {
		if err := c.ensureConsumer(ctx, topology.JobsStream, topology.InQueue(topology.Jobs, queue), queue, cfg, update); err != nil {
			return err
		}
		if err := c.ensureConsumer(ctx, topology.WakesStream, topology.InQueue(topology.Wakes, queue), queue, cfg, update); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) ensureStream(ctx context.Context, name string, cfg Config, update bool) error {
	stream, err := c.JetStream().Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		// Several processes start at once: the same config made by another is a success here too.
		made := cfg.stream(name, nil)
		made.FirstSeq = firstSequence(time.Now())
		if _, err = c.JetStream().CreateStream(ctx, made); err == nil {
			c.Log().Info("stream made", "stream", name)
			c.Made()
			return nil
		}
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return fmt.Errorf("make stream %s: %w", name, err)
		}
		stream, err = c.JetStream().Stream(ctx, name)
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", name, err)
	}
	have := stream.CachedInfo().Config
	want := cfg.stream(name, &have)
	if name == topology.JobsStream && slices.Equal(have.Subjects, formerJobsSubjects) {
		// The version before does not work on a narrower one: an operator narrows it once the fleet is upgraded.
		want.Subjects = have.Subjects
		if update {
			c.Log().Warn("the queue takes in jobs that no executor gets; once no older version runs, edit its subjects", "stream", name, "subjects", topology.Jobs+"*.>")
		}
	}
	if err := compare(have, want); err != nil {
		return err
	}
	if !update {
		return spoilt(have)
	}
	next, changed := merge(have, want)
	if !changed {
		return nil
	}
	if _, err := c.JetStream().UpdateStream(ctx, next); err != nil {
		return fmt.Errorf("update stream %s: %w", name, err)
	}
	c.Log().Info("stream updated", "stream", name)
	return nil
}

// formerJobsSubjects are those of an AGENTRUN_JOBS that an earlier version made: it took in jobs that no queue has.
var formerJobsSubjects = []string{topology.Jobs + ">"}

// firstSequence is where a stream that is made now begins to count: at the time in microseconds. A stream that is made
// anew after a loss so has no sequence of the lost one, and a process that lives through the loss cannot take a message of
// the new stream for the one that it knew: its compare-and-sets and deletions by sequence are refused. It holds up to a
// million messages a second, and stays below 2^53 until the year 2255.
func firstSequence(now time.Time) uint64 { return uint64(max(now.UnixMicro(), 1)) }

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

// What a ChangedError is about.
const (
	Settings = "settings" // a stream forgets or refuses what it must keep
	Paused   = "paused"   // a consumer delivers nothing
)

// ChangedError is a stream or a consumer that somebody has changed by hand so that work is lost or stands still.
type ChangedError struct {
	Stream, What string
	Text, Remedy string
}

func (e *ChangedError) Error() string { return e.Text + "; mend it: " + e.Remedy }

// spoilt names the first setting that was changed since Setup and with which a stream forgets what is relied on, or refuses
// it. Sizes are the operator's.
func spoilt(have jetstream.StreamConfig) error {
	want := Config{}.stream(have.Name, &have)
	for _, f := range []struct {
		name       string
		have, want any
	}{
		{"max_age", have.MaxAge, want.MaxAge},
		{"max_bytes", have.MaxBytes, want.MaxBytes},
		{"max_msgs_per_subject", have.MaxMsgsPerSubject, want.MaxMsgsPerSubject},
		{"discard", have.Discard, want.Discard},
		{"discard_new_per_subject", have.DiscardNewPerSubject, want.DiscardNewPerSubject},
		{"no_ack", have.NoAck, want.NoAck},
		{"allow_msg_ttl", have.AllowMsgTTL, want.AllowMsgTTL},
		{"allow_rollup_hdrs", have.AllowRollup, want.AllowRollup},
	} {
		if f.have != f.want {
			return &ChangedError{
				Stream: have.Name, What: Settings, Text: fmt.Sprintf("stream %s was changed: %s is %v, must be %v", have.Name, f.name, f.have, f.want),
				Remedy: "nats stream edit " + have.Name + ", or restart a reconciler, which sets it again",
			}
		}
	}
	return nil
}

// merge returns have with the limits, ages and switches of want. What is not ours to say (placement, metadata) stays.
func merge(have, want jetstream.StreamConfig) (next jetstream.StreamConfig, changed bool) {
	next = have
	next.MaxMsgs, next.MaxBytes, next.MaxAge, next.MaxMsgSize = want.MaxMsgs, want.MaxBytes, want.MaxAge, want.MaxMsgSize
	next.Replicas, next.Duplicates, next.AllowDirect = want.Replicas, want.Duplicates, want.AllowDirect
	next.Discard, next.DiscardNewPerSubject = want.Discard, want.DiscardNewPerSubject
	next.MaxMsgsPerSubject = want.MaxMsgsPerSubject
	next.AllowMsgTTL, next.AllowRollup, next.NoAck = want.AllowMsgTTL, want.AllowRollup, want.NoAck
	return next, !reflect.DeepEqual(next, have)
}

// wakeWait is the ack wait of wakes: a quarter of the lease. A wake in the hands of an executor that dies keeps the run's
// next one away, while nobody but the queue knows of it: the run has no lease yet.
func wakeWait(ackWait time.Duration) time.Duration {
	if ackWait == 0 {
		return 0
	}
	return max(ackWait/8, 250*time.Millisecond)
}

func (c *Conn) ensureConsumer(ctx context.Context, stream, filter, queue string, cfg Config, update bool) error {
	name := topology.ConsumerName(queue)
	wait, usual := cfg.AckWait, ackWaitDefault
	if stream == topology.WakesStream {
		wait, usual = wakeWait(wait), wakeWait(usual)
	}
	want := jetstream.ConsumerConfig{
		Durable: name, Name: name, FilterSubject: filter,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: choose(wait, 0, usual),
		MaxDeliver: -1, MaxAckPending: maxAckPending, MaxWaiting: maxWaiting,
	}
	have, err := c.JetStream().Consumer(ctx, stream, name)
	if err == nil && stream == topology.JobsStream {
		c.holds(queue, have.CachedInfo())
	}
	switch {
	case err == nil && !update:
		if info := have.CachedInfo(); info.Paused && info.Config.PauseUntil != nil {
			return &ChangedError{
				Stream: stream, What: Paused,
				Text:   fmt.Sprintf("consumer %s of %s is paused until %s: nothing of its queue is delivered", name, stream, info.Config.PauseUntil.UTC().Format(time.RFC3339)),
				Remedy: "nats consumer resume " + stream + " " + name,
			}
		}
		return nil
	case err == nil:
		got := have.CachedInfo().Config
		want.AckWait = choose(wait, got.AckWait, usual)
		if got.FilterSubject == filter && got.AckPolicy == want.AckPolicy && got.AckWait == want.AckWait &&
			got.MaxDeliver == want.MaxDeliver && got.MaxAckPending == want.MaxAckPending {
			return nil
		}
		want.MaxWaiting = got.MaxWaiting // cannot be updated
	case !errors.Is(err, jetstream.ErrConsumerNotFound):
		return fmt.Errorf("consumer %s of %s: %w", name, stream, err)
	}
	made, err := c.JetStream().CreateOrUpdateConsumer(ctx, stream, want)
	if err != nil {
		return fmt.Errorf("make consumer %s of %s: %w", name, stream, err)
	}
	if stream == topology.JobsStream {
		c.holds(queue, made.CachedInfo())
	}
	c.Log().Info("consumer made", "stream", stream, "consumer", name)
	return nil
}
