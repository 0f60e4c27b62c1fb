package fieldcases

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/run"
)

// queueFor puts a one-step job of any tenant into a queue.
func (w *world) queueFor(queue, tenant, runID, tool string, more map[string]any) {
	w.t.Helper()
	j := map[string]any{"schema": "agentrun.job/v1", "tenant": tenant, "run_id": runID, "steps": []step{do("s", tool)}}
	for k, v := range more {
		j[k] = v
	}
	data, err := json.Marshal(j)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if _, err := w.js.Publish(ctx, topology.JobSubject(queue, run.ID{Tenant: tenant, Run: runID}), data); err != nil {
		w.t.Fatal(err)
	}
}

// share appends tenants to the config, before any process starts.
func (w *world) share(yaml string) {
	w.t.Helper()
	f, err := os.OpenFile(w.config, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString("tenants:\n" + yaml)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// calls are how many calls the provider has had.
func (w *world) calls() int { return len(w.provider.callsOf("")) }

// startsAfter waits until the operation is called, and returns how many calls began between number from and it.
func (w *world) startsAfter(from int, ref string) int {
	w.t.Helper()
	w.mustCalls(ref, 1)
	for i, c := range w.provider.callsOf("") {
		if c.Ref == ref {
			return i - from
		}
	}
	panic("unreachable")
}

const fairSlots = 4

// fairWorld is one server, one tool whose calls take a while, and a reconciler.
func fairWorld(t *testing.T, tenants string) *world {
	t.Helper()
	w := newWorld(t, 10*time.Second, tool{name: "work"})
	if tenants != "" {
		w.share(tenants)
	}
	w.provider.script(func(call) plan { return slow(100 * time.Millisecond) })
	w.reconciler("r1") // it makes the streams
	return w
}

func (w *world) backlog(tenant string, n int, more map[string]any) {
	w.t.Helper()
	for i := range n {
		w.queueFor("default", tenant, fmt.Sprintf("%s%04d", tenant, i), "work", more)
	}
}

func (w *world) serve(flags ...string) *process {
	w.t.Helper()
	p := w.executor("w1", append([]string{"--concurrency", fmt.Sprint(fairSlots)}, flags...)...)
	w.follow()
	return p
}

// One tenant's backlog does not stop another's next job: it starts within three job lengths, however long the backlog.
func TestOneTenantsBacklogDoesNotStopAnothers(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, fairSlots} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			t.Parallel()
			w := fairWorld(t, "")
			w.backlog("acme", 1000, nil)
			w.serve("--concurrency", fmt.Sprint(slots))
			w.until("acme's are under way", func() bool { return w.calls() >= 2*slots })
			for i, other := range []string{"globex", "initech", "umbrella"} {
				from := w.calls()
				w.queueFor("default", other, "r", "work", nil)
				if n := w.startsAfter(from, other+"/r/s"); n > 3*slots {
					t.Errorf("%d other jobs began between the arrival of job %d and its start", n, i)
				}
			}
		})
	}
}

// One queue's backlog does not stop another's next job.
func TestOneQueuesBacklogDoesNotStopAnothers(t *testing.T) {
	t.Parallel()
	w := fairWorld(t, "")
	w.backlog("acme", 200, nil)
	w.serve("--queues", "default,other")
	w.until("the first queue's are under way", func() bool { return w.calls() >= 2*fairSlots })
	from := w.calls()
	w.queueFor("other", "acme", "r", "work", nil)
	if n := w.startsAfter(from, "acme/r/s"); n > 3*fairSlots {
		t.Errorf("%d jobs of the other queue began between its arrival and its start", n)
	}
}

