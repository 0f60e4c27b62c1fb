package streams_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/streams/streamstest"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
)

func streamConfig(t testing.TB, server *bustest.Server, stream string) jetstream.StreamConfig {
	t.Helper()
	js, err := jetstream.New(server.Conn())
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(streamstest.Deadline(t), stream)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().Config
}

func TestSetupMakesTheStreamsOfTheContract(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	cfg := streams.Config{
		RunRetention: 48 * time.Hour, MaxRuns: 11, MaxJobs: 12, MaxLetters: 13,
		Queues: []string{"default", "slow"}, AckWait: 7 * time.Second,
	}
	streamstest.SetUp(t, server.URL, cfg)
	jobs := streamConfig(t, server, topology.JobsStream)
	if jobs.Retention != jetstream.WorkQueuePolicy || jobs.Discard != jetstream.DiscardNew || jobs.MaxMsgs != 12 ||
		jobs.AllowRollup || jobs.AllowMsgTTL || jobs.AllowMsgSchedules || jobs.Duplicates != 100*time.Millisecond ||
		jobs.Storage != jetstream.FileStorage {
		t.Errorf("jobs: %+v", jobs)
	}
	wakes := streamConfig(t, server, topology.WakesStream)
	if wakes.Retention != jetstream.WorkQueuePolicy || !wakes.DiscardNewPerSubject || wakes.MaxMsgsPerSubject != 1 {
		t.Errorf("wakes: %+v", wakes)
	}
	runs := streamConfig(t, server, topology.RunsStream)
	if runs.Discard != jetstream.DiscardNew || runs.MaxMsgs != 11 || runs.MaxBytes != -1 || runs.MaxMsgsPerSubject != 1 ||
		!runs.AllowMsgTTL || runs.AllowRollup || runs.MaxAge != 0 {
		t.Errorf("runs: %+v", runs)
	}
	letters := streamConfig(t, server, topology.LettersStream)
	if letters.Discard != jetstream.DiscardNew || letters.MaxMsgs != 13 || letters.MaxMsgsPerSubject != 1 || letters.MaxAge != 0 {
		t.Errorf("letters: %+v", letters)
	}
	if results := streamConfig(t, server, topology.ResultsStream); results.MaxAge != 48*time.Hour || results.MaxMsgs != -1 {
		t.Errorf("results: %+v", results)
	}
	if alerts := streamConfig(t, server, topology.AlertsStream); alerts.MaxAge != 7*24*time.Hour {
		t.Errorf("alerts: %+v", alerts)
	}
	js, err := jetstream.New(server.Conn())
	if err != nil {
		t.Fatal(err)
	}
	for _, stream := range []string{topology.JobsStream, topology.WakesStream} {
		consumer, err := js.Consumer(streamstest.Deadline(t), stream, "executor-slow")
		if err != nil {
			t.Fatal(err)
		}
		got := consumer.CachedInfo().Config
		wait := map[string]time.Duration{topology.JobsStream: 7 * time.Second, topology.WakesStream: 875 * time.Millisecond}[stream]
		if got.AckPolicy != jetstream.AckExplicitPolicy || got.AckWait != wait || got.MaxDeliver != -1 {
			t.Errorf("%s: %+v", stream, got)
		}
	}
}

