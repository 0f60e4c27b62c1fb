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
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/envelope"
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
	before := c.Status().Created
	replaced := make(chan bus.Status, 1)
	c.OnLook(func(s bus.Status) {
		if s.Losses == 1 && !s.Created.Equal(before) {
			select {
			case replaced <- s:
			default:
			}
		}
	})
	nc := server.Conn()
	writes := map[string]func(context.Context) error{
		bus.RunsStream: func(ctx context.Context) error {
			_, err := c.Save(ctx, runID(1), []byte("x"), port.Header{State: "s"}, 0)
			return err
		},
		bus.ResultsStream: func(ctx context.Context) error {
			_, err := c.Append(ctx, []port.Outgoing{{Outcome: which(runID(1), envelope.RunScope, 1), First: 1}})
			return err
		},
		bus.LettersStream: func(ctx context.Context) error {
			_, err := c.PutLetter(ctx, runID(1), "o", []byte("x"), "l", 0)
			return err
		},
		bus.AlertsStream: func(ctx context.Context) error {
			return c.PutAlert(ctx, "acme", "o", "poison_job", []byte("x"), "id")
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
	if got := c.Status(); !got.Created.Equal(after.Created) || !got.Created.After(before) {
		t.Fatalf("status: %+v; before %s, told %s", got, before, after.Created)
	}
}

// Whoever begins to follow the looks after a loss was found is told of it all the same.
func TestALossIsToldToWhoComesLater(t *testing.T) {
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{})
	before := c.Status().Created
	if _, err := server.Conn().Request("$JS.API.STREAM.DELETE."+bus.RunsStream, nil, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	c.Look()
	bustest.Eventually(t, "the new stream is seen", func() bool { return !c.Status().Created.Equal(before) })
	told := make(chan bus.Status, 1)
	c.OnLook(func(s bus.Status) {
		select {
		case told <- s:
		default:
		}
	})
	if got := receive(t, "what the last look found", told); got.Losses != 1 || got.Created.Equal(before) {
		t.Fatalf("told of %d losses, of the stream of %s; before %s", got.Losses, got.Created, before)
	}
}

// A store that shows less than was seen has gone back: what is remembered from before the process counts, and what was
// acknowledged to it. Nobody may believe the streams before it was told.
func TestAStoreThatHasGoneBack(t *testing.T) {
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{})
	save := func(n int) (seq uint64) {
		seq, err := c.Save(deadline(t), runID(n), []byte("x"), port.Header{State: "s"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	save(1)
	var seen uint64
	looks, losses := make(chan bus.Status, 100), 0
	c.OnLook(func(s bus.Status) {
		if s.Losses > losses && c.Looked() {
			t.Error("the streams are believed before anybody was told that they have gone back")
		}
		losses = s.Losses
		looks <- s
	})
	server.Rewind(bus.RunsStream, func() { seen = save(2) })
	for receive(t, "word that it has gone back", looks).Losses != 1 {
	}
	bustest.Eventually(t, "the streams are believed again", c.Looked)
	if st := c.Status(); st.Losses != 1 || st.Last >= seen {
		t.Fatalf("status %+v, seen %d", st, seen)
	}
	later, err := bus.Connect(bus.Options{URL: server.URL, Seen: seen})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(later.Close)
	if err := later.Setup(deadline(t), bus.Config{}); err != nil {
		t.Fatal(err)
	}
	if st := later.Status(); st.Losses != 1 || !strings.Contains(st.Loss, "gone back") {
		t.Fatalf("a process that remembers %d: %+v", seen, st)
	}
}

// What is changed by hand so that records are forgotten, or nothing is delivered, is named with what mends it.
func TestWhatIsChangedByHandIsNamed(t *testing.T) {
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{Queues: []string{"default"}})
	js, err := jetstream.New(server.Conn())
	if err != nil {
		t.Fatal(err)
	}
	wait := func(what string, is func(*bus.ChangedError) bool) {
		t.Helper()
		c.Look()
		bustest.Eventually(t, what, func() bool { return is(c.Status().Changed) })
	}
	edit := func(stream string, change func(*jetstream.StreamConfig)) {
		t.Helper()
		s, err := js.Stream(deadline(t), stream)
		if err != nil {
			t.Fatal(err)
		}
		cfg := s.CachedInfo().Config
		change(&cfg)
		if _, err := js.UpdateStream(deadline(t), cfg); err != nil {
			t.Fatal(err)
		}
	}
	edit(bus.RunsStream, func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour })
	wait("max_age is named", func(e *bus.ChangedError) bool {
		return e != nil && e.What == bus.Settings && e.Stream == bus.RunsStream && strings.Contains(e.Error(), "max_age is 1h0m0s")
	})
	if err := c.Healthy(); err == nil || !strings.Contains(err.Error(), "mend it: nats stream edit AGENTRUN_RUNS") {
		t.Fatalf("healthy: %v", err)
	}
	edit(bus.RunsStream, func(c *jetstream.StreamConfig) { c.MaxAge = 0 })
	wait("it is mended", func(e *bus.ChangedError) bool { return e == nil })
	if _, err := js.PauseConsumer(deadline(t), bus.JobsStream, bus.ConsumerName("default"), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	wait("the pause is named", func(e *bus.ChangedError) bool {
		return e != nil && e.What == bus.Paused && strings.Contains(e.Error(), "nats consumer resume AGENTRUN_JOBS executor-default")
	})
	if _, err := js.ResumeConsumer(deadline(t), bus.JobsStream, bus.ConsumerName("default")); err != nil {
		t.Fatal(err)
	}
	wait("the pause is over", func(e *bus.ChangedError) bool { return e == nil })
	bustest.Eventually(t, "healthy again", func() bool { return c.Healthy() == nil })
}

// A stream that is made anew has none of the sequences of the lost one: what a process knew of the lost one is refused.
func TestAStreamMadeAnewHasNewSequences(t *testing.T) {
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{})
	h := port.Header{State: "ready"}
	old, err := c.Save(deadline(t), runID(1), []byte("old"), h, 0)
	if err != nil {
		t.Fatal(err)
	}
	server.Stop()
	server.Wipe()
	server.StartAgain()
	if err := c.Setup(deadline(t), bus.Config{}); err != nil {
		t.Fatal(err)
	}
	fresh, err := c.Save(deadline(t), runID(1), []byte("new"), h, 0)
	if err != nil || fresh <= old {
		t.Fatalf("the first revision is %d, in the lost stream it was %d: %v", fresh, old, err)
	}
	if _, err := c.Save(deadline(t), runID(1), []byte("stale"), h, old); !errors.Is(err, port.ErrConflict) {
		t.Fatalf("a write on the lost stream's revision: %v", err)
	}
}
