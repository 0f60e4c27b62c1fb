package bus_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

func TestSubjects(t *testing.T) {
	id := run.ID{Tenant: "acme", Run: "run_1"}
	for got, want := range map[string]string{
		bus.JobSubject("q", id):                                "agentrun.jobs.q.acme.run_1",
		bus.ResultSubject(id, envelope.StepScope):              "agentrun.results.acme.run_1.step",
		bus.RunSubject(id):                                     "agentrun.runs.acme.run_1",
		bus.WakeSubject("q", id):                               "agentrun.wakes.q.acme.run_1",
		bus.LetterSubject("acme", "o", "run_1"):                "agentrun.deadletters.acme.o.run_1",
		bus.AlertSubject("acme", "o", "poison_job"):            "agentrun.alerts.acme.o.poison_job",
		bus.HintSubject("h"):                                   "agentrun.hint.h",
		bus.FleetSubject(port.ActiveRecord):                    "agentrun.runs._fleet.reconciler",
		bus.ConsumerName("q"):                                  "executor-q",
		bus.ParseJobSubject("agentrun.jobs.q.a.b").ID.String(): "a/b",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for subject, valid := range map[string]bool{
		"agentrun.jobs.q.acme.run_1": true, "agentrun.jobs.q.acme.run_1.x": false, "agentrun.jobs.q.acme": false,
		"agentrun.jobs.q.*.run": false, "agentrun.jobs.q.acme.>": false, "agentrun.jobs.q._fleet.reconciler": false,
		"agentrun.jobs.q.acme.-x": false, "agentrun.jobs.q.ac=me.x": false, "agentrun.jobs": false,
	} {
		if got := bus.ParseJobSubject(subject); got.Valid != valid {
			t.Errorf("%s: %+v", subject, got)
		}
	}
	if _, ok := bus.ParseRunSubject(bus.FleetSubject(port.ActiveRecord)); !ok {
		t.Error("the fleet's record is no record")
	}
	if _, ok := bus.ParseRunSubject("agentrun.runs._fleet.other"); ok {
		t.Error("_fleet.other is taken for a run")
	}
	if tenant, owner, runID, ok := bus.ParseLetterSubject("agentrun.deadletters._invalid.o.invalid-0123"); !ok ||
		tenant != port.InvalidTenant || owner != "o" || runID != "invalid-0123" {
		t.Error("a letter of an invalid tenant is not understood")
	}
	if tenant, _, runID, ok := bus.ParseLetterSubject("agentrun.deadletters._other.o.invalid-0123"); ok {
		t.Errorf("a letter of %s/%s is understood", tenant, runID)
	}
	if _, _, ok := bus.ParseResultSubject("agentrun.results.acme.run_1.other"); ok {
		t.Error("another scope is taken for a result")
	}
}

func TestHints(t *testing.T) {
	server := bustest.Start(t)
	a, b := dial(t, server.URL), dial(t, server.URL)
	if err := a.WaitConnected(deadline(t)); err != nil {
		t.Fatal(err)
	}
	got := make(chan run.ID, 10)
	stop, err := a.OnHint("holder1", func(id run.ID) { got <- id })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := a.NATS().Flush(); err != nil {
		t.Fatal(err)
	}
	if err := b.NATS().Publish(bus.HintSubject("holder1"), []byte("no hint")); err != nil {
		t.Fatal(err)
	}
	if err := b.Hint("holder1", runID(3)); err != nil {
		t.Fatal(err)
	}
	if id := receive(t, "the hint", got); id != runID(3) {
		t.Fatalf("hint of %s", id)
	}
}

func TestObjects(t *testing.T) {
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{})
	ctx := deadline(t)
	if _, err := c.GetObject(ctx, "acme/run_1/step"); !errors.Is(err, port.ErrNotFound) {
		t.Fatalf("get of nothing: %v", err)
	}
	large := bytes.Repeat([]byte("0123456789"), 300_000)
	if err := c.PutObject(ctx, "acme/run_1/step", large); err != nil {
		t.Fatal(err)
	}
	if got, err := c.GetObject(ctx, "acme/run_1/step"); err != nil || !bytes.Equal(got, large) {
		t.Fatalf("got %d bytes: %v", len(got), err)
	}
}

func TestClockAndStatus(t *testing.T) {
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{MaxRuns: 50, MaxLetters: 60, MaxJobs: 70})
	if !c.Clock().Known() {
		t.Fatal("clock not read by Setup")
	}
	// The server is on this machine: its clock is ours.
	now := time.Now()
	if lower := c.Clock().Lower(); lower.After(now.Add(time.Millisecond)) || now.Sub(lower) > 5*time.Second {
		t.Errorf("lower %s at %s", lower, now)
	}
	now = time.Now()
	if upper := c.Clock().Upper(); upper.Before(now.Add(-time.Millisecond)) || upper.Sub(now) > 5*time.Second {
		t.Errorf("upper %s at %s", upper, now)
	}
	s := c.Status()
	if !s.Connected || s.Problem != nil || s.RunsMax != 50 || s.LettersMax != 60 || s.JobsMax != 70 || s.Created.IsZero() {
		t.Errorf("status: %+v", s)
	}
	if err := c.Healthy(); err != nil {
		t.Error(err)
	}
}