func TestSetupUpdatesSizesAndRefusesAnotherMeaning(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	streamstest.SetUp(t, server.URL, streams.Config{MaxRuns: 10, RunRetention: time.Hour, Queues: []string{"default"}})
	streamstest.SetUp(t, server.URL, streams.Config{MaxRuns: 20, RunRetention: 2 * time.Hour, Queues: []string{"default"}, AckWait: time.Hour})
	if got := streamConfig(t, server, topology.RunsStream).MaxMsgs; got != 20 {
		t.Errorf("max runs %d", got)
	}
	if got := streamConfig(t, server, topology.ResultsStream).MaxAge; got != 2*time.Hour {
		t.Errorf("age %s", got)
	}
	streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default"}})
	if got := streamConfig(t, server, topology.RunsStream).MaxMsgs; got != 20 {
		t.Errorf("max runs %d after a process that was told nothing", got)
	}
	for _, other := range []struct {
		name   string
		config jetstream.StreamConfig
		field  string
	}{
		{"retention", jetstream.StreamConfig{Name: topology.JobsStream, Subjects: []string{"agentrun.jobs.>"}}, "retention"},
		{"subjects", jetstream.StreamConfig{Name: topology.RunsStream, Subjects: []string{"agentrun.runs.acme.>"}}, "subjects"},
		{"storage", jetstream.StreamConfig{Name: topology.RunsStream, Subjects: []string{"agentrun.runs.>"}, Storage: jetstream.MemoryStorage}, "storage"},
		{"ttl", jetstream.StreamConfig{
			Name: topology.JobsStream, Subjects: []string{"agentrun.jobs.>"}, Retention: jetstream.WorkQueuePolicy, AllowMsgTTL: true,
		}, "allow_msg_ttl"},
	} {
		t.Run(other.name, func(t *testing.T) {
			server := bustest.Start(t)
			js, err := jetstream.New(server.Conn())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := js.CreateStream(streamstest.Deadline(t), other.config); err != nil {
				t.Fatal(err)
			}
			err = streamstest.Dial(t, server.URL).Setup(streamstest.Deadline(t), streams.Config{})
			var differs *streams.Difference
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
	t.Parallel()
	server := bustest.Start(t)
	js, err := jetstream.New(server.Conn())
	if err != nil {
		t.Fatal(err)
	}
	made := jetstream.StreamConfig{
		Name: topology.JobsStream, Subjects: []string{"agentrun.jobs.>"}, Retention: jetstream.WorkQueuePolicy, MaxBytes: 1 << 20,
	}
	if _, err := js.CreateStream(streamstest.Deadline(t), made); err != nil {
		t.Fatal(err)
	}
	streamstest.SetUp(t, server.URL, streams.Config{MaxJobs: 5})
	got := streamConfig(t, server, topology.JobsStream)
	if got.Discard != jetstream.DiscardNew || got.MaxMsgs != 5 || got.MaxBytes != 1<<20 {
		t.Fatalf("jobs: %+v", got)
	}
}

func TestSetupFailsWhereItCanNeverSucceed(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	err := streamstest.Dial(t, server.URL).Setup(streamstest.Deadline(t), streams.Config{Replicas: 3})
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("three replicas on one server: %v", err)
	}
}

func TestConnectBeforeTheServerRuns(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	server.Stop()
	c := streamstest.Dial(t, server.URL)
	if c.Connected() || c.Healthy() == nil {
		t.Fatal("connected to nothing")
	}
	ready := make(chan error, 1)
	ctx := streamstest.Deadline(t)
	go func() { ready <- c.Setup(ctx, streams.Config{}) }()
	server.StartAgain()
	if err := streamstest.Receive(t, "set up", ready); err != nil {
		t.Fatal(err)
	}
	if err := c.Healthy(); err != nil {
		t.Fatal(err)
	}
}

func TestEveryStreamThatDisappearsIsMadeAgain(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default"}})
	before := c.Status().Created
	replaced := make(chan streams.Status, 1)
	c.OnLook(func(s streams.Status) {
		if s.Losses == 1 && !s.Created.Equal(before) {
			select {
			case replaced <- s:
			default:
			}
		}
	})
	nc := server.Conn()
	writes := map[string]func(context.Context) error{
		topology.RunsStream: func(ctx context.Context) error {
			_, err := c.Save(ctx, streamstest.RunID(1), []byte("x"), port.Header{State: "s"}, 0)
			return err
		},
		topology.ResultsStream: func(ctx context.Context) error {
			_, err := c.Append(ctx, c.Server(), []port.Outgoing{{Outcome: &envelope.Outcome{Tenant: "acme", RunID: "run_1", Scope: envelope.RunScope, N: 1}, First: 1}})
			return err
		},
		topology.LettersStream: func(ctx context.Context) error {
			_, err := c.PutLetter(ctx, streamstest.RunID(1), "o", []byte("x"), "l", 0)
			return err
		},
		topology.AlertsStream: func(ctx context.Context) error {
			return c.PutAlert(ctx, "acme", "o", "poison_job", []byte("x"), "id")
		},
		topology.WakesStream: func(ctx context.Context) error {
			_, err := c.Wake(ctx, "default", streamstest.RunID(1))
			return err
		},
	}
	for stream, write := range writes {
		if err := write(streamstest.Deadline(t)); err != nil {
			t.Fatalf("%s: %v", stream, err)
		}
		if _, err := nc.Request("$JS.API.STREAM.DELETE."+stream, nil, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		if err := write(streamstest.Deadline(t)); err != nil {
			t.Fatalf("%s after it was deleted: %v", stream, err)
		}
		if got := streamstest.State(t, server, stream).Msgs; got != 1 {
			t.Fatalf("%s has %d messages", stream, got)
		}
	}
	after := streamstest.Receive(t, "word of the new store", replaced)
	if got := c.Status(); !got.Created.Equal(after.Created) || !got.Created.After(before) {
		t.Fatalf("status: %+v; before %s, told %s", got, before, after.Created)
	}
}

// Whoever begins to follow the looks after a loss was found is told of it all the same.
func TestALossIsToldToWhoComesLater(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{})
	before := c.Status().Created
	if _, err := server.Conn().Request("$JS.API.STREAM.DELETE."+topology.RunsStream, nil, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	c.Check()
	bustest.Eventually(t, "the new stream is seen", func() bool { return !c.Status().Created.Equal(before) })
	told := make(chan streams.Status, 1)
	c.OnLook(func(s streams.Status) {
		select {
		case told <- s:
		default:
		}
	})
	if got := streamstest.Receive(t, "what the last look found", told); got.Losses != 1 || got.Created.Equal(before) {
		t.Fatalf("told of %d losses, of the stream of %s; before %s", got.Losses, got.Created, before)
	}
}

// A store that shows less than was seen has gone back: what is remembered from before the process counts, and what was
// acknowledged to it. Nobody may believe the streams before it was told.
func TestAStoreThatHasGoneBack(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{})
	save := func(n int) (seq uint64) {
		seq, err := c.Save(streamstest.Deadline(t), streamstest.RunID(n), []byte("x"), port.Header{State: "s"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	save(1)
	var seen uint64
	looks, losses := make(chan streams.Status, 100), 0
	c.OnLook(func(s streams.Status) {
		if s.Losses > losses && c.Looked() {
			t.Error("the streams are believed before anybody was told that they have gone back")
		}
		losses = s.Losses
		looks <- s
	})
	server.Rewind(topology.RunsStream, func() { seen = save(2) })
	for streamstest.Receive(t, "word that it has gone back", looks).Losses != 1 {
	}
	bustest.Eventually(t, "the streams are believed again", c.Looked)
	if st := c.Status(); st.Losses != 1 || st.Last >= seen {
		t.Fatalf("status %+v, seen %d", st, seen)
	}
	later, err := streams.Connect(streams.Options{Options: bus.Options{URL: server.URL}, Seen: seen})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(later.Close)
	if err := later.Setup(streamstest.Deadline(t), streams.Config{}); err != nil {
		t.Fatal(err)
	}
	if st := later.Status(); st.Losses != 1 || !strings.Contains(st.Loss, "gone back") {
		t.Fatalf("a process that remembers %d: %+v", seen, st)
	}
}

// What is changed by hand so that records are forgotten, or nothing is delivered, is named with what mends it.
func TestWhatIsChangedByHandIsNamed(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default"}})
	js, err := jetstream.New(server.Conn())
	if err != nil {
		t.Fatal(err)
	}
	wait := func(what string, is func(*streams.ChangedError) bool) {
		t.Helper()
		c.Check()
		bustest.Eventually(t, what, func() bool { return is(c.Status().Changed) })
	}
	edit := func(stream string, change func(*jetstream.StreamConfig)) {
		t.Helper()
		s, err := js.Stream(streamstest.Deadline(t), stream)
		if err != nil {
			t.Fatal(err)
		}
		cfg := s.CachedInfo().Config
		change(&cfg)
		if _, err := js.UpdateStream(streamstest.Deadline(t), cfg); err != nil {
			t.Fatal(err)
		}
	}
	edit(topology.RunsStream, func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour })
	wait("max_age is named", func(e *streams.ChangedError) bool {
		return e != nil && e.What == streams.Settings && e.Stream == topology.RunsStream && strings.Contains(e.Error(), "max_age is 1h0m0s")
	})
	if err := c.Healthy(); err == nil || !strings.Contains(err.Error(), "mend it: nats stream edit AGENTRUN_RUNS") {
		t.Fatalf("healthy: %v", err)
	}
	edit(topology.RunsStream, func(c *jetstream.StreamConfig) { c.MaxAge = 0 })
	wait("it is mended", func(e *streams.ChangedError) bool { return e == nil })
	if _, err := js.PauseConsumer(streamstest.Deadline(t), topology.JobsStream, topology.ConsumerName("default"), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	wait("the pause is named", func(e *streams.ChangedError) bool {
		return e != nil && e.What == streams.Paused && strings.Contains(e.Error(), "nats consumer resume AGENTRUN_JOBS executor-default")
	})
	if _, err := js.ResumeConsumer(streamstest.Deadline(t), topology.JobsStream, topology.ConsumerName("default")); err != nil {
		t.Fatal(err)
	}
	wait("the pause is over", func(e *streams.ChangedError) bool { return e == nil })
	bustest.Eventually(t, "healthy again", func() bool { return c.Healthy() == nil })
}

// A stream that is made anew has none of the sequences of the lost one: what a process knew of the lost one is refused.
func TestAStreamMadeAnewHasNewSequences(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{})
	h := port.Header{State: "ready"}
	old, err := c.Save(streamstest.Deadline(t), streamstest.RunID(1), []byte("old"), h, 0)
	if err != nil {
		t.Fatal(err)
	}
	server.Stop()
	server.Wipe()
	server.StartAgain()
	if err := c.Setup(streamstest.Deadline(t), streams.Config{}); err != nil {
		t.Fatal(err)
	}
	fresh, err := c.Save(streamstest.Deadline(t), streamstest.RunID(1), []byte("new"), h, 0)
	if err != nil || fresh <= old {
		t.Fatalf("the first revision is %d, in the lost stream it was %d: %v", fresh, old, err)
	}
	if _, err := c.Save(streamstest.Deadline(t), streamstest.RunID(1), []byte("stale"), h, old); !errors.Is(err, port.ErrConflict) {
		t.Fatalf("a write on the lost stream's revision: %v", err)
	}
}
