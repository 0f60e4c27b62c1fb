package bus_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
)

func streamConfig(t testing.TB, server *bustest.Server, stream string) jetstream.StreamConfig {
	t.Helper()
	js, err := jetstream.New(server.Conn())
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(deadline(t), stream)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().Config
}

func TestSetupMakesTheStreamsOfTheContract(t *testing.T) {
	server := bustest.Start(t)
	cfg := bus.Config{
		RunRetention: 48 * time.Hour, MaxRuns: 11, MaxJobs: 12, MaxLetters: 13,
		Queues: []string{"default", "slow"}, AckWait: 7 * time.Second,
	}
	setUp(t, server.URL, cfg)
	jobs := streamConfig(t, server, bus.JobsStream)
	if jobs.Retention != jetstream.WorkQueuePolicy || jobs.Discard != jetstream.DiscardNew || jobs.MaxMsgs != 12 ||
		jobs.AllowRollup || jobs.AllowMsgTTL || jobs.AllowMsgSchedules || jobs.Duplicates != 100*time.Millisecond ||
		jobs.Storage != jetstream.FileStorage {
		t.Errorf("jobs: %+v", jobs)
	}
	wakes := streamConfig(t, server, bus.WakesStream)
	if wakes.Retention != jetstream.WorkQueuePolicy || !wakes.DiscardNewPerSubject || wakes.MaxMsgsPerSubject != 1 {
		t.Errorf("wakes: %+v", wakes)
	}
	runs := streamConfig(t, server, bus.RunsStream)
	if runs.Discard != jetstream.DiscardNew || runs.MaxMsgs != 11 || runs.MaxBytes != -1 || runs.MaxMsgsPerSubject != 1 ||
		!runs.AllowMsgTTL || runs.AllowRollup || runs.MaxAge != 0 {
		t.Errorf("runs: %+v", runs)
	}
	letters := streamConfig(t, server, bus.LettersStream)
	if letters.Discard != jetstream.DiscardNew || letters.MaxMsgs != 13 || letters.MaxMsgsPerSubject != 1 || letters.MaxAge != 0 {
		t.Errorf("letters: %+v", letters)
	}
	if results := streamConfig(t, server, bus.ResultsStream); results.MaxAge != 48*time.Hour || results.MaxMsgs != -1 {
		t.Errorf("results: %+v", results)
	}
	if alerts := streamConfig(t, server, bus.AlertsStream); alerts.MaxAge != 7*24*time.Hour {
		t.Errorf("alerts: %+v", alerts)
	}
	js, err := jetstream.New(server.Conn())
	if err != nil {
		t.Fatal(err)
	}
	for _, stream := range []string{bus.JobsStream, bus.WakesStream} {
		consumer, err := js.Consumer(deadline(t), stream, "executor-slow")
		if err != nil {
			t.Fatal(err)
		}
		got := consumer.CachedInfo().Config
		wait := map[string]time.Duration{bus.JobsStream: 7 * time.Second, bus.WakesStream: 875 * time.Millisecond}[stream]
		if got.AckPolicy != jetstream.AckExplicitPolicy || got.AckWait != wait || got.MaxDeliver != -1 {
			t.Errorf("%s: %+v", stream, got)
		}
	}
}

func TestSetupUpdatesSizesAndRefusesAnotherMeaning(t *testing.T) {
	server := bustest.Start(t)
	setUp(t, server.URL, bus.Config{MaxRuns: 10, RunRetention: time.Hour, Queues: []string{"default"}})
	setUp(t, server.URL, bus.Config{MaxRuns: 20, RunRetention: 2 * time.Hour, Queues: []string{"default"}, AckWait: time.Hour})
	if got := streamConfig(t, server, bus.RunsStream).MaxMsgs; got != 20 {
		t.Errorf("max runs %d", got)
	}
	if got := streamConfig(t, server, bus.ResultsStream).MaxAge; got != 2*time.Hour {
		t.Errorf("age %s", got)
	}
	setUp(t, server.URL, bus.Config{Queues: []string{"default"}})
	if got := streamConfig(t, server, bus.RunsStream).MaxMsgs; got != 20 {
		t.Errorf("max runs %d after a process that was told nothing", got)
	}
	for _, other := range []struct {
		name   string
		config jetstream.StreamConfig
		field  string
	}{
		{"retention", jetstream.StreamConfig{Name: bus.JobsStream, Subjects: []string{"agentrun.jobs.>"}}, "retention"},
		{"subjects", jetstream.StreamConfig{Name: bus.RunsStream, Subjects: []string{"agentrun.runs.acme.>"}}, "subjects"},
		{"storage", jetstream.StreamConfig{Name: bus.RunsStream, Subjects: []string{"agentrun.runs.>"}, Storage: jetstream.MemoryStorage}, "storage"},
		{"ttl", jetstream.StreamConfig{
			Name: bus.JobsStream, Subjects: []string{"agentrun.jobs.>"}, Retention: jetstream.WorkQueuePolicy, AllowMsgTTL: true,
		}, "allow_msg_ttl"},
	} {
		t.Run(other.name, func(t *testing.T) {
			server := bustest.Start(t)
			js, err := jetstream.New(server.Conn())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := js.CreateStream(deadline(t), other.config); err != nil {
				t.Fatal(err)
			}
			err = dial(t, server.URL).Setup(deadline(t), bus.Config{})
			var differs *bus.Difference
			if !errors.As(err, &differs) || differs.Stream != other.config.Name || differs.Field != other.field {
				t.Fatalf("set up: %v", err)
			}
			if !strings.Contains(err.Error(), other.config.Name) || !strings.Contains(err.Error(), other.field) {
				t.Fatalf("the message does not name the difference: %v", err)
			}
		})
	}
}