func TestInProcessConnection(t *testing.T) {
	server := bustest.Start(t)
	c, err := bus.Connect(bus.Options{Name: "embedded", InProcess: server.Embedded(), Logger: quiet, InboxPrefix: "_INBOX_executor"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Setup(deadline(t), bus.Config{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Save(deadline(t), runID(1), []byte("x"), port.Header{State: "s"}, 0); err != nil {
		t.Fatal(err)
	}
}

func TestRecordWithTTLExpires(t *testing.T) {
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{})
	ctx := deadline(t)
	seq, err := c.Save(ctx, runID(1), []byte("x"), port.Header{State: "ok", TTL: time.Millisecond}, 0)
	if err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "the record has expired", func() bool {
		_, err := c.Load(ctx, runID(1))
		return errors.Is(err, port.ErrNotFound)
	})
	if _, err := c.Save(ctx, runID(1), []byte("late"), port.Header{State: "ok"}, seq); !errors.Is(err, port.ErrConflict) {
		t.Fatalf("update of what has expired: %v", err)
	}
}

func TestReleasedDeliveryComesAgain(t *testing.T) {
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{Queues: []string{"default"}})
	publishJob(t, server.Conn(), bus.JobSubject("default", runID(1)), "{}")
	got := make(chan port.Delivery, 10)
	p := startPuller(t, c, func(d port.Delivery) { got <- d })
	p.Want(1)
	first := receive(t, "the job", got)
	if err := first.InProgress(); err != nil {
		t.Fatal(err)
	}
	if err := first.Release(10 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	p.Want(1)
	again := receive(t, "the job again", got)
	if again.Seq != first.Seq || again.Time != first.Time || !again.Redelivered {
		t.Fatalf("%+v after %+v", again, first)
	}
	if err := again.Ack(); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "the queue is empty", func() bool { return streamState(t, server, bus.JobsStream).Msgs == 0 })
}

func TestStopLeavesNothingBehind(t *testing.T) {
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{Queues: []string{"default"}})
	got := make(chan port.Delivery, 10)
	p, err := c.NewPuller([]string{"default"}, bus.Turns{}, func(d port.Delivery) { got <- d })
	if err != nil {
		t.Fatal(err)
	}
	p.Want(5)
	publishJob(t, server.Conn(), bus.JobSubject("default", runID(1)), "{}")
	first := receive(t, "a job", got)
	p.Stop()
	p.Stop() // twice is once
	publishJob(t, server.Conn(), bus.JobSubject("default", runID(2)), "{}")
	if err := first.Ack(); err != nil {
		t.Fatal(err)
	}
	// Another executor gets the second at once, not after the ack wait.
	other := startPuller(t, c, func(d port.Delivery) { got <- d })
	other.Want(1)
	if d := receive(t, "the second job", got); d.ID != runID(2) || d.Redelivered {
		t.Fatalf("%+v", d)
	}
}

func TestNamesThatAreNoIdentifiersReachNoSubject(t *testing.T) {
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{})
	ctx := deadline(t)
	if _, err := c.Save(ctx, runID(1), []byte("x"), port.Header{State: "s"}, 0); err != nil {
		t.Fatal(err)
	}
	for _, id := range []run.ID{{Tenant: "*", Run: "run_1"}, {Tenant: "acme", Run: ">"}, {Tenant: "acme", Run: "a b"}, {Tenant: "acme"}, {Tenant: "a.b", Run: "c"}} {
		_, saved := c.Save(ctx, id, nil, port.Header{}, 0)
		_, loaded := c.Load(ctx, id)
		_, appended := c.Append(ctx, []port.Outgoing{{Outcome: which(id, envelope.RunScope, 1)}})
		_, found := c.FindJob(ctx, id)
		_, woken := c.Wake(ctx, "default", id)
		_, put := c.PutLetter(ctx, id, "o", nil, "l", 0)
		for call, err := range map[string]error{
			"save": saved, "load": loaded, "append": appended, "find": found, "wake": woken,
			"alert": c.PutAlert(ctx, id.Tenant, "o", id.Run, nil, ""),
		} {
			if !errors.Is(err, bus.ErrNotLiteral) && (call != "alert" || id.Tenant != "a.b") {
				t.Errorf("%s of %q: %v", call, id, err)
			}
		}
		if !errors.Is(put, bus.ErrNotLiteral) && id.Tenant != "a.b" {
			t.Errorf("letter of %q: %v", id, put)
		}
	}
}
