package fieldcases

import (
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/pkg/envelope"
)

var writeVersion = flag.String("write-fixture", "", "write the fixture of this new version, for example v2")

var newVersion = regexp.MustCompile(`^v[1-9][0-9]*$`)

// TestWriteFixture writes the fixture of a new version; an old one's is never written again. Do this when the schema of
// records, jobs, letters or outcomes or the journal's format has changed:
//
//	go test ./internal/fieldcases -run TestWriteFixture -write-fixture v2
func TestWriteFixture(t *testing.T) {
	if *writeVersion == "" {
		t.Skip("only with -write-fixture, for a new version")
	}
	if !newVersion.MatchString(*writeVersion) {
		t.Fatalf("%q is no version", *writeVersion)
	}
	dir := filepath.Join("testdata", *writeVersion)
	if _, err := os.Lstat(dir); err == nil {
		t.Fatalf("%s is there: what a version wrote is never written again", dir)
	}
	b := thisBuild(t)
	w := newWorld(t, 2*time.Second,
		tool{name: "read"}, tool{name: "pay", write: true},
		tool{name: "late", write: true, delay: 8 * time.Second, delayMax: 8 * time.Second},
		tool{name: "mail", write: true, noVerify: true},
		tool{name: "gate", write: true, extra: "    requires_approval: true\n    owner: billing\n"},
		tool{name: "sure", write: true, always: true},
	)
	w.provider.script(fixturePlan)
	w.provider.scriptLookups(func(string, int) *plan { p := refuse(500); return &p })
	proxy := bustest.StartProxy(t, w.nats)
	data := t.TempDir()
	r1 := w.command(b, "reconciler", "r1").start()
	e1 := w.command(b, "executor", "e1", "--data", data, "--nats", proxy.URL, "--queues", "default").start()
	e2 := w.command(b, "executor", "e2", "--queues", "second").start()
	w.follow()

	w.publish("done", nil, do("a", "read"), step{"step": "b", "tool": "pay", "args": map[string]any{"for": map[string]any{"$from": "a#/id"}}},
		step{"step": "c", "tool": "read", "args": map[string]any{}, "optional": true})
	w.publish("open", map[string]any{
		"more": true, "intent": "stays open", "usage": map[string]any{"input_tokens": 40, "output_tokens": 20, "estimated_cost_minor_units": 3},
	}, do("a", "pay"))
	w.publish("amend", map[string]any{"more": true}, do("a", "pay"))
	w.publish("unknown-done", nil, do("a", "pay"))
	w.publish("unknown-gone", map[string]any{"priority": 2}, do("a", "pay"), do("b", "read"))
	w.publish("human", nil, do("a", "mail"))
	w.publish("evidenced", nil, do("a", "mail"))
	w.publish("gated", nil, do("a", "gate"))
	w.publish("fatal", nil, do("a", "read"), do("b", "pay"))
	w.publish("settled", nil, do("a", "read"))
	w.publish("replayed", nil, do("a", "read"))
	w.publish("waived", map[string]any{"more": true}, do("a", "read"))
	w.publish("said", nil, do("a", "sure"))
	w.publish("broke", map[string]any{"budget": map[string]any{"max_tool_calls": 1}}, do("a", "read"), do("b", "read"))
	w.send("default", "invalid", []byte(strings.Replace(string(job("invalid", nil, do("a", "read"))), "job/v1", "job/v0", 1)))
	for id, state := range map[string]string{
		"done": "ok", "open": "open", "amend": "open", "unknown-done": "unknown", "unknown-gone": "unknown", "human": "needs_human",
		"evidenced": "needs_human", "gated": "needs_human", "fatal": "fatal", "settled": "fatal", "broke": "needs_human", "invalid": "fatal", "replayed": "fatal", "waived": "open", "said": "unknown",
	} {
		w.reaches(id, state)
	}
	w.op("deadletters.claim", map[string]any{"by": "alice", "for_seconds": 600})
	w.op("deadletters.discard", map[string]any{"run_id": "settled", "by": "bob", "reason": "not needed"})
	w.op("runs.report", map[string]any{"run_id": "evidenced", "step": "a", "commit_state": "committed", "evidence_ref": "m1", "by": "webhook"})
	w.op("deadletters.replay", map[string]any{"run_id": "replayed", "by": "bob", "reason": "once more"})
	w.until("replayed ends again", func() bool { return w.end("replayed", 2) != nil })
	w.publish("waived", map[string]any{"more": true, "waive": []string{"a"}}, do("b", "read"))
	w.mustStep("waived", "b", envelope.OK)
	w.publish("open", map[string]any{"more": true}, step{"step": "a", "tool": "pay", "args": map[string]any{"for": "another"}})
	bustest.Eventually(t, "other args are refused", func() bool { return w.record("open").Refusals == 1 })
	w.idle()

	// From here on it goes fast: leases and waiting times are as they are in the middle of work.
	w.send("third", "queued", job("queued", nil, do("a", "pay")))
	w.publish("waiting", nil, do("a", "late"))
	w.publish("parallel", map[string]any{"parallel": true}, do("a", "read"), do("b", "late"))
	w.reaches("waiting", "waiting")
	w.reaches("parallel", "waiting")
	w.publish("flying", nil, do("a", "pay"))
	w.publish("cancelling", nil, do("a", "pay"), do("b", "read"))
	w.send("second", "lost", job("lost", nil, do("a", "pay")))
	for _, id := range []string{"flying", "cancelling", "lost"} {
		w.mustCalls(ref(id, "a"), 1)
	}
	w.op("runs.cancel", map[string]any{"run_id": "cancelling", "by": "carol", "reason": "ordered twice"})
	r1.kill()
	// The reply to this one reaches e1 and its journal, and nothing of it the record.
	w.publish("told", nil, do("a", "pay"))
	w.mustCalls(ref("told", "a"), 1)
	proxy.Hold()
	before := ended(t, e1)
	bustest.Eventually(t, "the reply is there", func() bool { return ended(t, e1) != before })
	<-time.After(200 * time.Millisecond) // for the journal's commit, which nothing signals; it is checked below
	e1.kill()
	e2.kill()

	version, err := exec.Command(b.path("executor"), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	w.save(dir, data, strings.TrimSpace(string(version)))
	for id, state := range map[string]string{"flying": "running", "told": "running", "lost": "running", "cancelling": "cancelling", "waiting": "waiting", "parallel": "waiting"} {
		if got := w.record(id).State(); got != state {
			t.Errorf("%s is %s and should be %s: remove the directory and write it again", id, got, state)
		}
	}
	found := false
	if err := journal.List(app.JournalPath(data), func(f engine.Fact) error {
		found = found || f.Intent.RunID == "told" && f.Effect != nil && f.Effect.Reply.OK && !f.Settled
		return nil
	}); err != nil || !found {
		t.Errorf("the reply is not in the journal (%v): remove the directory and write it again", err)
	}
}

// fixturePlan is what the provider does before the fleet is killed; what it does later is different, where a run's end
// depends on it.
func fixturePlan(c call) plan {
	step := strings.Split(c.Ref, "/")[2]
	switch strings.Split(c.Ref, "/")[1] {
	case "fatal", "settled", "replayed":
		return refuse(404)
	case "waived":
		if step == "a" {
			return refuse(404)
		}
	case "done":
		if step == "c" {
			return refuse(404)
		}
	case "amend":
		return refuse(400)
	case "waiting", "parallel":
		if c.Tool == "late" {
			return refuse(503)
		}
	case "unknown-done", "human", "evidenced":
		return plan{Commit: true, Drop: true}
	case "unknown-gone":
		return plan{Drop: true}
	case "flying", "cancelling":
		return plan{Commit: true, Hang: true}
	case "lost":
		return plan{Hang: true}
	case "told":
		return plan{Commit: true, Delay: 500 * time.Millisecond}
	}
	return done()
}

// reaches waits until a run's record shows this state.
func (w *world) reaches(runID, state string) {
	w.t.Helper()
	bustest.Eventually(w.t, runID+" is "+state, func() bool {
		r := w.record(runID)
		return r != nil && r.State() == state
	})
}

var paid = regexp.MustCompile(`(?m)^agentrun_tool_call_duration_seconds_count\{tool="pay"\} (\S+)$`)

// ended is how many calls of pay an executor knows the end of.
func ended(t *testing.T, p *process) string {
	t.Helper()
	res, err := http.Get("http://" + p.http + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	m := paid.FindSubmatch(text)
	if m == nil {
		t.Fatalf("no count of calls in\n%s", text)
	}
	return string(m[1])
}
