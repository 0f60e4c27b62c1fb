package app_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/run"
)

const writes = 10

func (s *stack) submitWrites() {
	s.t.Helper()
	for i := range writes {
		s.submit("acme", fmt.Sprintf("r%d", i), []M{step("p", "pay", M{"n": i})})
	}
}

// onceEach waits until all have ended ok, and counts the requests.
func (s *stack) onceEach() {
	s.t.Helper()
	for i := range writes {
		if o := s.end("acme", fmt.Sprintf("r%d", i), 1); o.Outcome != "ok" {
			s.t.Fatalf("run r%d ended %+v", i, o)
		}
	}
	if n := s.count("POST /pay"); n != writes {
		s.t.Fatalf("%d requests for %d writes", n, writes)
	}
}

// copied stops the server, keeps a copy of its store, and starts it again.
func (s *stack) copied() (putBack func()) {
	s.t.Helper()
	s.server.Stop()
	back := s.server.Copy()
	s.server.StartAgain()
	return func() {
		s.t.Helper()
		s.server.Stop()
		back()
		s.server.StartAgain()
	}
}

// An older copy of the store is put back, with everything queued that has been done since: nothing is sent again. The
// copy has the same creation time, and knows nothing of the executor.
func TestAnOlderCopyOfTheStore(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	if err := s.reconciler("r0").stop(); err != nil {
		t.Fatal(err)
	}
	s.submitWrites()
	putBack := s.copied()
	e, r := s.executor("e1"), s.reconciler("r1")
	s.onceEach()
	if err := errors.Join(e.stop(), r.stop()); err != nil {
		t.Fatal(err)
	}
	putBack()
	e = s.executor("e1")
	s.reconciler("r1")
	s.onceEach()
	if m := s.metrics(e); !strings.Contains(m, `agentrun_store_fault{fault="lost"} 0`) {
		t.Error("the loss is not over in the metrics")
	}
}

// The copy is put back under a fleet that runs. Whoever knows what was done restores it before anybody goes on.
func TestAnOlderCopyUnderARunningFleet(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.executor("e1")
	s.executor("e2")
	r := s.reconciler("r1")
	putBack := s.copied()
	s.submitWrites()
	s.onceEach()
	putBack()
	s.submitWrites() // their publishers do not know what has become of them
	s.onceEach()
	bustest.Eventually(t, "the reconciler is ready again", func() bool { status, _ := s.readyz(r); return status == 200 })
}

// An executor that knows of the loss waits for the one that knows what was done, by name; that one's journal can be said
// to be lost.
func TestTheFleetWaitsForEveryJournal(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	e1, e2 := s.executor("e1"), s.executor("e2")
	putBack := s.copied()
	if err := e2.stop(); err != nil { // e1 has them all
		t.Fatal(err)
	}
	s.submitWrites()
	s.onceEach()
	e2 = s.executor("e2")
	if err := errors.Join(e1.stop(), e2.stop()); err != nil {
		t.Fatal(err)
	}
	putBack()
	s.submitWrites()
	starting := s.starting("e2")
	bustest.Eventually(t, "e2 says for whom it waits", func() bool {
		status, body := s.readyz(&process{http: starting.http})
		return status == 503 && strings.Contains(body, "store: ") && strings.Contains(body, "e1 on ") && strings.Contains(body, "executor journal restore")
	})
	if n := s.count("POST /pay"); n != writes {
		t.Fatalf("%d requests before e1 has restored its journal", n)
	}
	e1 = s.executor("e1")
	<-starting.ready
	s.onceEach()
	if status, body := s.readyz(e1); status != 200 {
		t.Errorf("e1: %s", body)
	}
}

// waiting is an executor that is not ready yet.
type waiting struct {
	http  string
	ready chan string
}

// starting starts an executor and does not wait until it is ready.
func (s *stack) starting(id string) waiting {
	s.t.Helper()
	var c app.ExecutorConfig
	addr := fmt.Sprintf("127.0.0.1:%d", bustest.Port(s.t))
	all := append([]string{"--nats", s.server.URL, "--config", s.config, "--id", id, "--http", addr, "--data", filepath.Join(s.dir, id), "--drain-timeout", "2s"}, s.args...)
	if err := app.Defaults(&c, all); err != nil {
		s.t.Fatal(err)
	}
	w := waiting{http: addr, ready: make(chan string, 1)}
	c.OnReady = func(addr string) { w.ready <- addr }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- app.Executor(ctx, c) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("%s: %v", id, err)
		}
	})
	bustest.Eventually(s.t, id+" answers", func() bool {
		res, err := http.Get("http://" + addr + "/healthz")
		if err == nil {
			res.Body.Close()
		}
		return err == nil
	})
	return w
}

// Records are removed by hand while runs are in flight: seen, named, and restored from the journals.
func TestRecordsRemovedByHand(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	e := s.executor("e1")
	s.reconciler("r1")
	s.submitWrites()
	s.onceEach()
	stream, err := s.js.Stream(t.Context(), topology.RunsStream)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	records, _ := s.records()
	bustest.Eventually(t, "the records are back", func() bool {
		_, err := records.Load(t.Context(), runOf("r0"))
		return err == nil
	})
	bustest.Eventually(t, "ready again", func() bool { status, _ := s.readyz(e); return status == 200 })
	s.submitWrites()
	s.onceEach()
}

// max_age set by hand on the records makes executor and reconciler unready; nothing is taken in until it is mended.
func TestRecordsThatExpireByHand(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	e, r := s.executor("e1"), s.reconciler("r1")
	stream, err := s.js.Stream(t.Context(), topology.RunsStream)
	if err != nil {
		t.Fatal(err)
	}
	set := func(age time.Duration) {
		cfg := stream.CachedInfo().Config
		cfg.MaxAge = age
		if _, err := s.js.UpdateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	set(time.Hour)
	for name, p := range map[string]*process{"executor": e, "reconciler": r} {
		bustest.Eventually(t, name+" names it", func() bool {
			status, body := s.readyz(p)
			return status == 503 && strings.Contains(body, "max_age is 1h0m0s, must be 0s; mend it: nats stream edit AGENTRUN_RUNS")
		})
		bustest.Eventually(t, name+" has a metric of it", func() bool {
			return strings.Contains(s.metrics(p), `agentrun_store_fault{fault="settings"} 1`)
		})
	}
	s.submitWrites()
	set(0)
	s.onceEach()
	for _, p := range []*process{e, r} {
		bustest.Eventually(t, "ready again", func() bool { status, _ := s.readyz(p); return status == 200 })
	}
}

func runOf(id string) run.ID { return run.ID{Tenant: "acme", Run: id} }

// A journal that was lost before the copy was made, and whose successor in its directory the copy does not know yet, is not
// waited for: who is in its place says that it is gone.
func TestAReplacedJournalIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	e1, e2 := s.executor("e1"), s.executor("e2")
	if err := errors.Join(e1.stop(), e2.stop(), os.RemoveAll(filepath.Join(s.dir, "e1"))); err != nil {
		t.Fatal(err)
	}
	putBack := s.copied()
	e1 = s.executor("e1")
	s.reconciler("r1")
	s.submitWrites()
	s.onceEach()
	if err := e1.stop(); err != nil {
		t.Fatal(err)
	}
	putBack()
	s.submitWrites()
	starting := s.starting("e1")
	s.executor("e2")
	<-starting.ready
	s.onceEach()
}
