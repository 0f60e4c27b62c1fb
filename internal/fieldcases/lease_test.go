package fieldcases

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
)

// A call that outlasts the lease and the queue's ack wait, with one slot and a queue behind it: it is called once. Then a
// finished run's message comes again, because the worker died after it had told the end and before it acknowledged: the
// redelivery does no work.
func TestCase02LongCallAndTheRedeliveryOfAFinishedRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, time.Second, tool{name: "long", write: true}, tool{name: "short", write: true})
	proxy := bustest.StartProxy(t, w.nats)
	executor := w.process("executor", "w1", true, "--concurrency", "1", "--nats", proxy.URL).start()
	w.reconciler("r1")
	w.follow()
	w.provider.script(func(c call) plan {
		if c.Tool == "long" {
			return slow(3500 * time.Millisecond) // the lease is 1 s, the ack wait 2 s
		}
		return done()
	})
	w.publish("long", nil, do("s", "long"))
	w.mustCalls(ref("long", "s"), 1)
	for i := range 5 {
		w.publish(fmt.Sprintf("behind%d", i), nil, do("s", "short"))
	}
	for i := range 5 {
		w.mustEnd(fmt.Sprintf("behind%d", i), envelope.OK, "")
	}
	if o := w.mustEnd("long", envelope.OK, ""); len(w.outcomes("long", envelope.StepScope)) != 1 {
		t.Errorf("a call that was renewed came to more than its end: %+v\n%s", o, w.story())
	}
	w.idle()
	// No acknowledgement of an outcome comes back from now on, so that the worker cannot go on to acknowledge the job.
	proxy.Drop(func(_ string, payload []byte) bool { return strings.Contains(string(payload), topology.ResultsStream) })
	w.publish("last", nil, do("s", "short"))
	w.mustEnd("last", envelope.OK, "")
	executor.kill()
	proxy.Drop(nil)
	if w.waiting(topology.JobsStream) != 1 {
		t.Fatal("the job was acknowledged before its outcomes were known to be stored")
	}
	executor.start()
	w.idle()
	for _, c := range []string{"long", "last", "behind0", "behind4"} {
		if n := len(w.provider.callsOf(ref(c, "s"))); n != 1 {
			t.Errorf("%s was called %d times", c, n)
		}
	}
	w.balanced()
}

// A reconciler that starts while a worker holds a live lease on a slow write leaves the run alone, and so does one that
// takes over from another.
func TestCase04ReconcilerMeetsALiveLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, time.Second, tool{name: "slow", write: true})
	w.executor("w1")
	w.follow()
	w.provider.script(func(call) plan { return slow(5 * time.Second) })
	w.publish("r", nil, do("s", "slow"))
	w.mustCalls(ref("r", "s"), 1)
	first := w.reconciler("r1")
	second := w.reconciler("r2")
	if w.within(1200*time.Millisecond, func() bool { return w.end("r", 1) != nil }) {
		t.Fatal("the call ended before the case began")
	}
	first.stop()
	w.reconciler("r3")
	w.mustEnd("r", envelope.OK, "")
	if n := len(w.outcomes("r", envelope.StepScope)); n != 1 {
		t.Errorf("a run under a live lease was touched:\n%s", w.story())
	}
	if n := w.provider.lookupsOf(""); n != 0 {
		t.Errorf("%d lookups of a write that its worker was busy with", n)
	}
	if n := len(w.provider.callsOf(ref("r", "s"))); n != 1 {
		t.Errorf("called %d times", n)
	}
	if strings.Contains(second.log.String(), "lease ended") {
		t.Error("a reconciler ended a live lease")
	}
	w.balanced()
}

