package bus_test

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/streams/streamstest"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

func TestHints(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	a, b := streamstest.Dial(t, server.URL), streamstest.Dial(t, server.URL)
	if err := a.WaitConnected(streamstest.Deadline(t)); err != nil {
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
	if err := b.NATS().Publish(topology.HintSubject("holder1"), []byte("no hint")); err != nil {
		t.Fatal(err)
	}
	if err := b.Hint("holder1", streamstest.RunID(3)); err != nil {
		t.Fatal(err)
	}
	if id := streamstest.Receive(t, "the hint", got); id != streamstest.RunID(3) {
		t.Fatalf("hint of %s", id)
	}
}

func TestObjects(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{})
	ctx := streamstest.Deadline(t)
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
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{MaxRuns: 50, MaxLetters: 60, MaxJobs: 70})
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
	t.Parallel()
	server := bustest.Start(t)
	c, err := streams.Connect(streams.Options{Options: bus.Options{Name: "embedded", InProcess: server.Embedded(), Logger: slog.New(slog.DiscardHandler), InboxPrefix: "_INBOX_executor"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Setup(streamstest.Deadline(t), streams.Config{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Save(streamstest.Deadline(t), streamstest.RunID(1), []byte("x"), port.Header{State: "s"}, 0); err != nil {
		t.Fatal(err)
	}
}

func TestRecordWithTTLExpires(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{})
	ctx := streamstest.Deadline(t)
	seq, err := c.Save(ctx, streamstest.RunID(1), []byte("x"), port.Header{State: "ok", TTL: time.Millisecond}, 0)
	if err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "the record has expired", func() bool {
		_, err := c.Load(ctx, streamstest.RunID(1))
		return errors.Is(err, port.ErrNotFound)
	})
	if _, err := c.Save(ctx, streamstest.RunID(1), []byte("late"), port.Header{State: "ok"}, seq); !errors.Is(err, port.ErrConflict) {
		t.Fatalf("update of what has expired: %v", err)
	}
}

func TestNamesThatAreNoIdentifiersReachNoSubject(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{})
	ctx := streamstest.Deadline(t)
	if _, err := c.Save(ctx, streamstest.RunID(1), []byte("x"), port.Header{State: "s"}, 0); err != nil {
		t.Fatal(err)
	}
	for _, id := range []run.ID{{Tenant: "*", Run: "run_1"}, {Tenant: "acme", Run: ">"}, {Tenant: "acme", Run: "a b"}, {Tenant: "acme"}, {Tenant: "a.b", Run: "c"}} {
		_, saved := c.Save(ctx, id, nil, port.Header{}, 0)
		_, loaded := c.Load(ctx, id)
		_, appended := c.Append(ctx, c.Server(), []port.Outgoing{{Outcome: which(id, envelope.RunScope, 1)}})
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
