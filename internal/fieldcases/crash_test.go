package fieldcases

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Workers are killed in the middle of their jobs and never started again; only the reconciler is there. Within a lease and
// the verification window every run has ended, is held for a person, or is ready with a wake in the queue.
func TestCase08OnlyTheReconcilerIsLeft(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	kills, each := sized(50, 5), sized(1, 6)
	w := newWorld(t, lease, tool{name: "read"}, tool{name: "lost", write: true}, tool{name: "did", write: true}, tool{name: "mail", write: true, noVerify: true})
	w.executor("first").stop() // the streams are there
	w.reconciler("r1")
	w.follow()
	w.provider.script(func(c call) plan { return plan{Hang: true, Commit: c.Tool == "did" || c.Tool == "mail"} })
	tools := []string{"read", "lost", "did", "mail"}
	var runs, queues []string
	for k := range kills {
		queue := fmt.Sprintf("q%d", k) // of its own, so that a worker meets no run of one that was killed before it
		queues = append(queues, queue)
		p := w.process("executor", fmt.Sprintf("w%d", k), true, "--concurrency", fmt.Sprint(each), "--queues", queue).start()
		for i := range each {
			id := fmt.Sprintf("r%d-%d", k, i)
			runs = append(runs, id)
			w.send(queue, id, job(id, nil, do("s", tools[(k+i)%len(tools)])))
		}
		for _, id := range runs[len(runs)-each:] {
			w.mustCalls(ref(id, "s"), 1)
		}
		p.kill()
	}
	killed := time.Now()
	bad := func() (id, state string) {
		for _, id := range runs {
			r := w.record(id)
			if r == nil {
				return id, "no record"
			}
			if r.End != nil {
				continue
			}
			if s := r.Steps[0]; s.State != run.Ready && s.State != run.Waiting || r.Lease != nil || !w.woken(r.Queue, id) {
				return id, fmt.Sprintf("%s, woken %t", r.State(), w.woken(r.Queue, id))
			}
		}
		return "", ""
	}
	bustest.Eventually(t, "every run is safe without a worker", func() bool { id, _ := bad(); return id == "" })
	t.Logf("%d runs of %d killed workers were safe %s after the last kill, with a lease of %s", len(runs), kills, time.Since(killed).Round(time.Millisecond), lease)
	// Somebody comes after all.
	w.provider.script(nil)
	w.executor("late", "--queues", strings.Join(queues, ","))
	for _, id := range runs {
		w.until(id+" ends", func() bool { return w.end(id, 1) != nil })
		word := w.end(id, 1).Outcome
		mail := strings.HasSuffix(w.record(id).Steps[0].Tool, "mail")
		if mail != (word == envelope.NeedsHuman) || !mail && word != envelope.OK {
			t.Errorf("%s (%s) ended %s", id, w.record(id).Steps[0].Tool, word)
		}
	}
	w.idle()
	w.balanced()
}

// woken reports whether a run has a wake in the queue.
func (w *world) woken(queue, runID string) bool {
	ctx, cancel := w.deadline()
	defer cancel()
	s, err := w.js.Stream(ctx, topology.WakesStream)
	if err != nil {
		return false
	}
	_, err = s.GetLastMsgForSubject(ctx, topology.WakeSubject(queue, run.ID{Tenant: tenant, Run: runID}))
	return err == nil
}

// A is paused past the ack wait, B is given its job, A goes on and acknowledges it, and B is killed: nobody has the message
// any more, and the run ends all the same.
func TestCase10AZombieAcknowledges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, time.Second, tool{name: "read", timeout: 30 * time.Second}, tool{name: "write", write: true, timeout: 30 * time.Second, window: 300 * time.Millisecond})
	a := w.process("executor", "a", true).start()
	w.reconciler("r1")
	w.follow()
	w.provider.script(func(c call) plan {
		if c.Worker != "c" {
			return plan{Hang: true}
		}
		return done()
	})
	w.publish("read", nil, do("s", "read"))
	w.publish("write", nil, do("s", "write"))
	w.mustCalls(ref("read", "s"), 1)
	w.mustCalls(ref("write", "s"), 1)
	a.pause()
	b := w.process("executor", "b", true).start()
	w.mustCalls(ref("read", "s"), 2)
	w.mustCalls(ref("write", "s"), 2) // looked up, absent
	a.resume()
	w.idle() // somebody has acknowledged both
	b.kill()
	a.kill()
	w.executor("c")
	w.mustEnd("read", envelope.OK, "")
	w.mustEnd("write", envelope.OK, "")
	w.balanced()
}