// Within a tenant the higher priority goes first, and the lowest still runs: at the latest as every eighth job.
func TestPriorityOrdersWithinATenant(t *testing.T) {
	t.Parallel()
	w := fairWorld(t, "")
	w.backlog("acme", 50, nil)
	w.queueFor("default", "acme", "low", "work", map[string]any{"priority": 0})
	w.backlog("acme-2", 1, nil)
	for i := range 200 {
		w.queueFor("default", "acme", fmt.Sprintf("high%03d", i), "work", map[string]any{"priority": 9})
	}
	w.serve()
	w.mustCalls("acme/low/s", 1)
	before := map[string]int{}
	for _, c := range w.provider.callsOf("") {
		if c.Ref == "acme/low/s" {
			break
		}
		before[strings.TrimRight(strings.Split(c.Ref, "/")[1], "0123456789")]++
	}
	// The first were pulled before anything was known of the others.
	if before["acme"] > 50 || before["high"] < 150 {
		t.Errorf("before the lowest began: %v", before)
	}
	// Fifty older ones of middle priority and itself, one of eight at the worst, and what has begun before.
	if before["high"] > 8*51 {
		t.Errorf("before the lowest began: %v", before)
	}
	from := w.calls()
	w.queueFor("default", "acme", "urgent", "work", map[string]any{"priority": 9})
	if n := w.startsAfter(from, "acme/urgent/s"); n > 60 {
		t.Errorf("%d began before the urgent one", n)
	}
}

// A tenant's cap holds, and its slots are not lost: others use them.
func TestTenantsCap(t *testing.T) {
	t.Parallel()
	w := fairWorld(t, "  acme: {concurrency: 2}\n")
	inside, most := map[string]int{}, map[string]int{}
	gate := make(chan struct{}, 1)
	count := func(tenant string, n int) {
		gate <- struct{}{}
		inside[tenant] += n
		most[tenant] = max(most[tenant], inside[tenant])
		<-gate
	}
	w.provider.script(func(c call) plan {
		who, _, _ := strings.Cut(c.Ref, "/")
		count(who, 1)
		time.AfterFunc(90*time.Millisecond, func() { count(who, -1) }) // its end, a little early
		return slow(100 * time.Millisecond)
	})
	w.backlog("acme", 40, nil)
	w.backlog("globex", 40, nil)
	w.serve()
	for _, tenant := range []string{"acme", "globex"} {
		for i := range 40 {
			id := fmt.Sprintf("%s%04d", tenant, i)
			w.until(id+" ends", func() bool { return w.end(id, 1) != nil })
		}
	}
	gate <- struct{}{}
	if most["acme"] > 2 || most["globex"] < 2 {
		t.Errorf("at once: %v", most)
	}
	w.idle()
	w.balanced()
}

// Slots are divided by the weights while both want more than there is.
func TestTenantsWeights(t *testing.T) {
	t.Parallel()
	w := fairWorld(t, "  globex: {weight: 3}\n")
	w.backlog("acme", 200, nil)
	w.backlog("globex", 200, nil)
	w.serve()
	w.until("a hundred have begun", func() bool { return w.calls() >= 140 })
	n := map[string]int{}
	for _, c := range w.provider.callsOf("")[40:140] { // the first are pulled before anything is known
		who, _, _ := strings.Cut(c.Ref, "/")
		n[who]++
	}
	if n["globex"] < 65 || n["globex"] > 85 {
		t.Errorf("of a hundred calls: %v, the weights are 1 and 3", n)
	}
}

// A thousand tenants need no more consumers than one, and jobs that are taken out of their order by several executors at
// once are done once each.
func TestManyTenantsOneConsumer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10*time.Second, tool{name: "credit", write: true})
	tenants := sized(1000, 300)
	w.reconciler("r1")
	for i := range 300 {
		w.queueFor("default", "acme", fmt.Sprintf("acme%d", i), "credit", map[string]any{"priority": i % 10})
	}
	for i := range tenants {
		w.queueFor("default", fmt.Sprintf("t%d", i), fmt.Sprintf("r%d", i), "credit", nil)
	}
	w.executor("w1", "--concurrency", "3")
	w.executor("w2", "--concurrency", "3")
	w.follow()
	for i := range tenants {
		id := fmt.Sprintf("r%d", i)
		w.until(id+" ends", func() bool { return w.end(id, 1) != nil })
	}
	for i := range 300 {
		id := fmt.Sprintf("acme%d", i)
		w.until(id+" ends", func() bool { return w.end(id, 1) != nil })
	}
	w.idle()
	w.balanced()
	ctx, cancel := w.deadline()
	defer cancel()
	stream, err := w.js.Stream(ctx, topology.JobsStream)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	list := stream.ListConsumers(ctx)
	for c := range list.Info() {
		names = append(names, c.Name)
	}
	if list.Err() != nil || len(names) != 1 {
		t.Errorf("consumers: %v, %v", names, list.Err())
	}
	if n := w.calls(); n != tenants+300 {
		t.Errorf("%d calls for %d jobs", n, tenants+300)
	}
}
