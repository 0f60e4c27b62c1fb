package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// built are the binaries of this test run, made once.
var built = sync.OnceValues(func() (binaries, error) {
	dir, err := os.MkdirTemp("", "agentrun-crash-test-")
	if err != nil {
		return binaries{}, err
	}
	cleanup = dir
	root, err := moduleRoot()
	if err != nil {
		return binaries{}, err
	}
	return build(context.Background(), root, dir)
})

var cleanup string

func TestMain(m *testing.M) {
	if code, is := child(os.Args[1:]); is {
		os.Exit(code)
	}
	code := m.Run()
	if cleanup != "" {
		_ = os.RemoveAll(cleanup)
	}
	os.Exit(code)
}

func bin(t *testing.T) binaries {
	t.Helper()
	b, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The kill test itself, small: no write twice, no run lost, every promise kept.
func TestKillEverything(t *testing.T) {
	if testing.Short() {
		t.Skip("starts and kills processes for about half a minute")
	}
	seed := uint64(time.Now().UnixNano())
	out, err := crash(t.Context(), bin(t), Options{
		Deaths: 60, Round: 20, Seed: seed, Dir: t.TempDir(), Lease: time.Second, Interval: 150 * time.Millisecond, Busy: 40, Every: 50 * time.Millisecond, Settle: 60 * time.Second,
	})
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	t.Logf("\n%s", out.table())
	if out.Deaths < 60 || out.Rows == 0 || out.Ends["ok"] == 0 {
		t.Errorf("seed %d: the test did not do its work", seed)
	}
	if len(out.Findings) > 0 {
		t.Errorf("seed %d:\n%s", seed, out.findings())
	}
}

// A calm fleet: a killed worker's run goes on, a vanished write is settled, leases of a dead worker are recovered. How
// fast is printed; that it happens at all is what is asserted.
func TestRecovery(t *testing.T) {
	if testing.Short() {
		t.Skip("starts and kills processes for about a quarter of a minute")
	}
	s, err := measure(t.Context(), bin(t), t.TempDir(), 2, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Reads) != 1 || len(s.Writes) != 1 || len(s.Verified) != 2 {
		t.Errorf("%d reads, %d writes, %d verifications", len(s.Reads), len(s.Writes), len(s.Verified))
	}
	t.Logf("lease %s: read %v, write %v; window %s: %v; %d leases in %s", s.Lease, s.Reads, s.Writes, s.Window, s.Verified, s.Leases, s.All)
}

// follow runs a fleet of one executor and one reconciler and follows its results until the test ends.
func follow(t *testing.T, lease time.Duration, slots int, script func(*Request) string) (*Fleet, *Results) {
	t.Helper()
	b := bin(t)
	p, err := NewProvider(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	p.script = script
	f, err := newFleet(t.Context(), b, t.TempDir(), lease, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	f.Slots = slots
	if err := f.start(1, 1); err != nil {
		t.Fatal(err)
	}
	results := newResults()
	ctx, end := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { results.Follow(ctx, f.js, nil) })
	t.Cleanup(func() { end(); wg.Wait() })
	return f, results
}

// waitEnd waits for a run's terminal outcome.
func waitEnd(t *testing.T, results *Results, id run.ID, limit time.Duration) Told {
	t.Helper()
	for start := time.Now(); time.Since(start) < limit; {
		if _, ends := results.Of(id); len(ends) > 0 {
			return ends[0]
		}
		if !pause.For(t.Context(), 10*time.Millisecond) {
			break
		}
	}
	steps, _ := results.Of(id)
	t.Fatalf("run %s has no end within %s; its steps said %d times something", id, limit, len(steps))
	return Told{}
}

// A step that waits for a slot while another of its run becomes unknown must not be kept by the executor that it waited
// in: the record changes without that one, and what wakes the run reaches it.
func TestAStepBlockedByAnUnknownOneIsLetGo(t *testing.T) {
	const longLease = time.Minute // nothing may wait for its end
	const runs = 2                // each waits for the windows of its writes
	f, results := follow(t, longLease, 1, func(q *Request) string {
		if q.Nth == 1 && strings.HasSuffix(q.Ref, "/w1") {
			return "late,drop"
		}
		return "commit,answer"
	})
	for i := range runs {
		id := run.ID{Tenant: tenant, Run: fmt.Sprintf("p%d", i)}
		job := fmt.Sprintf(`{"schema":"agentrun.job/v1","tenant":"crash","run_id":"p%d","parallel":true,"steps":[{"step":"w1","tool":"pay","args":{}},{"step":"w2","tool":"pay","args":{}},{"step":"w3","tool":"pay","args":{}}]}`, i)
		if _, err := f.js.Publish(t.Context(), topology.JobSubject(queue, id), []byte(job)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range runs {
		id := run.ID{Tenant: tenant, Run: fmt.Sprintf("p%d", i)}
		if end := waitEnd(t, results, id, 30*time.Second); end.message.Outcome != envelope.OK {
			t.Errorf("run %s ended %s", id, end.message.Outcome)
		}
		for _, step := range []string{"w1", "w2", "w3"} {
			if _, rows, _ := f.Provider.Of(id.String() + "/" + step); len(rows) != 1 {
				t.Errorf("run %s, step %s: %d commits", id, step, len(rows))
			}
		}
	}
}

// A run that stays open rests with an outcome whose writer died before it had published it: the reconciler does.
func TestAnOutcomeOwedByAnOpenRunIsPublished(t *testing.T) {
	f, results := follow(t, time.Second, 1, nil)
	conn, err := streams.Connect(streams.Options{Options: bus.Options{URL: "nats://" + f.addr, Name: "crash", Logger: slog.New(slog.DiscardHandler)}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	records := app.NewRecords(conn, time.Hour)
	id := run.ID{Tenant: tenant, Run: "open"}
	now := envelope.TimeOf(time.Now())
	job := strings.TrimSuffix(string(singleStep(id, "load")), "}") + `,"more":true}`
	r := engine.Create(id, engine.Message{Seq: 1, Time: now, Queue: queue, Data: []byte(job)}, deadDefaults(), now)
	d := r.Begin("s", deadTools{}, engine.Start{Dispatch: "d", LeaseID: "l", Holder: "dead.1", Seconds: 1, Worker: "dead"}, now)
	r.Reply(d.ID, envelope.Reply{OK: true, Result: []byte(`{"id":"x"}`)}, deadTools{}, engine.Source{By: "dead", At: now})
	if r.State() != "open" || len(r.Owed) != 1 {
		t.Fatalf("the run is %s and owes %d outcomes", r.State(), len(r.Owed))
	}
	if err := records.Save(t.Context(), &record.Handle{ID: id, Run: r}); err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); time.Since(start) < 20*time.Second; {
		if steps, _ := results.Of(id); len(steps) == 1 && steps[0].N == 1 && steps[0].message.Outcome == envelope.OK {
			return
		}
		if !pause.For(t.Context(), 10*time.Millisecond) {
			break
		}
	}
	t.Error("its outcome is not published within 20 s")
}
