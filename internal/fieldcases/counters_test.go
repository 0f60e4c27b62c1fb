package fieldcases

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/pkg/envelope"
)

// counters are the sums of the fleet's counters, by name with labels. A process that was killed keeps what it showed last.
type counters map[string]int

// read adds what a process shows of the metrics with these names.
func (c counters) read(t *testing.T, p *process, names ...string) counters {
	t.Helper()
	resp, err := http.Get("http://" + p.http + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(body), "\n") {
		for _, name := range names {
			if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
				continue
			}
			i := strings.LastIndexByte(line, ' ')
			n, err := strconv.ParseFloat(line[i+1:], 64)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			c[line[:i]] += int(n)
		}
	}
	return c
}

func (c counters) sum() (n int) {
	for _, v := range c {
		n += v
	}
	return n
}

// What the fleet's counters add up to is what is stored, each once: whoever published it, however often a run was
// replayed, and although a process was killed on the way.
func TestTheCountersAreWhatIsStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t, time.Second, tool{name: "read"}, tool{name: "fails", write: true}, tool{name: "lost", write: true, window: 100 * time.Millisecond},
		tool{name: "odd", write: true, noVerify: true},
		tool{name: "hangs"})
	first := w.process("executor", "a", true).start()
	reconcilers := []*process{w.reconciler("r1"), w.reconciler("r2")}
	w.follow()
	w.provider.script(func(c call) plan {
		switch {
		case c.Tool == "fails":
			return refuse(400)
		case c.Tool == "lost":
			return plan{Commit: true, Status: 500, Body: `{}`}
		case c.Tool == "odd":
			return plan{Status: 500, Body: `{}`} // nobody can look it up: a person must
		case c.Tool == "hangs":
			return plan{Hang: c.Worker == "a"}
		}
		return done()
	})
	w.publish("ok", nil, do("s", "read"), do("t", "read"))
	w.publish("unknown", nil, do("s", "lost"))
	w.publish("person", nil, do("s", "odd"))
	w.publish("replayed", nil, do("s", "fails"))
	w.mustEnd("ok", envelope.OK, "")
	w.mustEnd("unknown", envelope.OK, "")
	w.until("the other ends", func() bool { return w.end("person", 1) != nil && w.end("replayed", 1) != nil })
	for episode := 2; episode <= 3; episode++ {
		w.op("deadletters.replay", map[string]any{"run_id": "replayed", "by": "alice", "reason": "again"})
		w.until("the replay's end", func() bool { return w.end("replayed", episode) != nil })
	}
	w.publish("ok", nil, do("new", "read")) // RUN_CLOSED
	w.publish("taken-over", nil, do("s", "read"), do("t", "hangs"))
	w.mustCalls(ref("taken-over", "t"), 1) // its first outcome is published, and counted, before
	names := []string{"agentrun_outcomes_total", "agentrun_refusals_total", "agentrun_escalations_total", "agentrun_unknown_resolved_total", "agentrun_unknown_settle_seconds_count"}
	var killed counters
	bustest.Eventually(t, "the first executor has counted what it has published", func() bool {
		killed = counters{}.read(t, first, names...)
		return killed[`agentrun_outcomes_total{outcome="ok",reason_code="",scope="step"}`] >= 3 && killed[`agentrun_refusals_total{code="RUN_CLOSED"}`] == 1
	})
	first.kill()
	second := w.executor("b")
	w.mustEnd("taken-over", envelope.OK, "")
	w.balanced()

	want := counters{
		`agentrun_refusals_total{code="RUN_CLOSED"}`:                                    1,
		`agentrun_escalations_total{reason_code="external_outcome_unknown",tool="odd"}`: 1,
		`agentrun_unknown_resolved_total{tool="lost",verdict="found"}`:                  1,
		"agentrun_unknown_settle_seconds_count":                                         1,
	}
	for _, run := range []string{"ok", "unknown", "person", "replayed", "taken-over"} {
		for _, scope := range []envelope.Scope{envelope.StepScope, envelope.RunScope} {
			for _, o := range w.outcomes(run, scope) {
				want[fmt.Sprintf(`agentrun_outcomes_total{outcome=%q,reason_code=%q,scope=%q}`, o.Outcome, o.ReasonCode, scope)]++
			}
		}
	}
	var got counters
	bustest.Eventually(t, "as much is counted as is stored", func() bool { // a count follows its write
		got = maps.Clone(killed)
		for _, p := range append(reconcilers, second) {
			got.read(t, p, names...)
		}
		return got.sum() >= want.sum()
	})
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s is %d, stored are %d", name, got[name], n)
		}
		delete(got, name)
	}
	for name, n := range got {
		if n != 0 {
			t.Errorf("%s is %d, and nothing of the kind is stored", name, n)
		}
	}
}
