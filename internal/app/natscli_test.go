package app_test

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus/bustest"
)

// commandsOf are the lines of a document's sh blocks.
func commandsOf(t *testing.T, path string) (commands []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range strings.Split(string(data), "```sh\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		for _, line := range strings.Split(strings.TrimSpace(block), "\n") {
			if !strings.HasPrefix(line, "nats ") {
				t.Fatalf("%s has a command that is none of nats: %s", path, line)
			}
			commands = append(commands, line)
		}
	}
	return commands
}

// natsTool builds the nats command line from its own module.
func natsTool(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, "nats"), "github.com/nats-io/natscli/nats")
	build.Dir = filepath.Join("..", "..", "test", "natscli")
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("the nats command line cannot be built here: %v: %s", err, out)
	}
	return dir
}

// A newcomer drains letters with nothing but the nats command line and docs/operations.md: these are its very commands.
func TestOperationsDocument(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: the nats command line takes minutes to build for the first time")
	}
	commands := commandsOf(t, filepath.Join("..", "..", "docs", "operations.md"))
	if len(commands) < 15 {
		t.Fatalf("the document has %d commands only", len(commands))
	}
	tool := natsTool(t)
	s := newStack(t)
	s.answer(func(r *http.Request, body string, n int) (int, string) {
		switch {
		case r.URL.Path == "/pay" && n == 1:
			return 500, `{}` // it may have happened
		case r.URL.Path == "/load" && (n <= 3 || r.URL.Query().Get("id") == "run_1047"):
			return 404, `{}`
		}
		return 200, `{"id":"x"}`
	})
	s.executor("w1")
	s.reconciler("r1")
	owner := M{"owner": "billing-oncall"}
	s.submit("acme", "run_1042", []M{step("apply", "pay", nil), step("tell", "tell", M{"credit": M{"$from": "apply#/id"}})}, owner)
	s.end("acme", "run_1042", 1)
	for _, id := range []string{"run_1043", "run_1045", "run_1046"} {
		s.submit("acme", id, []M{step("load", "load", nil)}, owner)
		s.end("acme", id, 1)
	}
	s.submit("acme", "run_1044", []M{step("ask", "approved", M{"amount": 5})}, owner)
	s.end("acme", "run_1044", 1)
	bustest.Eventually(t, "five letters are open", func() bool { return len(s.letters()) == 5 })

	for _, line := range commands {
		if strings.HasPrefix(line, "nats consumer next") { // the commands before have drained everything
			s.fail("acme", "run_1047", owner)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		c := exec.CommandContext(ctx, "sh", "-c", line)
		c.Env = append(os.Environ(), "NATS_URL="+s.server.URL, "PATH="+tool+":"+os.Getenv("PATH"), "HOME="+s.dir, "XDG_CONFIG_HOME="+s.dir)
		out, err := c.CombinedOutput()
		cancel()
		if err != nil || strings.Contains(string(out), `"ok":false`) || strings.Contains(line, " req ") && !strings.Contains(string(out), `"ok":true`) {
			t.Fatalf("%s\n%v\n%s", line, err, out)
		}
		if strings.HasPrefix(line, "nats micro info") && !strings.Contains(string(out), "deadletters") {
			t.Errorf("%s shows no endpoints:\n%s", line, out)
		}
	}
	for _, id := range []string{"run_1042", "run_1043", "run_1044", "run_1046"} {
		if o := s.end("acme", id, 2); o.Outcome != "ok" {
			t.Errorf("%s ended %s", id, o.Outcome)
		}
	}
	if o := s.end("acme", "run_1045", 1); o.Outcome != "fatal" {
		t.Errorf("the discarded run ended %s", o.Outcome)
	}
	if n := s.count("POST /pay"); n != 1 {
		t.Errorf("the resolved write was sent %d times", n)
	}
	bustest.Eventually(t, "the letter for the program is left", func() bool { return len(s.letters()) == 1 })
}
