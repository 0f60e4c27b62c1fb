package app_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/micro"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/topology"
)

// Every call of contract §9 is found by nats micro, with schemas that compile.
func TestServiceIsDiscoverable(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.reconciler("r1")
	s.reconciler("r2")
	msg, err := s.nc.Request("$SRV.INFO.agentrun-operator", nil, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var info micro.Info
	if err := json.Unmarshal(msg.Data, &info); err != nil {
		t.Fatal(err)
	}
	var subjects []string
	for _, e := range info.Endpoints {
		subjects = append(subjects, e.Subject)
		if e.QueueGroup == "" {
			t.Errorf("%s has no queue group: each reconciler would answer", e.Subject)
		}
		for _, name := range []string{"request_schema", "reply_schema", "error_schema"} {
			doc, err := jsonschema.UnmarshalJSON(strings.NewReader(e.Metadata[name]))
			if err == nil {
				c := jsonschema.NewCompiler()
				if err = c.AddResource("urn:x", doc); err == nil {
					_, err = c.Compile("urn:x")
				}
			}
			if err != nil {
				t.Errorf("%s of %s: %v: %s", name, e.Subject, err, e.Metadata[name])
			}
		}
	}
	slices.Sort(subjects)
	want := []string{
		"agentrun.op.deadletters.approve.*", "agentrun.op.deadletters.assign.*", "agentrun.op.deadletters.claim.*", "agentrun.op.deadletters.discard.*",
		"agentrun.op.deadletters.get.*", "agentrun.op.deadletters.list.*", "agentrun.op.deadletters.replay.*",
		"agentrun.op.deadletters.resolve.*", "agentrun.op.queues.get.*", "agentrun.op.queues.list.*", "agentrun.op.runs.cancel.*", "agentrun.op.runs.discard.*", "agentrun.op.runs.get.*", "agentrun.op.runs.list.*",
		"agentrun.op.runs.payload.*", "agentrun.op.runs.report.*",
	}
	if !slices.Equal(subjects, want) {
		t.Errorf("endpoints %q", subjects)
	}
	if s.refused("NOT_FOUND", "runs.get", "acme", M{"run_id": "r"}); t.Failed() {
		return
	}
	all, err := s.nc.Request("$SRV.STATS.agentrun-operator", nil, 5*time.Second)
	if err != nil || !bytes.Contains(all.Data, []byte(`"answered"`)) {
		t.Errorf("stats: %v %s", err, all.Data)
	}
}

// fail makes a run whose only step cannot succeed and waits for its letter.
func (s *stack) fail(tenant, runID string, more ...M) {
	s.t.Helper()
	s.submit(tenant, runID, []M{step("load", "load", M{"id": runID})}, more...)
	if o := s.end(tenant, runID, 1); o.Outcome != "fatal" {
		s.t.Fatalf("%s ended %s", runID, o.Outcome)
	}
}

func notFound(*http.Request, string, int) (int, string) { return 404, `{}` }

// A bad request gets a code and a sentence, and nothing changes.
func TestBadCallsChangeNothing(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.answer(notFound)
	s.executor("w1")
	s.reconciler("r1")
	rs, _ := s.records()
	s.fail("acme", "r1")
	s.op("deadletters.claim", "acme", M{"by": "alice", "for_seconds": 600})
	before := s.record(rs, "acme", "r1").Seq
	by := func(more M) M {
		out := M{"run_id": "r1", "by": "alice", "reason": "test", "letter": "acme/r1/1"}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	without := func(m M, key string) M { delete(m, key); return m }
	deep := []byte(`{"run_id":"r1","args":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`)
	for _, x := range []struct {
		code, call, tenant string
		request            any
	}{
		{"BAD_REQUEST", "deadletters.list", "acme", []byte("\x00\xff garbage")},
		{"BAD_REQUEST", "deadletters.list", "acme", []byte("[]")},
		{"BAD_REQUEST", "deadletters.list", "acme", []byte(`{"limit":1,"limit":2}`)},
		{"BAD_REQUEST", "deadletters.list", "acme", M{"limit": -1}},
		{"BAD_REQUEST", "deadletters.list", "acme", M{"limit": "ten"}},
		{"BAD_REQUEST", "deadletters.list", "acme", M{"after": "!"}},
		{"BAD_REQUEST", "deadletters.list", "a b", M{}},
		{"BAD_REQUEST", "deadletters.get", "_all", M{"run_id": "r1"}},
		{"BAD_REQUEST", "deadletters.get", "acme", M{}},
		{"BAD_REQUEST", "deadletters.get", "acme", []byte("")},
		{"BAD_REQUEST", "deadletters.get", "acme", M{"run_id": "*"}},
		{"NOT_FOUND", "deadletters.get", "acme", M{"run_id": "unknown"}},
		{"NOT_FOUND", "deadletters.get", "other", M{"run_id": "r1"}},
		{"BAD_REQUEST", "deadletters.claim", "acme", M{}},
		{"BAD_REQUEST", "deadletters.claim", "acme", M{"by": "x\ny"}},
		{"BAD_REQUEST", "deadletters.claim", "acme", M{"by": "bob", "for_seconds": -1}},
		{"BAD_REQUEST", "deadletters.claim", "acme", M{"by": "bob", "for_seconds": 1e30}},
		{"BAD_REQUEST", "deadletters.replay", "acme", deep},
		{"BAD_REQUEST", "deadletters.replay", "acme", without(by(nil), "by")},
		{"BAD_REQUEST", "deadletters.replay", "acme", without(by(nil), "reason")},
		{"BAD_REQUEST", "deadletters.replay", "acme", by(M{"args": []int{1}})},
		{"BAD_REQUEST", "deadletters.replay", "acme", by(M{"add_budget": M{"max_tool_calls": 1.5}})},
		{"BAD_REQUEST", "deadletters.replay", "acme", by(M{"add_budget": M{"max_tool_calls": 101}})},
		{"BAD_REQUEST", "deadletters.replay", "acme", by(M{"add_budget": M{"max_tool_cals": 1}})},
		{"BAD_REQUEST", "deadletters.replay", "acme", by(M{"filter": M{}})},
		{"BAD_REQUEST", "deadletters.replay", "acme", M{"filter": M{}, "by": "a", "reason": "b", "limit": 1001}},
		{"BAD_REQUEST", "deadletters.replay", "_all", M{"filter": M{}, "by": "a", "reason": "b"}},
		{"CLAIMED", "deadletters.replay", "acme", by(M{"by": "bob"})},
		{"CLAIMED", "deadletters.discard", "acme", by(M{"by": "bob", "letter": "acme/r1/9"})},
		{"CONFLICT", "deadletters.replay", "acme", by(M{"letter": "acme/r1/9"})},
		{"NOT_FOUND", "deadletters.replay", "other", by(nil)},
		{"BAD_REQUEST", "deadletters.resolve", "acme", without(by(M{"commit_state": "committed"}), "letter")},
		{"BAD_REQUEST", "deadletters.resolve", "acme", by(nil)},
		{"BAD_REQUEST", "deadletters.resolve", "acme", by(M{"commit_state": "maybe"})},
		{"NOT_ALLOWED", "deadletters.resolve", "acme", by(M{"commit_state": "committed"})},
		{"BAD_REQUEST", "deadletters.resolve", "acme", by(M{"commit_state": "committed", "step": "other"})},
		{"NOT_ALLOWED", "deadletters.approve", "acme", by(nil)},
		{"BAD_REQUEST", "deadletters.approve", "acme", without(by(nil), "letter")},
		{"BAD_REQUEST", "deadletters.discard", "acme", without(by(nil), "reason")},
		{"NOT_FOUND", "runs.get", "acme", M{"run_id": "unknown"}},
		{"BAD_REQUEST", "runs.list", "acme", M{"state": "sleeping"}},
		{"BAD_REQUEST", "runs.list", "acme", M{"after": "!"}},
		{"NOT_FOUND", "runs.cancel", "acme", M{"run_id": "unknown", "by": "a", "reason": "b"}},
		{"BAD_REQUEST", "runs.cancel", "acme", M{"run_id": "r1", "by": "a"}},
		{"BAD_REQUEST", "runs.report", "acme", M{"run_id": "r1", "step": "load", "by": "hook", "commit_state": "committed", "evidence_ref": "e"}},
		{"NOT_FOUND", "runs.report", "acme", M{"run_id": "r1", "step": "none", "by": "hook", "commit_state": "committed", "evidence_ref": "e"}},
		{"BAD_REQUEST", "runs.report", "acme", M{"run_id": "r1", "by": "hook", "commit_state": "committed", "evidence_ref": "e"}},
	} {
		if x.tenant == "a b" {
			x.tenant = "-no-tenant"
		}
		s.refused(x.code, x.call, x.tenant, x.request)
	}
	if after := s.record(rs, "acme", "r1").Seq; after != before {
		t.Errorf("the record was written: revision %d, then %d", before, after)
	}
}

// Several operators at several reconcilers drain without meeting: nobody gets a letter that another has.
func TestClaimsNeverMeet(t *testing.T) {
	t.Parallel()
	const letters, people = 40, 8
	s := newStack(t)
	s.answer(notFound)
	s.executor("w1")
	s.reconciler("r1")
	s.reconciler("r2")
	for i := range letters {
		s.submit("acme", fmt.Sprintf("r%02d", i), []M{step("load", "load", nil)})
	}
	bustest.Eventually(t, "all letters are open", func() bool { return len(s.letters()) == letters })
	var mu sync.Mutex
	got := map[string][]string{}
	var wg sync.WaitGroup
	for p := range people {
		wg.Go(func() {
			for {
				r, err := s.ask("deadletters.claim", []string{"acme", "_all"}[p%2], M{"by": fmt.Sprintf("p%d", p), "for_seconds": 600})
				if err != nil || !r.OK {
					t.Errorf("claim: %v %+v", err, r)
					return
				}
				if string(r.DeadLetter) == "null" {
					return
				}
				var l struct {
					RunID string `json:"run_id"`
					Claim struct {
						By string `json:"by"`
					} `json:"claim"`
				}
				if err := json.Unmarshal(r.DeadLetter, &l); err != nil || l.Claim.By != fmt.Sprintf("p%d", p) {
					t.Errorf("claimed letter: %v %s", err, r.DeadLetter)
					return
				}
				mu.Lock()
				got[l.RunID] = append(got[l.RunID], l.Claim.By)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(got) != letters {
		t.Errorf("%d of %d letters were handed out", len(got), letters)
	}
	for id, who := range got {
		if len(who) != 1 {
			t.Errorf("%s was handed to %v", id, who)
		}
	}
}

// Many people answer one letter at once: it is settled once, and its step is called once more.
func TestOneOfManyAnswersCounts(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.answer(func(r *http.Request, _ string, n int) (int, string) {
		if n == 1 {
			return 404, `{}`
		}
		return 200, `{}`
	})
	s.executor("w1")
	s.reconciler("r1")
	s.reconciler("r2")
	s.fail("acme", "r1")
	var wg sync.WaitGroup
	var mu sync.Mutex
	answered := 0
	for i := range 12 {
		wg.Go(func() {
			r, err := s.ask("deadletters.replay", "acme", M{"run_id": "r1", "by": fmt.Sprintf("p%d", i), "reason": "again", "letter": "acme/r1/1"})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if r.OK {
				answered++
			} else if r.Code != "NOT_FOUND" && r.Code != "CONFLICT" {
				t.Errorf("%s %s", r.Code, r.Message)
			}
		})
	}
	wg.Wait()
	if answered != 1 {
		t.Errorf("%d replays were accepted", answered)
	}
	if o := s.end("acme", "r1", 2); o.Outcome != "ok" {
		t.Errorf("ended %s", o.Outcome)
	}
	if n := s.count("GET /load"); n != 2 {
		t.Errorf("%d calls", n)
	}
	bustest.Eventually(t, "the letter is gone", func() bool { return len(s.letters()) == 0 })
}

// The same call again gets the first answer, also after the run has ended anew with another letter.
func TestSameCallAgain(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.answer(notFound)
	s.executor("w1")
	s.reconciler("r1")
	s.fail("acme", "r1")
	first := s.op("deadletters.replay", "acme", M{"run_id": "r1", "by": "alice", "reason": "again", "letter": "acme/r1/1"})
	s.end("acme", "r1", 2)
	again := s.op("deadletters.replay", "acme", M{"run_id": "r1", "by": "alice", "reason": "again", "letter": "acme/r1/1"})
	if first.Episode != 2 || again.Episode != 2 {
		t.Errorf("episodes %d, then %d", first.Episode, again.Episode)
	}
	s.refused("CONFLICT", "deadletters.replay", "acme", M{"run_id": "r1", "by": "bob", "reason": "again", "letter": "acme/r1/1"})
	s.op("deadletters.discard", "acme", M{"run_id": "r1", "by": "alice", "reason": "enough"})
	s.op("deadletters.discard", "acme", M{"run_id": "r1", "by": "alice", "reason": "enough"})
	s.refused("NOT_FOUND", "deadletters.discard", "acme", M{"run_id": "r1", "by": "bob", "reason": "enough"})
	s.refused("NOT_FOUND", "deadletters.get", "acme", M{"run_id": "r1"})
	if n := s.op("deadletters.list", "_all", M{}).Total; n != 0 {
		t.Errorf("%d letters are listed", n)
	}
	v := s.op("runs.get", "acme", M{"run_id": "r1"}).Run
	var did []string
	for _, e := range v.History {
		if e.By == "alice" {
			did = append(did, e.Kind+":"+e.Reason)
		}
	}
	if !slices.Equal(did, []string{"replay:again", "discard:enough"}) || v.Episode != 2 || v.State != "fatal" {
		t.Errorf("history of what people did %q, episode %d, state %s", did, v.Episode, v.State)
	}
}

// Pages of letters and runs cover everything once, and filters mean what they say.
func TestPages(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.answer(notFound)
	s.executor("w1")
	s.reconciler("r1")
	const n = 25
	for i := range n {
		s.fail("acme", fmt.Sprintf("r%02d", i), M{"owner": fmt.Sprintf("owner%d", i%3), "workflow": fmt.Sprintf("w%d", i%2)})
	}
	pages := func(call string, request M) (ids []string) {
		for {
			r := s.op(call, "acme", request)
			for _, raw := range append(r.DeadLetters, r.Runs...) {
				var x struct {
					RunID string `json:"run_id"`
				}
				if err := json.Unmarshal(raw, &x); err != nil {
					t.Fatal(err)
				}
				ids = append(ids, x.RunID)
			}
			if r.After == "" {
				return ids
			}
			request["after"] = r.After
		}
	}
	for _, x := range []struct {
		call    string
		request M
		want    int
	}{
		{"deadletters.list", M{"limit": 4}, n},
		{"deadletters.list", M{"limit": 1, "owner": "owner1"}, 8},
		{"deadletters.list", M{"reason_code": "resource_not_found", "tool": "load"}, n},
		{"deadletters.list", M{"tool": "pay"}, 0},
		{"deadletters.list", M{"before": "2001-01-01T00:00:00Z"}, 0},
		{"runs.list", M{"limit": 4}, n},
		{"runs.list", M{"limit": 3, "workflow": "w1"}, 12},
		{"runs.list", M{"state": "fatal"}, n},
		{"runs.list", M{"state": "ok"}, 0},
	} {
		ids := pages(x.call, x.request)
		if len(ids) != x.want || !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != len(ids) {
			t.Errorf("%s %v: %d of %d, oldest first: %q", x.call, x.request, len(ids), x.want, ids)
		}
	}
}

// The number of open letters goes up and down, on every reconciler, whoever settles them; claims do not count twice.
func TestOpenLettersMetric(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.answer(notFound)
	s.executor("w1")
	one, two := s.reconciler("r1"), s.reconciler("r2")
	open := func(p *process) string {
		for _, line := range strings.Split(s.metrics(p), "\n") {
			if strings.HasPrefix(line, "agentrun_dead_letters_open{") {
				return line[strings.LastIndexByte(line, ' ')+1:]
			}
		}
		return "none"
	}
	both := func(want string) {
		t.Helper()
		bustest.Eventually(t, "both say that "+want+" are open", func() bool { return open(one) == want && open(two) == want })
	}
	for i := range 3 {
		s.fail("acme", fmt.Sprintf("r%d", i))
	}
	both("3")
	s.op("deadletters.claim", "acme", M{"by": "alice"})
	s.op("deadletters.discard", "acme", M{"run_id": "r0", "by": "alice", "reason": "x"})
	both("2")
	s.op("deadletters.replay", "acme", M{"run_id": "r1", "by": "alice", "reason": "x"})
	s.end("acme", "r1", 2)
	both("2")
	if r := s.op("deadletters.discard", "acme", M{"filter": M{}, "by": "alice", "reason": "all"}); len(r.Results) != 2 || r.Left != 0 {
		t.Errorf("discard in bulk: %+v", r)
	}
	both("0")
	for _, name := range []string{"runs_overdue", "ok_without_result", "budget_end_without_dead_letter", "dead_letters_without_owner"} {
		if !strings.Contains(s.metrics(one), "agentrun_audit_"+name+" 0\n") {
			t.Errorf("audit %s is not 0", name)
		}
	}
}

// A claim changes the record of an ended run, and is no second end: nobody is told again.
func TestClaimsRaiseNoAlerts(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.answer(notFound)
	s.executor("w1")
	s.reconciler("r1")
	for i := range 4 {
		s.fail("acme", fmt.Sprintf("r%d", i))
	}
	for range 4 {
		s.op("deadletters.claim", "acme", M{"by": "alice"})
	}
	s.fail("acme", "r4") // the fifth end is the burst
	bustest.Eventually(t, "one alert", func() bool { return len(s.messages(topology.AlertsStream, "agentrun.alerts.>")) == 1 })
	var a struct {
		Count int `json:"count"`
	}
	if err := json.Unmarshal(s.messages(topology.AlertsStream, "agentrun.alerts.>")[0].Data(), &a); err != nil || a.Count != 5 {
		t.Errorf("the alert counts %d ends: %v", a.Count, err)
	}
}

// A server that dies may forget that a letter was removed, and has it again at its old sequence. The reconciler that lived
// through that removes it again, and lists it no more.
func TestSettledLetterThatComesBack(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.answer(notFound)
	s.executor("w1")
	s.reconciler("r1")
	s.fail("acme", "open")
	s.fail("acme", "settled")
	bustest.Eventually(t, "both letters are there", func() bool { return len(s.letters()) == 2 })
	s.server.Rewind(topology.LettersStream, func() {
		s.op("deadletters.discard", "acme", M{"run_id": "settled", "by": "alice", "reason": "x"})
		bustest.Eventually(t, "one is gone", func() bool { return len(s.letters()) == 1 })
	})
	bustest.Eventually(t, "the settled one is gone again", func() bool {
		all := s.letters()
		return len(all) == 1 && strings.HasSuffix(all[0], ".open")
	})
	bustest.Eventually(t, "the open one alone is listed", func() bool { return s.op("deadletters.list", "acme", M{}).Total == 1 })
}
