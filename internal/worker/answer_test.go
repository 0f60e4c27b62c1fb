package worker

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// bench is one worker with everything around it, inside a bubble whose time is the server's.
type bench struct {
	*Worker
	t     *testing.T
	early time.Duration // how far the worker's lower bound is behind
	wide  time.Duration // how far its upper bound is ahead

	mu      sync.Mutex
	stored  map[run.ID]port.Record
	said    []string // what was done, in order
	replies []envelope.Reply
	takes   time.Duration // of each call
}

var waker = run.ID{Tenant: "acme", Run: "run_1"}

// newBench makes a worker whose lower bound on the server's time is behind. Its tool fails first and is to be repeated
// after a second.
func newBench(t *testing.T, early, wide time.Duration) *bench {
	b := &bench{t: t, early: early, wide: wide, stored: map[run.ID]port.Record{}}
	b.replies = []envelope.Reply{{Row: envelope.RowFor(envelope.CodeUpstreamUnavailable, envelope.Read)}}
	zero := time.Now()
	b.Worker = New(Config{
		ID: "x", Holder: "x.1", Lease: 30 * time.Second, Concurrency: 4, DrainTimeout: time.Second, PoisonAfter: 3,
		Defaults: func() engine.Defaults {
			return engine.Defaults{Owner: "o", Workflow: "w", Actor: "a", Budget: budget.Limits{
				MaxTurns: 9, MaxToolCalls: 9, MaxAttemptsPerStep: 3, MaxElapsedMillis: 900_000, MaxInputTokens: 9, MaxOutputTokens: 9, MaxEstimatedCostMinorUnits: 9,
			}}
		},
		Boot: func() time.Duration { return time.Since(zero) }, Random: func() float64 { return 0 },
		Records: &record.Records{Store: benchStore{b: b}, Clock: b, Retention: time.Hour}, Journal: noJournal{}, Tools: b, Hints: b, Store: b,
		Observe: unseen{}, Ready: unseen{}, Log: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(b.Stop)
	return b
}

func (b *bench) Lower() time.Time                 { return time.Now().Add(-b.early) }
func (b *bench) Upper() time.Time                 { return time.Now().Add(b.wide) }
func (b *bench) Current() (string, bool)          { return "the store", true }
func (b *bench) Vanished(string)                  {}
func (b *bench) Sent()                            {}
func (b *bench) Hint(string, run.ID) error        { return nil }
func (b *bench) Limits(string) Limits             { return Limits{} }
func (b *bench) ReadyWithin(string) time.Duration { return 0 }
func (b *bench) say(what string)                  { b.mu.Lock(); b.said = append(b.said, what); b.mu.Unlock() }

func (b *bench) heard() []string { b.mu.Lock(); defer b.mu.Unlock(); return slices.Clone(b.said) }

func (b *bench) Tool(name string) (*run.Tool, bool) {
	retry := run.Retry{MaxAttempts: 3, InitialDelay: time.Second, MaxDelay: time.Second, Multiplier: 1, MaxRetryAfter: time.Minute}
	tool := &run.Tool{Name: name, Effect: envelope.Read, Timeout: time.Minute, Retry: retry}
	if name == "write" {
		tool.Effect, tool.Verify = envelope.Write, &run.Verify{Window: time.Second, HasWindow: true, MaxAttempts: 3, Timeout: time.Second}
	}
	return tool, true
}

func (b *bench) Call(ctx context.Context, d *engine.Dispatch, _ CallInfo) envelope.Reply {
	b.say("call")
	b.mu.Lock()
	takes := b.takes
	reply := envelope.Reply{OK: true, Result: []byte(`{}`), EvidenceRef: "e"}
	if len(b.replies) > 0 {
		reply, b.replies = b.replies[0], b.replies[1:]
	}
	b.mu.Unlock()
	if !pause.For(ctx, takes) {
		return envelope.Reply{NoReply: true, Row: envelope.RowFor(envelope.CodeUpstreamTimeout, d.Effect)}
	}
	return reply
}

func (b *bench) Lookup(context.Context, run.ID, *engine.Lookup, string) (envelope.Lookup, bool) {
	b.say("lookup")
	return envelope.Lookup{Answer: envelope.Found, Result: []byte(`{}`), EvidenceRef: "e"}, true
}

// deliver hands a job or a wake to the worker and waits until nothing moves any more.
func (b *bench) deliver(wake bool, tool string) { b.hand(wake, false, tool) }

// deliverAgain hands over the job of a read, as the server says of it: for the first time or again.
func (b *bench) deliverAgain(again bool) { b.hand(false, again, "read") }

func (b *bench) hand(wake, again bool, tool string) {
	d := port.Delivery{
		Message:     engine.Message{Queue: "default", Seq: 1, Time: envelope.TimeOf(time.Now())},
		Redelivered: again, Wake: wake, ID: waker, Valid: true, Subject: "s",
	}
	d.Acker = &answers{b, "job"}
	if wake {
		d.Acker = &answers{b, "wake"}
	} else {
		d.Data = []byte(`{"schema":"agentrun.job/v1","tenant":"acme","run_id":"run_1","steps":[{"step":"s","tool":"` + tool + `","args":{}}]}`)
	}
	b.Deliver(d)
	synctest.Wait()
}

// step is the run's only step as it is stored.
func (b *bench) step() *engine.Step {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	r, err := engine.Decode(b.stored[waker].Data)
	if err != nil {
		b.t.Fatal(err)
	}
	return r.Steps[0]
}

// until passes the time to when the server's clock shows t.
func until(t envelope.Time) {
	time.Sleep(time.Until(t.Time()))
	synctest.Wait()
}

// expect compares what was done until now; a call and the answer to its wake go side by side.
func (b *bench) expect(want ...string) {
	b.t.Helper()
	got := b.heard()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		b.t.Fatalf("at %s: %q, wanted %q", time.Now().Format("05.000"), b.heard(), want)
	}
}

type answers struct {
	b    *bench
	what string
}

func (a *answers) Ack() error                  { a.b.say(a.what + " acknowledged"); return nil }
func (a *answers) InProgress() error           { a.b.say(a.what + " in progress"); return nil }
func (a *answers) Release(time.Duration) error { a.b.say(a.what + " given back"); return nil }

type benchStore struct {
	port.Store
	b *bench
}

func (s benchStore) Load(_ context.Context, id run.ID) (port.Record, error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	st, ok := s.b.stored[id]
	if !ok {
		return st, port.ErrNotFound
	}
	return st, nil
}

func (s benchStore) Save(_ context.Context, id run.ID, data []byte, _ port.Header, expect uint64) (uint64, error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.b.stored[id].Seq != expect {
		return 0, port.ErrConflict
	}
	s.b.stored[id] = port.Record{Data: bytes.Clone(data), Seq: expect + 1}
	return expect + 1, nil
}

func (s benchStore) Server() string { return "" }

func (s benchStore) Append(_ context.Context, _ string, out []port.Outgoing) ([]uint64, error) {
	seqs := make([]uint64, len(out))
	for i := range out {
		seqs[i] = uint64(100*len(out[i].Scope) + out[i].N) //nolint:gosec // small
	}
	return seqs, nil
}

func (s benchStore) LastOutcome(context.Context, run.ID, envelope.Scope) (port.Outcome, error) {
	return port.Outcome{}, port.ErrNotFound
}

type noJournal struct{ Journal }

func (noJournal) Write(context.Context, ...engine.Entry) error { return nil }
func (noJournal) Later(...engine.Entry)                        {}
func (noJournal) Saw(uint64)                                   {}

type unseen struct{}

func (unseen) Outcome(string, string, string)                                 {}
func (unseen) ToolCall(string, envelope.Effect, envelope.Code, time.Duration) {}
func (unseen) RunsInFlight(int)                                               {}
func (unseen) Refusal(string)                                                 {}
func (unseen) DuplicatePrevented(string)                                      {}
func (unseen) Breaker(string, bool)                                           {}
func (unseen) RetryLate(time.Duration)                                        {}
func (unseen) PassedOn(string)                                                {}
func (unseen) BlockFor(string, string, string)                                {}
func (unseen) ClearFor(string, string)                                        {}

// Who wakes a run has a better lower bound on the server's time than who is woken: the wake is kept until the attempt is
// due here too, and acknowledged only when its start is in the record.
func TestAWakeBeforeItsTimeIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 80*time.Millisecond, 5*time.Millisecond)
		b.deliver(false, "read")
		b.expect("call", "job acknowledged")
		at := b.step().NotBefore
		until(at)
		b.takes = 10 * time.Second
		b.deliver(true, "")
		b.expect("call", "job acknowledged")
		until(at.Add(79 * time.Millisecond))
		b.expect("call", "job acknowledged")
		until(at.Add(82 * time.Millisecond))
		b.expect("call", "job acknowledged", "wake acknowledged", "call")
		if s := b.step(); s.State != run.Executing {
			t.Fatalf("the wake is acknowledged, the step is %s", s.State)
		}
	})
}

