package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/journal/journaltest"
	"github.com/agentrun/executor/internal/operator"
	"github.com/agentrun/executor/internal/port"
	pulling "github.com/agentrun/executor/internal/queue"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/internal/worker"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// parts are the seams of one server, fake or real.
type parts struct {
	store   port.Store
	waker   port.Waker
	watch   port.Watch
	fleet   port.Fleet
	publish func(id run.ID, data []byte)
	pull    func(deliver func(port.Delivery)) worker.Puller
}

// both runs a suite on the fakes and on the real parts.
func both(t *testing.T, suite func(t *testing.T, p *parts)) {
	t.Run("fake", func(t *testing.T) {
		w := newWorld(t, 1)
		w.fast = true
		p := w.newProc("p")
		suite(t, &parts{
			store: link{p}, waker: link{p}, watch: link{p}, fleet: link{p}, publish: w.publish,
			pull: func(deliver func(port.Delivery)) worker.Puller {
				pl := &puller{p: p, give: deliver, idle: make(chan struct{})}
				w.mu.Lock()
				w.executors = append(w.executors, &executor{w: w, puller: pl})
				w.mu.Unlock()
				return pl
			},
		})
	})
	t.Run("real", func(t *testing.T) {
		server := bustest.Start(t)
		conn, err := streams.Connect(streams.Options{Options: bus.Options{URL: server.URL, Name: "sim", Logger: quiet}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		if err := conn.Setup(t.Context(), streams.Config{Queues: []string{"default"}, AckWait: 10 * time.Second}); err != nil {
			t.Fatal(err)
		}
		js, err := jetstream.New(conn.NATS())
		if err != nil {
			t.Fatal(err)
		}
		suite(t, &parts{
			store: conn, waker: conn, watch: operator.NewIndex(blind{}, time.Now).Feed(conn), fleet: conn,
			publish: func(id run.ID, data []byte) {
				if _, err := js.Publish(t.Context(), topology.JobSubject("default", id), data); err != nil {
					t.Fatal(err)
				}
			},
			pull: func(deliver func(port.Delivery)) worker.Puller {
				pl, err := pulling.New(conn.Conn, []string{"default"}, pulling.Turns{}, deliver)
				if err != nil {
					t.Fatal(err)
				}
				return pl
			},
		})
	})
}

func is(t *testing.T, what string, got error, want error) {
	t.Helper()
	if !errors.Is(got, want) || want == nil && got != nil {
		t.Fatalf("%s: %v, not %v", what, got, want)
	}
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s: %v, not %v", what, got, want)
	}
}

// body is a record that can be read: the fake looks into it.
func body(t *testing.T, id run.ID, actor string) []byte {
	t.Helper()
	d := defaults()
	d.Actor = actor
	r := engine.Create(id, engine.Message{Seq: 1, Time: 1, Queue: "default", Data: fmt.Appendf(nil,
		`{"schema":"agentrun.job/v1","tenant":%q,"run_id":%q,"more":true,"steps":[]}`, id.Tenant, id.Run)}, d, envelope.TimeOf(time.Now()))
	data, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestRecordsAreTheSame(t *testing.T) {
	both(t, func(t *testing.T, p *parts) {
		ctx, id, s := t.Context(), run.ID{Tenant: "acme", Run: "records"}, p.store
		a, b, c := body(t, id, "a"), body(t, id, "b"), body(t, id, "c")
		h := port.Header{State: "open", Episode: 1}
		_, err := s.Load(ctx, id)
		is(t, "load of nothing", err, port.ErrNotFound)
		_, err = s.Save(ctx, id, a, h, 7)
		is(t, "save upon a revision that is not there", err, port.ErrConflict)
		first, err := s.Save(ctx, id, a, h, 0)
		is(t, "first save", err, nil)
		again, err := s.Save(ctx, id, a, h, 0)
		is(t, "the same bytes again", err, nil)
		equal(t, "its revision", again, first)
		_, err = s.Save(ctx, id, b, h, 0)
		is(t, "other bytes at an old revision", err, port.ErrConflict)
		second, err := s.Save(ctx, id, b, h, first)
		is(t, "second save", err, nil)
		if second <= first {
			t.Fatalf("revisions go from %d to %d", first, second)
		}
		again, err = s.Save(ctx, id, b, h, first)
		is(t, "the same bytes again at the old revision", err, nil)
		equal(t, "its revision", again, second)
		_, err = s.Save(ctx, id, c, h, first)
		is(t, "other bytes at an old revision", err, port.ErrConflict)
		got, err := s.Load(ctx, id)
		is(t, "load", err, nil)
		equal(t, "loaded", []any{string(got.Data), got.Seq}, []any{string(b), second})
		is(t, "object", s.PutObject(ctx, "acme/records/s/d", []byte("x")), nil)
		data, err := s.GetObject(ctx, "acme/records/s/d")
		is(t, "object", err, nil)
		equal(t, "object", string(data), "x")
		_, err = s.GetObject(ctx, "acme/records/s/none")
		is(t, "no object", err, port.ErrNotFound)
	})
}

// outcome is a numbered outcome of a run whose record began at first.
func outcome(id run.ID, scope envelope.Scope, n int, first, last uint64, before bool) port.Outgoing {
	return port.Outgoing{
		Outcome: &envelope.Outcome{Tenant: id.Tenant, RunID: id.Run, Scope: scope, N: n}, First: first, Last: last, PublishedBefore: before,
		Data: fmt.Appendf(nil, `{"schema":"agentrun.outcome/v1","scope":%q,"n":%d,"terminal":true}`, scope, n),
	}
}

func TestOutcomesAreTheSame(t *testing.T) {
	both(t, func(t *testing.T, p *parts) {
		ctx, id, s := t.Context(), run.ID{Tenant: "acme", Run: "outcomes"}, p.store
		step := func(n int, first, last uint64, before bool) port.Outgoing {
			return outcome(id, envelope.StepScope, n, first, last, before)
		}
		_, err := s.LastOutcome(ctx, id, envelope.StepScope)
		is(t, "last of nothing", err, port.ErrNotFound)
		if _, err = s.Append(ctx, s.Server(), []port.Outgoing{step(2, 5, 0, false)}); err == nil {
			t.Fatal("a gap is let through")
		}
		one, err := s.Append(ctx, s.Server(), []port.Outgoing{step(1, 5, 0, false), outcome(id, envelope.RunScope, 1, 5, 0, false)})
		is(t, "first", err, nil)
		again, err := s.Append(ctx, s.Server(), []port.Outgoing{step(1, 5, 0, false)})
		is(t, "the same again", err, nil)
		equal(t, "its sequence", again, one[:1])
		two, err := s.Append(ctx, s.Server(), []port.Outgoing{step(2, 5, one[0], true), step(3, 5, 0, true)})
		is(t, "second and third", err, nil)
		passed, err := s.Append(ctx, s.Server(), []port.Outgoing{step(1, 5, 0, false)})
		is(t, "one that was passed", err, nil)
		equal(t, "its sequence", passed, []uint64{0})
		last, err := s.LastOutcome(ctx, id, envelope.StepScope)
		is(t, "last", err, nil)
		equal(t, "last", []any{last.N, last.Seq, last.First}, []any{3, two[1], uint64(5)})
		data, err := s.ReadOutcome(ctx, last.Seq)
		is(t, "read", err, nil)
		equal(t, "read", string(data), string(step(3, 5, 0, true).Data))
		_, err = s.ReadOutcome(ctx, 1<<40)
		is(t, "read of nothing", err, port.ErrNotFound)
		if _, err = s.Append(ctx, s.Server(), []port.Outgoing{step(5, 5, 0, true)}); err == nil {
			t.Fatal("a gap is let through")
		}
	})
}

func TestLettersAreTheSame(t *testing.T) {
	both(t, func(t *testing.T, p *parts) {
		ctx, id, s := t.Context(), run.ID{Tenant: "acme", Run: "letters"}, p.store
		_, err := s.GetLetter(ctx, id, "o")
		is(t, "get of nothing", err, port.ErrNotFound)
		one, err := s.PutLetter(ctx, id, "o", []byte(`{"n":1}`), "l1", 0)
		is(t, "put", err, nil)
		again, err := s.PutLetter(ctx, id, "o", []byte(`{"n":1}`), "l1", 0)
		is(t, "the same again", err, nil)
		equal(t, "its sequence", again, one)
		_, err = s.PutLetter(ctx, id, "o", []byte(`{"n":2}`), "l2", 0)
		is(t, "create only", err, port.ErrConflict)
		two, err := s.PutLetter(ctx, id, "o", []byte(`{"n":2}`), "l2", one)
		is(t, "replace", err, nil)
		got, err := s.GetLetter(ctx, id, "o")
		is(t, "get", err, nil)
		equal(t, "got", []any{string(got.Data), got.Seq, got.LetterID}, []any{`{"n":2}`, two, "l2"})
		is(t, "delete what was replaced", s.DeleteLetter(ctx, one), nil)
		_, err = s.GetLetter(ctx, id, "o")
		is(t, "still there", err, nil)
		is(t, "delete", s.DeleteLetter(ctx, two), nil)
		is(t, "delete again", s.DeleteLetter(ctx, two), nil)
		_, err = s.GetLetter(ctx, id, "o")
		is(t, "gone", err, port.ErrNotFound)
		is(t, "alert", s.PutAlert(ctx, "acme", "o", "r", []byte(`{}`), "a1"), nil)
		is(t, "alert again", s.PutAlert(ctx, "acme", "o", "r", []byte(`{}`), "a1"), nil)
	})
}

func TestFleetIsTheSame(t *testing.T) {
	both(t, func(t *testing.T, p *parts) {
		ctx := t.Context()
		data, seq, err := p.fleet.LoadFleet(ctx, port.ActiveRecord)
		is(t, "load", err, nil)
		equal(t, "nothing", []any{len(data), seq}, []any{0, uint64(0)})
		one, err := p.fleet.SaveFleet(ctx, port.ActiveRecord, []byte("1"), port.Header{Lease: "h/l/0/5000"}, 0)
		is(t, "save", err, nil)
		_, err = p.fleet.SaveFleet(ctx, port.ActiveRecord, []byte("2"), port.Header{Lease: "h/l/0/5000"}, 0)
		is(t, "save again", err, port.ErrConflict)
		two, err := p.fleet.SaveFleet(ctx, port.ActiveRecord, []byte("2"), port.Header{Lease: "h/l/1/5000"}, one)
		is(t, "renew", err, nil)
		data, seq, err = p.fleet.LoadFleet(ctx, port.ActiveRecord)
		is(t, "load", err, nil)
		equal(t, "loaded", []any{string(data), seq}, []any{"2", two})
	})
}

// heard collects what a watch reports.
type heard[T any] struct{ ch chan T }

func listen[T any](t *testing.T, follow func(context.Context, func(T)) error) *heard[T] {
	h := &heard[T]{make(chan T, 100)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = follow(ctx, func(v T) { h.ch <- v })
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return h
}

func (h *heard[T]) next(t *testing.T) (v T) {
	t.Helper()
	select {
	case v = <-h.ch:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing is reported")
	}
	return v
}

func TestWatchesAreTheSame(t *testing.T) {
	both(t, func(t *testing.T, p *parts) {
		ctx, s := t.Context(), p.store
		a, b := run.ID{Tenant: "acme", Run: "a"}, run.ID{Tenant: "acme", Run: "b"}
		h := port.Header{State: "open", Episode: 1, Lease: "x.1/l/3/5000", Workflow: "w", Due: time.UnixMilli(1_800_000_000_000).UTC()}
		a1, err := s.Save(ctx, a, body(t, a, "1"), h, 0)
		is(t, "save", err, nil)
		_, err = s.Save(ctx, b, body(t, b, "1"), h, 0)
		is(t, "save", err, nil)
		a2, err := s.Save(ctx, a, body(t, a, "2"), h, a1)
		is(t, "save", err, nil)
		runs := listen(t, p.watch.WatchRuns)
		equal(t, "b, as it is", runs.next(t).ID, b)
		c := runs.next(t)
		equal(t, "a, its last revision only", []any{c.ID, c.Seq, c.Header.State, c.Header.Lease, c.Header.Due.UTC()}, []any{a, a2, h.State, h.Lease, h.Due})
		equal(t, "current", runs.next(t).Report, port.Current)
		a3, err := s.Save(ctx, a, body(t, a, "3"), h, a2)
		is(t, "save", err, nil)
		equal(t, "a, changed", runs.next(t).Seq, a3)
		_, err = p.fleet.SaveFleet(ctx, port.ActiveRecord, []byte("1"), port.Header{Lease: "h/l/0/5000"}, 0)
		is(t, "fleet", err, nil)
		equal(t, "the fleet's record", runs.next(t).ID, port.ActiveID)

		outcomes := listen(t, func(ctx context.Context, fn func(port.Outcome)) error {
			return p.watch.WatchOutcomes(ctx, time.Time{}, fn)
		})
		equal(t, "current", outcomes.next(t).Report, port.Current)
		_, err = s.Append(ctx, s.Server(), []port.Outgoing{outcome(a, envelope.StepScope, 1, a1, 0, false), outcome(a, envelope.RunScope, 1, a1, 0, false)})
		is(t, "append", err, nil)
		o := outcomes.next(t)
		equal(t, "the run's outcome", []any{o.Report, o.ID, o.Scope, o.N, o.First}, []any{port.Stored, a, envelope.RunScope, 1, a1})

		letters := listen(t, p.watch.WatchLetters)
		equal(t, "current", letters.next(t).Report, port.Current)
		seq, err := s.PutLetter(ctx, a, "o", []byte(`{"reason_code":"r"}`), "l1", 0)
		is(t, "put", err, nil)
		l := letters.next(t)
		equal(t, "the letter", []any{l.Report, l.ID, l.Owner, l.LetterID, l.Seq, string(l.Data)}, []any{port.Stored, a, "o", "l1", seq, `{"reason_code":"r"}`})
	})
}

func TestQueuesAreTheSame(t *testing.T) {
	both(t, func(t *testing.T, p *parts) {
		id := run.ID{Tenant: "acme", Run: "queued"}
		got := make(chan port.Delivery, 10)
		pl := p.pull(func(d port.Delivery) { got <- d })
		next := func() (d port.Delivery) {
			t.Helper()
			select {
			case d = <-got:
			case <-time.After(20 * time.Second):
				t.Fatal("nothing is delivered")
			}
			return d
		}
		p.publish(id, []byte("{}"))
		pl.Want(1)
		d := next()
		equal(t, "a job", []any{d.ID, d.Wake, d.Valid, d.Redelivered, string(d.Data), d.Queue}, []any{id, false, true, false, "{}", "default"})
		is(t, "progress", d.InProgress(), nil)
		is(t, "release", d.Release(0), nil)
		pl.Want(1)
		d = next()
		equal(t, "again", []any{d.ID, d.Redelivered}, []any{id, true})
		is(t, "ack", d.Ack(), nil)
		for i, fresh := range []bool{true, false} {
			got, err := p.waker.Wake(t.Context(), "default", id)
			equal(t, fmt.Sprintf("wake %d", i+1), []any{got, err}, []any{fresh, nil})
		}
		pl.Want(2)
		d = next()
		equal(t, "a wake", []any{d.ID, d.Wake}, []any{id, true}) // the real puller may have given it back before
		is(t, "ack", d.Ack(), nil)
		other := run.ID{Tenant: "acme", Run: "other"}
		p.publish(other, []byte("{}"))
		d = next()
		equal(t, "not the second wake, it was one", []any{d.ID, d.Wake}, []any{other, false})
		is(t, "release later", d.Release(50*time.Millisecond), nil)
		pl.Want(1)
		d = next()
		equal(t, "later", []any{d.ID, d.Redelivered}, []any{other, true})
		is(t, "ack", d.Ack(), nil)
		pl.Want(5)
		pl.Stop()
		p.publish(id, []byte("{}"))
		select {
		case d := <-got:
			t.Fatalf("delivered after the stop: %+v", d)
		default:
		}
	})
}

func TestJournalsAreTheSame(t *testing.T) {
	suite := func(t *testing.T, j worker.Journal) {
		ctx := t.Context()
		ids := make([]engine.DispatchID, 3)
		for i := range ids {
			id, err := uuid.NewV7()
			if err != nil {
				t.Fatal(err)
			}
			ids[i] = engine.DispatchID(id.String())
		}
		intent := func(i int) engine.Entry {
			return engine.Entry{Intent: &engine.Intent{
				Dispatch: ids[i], Tenant: "acme", RunID: "r", Queue: "default", Step: fmt.Sprintf("s%d", i), Tool: "w",
				Args: []byte(`{"n":1}`), Attempt: 1, Proposal: 1, Key: "k", At: 1_800_000_000_000,
			}}
		}
		effect := engine.Entry{Effect: &engine.EffectFact{Dispatch: ids[1], Reply: envelope.Reply{OK: true, Result: []byte(`{"id":1}`)}, At: 1_800_000_000_001}}
		is(t, "write", j.Write(ctx, intent(0), intent(1)), nil)
		is(t, "write", j.Write(ctx, effect, intent(2)), nil)
		is(t, "the same again", j.Write(ctx, intent(2)), nil)
		is(t, "settle", j.Write(ctx, engine.Entry{Settled: ids[0]}), nil)
		facts, err := j.Unsettled()
		is(t, "unsettled", err, nil)
		equal(t, "how many", len(facts), 2)
		equal(t, "the first", []any{facts[0].Intent.Dispatch, facts[0].Intent.Step, facts[0].Effect.Reply.OK}, []any{ids[1], "s1", true})
		if !bytes.Equal(facts[0].Effect.Reply.Result, []byte(`{"id":1}`)) || facts[1].Effect != nil || facts[1].Intent.Dispatch != ids[2] {
			t.Fatalf("unsettled: %+v", facts)
		}
		var all []engine.DispatchID
		is(t, "facts", j.Facts(func(f engine.Fact) error {
			all = append(all, f.Intent.Dispatch)
			return nil
		}), nil)
		equal(t, "facts", all, ids)
		j.Saw(1)
	}
	t.Run("fake", func(t *testing.T) {
		j, _ := newMemory(newWorld(t, 1), "x").open()
		suite(t, j)
	})
	t.Run("real", func(t *testing.T) { suite(t, journaltest.Open(t)) })
}