// NATS is away during a slow write: for less than the lease, and for longer than it. It is called once and ends ok.
func TestCase05NATSIsAwayDuringASlowWrite(t *testing.T) {
	t.Parallel()
	length, lease := 4*time.Second, 2*time.Second
	if full() {
		length, lease = 20*time.Second, 5*time.Second
	}
	for name, away := range map[string]time.Duration{"shorter than the lease": lease / 4, "longer than the lease": lease + lease/2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, lease, tool{name: "slow", write: true, timeout: time.Minute, window: 500 * time.Millisecond})
			w.both()
			w.provider.script(func(call) plan { return slow(length) })
			w.publish("r", nil, do("s", "slow"))
			w.mustCalls(ref("r", "s"), 1)
			w.nats.Stop()
			wait(away)
			w.nats.StartAgain()
			w.mustEnd("r", envelope.OK, "")
			if n := len(w.provider.callsOf(ref("r", "s"))); n != 1 {
				t.Errorf("called %d times\n%s", n, w.story())
			}
			unknown := len(w.outcomes("r", envelope.StepScope)) > 1
			if unknown != (away > lease) {
				t.Errorf("away %s with a lease of %s:\n%s", away, lease, w.story())
			}
			w.idle()
			w.balanced()
		})
	}
}

// wait lets time pass, where its passing is what the case is about.
func wait(d time.Duration) { <-time.After(d) }

// A worker's heartbeats are held back on their way until its lease is over and taken: when they arrive after all they do
// not get the lease back, and what the worker knows is evidence.
func TestCase07LateHeartbeatAfterTakeover(t *testing.T) {
	t.Parallel()
	w := newWorld(t, time.Second,
		tool{name: "slow", write: true, timeout: 30 * time.Second, window: 300 * time.Millisecond}, tool{name: "read", timeout: 30 * time.Second})
	proxy := bustest.StartProxy(t, w.nats)
	w.executor("paused", "--nats", proxy.URL)
	w.reconciler("r1")
	w.follow()
	w.provider.script(func(c call) plan {
		if c.Nth == 1 && (c.Ref == ref("write", "s") || c.Ref == ref("read", "s")) {
			return plan{Commit: true, Hang: true}
		}
		return done()
	})
	w.publish("write", nil, do("s", "slow"))
	w.publish("read", nil, do("s", "read"))
	w.mustCalls(ref("write", "s"), 1)
	w.mustCalls(ref("read", "s"), 1)
	first := map[string]string{}
	for _, r := range []string{"write", "read"} {
		rec := w.record(r)
		if rec == nil || rec.Lease == nil {
			t.Fatalf("%s is not leased", r)
		}
		first[r] = rec.Lease.ID
	}
	proxy.Hold()
	w.mustStep("write", "s", envelope.UnknownNow)
	w.mustStep("read", "s", envelope.Retryable)
	other := w.executor("other")
	w.mustEnd("write", envelope.OK, "")
	w.mustEnd("read", envelope.OK, "")
	revisions := map[string]*jetstream.RawStreamMsg{}
	for r := range first {
		revisions[r] = w.raw(r)
	}
	proxy.Resume()
	// The held writes have been read by the server when a later message on the same connection has been answered.
	w.publish("after", nil, do("s", "slow"))
	w.mustEnd("after", envelope.OK, "")
	other.stop()
	w.publish("again", nil, do("s", "slow")) // the paused one works on
	w.mustEnd("again", envelope.OK, "")
	for r, id := range first {
		if rec := w.record(r); rec.Lease != nil || rec.End == nil {
			t.Errorf("%s: a late heartbeat got the lease %s back: %+v", r, id, rec.Lease)
		}
		if now := w.raw(r); now.Sequence != revisions[r].Sequence && w.record(r).Lease != nil {
			t.Errorf("%s: revision %d became %d", r, revisions[r].Sequence, now.Sequence)
		}
	}
	if n := len(w.provider.callsOf(ref("write", "s"))); n != 1 {
		t.Errorf("the write was sent %d times", n)
	}
	w.balanced()
}

func (w *world) raw(runID string) *jetstream.RawStreamMsg {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := w.js.Stream(ctx, topology.RunsStream)
	if err != nil {
		w.t.Fatal(err)
	}
	m, err := s.GetLastMsgForSubject(ctx, "agentrun.runs."+tenant+"."+runID)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}