// The bound moves on while a look takes its time: what was not due when it was decided, and is when the run is put down, is
// not left.
func TestWhatBecomesDueDuringALookIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 80*time.Millisecond, 5*time.Millisecond)
		b.deliver(false, "read")
		at := b.step().NotBefore
		slow := &slowClock{bench: b}
		b.Records.Clock = slow // each reading of the lower bound takes 60 ms
		until(at)
		b.deliver(true, "")
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		b.expect("call", "job acknowledged", "call", "wake acknowledged")
	})
}

type slowClock struct{ *bench }

func (c *slowClock) Lower() time.Time {
	now := c.bench.Lower()
	time.Sleep(60 * time.Millisecond)
	return now
}

// A wake for what is due only later than the server's clock can show is for something that is over.
func TestAWakeForNothingIsAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 80*time.Millisecond, 5*time.Millisecond)
		b.deliver(false, "read")
		b.deliver(true, "")
		b.expect("call", "job acknowledged", "wake acknowledged")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		b.expect("call", "job acknowledged", "wake acknowledged") // who wakes it then has not come
	})
}

// A lookup that only an executor can make is not sent before its time, and not forgotten either.
func TestALookupBeforeItsTimeIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 80*time.Millisecond, 5*time.Millisecond)
		b.replies = []envelope.Reply{{NoReply: true, Row: envelope.RowFor(envelope.CodeOutcomeUnknown, envelope.Write)}}
		b.deliver(false, "write")
		b.expect("call", "job acknowledged")
		at := b.step().Doubt.Next
		until(at)
		b.deliver(true, "")
		b.expect("call", "job acknowledged")
		until(at.Add(82 * time.Millisecond))
		b.expect("call", "job acknowledged", "lookup", "wake acknowledged")
	})
}

