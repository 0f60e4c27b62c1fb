package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// toolless knows one read.
type toolless struct{}

func (toolless) Tool(name string) (*run.Tool, bool) {
	return &run.Tool{Name: name, Effect: envelope.Read}, name == "load"
}

// plant stores n runs that have ended fatal with an open letter, as an executor would have left them.
func plant(t *testing.T, rs *record.Records, tenant string, n int) {
	t.Helper()
	limits := budget.Limits{MaxTurns: 10, MaxToolCalls: 10, MaxAttemptsPerStep: 3, MaxElapsedMillis: 3600e3}
	d := engine.Defaults{Owner: "platform", Workflow: "testing", Actor: "agent:test", Budget: limits}
	next := make(chan int)
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for i := range next {
				id := run.ID{Tenant: tenant, Run: fmt.Sprintf("r%05d", i)}
				job := fmt.Sprintf(`{"schema":"agentrun.job/v1","tenant":%q,"run_id":%q,"steps":[{"step":"load","tool":"load","args":{"n":%d}}]}`, tenant, id.Run, i)
				now := rs.Now()
				h := &record.Handle{ID: id, Run: engine.Create(id, engine.Message{Seq: uint64(i + 1), Time: now, Queue: "default", Data: []byte(job)}, d, now)}
				dispatch := h.Run.Begin("load", toolless{}, engine.Start{Dispatch: engine.DispatchID(id.Run), Holder: "h", LeaseID: "l" + id.Run, Seconds: 2, Worker: "w1"}, now)
				h.Run.Reply(dispatch.ID, envelope.Reply{Row: envelope.RowFor(envelope.CodeResourceNotFound, envelope.Read)}, toolless{}, engine.Source{By: "w1", At: now})
				err := rs.Save(t.Context(), h)
				if err == nil {
					err = rs.Publish(t.Context(), h)
				}
				if err != nil {
					t.Errorf("planting %s: %v", id, err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// Issue 4's numbers: 12,000 letters listed page by page in under 2 s and replayed in bulk in under 60 s; single calls
// answer within 100 ms meanwhile. The times are printed, the counts are asserted.
func TestDrainTwelveThousand(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: 12,000 letters take several seconds")
	}
	const n = 12_000
	s := newStack(t)
	rs, _ := s.records()
	plant(t, rs, "acme", n)
	began := time.Now()
	s.reconciler("r1")
	t.Logf("a reconciler is ready after %s", time.Since(began).Round(time.Millisecond))

	began, pages, listed := time.Now(), 0, 0
	for request := (M{}); ; pages++ {
		r := s.op("deadletters.list", "acme", request)
		if r.Total != n {
			t.Fatalf("total %d", r.Total)
		}
		if listed += len(r.DeadLetters); r.After == "" {
			break
		}
		request["after"] = r.After
	}
	t.Logf("%d letters listed in %d pages in %s", listed, pages+1, time.Since(began).Round(time.Millisecond))
	for _, call := range []struct {
		name    string
		request M
	}{{"deadletters.get", M{"run_id": "r06000"}}, {"deadletters.claim", M{"by": "alice", "for_seconds": 1}}, {"deadletters.list", M{"owner": "nobody"}}, {"runs.list", M{}}, {"runs.get", M{"run_id": "r00001"}}} {
		began := time.Now()
		s.op(call.name, "acme", call.request)
		t.Logf("%s answers in %s", call.name, time.Since(began).Round(10*time.Microsecond))
	}
	if listed != n {
		t.Errorf("%d of %d letters were listed", listed, n)
	}

	began = time.Now()
	replayed := map[string]bool{}
	for left := n; left > 0; {
		r := s.op("deadletters.replay", "acme", M{"filter": M{}, "limit": 1000, "by": "bob", "reason": "the provider is back"})
		for _, x := range r.Results {
			if !x.OK && x.Code == "CLAIMED" {
				continue // until alice's claim runs out
			}
			if !x.OK || x.Episode != 2 || replayed[x.RunID] {
				t.Fatalf("replay of %s: %+v", x.RunID, x)
			}
			replayed[x.RunID] = true
		}
		left = r.Left
	}
	t.Logf("%d letters replayed in bulk in %s", len(replayed), time.Since(began).Round(time.Millisecond))
	if len(replayed) != n {
		t.Errorf("%d of %d letters were replayed", len(replayed), n)
	}
	if rest := s.letters(); len(rest) != 0 {
		t.Errorf("%d letters are left in the stream", len(rest))
	}
}

// Field case 19: a thousand replays in bulk, the reconciler is cut off midway and another takes over. Each letter is open,
// or replayed once.
func TestBulkReplayCutOff(t *testing.T) {
	t.Parallel()
	const n = 1000
	s := newStack(t)
	rs, conn := s.records()
	plant(t, rs, "acme", n)
	proxy := bustest.StartProxy(t, s.server)
	var c app.ReconcilerConfig
	first := s.start(&c, &c.Process, "r1", func(ctx context.Context) error { return app.Reconciler(ctx, c) }, "--nats", proxy.URL)
	request, err := json.Marshal(M{"filter": M{}, "limit": n, "by": "alice", "reason": "again"})
	if err != nil {
		t.Fatal(err)
	}
	inbox := s.nc.NewInbox()
	if err := s.nc.PublishRequest("agentrun.op.deadletters.replay.acme", inbox, request); err != nil {
		t.Fatal(err)
	}
	replayed := func() (count int) {
		for _, m := range s.messages(topology.RunsStream, "agentrun.runs.acme.>") {
			if m.Headers().Get("Agentrun-Episode") == "2" {
				count++
			}
		}
		return count
	}
	bustest.Eventually(t, "some are replayed", func() bool { return replayed() > 50 })
	proxy.Hold()
	proxy.Cut()
	go func() { _ = first.stop() }()
	t.Logf("cut off after %d of %d", replayed(), n)

	s.reconciler("r2")
	check := func() (open int) {
		t.Helper()
		for i := range n {
			id := run.ID{Tenant: "acme", Run: fmt.Sprintf("r%05d", i)}
			h, err := rs.Load(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			r := h.Run
			isOpen := r.Letter != nil && r.Letter.Open
			if isOpen {
				open++
			}
			if isOpen && r.Replays != 0 || !isOpen && (r.Replays != 1 || r.Episode != 2) || len(r.Answers) > 1 {
				t.Fatalf("%s: letter open %v, %d replays, episode %d, %d answers", id, isOpen, r.Replays, r.Episode, len(r.Answers))
			}
		}
		return open
	}
	open := check()
	r := s.op("deadletters.replay", "acme", M{"filter": M{}, "limit": n, "by": "alice", "reason": "again"})
	for _, x := range r.Results {
		if !x.OK && x.Code != "NOT_FOUND" {
			t.Errorf("%s: %s", x.RunID, x.Code)
		}
	}
	t.Logf("%d were open then, %d results, %d left", open, len(r.Results), r.Left)
	if open := check(); open != 0 || r.Left != 0 {
		t.Errorf("%d are still open, %d are said to be left", open, r.Left)
	}
	bustest.Eventually(t, "no letter is left", func() bool {
		left, err := conn.Lettered(t.Context())
		return err == nil && len(left) == 0
	})
}