// Many leases have expired, and the tool or NATS is away for a while in the middle of recovering them: all settle.
func TestCase11RecoveryIsInterrupted(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"NATS", "the tool"} {
		t.Run(what+" is away", func(t *testing.T) {
			t.Parallel()
			n := sized(250, 100)
			w := newWorld(t, 2*time.Second, tool{name: "pay", write: true, timeout: time.Minute, lookups: 200})
			p := w.process("executor", "w1", true, "--concurrency", fmt.Sprint(n)).start()
			w.provider.script(func(c call) plan { return plan{Hang: true, Commit: strings.HasSuffix(c.Ref, "0/s")} })
			for i := range n {
				w.publish(fmt.Sprintf("r%d", i), nil, do("s", "pay"))
			}
			w.until("all are in flight", func() bool { return len(w.provider.callsOf("")) == n })
			p.kill()
			w.provider.script(nil)
			w.follow()
			w.reconciler("r1")
			w.until("recovery has begun", func() bool { return w.provider.lookupsOf("") > n/20 })
			if what == "NATS" {
				w.nats.Stop()
				wait(2 * time.Second)
				w.nats.StartAgain()
			} else {
				w.provider.scriptLookups(func(string, int) *plan { p := refuse(500); return &p })
				wait(2 * time.Second)
				w.provider.scriptLookups(nil)
			}
			w.executor("w2", "--concurrency", "64")
			for i := range n {
				w.mustEnd(fmt.Sprintf("r%d", i), envelope.OK, "")
			}
			w.idle()
			w.balanced()
		})
	}
}

// The ack wait is ten minutes and the worker is killed: its runs are recovered after the lease.
func TestCase17RecoveryDoesNotWaitForTheQueue(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	w := newWorld(t, lease, tool{name: "read"}, tool{name: "write", write: true})
	a := w.process("executor", "a", true).start()
	w.reconciler("r1")
	w.follow()
	ctx, cancel := w.deadline()
	defer cancel()
	c, err := w.js.Consumer(ctx, topology.JobsStream, topology.ConsumerName("default"))
	if err != nil {
		t.Fatal(err)
	}
	config := c.CachedInfo().Config
	config.AckWait = 10 * time.Minute
	if _, err := w.js.UpdateConsumer(ctx, topology.JobsStream, config); err != nil {
		t.Fatal(err)
	}
	w.provider.script(func(c call) plan {
		if c.Worker == "a" {
			return plan{Hang: true, Commit: true}
		}
		return done()
	})
	w.publish("read", nil, do("s", "read"))
	w.publish("write", nil, do("s", "write"))
	w.mustCalls(ref("read", "s"), 1)
	w.mustCalls(ref("write", "s"), 1)
	a.kill()
	killed := time.Now()
	w.executor("b")
	w.mustEnd("read", envelope.OK, "")
	w.mustEnd("write", envelope.OK, "")
	took := time.Since(killed)
	t.Logf("recovered %s after the kill; lease %s, ack wait %s", took.Round(time.Millisecond), lease, config.AckWait)
	if took > time.Minute {
		t.Errorf("recovered after %s", took)
	}
	w.balanced()
}

// One attempt is allowed. A worker that is killed before its request left, and one that is stopped while it reads, cost
// none: the step still runs.
func TestCase18ADeathBeforeTheRequestCostsNoAttempt(t *testing.T) {
	t.Parallel()
	once := map[string]any{"budget": map[string]any{"max_attempts_per_step": 1}}
	t.Run("killed before the request left", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, time.Second, tool{name: "read"}, tool{name: "write", write: true})
		proxy := bustest.StartProxy(t, w.nats)
		p := w.process("executor", "a", true, "--nats", proxy.URL).start()
		w.reconciler("r1")
		w.follow()
		// The record says executing, and the worker never learns that it does.
		proxy.Drop(func(_ string, payload []byte) bool { return strings.Contains(string(payload), topology.RunsStream) })
		for _, r := range []string{"read", "write"} {
			w.publish(r, once, do("s", r))
			bustest.Eventually(t, r+" is executing", func() bool { rec := w.record(r); return rec != nil && rec.Lease != nil })
		}
		p.kill()
		if n := len(w.provider.callsOf("")); n != 0 {
			t.Fatalf("%d requests left before the record was known to say executing", n)
		}
		proxy.Drop(nil)
		p.start()
		for _, r := range []string{"read", "write"} {
			w.mustEnd(r, envelope.OK, "")
			if n := len(w.provider.callsOf(ref(r, "s"))); n != 1 {
				t.Errorf("%s was called %d times", r, n)
			}
		}
		w.balanced()
	})
	t.Run("stopped during a read", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 5*time.Second, tool{name: "read", timeout: 30 * time.Second, attempts: 1})
		a := w.executor("a", "--drain-timeout", "100ms")
		w.reconciler("r1")
		w.follow()
		w.provider.script(func(c call) plan { return plan{Hang: c.Worker == "a"} })
		w.publish("r", once, do("s", "read"))
		w.mustCalls(ref("r", "s"), 1)
		a.stop()
		w.executor("b")
		w.mustEnd("r", envelope.OK, "")
		w.balanced()
	})
}

