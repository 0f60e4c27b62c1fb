package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/topology"
)

// Field case 14: the queue's consumer, then the stream of the letters are deleted while workers run. Neither is met with
// silence: work goes on, and the letters are published again from the records.
func TestConsumerAndStreamAreDeleted(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.answer(notFound)
	s.executor("w1")
	s.reconciler("r1")
	s.fail("acme", "before")
	if err := s.js.DeleteConsumer(t.Context(), topology.JobsStream, topology.ConsumerName("default")); err != nil {
		t.Fatal(err)
	}
	s.fail("acme", "between")
	if err := s.js.DeleteStream(t.Context(), topology.LettersStream); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "the stream of the letters is there again", func() bool {
		_, err := s.js.Stream(t.Context(), topology.LettersStream)
		return err == nil
	})
	s.fail("acme", "after")
	bustest.Eventually(t, "all three letters are there again", func() bool { return len(s.letters()) == 3 })
	s.op("deadletters.discard", "acme", M{"run_id": "before", "by": "alice", "reason": "x"})
	bustest.Eventually(t, "two are listed", func() bool { return s.op("deadletters.list", "acme", M{}).Total == 2 })
}

// Field case 15: a queue with a tiny limit is filled. The publisher is refused, and what was accepted comes to its end.
func TestFullQueueRefuses(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.reconciler("r1", "--max-jobs", "10")
	accepted := []string{}
	for i := range 25 {
		id := fmt.Sprintf("r%02d", i)
		if s.publish("acme", id, []M{step("load", "load", nil)}) == nil {
			accepted = append(accepted, id)
		}
	}
	if len(accepted) != 10 {
		t.Errorf("%d of 25 jobs were accepted, the limit is 10", len(accepted))
	}
	s.executor("w1", "--max-jobs", "10")
	for _, id := range accepted {
		if o := s.end("acme", id, 1); o.Outcome != "ok" {
			t.Errorf("%s ended %s", id, o.Outcome)
		}
	}
	if n := s.count("GET /load"); n != 10 {
		t.Errorf("%d calls for 10 accepted jobs", n)
	}
}

// Field case 26: an observer reads every subject but jobs, runs and dead letters: ids and codes, never args, results or
// upstream text, results excepted on the run's own result subject.
func TestObserverLearnsNoSecrets(t *testing.T) {
	t.Parallel()
	const arg, upstream, result = "ARGUMENT-4711", "UPSTREAM-4712", "RESULT-4713"
	s := newStack(t)
	var mu sync.Mutex
	seen := map[string][]byte{}
	if _, err := s.nc.Subscribe("agentrun.>", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		seen[m.Subject] = append(seen[m.Subject], m.Data...)
	}); err != nil {
		t.Fatal(err)
	}
	s.answer(func(r *http.Request, _ string, n int) (int, string) {
		if r.URL.Path == "/load" {
			return 200, `{"id":"` + result + `"}`
		}
		return []int{503, 500}[n%2], `{"error":"` + upstream + `"}`
	})
	s.executor("w1")
	s.reconciler("r1")
	s.submit("acme", "r1", []M{step("load", "load", nil), step("pay", "pay", M{"secret": arg})})
	if o := s.end("acme", "r1", 1); o.Outcome != "needs_human" {
		t.Fatalf("ended %s", o.Outcome)
	}
	bustest.Eventually(t, "the alert is seen", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.ContainsFunc(keys(seen), func(k string) bool { return strings.HasPrefix(k, "agentrun.alerts.") })
	})
	mu.Lock()
	defer mu.Unlock()
	for subject, data := range seen {
		hidden := []string{arg, upstream, result}
		switch {
		case strings.HasPrefix(subject, "agentrun.jobs."), strings.HasPrefix(subject, "agentrun.runs."), strings.HasPrefix(subject, "agentrun.deadletters."):
			continue
		case subject == "agentrun.results.acme.r1.step":
			hidden = hidden[:2]
		}
		for _, word := range hidden {
			if strings.Contains(string(data), word) {
				t.Errorf("%s shows %s: %s", subject, word, data)
			}
		}
	}
}

func keys(m map[string][]byte) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}