func TestSetupTakesOverAStreamMadeWithDefaults(t *testing.T) {
	server := bustest.Start(t)
	js, err := jetstream.New(server.Conn())
	if err != nil {
		t.Fatal(err)
	}
	made := jetstream.StreamConfig{
		Name: bus.JobsStream, Subjects: []string{"agentrun.jobs.>"}, Retention: jetstream.WorkQueuePolicy, MaxBytes: 1 << 20,
	}
	if _, err := js.CreateStream(deadline(t), made); err != nil {
		t.Fatal(err)
	}
	setUp(t, server.URL, bus.Config{MaxJobs: 5})
	got := streamConfig(t, server, bus.JobsStream)
	if got.Discard != jetstream.DiscardNew || got.MaxMsgs != 5 || got.MaxBytes != 1<<20 {
		t.Fatalf("jobs: %+v", got)
	}
}

func TestSetupFailsWhereItCanNeverSucceed(t *testing.T) {
	server := bustest.Start(t)
	err := dial(t, server.URL).Setup(deadline(t), bus.Config{Replicas: 3})
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("three replicas on one server: %v", err)
	}
}

func TestConnectBeforeTheServerRuns(t *testing.T) {
	server := bustest.Start(t)
	server.Stop()
	c := dial(t, server.URL)
	if c.Connected() || c.Healthy() == nil {
		t.Fatal("connected to nothing")
	}
	ready := make(chan error, 1)
	ctx := deadline(t)
	go func() { ready <- c.Setup(ctx, bus.Config{}) }()
	server.StartAgain()
	if err := receive(t, "set up", ready); err != nil {
		t.Fatal(err)
	}
	if err := c.Healthy(); err != nil {
		t.Fatal(err)
	}
}

func TestEveryStreamThatDisappearsIsMadeAgain(t *testing.T) {
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{Queues: []string{"default"}})
	before, err := c.StreamCreated(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	replaced := make(chan time.Time, 1)
	c.OnReplaced(func(created time.Time) { replaced <- created })
	nc := server.Conn()
	writes := map[string]func(context.Context) error{
		bus.RunsStream: func(ctx context.Context) error {
			_, err := c.Runs().Save(ctx, runID(1), []byte("x"), bus.RecordHeader{State: "s"}, 0)
			return err
		},
		bus.ResultsStream: func(ctx context.Context) error {
			_, err := c.Results().Append(ctx, []bus.Outgoing{{ID: runID(1), Scope: bus.ScopeRun, N: 1, First: 1}})
			return err
		},
		bus.LettersStream: func(ctx context.Context) error {
			_, err := c.Letters().Put(ctx, bus.LetterSubject("acme", "o", "r"), []byte("x"), nil, 0)
			return err
		},
		bus.AlertsStream: func(ctx context.Context) error {
			return c.Alert(ctx, bus.AlertSubject("acme", "o", "poison_job"), []byte("x"), "id")
		},
		bus.WakesStream: func(ctx context.Context) error {
			_, err := c.Wake(ctx, "default", runID(1))
			return err
		},
	}
	for stream, write := range writes {
		if err := write(deadline(t)); err != nil {
			t.Fatalf("%s: %v", stream, err)
		}
		if _, err := nc.Request("$JS.API.STREAM.DELETE."+stream, nil, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		if err := write(deadline(t)); err != nil {
			t.Fatalf("%s after it was deleted: %v", stream, err)
		}
		if got := streamState(t, server, stream).Msgs; got != 1 {
			t.Fatalf("%s has %d messages", stream, got)
		}
	}
	after := receive(t, "word of the new store", replaced)
	if created, err := c.StreamCreated(deadline(t)); err != nil || !created.Equal(after) || !created.After(before) {
		t.Fatalf("created %s, told %s, before %s: %v", created, after, before, err)
	}
	if got := c.Status(); !got.Created.Equal(after) {
		t.Fatalf("status: %+v", got)
	}
}

// A stream that is made anew has none of the sequences of the lost one: what a process knew of the lost one is refused.
func TestAStreamMadeAnewHasNewSequences(t *testing.T) {
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{})
	h := bus.RecordHeader{State: "ready"}
	old, err := c.Runs().Save(deadline(t), runID(1), []byte("old"), h, 0)
	if err != nil {
		t.Fatal(err)
	}
	server.Stop()
	server.Wipe()
	server.StartAgain()
	if err := c.Setup(deadline(t), bus.Config{}); err != nil {
		t.Fatal(err)
	}
	fresh, err := c.Runs().Save(deadline(t), runID(1), []byte("new"), h, 0)
	if err != nil || fresh <= old {
		t.Fatalf("the first revision is %d, in the lost stream it was %d: %v", fresh, old, err)
	}
	if _, err := c.Runs().Save(deadline(t), runID(1), []byte("stale"), h, old); !errors.Is(err, bus.ErrConflict) {
		t.Fatalf("a write on the lost stream's revision: %v", err)
	}
}