// killsExecutor is a command that ends the executor that started it: the parent of its own parent, which is its guard.
const killsExecutor = "    command: {argv: [/bin/sh, -c, \"kill -9 $(sed -n 's/^PPid:[^0-9]*//p' /proc/$PPID/status)\"]}\n"

// A job whose tool kills its worker each time: after a few crashes it is a poison job with its history, and the others go
// on.
func TestCase21PoisonJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t, time.Second, tool{name: "poison"}, tool{name: "poisonwrite", write: true},
		tool{name: "poisoncommand", extra: killsExecutor}, tool{name: "good"})
	w.reconciler("r1")
	w.follow()
	p := w.process("executor", "w1", true)
	p.start()
	ended := make(chan struct{})
	stopped := make(chan struct{})
	kill := make(chan struct{}, 100)
	go func() { // what keeps a fleet up: an executor that has died is started again
		defer close(stopped)
		for {
			select {
			case <-kill:
				_ = p.cmd.Process.Kill()
			case <-p.ended:
				p.launch()
			case <-ended:
				return
			}
		}
	}()
	defer func() {
		close(ended)
		<-stopped
	}()
	w.provider.script(func(c call) plan {
		if strings.HasPrefix(c.Tool, "poison") { // the tool takes its worker with it
			kill <- struct{}{}
			return plan{Hang: true, Commit: false}
		}
		return done()
	})
	w.publish("poison", map[string]any{"budget": map[string]any{"max_attempts_per_step": 1}}, do("s", "poison"), do("next", "good"))
	w.publish("poisonwrite", nil, do("s", "poisonwrite"))
	w.publish("poisoncommand", nil, do("s", "poisoncommand"))
	w.executor("w2", "--queues", "other")
	for i := range 10 {
		id := fmt.Sprintf("good%d", i)
		w.send("other", id, job(id, nil, do("s", "good"))) // beside them
		w.mustEnd(id, envelope.OK, "")
	}
	for _, r := range []string{"poison", "poisonwrite", "poisoncommand"} {
		end := w.mustEnd(r, envelope.NeedsHuman, "poison_job")
		if end.FailedStep != "s" {
			t.Errorf("%s: failed step %q", r, end.FailedStep)
		}
		// Perhaps none: another of the three may have ended the executor each time before this one's request left.
		if n := len(w.provider.callsOf(ref(r, "s"))); n > 3 {
			t.Errorf("%s: %d calls, poison_after is 3", r, n)
		}
		lost := 0
		for _, e := range w.record(r).History {
			if e.Code == envelope.CodeWorkerLost {
				lost++
			}
		}
		if lost < 2 {
			t.Errorf("%s: the history names %d losses: %+v", r, lost, w.record(r).History)
		}
	}
	w.publish("after", nil, do("s", "good")) // the worker is rid of them
	w.mustEnd("after", envelope.OK, "")
	mustLetters(w, 3)
	w.balanced()
}

// NATS is stopped and started again and again under a steady stream of jobs: every job that was taken in comes to one end.
func TestCase13NATSRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	restarts, jobs := sized(10, 4), sized(2000, 250)
	w := newWorld(t, 2*time.Second, tool{name: "read", attempts: 9}, tool{name: "write", write: true, attempts: 9})
	w.both()
	go func() {
		for range restarts {
			wait(700 * time.Millisecond)
			w.nats.Stop()
			wait(100 * time.Millisecond)
			w.nats.StartAgain()
		}
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := range jobs {
		<-tick.C
		w.publish(fmt.Sprintf("r%d", i), nil, do("a", "read"), do("b", "write"))
	}
	for i := range jobs {
		w.mustEnd(fmt.Sprintf("r%d", i), envelope.OK, "")
	}
	w.idle()
	for i := range jobs {
		if n := len(w.outcomes(fmt.Sprintf("r%d", i), envelope.RunScope)); n != 1 {
			t.Errorf("r%d has %d ends", i, n)
		}
		if n := len(w.provider.callsOf(ref(fmt.Sprintf("r%d", i), "b"))); n != 1 {
			t.Logf("r%d: the write was sent %d times", i, n)
		}
	}
	w.balanced()
}
