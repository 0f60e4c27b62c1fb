package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// streams makes the streams on a server, as an executor would, and returns what publishes outcomes.
func withStreams(t *testing.T, url string, maxJobs int64) jetstream.JetStream {
	t.Helper()
	conn, err := streams.Connect(streams.Options{Options: bus.Options{URL: url, Name: "test", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if err := conn.Setup(t.Context(), streams.Config{Queues: []string{"default"}, MaxJobs: maxJobs}); err != nil {
		t.Fatal(err)
	}
	return stream(t, connect(t, url))
}

func connect(t *testing.T, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	options = append(options, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	nc, err := nats.Connect(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func stream(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func newClient(t *testing.T, nc *nats.Conn) *client.Client {
	t.Helper()
	c, err := client.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// publish stores the n-th outcome of a scope, again until the server has it.
func publish(t *testing.T, js jetstream.JetStream, runID string, o envelope.Outcome) {
	t.Helper()
	o.Schema, o.Tenant, o.RunID, o.Terminal, o.At = envelope.OutcomeSchema, "acme", runID, o.Outcome.Terminal(), 1764583200000
	o.ID = fmt.Sprintf("acme/%s/%s/%d", runID, o.Scope, o.N)
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "an outcome is stored", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := js.Publish(ctx, "agentrun.results.acme."+runID+"."+string(o.Scope), data, jetstream.WithMsgID(o.ID))
		return err == nil
	})
}

func stepOutcome(n int, word envelope.Word) envelope.Outcome {
	return envelope.Outcome{Scope: envelope.StepScope, N: n, Step: fmt.Sprintf("s%d", n), Outcome: word}
}

func endOutcome(n int, word envelope.Word) envelope.Outcome {
	return envelope.Outcome{Scope: envelope.RunScope, N: n, Outcome: word}
}

// read takes outcomes until the run's end.
func read(ctx context.Context, w *client.Watch) (ids []string, err error) {
	for o, err := range w.All(ctx) {
		if err != nil {
			return ids, err
		}
		ids = append(ids, o.ID)
		if o.Scope == envelope.RunScope {
			break
		}
	}
	return ids, nil
}

// However often the connection breaks, a watch reports each outcome once, in the order of the stream; so does one that
// begins afterwards.
func TestWatchSurvivesBrokenConnections(t *testing.T) {
	t.Parallel()
	s := bustest.Start(t)
	js := withStreams(t, s.URL, 0)
	proxy := bustest.StartProxy(t, s)
	c := newClient(t, connect(t, proxy.URL))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const steps = 120
	var want []string
	for n := 1; n <= 10; n++ {
		publish(t, js, "r1", stepOutcome(n, envelope.Retryable))
	}
	w, err := c.Watch(ctx, "acme", "r1")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	type result struct {
		ids []string
		err error
	}
	got := make(chan result, 1)
	go func() {
		ids, err := read(ctx, w)
		got <- result{ids, err}
	}()
	for n := 11; n <= steps; n++ {
		publish(t, js, "r1", stepOutcome(n, envelope.Retryable))
		if n%20 == 0 {
			proxy.Cut()
		}
	}
	publish(t, js, "r1", endOutcome(1, envelope.OK))
	for n := 1; n <= steps; n++ {
		want = append(want, fmt.Sprintf("acme/r1/step/%d", n))
	}
	want = append(want, "acme/r1/run/1")
	late, err := c.Watch(ctx, "acme", "r1")
	if err != nil {
		t.Fatal(err)
	}
	defer late.Stop()
	again, err := read(ctx, late)
	for name, r := range map[string]result{"live": <-got, "late": {again, err}} {
		if r.err != nil || strings.Join(r.ids, " ") != strings.Join(want, " ") {
			t.Errorf("%s: %v, %v", name, r.ids, r.err)
		}
	}
	if late.Live() {
		t.Error("the stream could be read, and was not")
	}
}

// Messages that get lost on the way, and a server that is started anew, are read again.
func TestWatchReadsAgainWhatWasLost(t *testing.T) {
	t.Parallel()
	s := bustest.Start(t)
	js := withStreams(t, s.URL, 0)
	proxy := bustest.StartProxy(t, s)
	c := newClient(t, connect(t, proxy.URL))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := c.Watch(ctx, "acme", "r1")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	proxy.Drop(func(_ string, payload []byte) bool { return strings.Contains(string(payload), `"acme/r1/step/2"`) })
	publish(t, js, "r1", stepOutcome(1, envelope.OK))
	publish(t, js, "r1", stepOutcome(2, envelope.OK))
	first, err := w.Next(ctx)
	if err != nil || first.ID != "acme/r1/step/1" || first.Stored {
		t.Fatalf("%+v, %v", first, err)
	}
	short, stop := context.WithTimeoutCause(ctx, 300*time.Millisecond, errLost)
	defer stop()
	if o, err := w.Next(short); !errors.Is(err, errLost) {
		t.Fatalf("what was lost has come: %v, %v", o, err)
	}
	proxy.Drop(nil)
	publish(t, js, "r1", stepOutcome(3, envelope.OK)) // shows that something is missing
	for _, want := range []string{"acme/r1/step/2", "acme/r1/step/3"} {
		if o, err := w.Next(ctx); err != nil || o.ID != want {
			t.Fatalf("%+v, %v, wanted %s", o, err, want)
		}
	}
	s.Stop()
	s.StartAgain()
	publish(t, js, "r1", stepOutcome(4, envelope.OK))
	publish(t, js, "r1", endOutcome(1, envelope.OK))
	ids, err := read(ctx, w)
	if got := strings.Join(ids, " "); err != nil || got != "acme/r1/step/4 acme/r1/run/1" {
		t.Errorf("%s, %v", got, err)
	}
}

// A run with far more outcomes than a watch holds back at once is read to its end, by a reader that is slower than the server.
func TestWatchReadsALongRun(t *testing.T) {
	t.Parallel() // it waits
	s := bustest.Start(t)
	js := withStreams(t, s.URL, 0)
	const steps = 5000
	for n := 1; n <= steps; n++ {
		data := fmt.Appendf(nil, `{"id":"acme/long/step/%d","n":%d,"scope":"step","outcome":"ok","step":"s"}`, n, n)
		if _, err := js.PublishAsync("agentrun.results.acme.long.step", data); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	publish(t, js, "long", endOutcome(1, envelope.OK))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := newClient(t, connect(t, s.URL)).Watch(ctx, "acme", "long")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	bustest.Eventually(t, "more has come than is kept", func() bool { return w.Waiting() >= client.InFlight })
	ids, err := read(ctx, w)
	if err != nil || len(ids) != steps+1 || ids[0] != "acme/long/step/1" || ids[steps] != "acme/long/run/1" {
		t.Errorf("%d outcomes, %v", len(ids), err)
	}
}

var errLost = errors.New("lost")

func TestWaitAnswersFromTheStream(t *testing.T) {
	t.Parallel()
	s := bustest.Start(t)
	js := withStreams(t, s.URL, 0)
	c := newClient(t, connect(t, s.URL))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	publish(t, js, "ended", stepOutcome(1, envelope.OK))
	publish(t, js, "ended", endOutcome(1, envelope.Cancelled))
	r, err := c.Wait(ctx, "acme", "ended")
	if err != nil || r.Outcome != envelope.Cancelled || r.Run == nil || !r.Run.Stored || r.Steps["s1"] == nil {
		t.Fatalf("%+v, %v", r, err)
	}
	// A step's end is enough where steps are asked for, and an earlier episode's end where none is.
	publish(t, js, "open", stepOutcome(1, envelope.OK))
	if r, err = c.Wait(ctx, "acme", "open", "s1"); err != nil || r.Outcome != envelope.OK || r.Run != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	short, stop := context.WithTimeoutCause(ctx, 100*time.Millisecond, errLost)
	defer stop()
	if r, err = c.Wait(short, "acme", "open"); !errors.Is(err, errLost) {
		t.Fatalf("an open run has ended: %+v, %v", r, err)
	}
	// What another job was refused says nothing about the step.
	refused := stepOutcome(2, envelope.Fatal)
	refused.Step, refused.Envelope = "s1", &envelope.Envelope{Code: envelope.CodeStepConflict}
	publish(t, js, "open", refused)
	if r, err = c.Wait(ctx, "acme", "open", "s1"); err != nil || r.Outcome != envelope.OK {
		t.Fatalf("%+v, %v", r, err)
	}
	// Opened again by an operator: the earlier end is none.
	publish(t, js, "again", endOutcome(1, envelope.Fatal))
	publish(t, js, "again", stepOutcome(1, envelope.Retryable))
	waited := make(chan *client.Result, 2)
	go func() {
		r, err := c.Wait(ctx, "acme", "again")
		if err != nil {
			t.Error(err)
		}
		waited <- r
	}()
	go func() {
		r, err := c.WaitEpisode(ctx, "acme", "ended", 2)
		if err != nil {
			t.Error(err)
		}
		waited <- r
	}()
	publish(t, js, "again", endOutcome(2, envelope.OK))
	publish(t, js, "ended", endOutcome(2, envelope.OK))
	for range 2 {
		if r := <-waited; r == nil || r.Outcome != envelope.OK || r.Run.N != 2 {
			t.Errorf("%+v", r)
		}
	}
}

// A publisher of one tenant needs the rights of contract §2 with an inbox of its own, and no more; it is told at once what
// it may not do.
func TestLeastPermissions(t *testing.T) {
	t.Parallel()
	mayRead := "$JS.API.CONSUMER.CREATE.AGENTRUN_RESULTS.*.agentrun.results.acme.>"
	user := func(name string, publish ...string) *server.User {
		return &server.User{Username: name, Password: "pw", Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: append(publish, "agentrun.jobs.*.acme.>")},
			Subscribe: &server.SubjectPermission{Allow: []string{"agentrun.results.acme.>", "_INBOX_" + name + ".>"}},
		}}
	}
	s := bustest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "pw"}, user("shop", mayRead), user("blind")}
	})
	as := func(name string) string { return strings.Replace(s.URL, "nats://", "nats://"+name+":pw@", 1) }
	js := withStreams(t, as("admin"), 0)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, name := range []string{"shop", "blind"} {
		c := newClient(t, connect(t, as(name), nats.CustomInboxPrefix("_INBOX_"+name)))
		w, err := c.Watch(ctx, "acme", name)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		if w.Live() != (name == "blind") {
			t.Errorf("%s: live %v", name, w.Live())
		}
		if _, err := c.Submit(ctx, &run.Job{Tenant: "acme", RunID: name}, client.Options{}); err != nil {
			t.Fatal(err)
		}
		publish(t, js, name, stepOutcome(1, envelope.OK))
		publish(t, js, name, endOutcome(1, envelope.OK))
		if ids, err := read(ctx, w); err != nil || len(ids) != 2 {
			t.Errorf("%s: %v, %v", name, ids, err)
		}
		began := time.Now()
		if _, err := c.Submit(ctx, &run.Job{Tenant: "other", RunID: "r"}, client.Options{}); !errors.Is(err, client.ErrNotAllowed) {
			t.Errorf("%s submits for another tenant: %v", name, err)
		}
		if _, err := c.Watch(ctx, "other", "r"); !errors.Is(err, client.ErrNotAllowed) {
			t.Errorf("%s watches another tenant: %v", name, err)
		}
		if _, err := c.GetRun(ctx, "acme", "r"); !errors.Is(err, client.ErrNotAllowed) {
			t.Errorf("%s makes an operator call: %v", name, err)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("%s was refused after %s", name, took)
		}
	}
}

// A user who may make no consumer and read the last outcomes only, as deploy/nats has it, never misses a run's end: not one
// from before, nor one that was published while the connection was away.
func TestLastOutcomesAreEnoughForTheEnd(t *testing.T) {
	t.Parallel() // it waits
	s := bustest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "pw"}, {Username: "shop", Password: "pw", Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: []string{"agentrun.jobs.*.acme.*", "$JS.API.DIRECT.GET.AGENTRUN_RESULTS.agentrun.results.acme.*.*"}},
			Subscribe: &server.SubjectPermission{Allow: []string{"agentrun.results.acme.>", "_INBOX_shop.>"}},
		}}}
	})
	proxy := bustest.StartProxy(t, s)
	js := withStreams(t, strings.Replace(s.URL, "nats://", "nats://admin:pw@", 1), 0)
	c := newClient(t, connect(t, strings.Replace(proxy.URL, "nats://", "nats://shop:pw@", 1), nats.CustomInboxPrefix("_INBOX_shop")))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	publish(t, js, "old", stepOutcome(1, envelope.OK))
	publish(t, js, "old", endOutcome(1, envelope.NeedsHuman))
	if r, err := c.Wait(ctx, "acme", "old"); err != nil || r.Outcome != envelope.NeedsHuman || !r.Run.Stored {
		t.Fatalf("%+v, %v", r, err)
	}
	if r, err := c.SubmitAndWait(ctx, &run.Job{Tenant: "acme", RunID: "old"}, client.Options{}); err != nil || r.Outcome != envelope.NeedsHuman || !r.Repeated {
		t.Fatalf("%+v, %v", r, err)
	}
	w, err := c.Watch(ctx, "acme", "new")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	publish(t, js, "new", stepOutcome(1, envelope.OK))
	if o, err := w.Next(ctx); err != nil || o.ID != "acme/new/step/1" {
		t.Fatalf("%+v, %v", o, err)
	}
	proxy.Drop(func(subject string, _ []byte) bool { return strings.HasPrefix(subject, "agentrun.results.") })
	for n := 2; n <= 3; n++ {
		publish(t, js, "new", stepOutcome(n, envelope.OK))
	}
	publish(t, js, "new", endOutcome(1, envelope.OK))
	proxy.Cut()
	ids, err := read(ctx, w)
	if got := strings.Join(ids, " "); err != nil || got != "acme/new/step/3 acme/new/run/1" || !w.Live() {
		t.Errorf("%s, %v", got, err)
	}
}
