package fieldcases

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
)

// boundary is a moment between store, broker and wire at which a process is killed: when the nth acknowledgement of a
// stream is on its way to it, or at its nth request to the tool.
type boundary struct {
	stream string
	nth    int
	loses  bool // the acknowledgement does not arrive
	wire   string
}

func (b boundary) String() string {
	if b.wire != "" {
		return "request " + b.wire
	}
	return fmt.Sprintf("acknowledgement %d of %s, lost: %t", b.nth, b.stream, b.loses)
}

// A real process is killed with SIGKILL at each boundary of a run of two writes, and started again: nothing is done twice
// and nothing is lost. Every boundary, singly and in pairs, inside the process as well, is swept by internal/sim
// (TestSweep, TestSweepPairs, TestSweepBolt); `make crash` publishes the count of random deaths in docs/crash-report.md.
func TestCase33KilledAtEveryBoundary(t *testing.T) {
	t.Parallel()
	var all []boundary
	for _, loses := range []bool{true, false} {
		for nth := 1; nth <= 3; nth++ {
			all = append(all, boundary{stream: topology.RunsStream, nth: nth, loses: loses}, boundary{stream: topology.ResultsStream, nth: nth, loses: loses})
		}
	}
	all = append(all, boundary{wire: "arrived, nothing done"}, boundary{wire: "done, not answered"})
	w := newWorld(t, 2*time.Second, tool{name: "pay", write: true}, tool{name: "ship", write: true})
	w.executor("first").stop() // the streams are there
	w.reconciler("r1")
	w.follow()
	killed := map[string]func(){}
	var mu sync.Mutex
	w.provider.script(func(c call) plan {
		mu.Lock()
		kill := killed[c.Ref]
		delete(killed, c.Ref)
		mu.Unlock()
		if kill == nil {
			return done()
		}
		kill()
		return plan{Hang: true, Commit: strings.HasPrefix(c.Ref, tenant+"/done_")}
	})
	// A few processes at once: each has a queue and a proxy of its own.
	turn := make(chan struct{}, 4)
	var wg sync.WaitGroup
	var ids, queues []string
	for i, b := range all {
		id := fmt.Sprintf("ack_%d", i)
		if b.wire != "" {
			id = strings.Fields(b.wire)[0][:4] + fmt.Sprintf("_%d", i)
		}
		queue := fmt.Sprintf("q%d", i)
		ids, queues = append(ids, id), append(queues, queue)
		proxy := bustest.StartProxy(t, w.nats)
		p := w.process("executor", id, true, "--nats", proxy.URL, "--queues", queue)
		wg.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			w.killAt(p, proxy, b, id, queue, func(ref string, kill func()) {
				mu.Lock()
				defer mu.Unlock()
				killed[ref] = kill
			})
		})
	}
	wg.Wait()
	for i, b := range all {
		id := ids[i]
		if e := w.end(id, 1); e == nil || e.Outcome != envelope.OK || len(e.CompletedEffects) != 2 || len(w.outcomes(id, envelope.RunScope)) != 1 {
			t.Errorf("killed at %s: %+v", b, e)
		}
		for _, s := range []string{"pay", "ship"} {
			if n := len(w.provider.rowsOf(ref(id, s))); n != 1 {
				t.Errorf("killed at %s: %s is in the ledger %d times", b, s, n)
			}
		}
	}
	t.Logf("%d boundaries", len(all))
	w.executor("last", "--queues", strings.Join(queues, ",")) // what comes again does no work
	w.idle()
	for _, id := range ids {
		if n := len(w.outcomes(id, envelope.RunScope)); n != 1 {
			t.Errorf("%s has %d ends", id, n)
		}
	}
	w.balanced()
}

// killAt kills the process at the boundary, starts it again and waits for the run's end.
func (w *world) killAt(p *process, proxy *bustest.Proxy, b boundary, id, queue string, onCall func(string, func())) {
	p.start()
	dead := make(chan struct{})
	var once sync.Once
	kill := func() {
		once.Do(func() {
			_ = p.cmd.Process.Kill()
			close(dead)
		})
	}
	if b.wire != "" {
		onCall(ref(id, "ship"), kill)
	} else {
		n := 0
		proxy.Drop(func(_ string, payload []byte) bool { // called from one goroutine: the process has one connection
			if !bytes.Contains(payload, []byte(b.stream)) || !bytes.Contains(payload, []byte(`"seq"`)) || bytes.Contains(payload, []byte(`"type"`)) {
				return false
			}
			if n++; n == b.nth {
				kill()
				return b.loses
			}
			return n > b.nth && b.loses
		})
	}
	w.send(queue, id, job(id, nil, do("pay", "pay"), do("ship", "ship")))
	select {
	case <-dead:
	case <-time.After(limit):
		w.t.Errorf("%s did not come", b)
		return
	}
	p.gone()
	proxy.Drop(nil)
	p.start()
	if !w.within(limit, func() bool { return w.end(id, 1) != nil }) {
		w.t.Errorf("killed at %s: the run did not end\n%s", b, w.story())
	}
	p.kill()
}