// Field case 31: steps 1 and 2 are done, 3 needs an approval; duplicate, late and refused approvals. 1 and 2 are called
// once, nothing is ok before it is decided, and a refusal says that nothing was done.
func TestApprovals(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.executor("w1")
	s.reconciler("r1")
	steps := []M{step("one", "pay", nil), step("two", "tell", nil), step("three", "approved", M{"amount": 5})}
	for _, id := range []string{"yes", "no"} {
		s.submit("acme", id, steps)
		o := s.end("acme", id, 1)
		if o.Outcome != "needs_human" || o.Reason != "approval_required" || o.CommitState != "not_committed" || len(o.CompletedEffects) != 2 {
			t.Fatalf("%s: %+v", id, o)
		}
	}
	s.refused("NOT_FOUND", "deadletters.approve", "other", M{"run_id": "yes", "letter": "acme/yes/1", "by": "a", "reason": "b"})
	s.refused("CONFLICT", "deadletters.approve", "acme", M{"run_id": "yes", "letter": "acme/yes/2", "by": "a", "reason": "b"})
	if n := s.count("POST /approved"); n != 0 {
		t.Fatalf("%d calls before any approval", n)
	}
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			r, err := s.ask("deadletters.approve", "acme", M{"run_id": "yes", "letter": "acme/yes/1", "by": "alice", "reason": "fine"})
			if err != nil || !r.OK && r.Code != "CONFLICT" || r.OK && r.Episode != 2 {
				t.Errorf("approval: %v %+v", err, r)
			}
		})
	}
	wg.Wait()
	if o := s.end("acme", "yes", 2); o.Outcome != "ok" || len(o.CompletedEffects) != 3 {
		t.Errorf("approved: %+v", o)
	}
	s.op("deadletters.discard", "acme", M{"run_id": "no", "letter": "acme/no/1", "by": "alice", "reason": "not this one"})
	s.refused("NOT_FOUND", "deadletters.approve", "acme", M{"run_id": "no", "letter": "acme/no/1", "by": "alice", "reason": "too late"})
	if o := s.end("acme", "no", 1); o.Outcome != "needs_human" || o.CommitState != "not_committed" {
		t.Errorf("refused: %+v", o)
	}
	for call, want := range map[string]int{"POST /pay": 2, "POST /tell": 2, "POST /approved": 1} {
		if n := s.count(call); n != want {
			t.Errorf("%s was called %d times, not %d", call, n, want)
		}
	}
}

// Field case 32: two parallel steps fail together: one terminal outcome, one letter, one alert.
func TestParallelFailuresEndOnce(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	var both sync.WaitGroup
	both.Add(2)
	s.answer(func(*http.Request, string, int) (int, string) {
		both.Done()
		both.Wait()
		return 500, `{}`
	})
	s.executor("w1")
	s.reconciler("r1")
	s.submit("acme", "r1", []M{step("a", "pay", nil), step("b", "tell", nil)}, M{"parallel": true})
	o := s.end("acme", "r1", 1)
	if o.Outcome != "needs_human" || o.Reason != "external_outcome_unknown" {
		t.Errorf("ended %+v", o)
	}
	bustest.Eventually(t, "an alert is raised", func() bool { return len(s.messages(topology.AlertsStream, "agentrun.alerts.>")) > 0 })
	s.op("deadletters.list", "acme", M{})
	if ends, letters, alerts := s.outcomes("agentrun.results.acme.r1.run"), s.letters(), s.messages(topology.AlertsStream, "agentrun.alerts.>"); len(ends) != 1 || len(letters) != 1 || len(alerts) != 1 {
		t.Errorf("%d ends, %d letters, %d alerts", len(ends), len(letters), len(alerts))
	}
	var l struct {
		Open []struct {
			Step string `json:"step"`
		} `json:"open"`
	}
	if err := json.Unmarshal(s.op("deadletters.get", "acme", M{"run_id": "r1"}).DeadLetter, &l); err != nil || len(l.Open) != 2 {
		t.Errorf("open steps: %+v %v", l, err)
	}
}

// Field case 29: the journal's disk is full, later freed. No write is sent without its intent, readiness is red, and work
// resumes by itself; nothing is lost or repeated.
func TestJournalDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=20m"); err != nil {
		t.Skipf("a full disk cannot be tested: mounting a tmpfs needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	s := newStack(t)
	w := s.executor("w1", "--data", dir)
	s.reconciler("r1")
	t.Cleanup(func() { _ = w.stop() }) // before the disk goes
	s.submit("acme", "before", []M{step("pay", "pay", nil)})
	s.end("acme", "before", 1)
	ballast := dir + "/ballast"
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(block)
	}
	for block = block[:512]; ; {
		if _, err := f.Write(block); err != nil {
			break
		}
	}
	_ = f.Close()
	ready := func() (status int, text string) {
		res, err := http.Get("http://" + w.http + "/readyz")
		if err != nil {
			return 0, ""
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return 0, ""
		}
		return res.StatusCode, string(body)
	}
	const jobs = 100
	for i := range jobs {
		s.submit("acme", fmt.Sprintf("r%02d", i), []M{step("pay", "pay", nil)})
	}
	bustest.Eventually(t, "readiness is red, for the journal", func() bool {
		status, text := ready()
		return status == http.StatusServiceUnavailable && strings.Contains(text, "room: the journal")
	})
	if n := s.count("POST /pay"); n > jobs { // the journal's own free pages hold a few intents
		t.Errorf("%d writes were sent while the journal was full", n-1)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	for i := range jobs {
		if o := s.end("acme", fmt.Sprintf("r%02d", i), 1); o.Outcome != "ok" {
			t.Errorf("r%02d ended %s (%s)", i, o.Outcome, o.Reason)
		}
	}
	bustest.Eventually(t, "readiness is green", func() bool {
		status, _ := ready()
		return status == http.StatusOK
	})
	if n := s.count("POST /pay"); n != jobs+1 {
		t.Errorf("%d writes for %d runs", n, jobs+1)
	}
}
