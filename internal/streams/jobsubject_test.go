package streams_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/streams/streamstest"
	"github.com/agentrun/executor/internal/topology"
)

// A job on a subject that no queue has is refused by the stream, and one with a token too few or too many is taken in: an
// executor gets it, and answers it with a letter.
func TestNoJobIsTakenInThatNobodyGets(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default"}})
	js, err := jetstream.New(server.Conn())
	if err != nil {
		t.Fatal(err)
	}
	ctx := streamstest.Deadline(t)
	if _, err := js.Publish(ctx, "agentrun.jobs.default", []byte(`{}`), jetstream.WithRetryAttempts(0)); !errors.Is(err, jetstream.ErrNoStreamResponse) && !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("a job without a tenant: %v", err)
	}
	consumer, err := js.Consumer(ctx, topology.JobsStream, topology.ConsumerName("default"))
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"agentrun.jobs.default.acme", "agentrun.jobs.default.acme.r", "agentrun.jobs.default.acme.r.x"} {
		if _, err := js.Publish(ctx, subject, []byte(`{}`)); err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
		m, err := consumer.Next()
		if err != nil || m.Subject() != subject {
			t.Fatalf("after %s: %v", subject, err)
		}
		if err := m.DoubleAck(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// A stream of an earlier version, which took such jobs in, stops nobody and stays as it is, since that version works beside
// this one; when an operator has narrowed it, everybody works on it.
func TestAnEarlierJobsStreamMayBeNarrowed(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	js, err := jetstream.New(server.Conn())
	if err != nil {
		t.Fatal(err)
	}
	former := []string{"agentrun.jobs.>"}
	if _, err := js.CreateStream(streamstest.Deadline(t), jetstream.StreamConfig{
		Name: topology.JobsStream, Subjects: former, Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew,
	}); err != nil {
		t.Fatal(err)
	}
	executor := streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default"}})
	streamstest.SetUp(t, server.URL, streams.Config{})
	is := streamConfig(t, server, topology.JobsStream)
	if !slices.Equal(is.Subjects, former) {
		t.Errorf("it was made %v", is.Subjects)
	}
	if _, err := js.Publish(streamstest.Deadline(t), "agentrun.jobs.default.acme.r", []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	is.Subjects = []string{"agentrun.jobs.*.>"}
	if _, err := js.UpdateStream(streamstest.Deadline(t), is); err != nil {
		t.Fatal(err)
	}
	if err := executor.Ensure(streamstest.Deadline(t)); err != nil {
		t.Errorf("the executor afterwards: %v", err)
	}
	streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default"}})
	consumer, err := js.Consumer(streamstest.Deadline(t), topology.JobsStream, topology.ConsumerName("default"))
	if err != nil {
		t.Fatal(err)
	}
	if m, err := consumer.Next(); err != nil || m.Subject() != "agentrun.jobs.default.acme.r" {
		t.Errorf("the job that waited: %v", err)
	}
}
