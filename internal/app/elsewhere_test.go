package app_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Two executors have each a tool that the other does not know. Their runs wait for the one that has the tool; a tool that
// nobody has, and args that a later step's tool does not take, end the run before anything was done.
func TestToolsThatOnlyOneExecutorHas(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	told, err := s.nc.SubscribeSync("agentrun.hint._tools")
	if err != nil {
		t.Fatal(err)
	}
	config := func(name string, tools ...string) string {
		text := "defaults: {owner: platform, workflow: testing, actor: a, retry: {initial_delay: 20ms, jitter: 0}}\ntools:\n"
		for _, tool := range tools {
			text += fmt.Sprintf("  %s:\n    effect: write\n    input_schema: {type: object, required: [n]}\n    http: {method: POST, url: \"%s/%s\"}\n", tool, s.URL, tool)
		}
		file := filepath.Join(s.dir, name+".yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	w1 := s.executor("w1", "--config", config("w1", "pay", "both"))
	s.executor("w2", "--config", config("w2", "tell", "both"))
	for range 4 { // each says what it has, and answers the other
		if _, err := told.NextMsg(10 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	s.reconciler("r1", "--config", config("r1", "pay", "tell", "both"))
	const runs = 8
	n := M{"n": 1}
	for i := range runs {
		s.submit("acme", fmt.Sprintf("good-%d", i), []M{step("a", "pay", n), step("b", "tell", n), step("c", "both", n)})
	}
	for i := range runs {
		if o := s.end("acme", fmt.Sprintf("good-%d", i), 1); o.Outcome != "ok" {
			t.Errorf("good-%d ended %s: %s", i, o.Outcome, o.Reason)
		}
	}
	if metrics := w1.page(t, "/metrics"); !strings.Contains(metrics, `agentrun_passed_on_total{tool="tell"}`) || strings.Contains(metrics, `agentrun_passed_on_total{tool="both"}`) {
		t.Error("that runs wait for the other executor is not in the metrics")
	}
	before := s.count("POST /both")
	if before != runs || s.count("POST /pay") != runs || s.count("POST /tell") != runs {
		t.Errorf("%d, %d and %d calls", s.count("POST /pay"), s.count("POST /tell"), before)
	}
	for i, bad := range []M{step("b", "nobodys", n), step("b", "both", nil)} {
		name := fmt.Sprintf("bad-%d", i)
		s.submit("acme", name, []M{step("a", "both", n), bad})
		o := s.end("acme", name, 1)
		if want := []string{"unknown_tool", "invalid_input"}[i]; o.Outcome != "fatal" || o.Reason != want {
			t.Errorf("%s ended %s: %s", name, o.Outcome, o.Reason)
		}
	}
	if n := s.count("POST /both"); n != before {
		t.Errorf("%d writes of runs with a mistake", n-before)
	}
}