// A process that drains starts nothing: what it was woken for goes to another.
func TestADrainingWorkerGivesTheWakeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 80*time.Millisecond, 5*time.Millisecond)
		b.deliver(false, "read")
		until(b.step().NotBefore)
		b.deliver(true, "")
		b.Drain(t.Context(), nil)
		b.expect("call", "job acknowledged", "wake given back")
	})
}

// A wake that waits in this process's hands, here for a slot of the tool, is kept alive in the queue.
func TestAWakeThatWaitsIsKeptAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0, 5*time.Millisecond)
		b.deliver(false, "read")
		g := b.gates.of("read")
		g.set(Limits{Concurrency: 1})
		other := g.enter("other")
		until(b.step().NotBefore.Add(time.Millisecond))
		b.deliver(true, "")
		time.Sleep(b.Lease / 4)
		synctest.Wait()
		if !slices.Contains(b.heard(), "wake in progress") || slices.Contains(b.heard(), "wake acknowledged") {
			t.Fatalf("%q: in a quarter of a lease the queue gives the wake to another", b.heard())
		}
		g.leave("other", other)
		synctest.Wait()
		if got := b.heard(); !slices.Contains(got, "wake acknowledged") || got[len(got)-1] == "wake in progress" {
			t.Fatalf("%q", got)
		}
	})
}

// Whose step is settled while its call is still out (a person reported what became of it) keeps no delivery for that call: a
// wake that it held would keep others from what becomes due meanwhile.
func TestNothingIsKeptForACallThatIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0, 0)
		b.replies, b.takes = nil, 10*time.Second
		b.deliver(false, "write")
		h, err := b.Records.Load(t.Context(), waker)
		if err != nil {
			t.Fatal(err)
		}
		reported := engine.Resolution{CommitState: envelope.Committed, Result: []byte(`{}`), EvidenceRef: "seen"}
		if _, refused := h.Run.Report("s", 1, "a person", reported, b, b.Records.Now()); refused != nil {
			t.Fatal(refused)
		}
		if err := b.Records.Save(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		b.expect("call")
		b.deliver(true, "")
		b.expect("call", "job acknowledged", "wake acknowledged")
		time.Sleep(11 * time.Second) // the call comes back, and is evidence at most
		synctest.Wait()
		b.expect("call", "job acknowledged", "wake acknowledged")
		if s := b.step(); s.State != run.OK {
			t.Errorf("the step is %s", s.State)
		}
	})
}
