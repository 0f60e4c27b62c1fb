package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/pkg/connector"
)

// process is an executor that serves inside the test.
type process struct {
	http string // address of its endpoints
	stop context.CancelFunc
	done chan int
	log  *bytes.Buffer // to be read after done
}

// serve starts executor serve with these flags and waits until it is ready.
func serve(t *testing.T, args ...string) *process {
	t.Helper()
	return serveWith(t, nil, args...)
}

// serveWith is serve for a program with tools of its own.
func serveWith(t *testing.T, tools []*connector.Tool, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{stop: cancel, done: make(chan int, 1), log: &bytes.Buffer{}}
	var c app.ExecutorConfig
	if err := app.Defaults(&c, append(args, "--http", "127.0.0.1:0", "--log-level", "debug")); err != nil {
		t.Fatal(err)
	}
	ready := make(chan string, 1)
	c.Log, c.OnReady, c.Tools = p.log, func(addr string) { ready <- addr }, tools
	env := app.Env{Stdout: io.Discard, Stderr: p.log}
	go func() {
		p.done <- env.Report("executor serve", app.ExitOK, app.Executor(ctx, c))
	}()
	t.Cleanup(cancel)
	select {
	case p.http = <-ready:
	case code := <-p.done:
		t.Fatalf("executor serve ended with %d:\n%s", code, p.log)
	case <-time.After(20 * time.Second):
		t.Fatal("executor serve was not ready within 20 s")
	}
	return p
}

// end stops the process as a signal does and returns its exit code.
func (p *process) end(t *testing.T) int {
	t.Helper()
	p.stop()
	select {
	case code := <-p.done:
		return code
	case <-time.After(20 * time.Second):
		t.Fatal("executor serve did not end within 20 s")
		return -1
	}
}

func (p *process) get(t *testing.T, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + p.http + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// One real job with real parts: submitted, executed, told, counted; then a clean drain.
func TestServe(t *testing.T) {
	t.Parallel()
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.Header.Get("Idempotency-Key") != "acme/r1/pay" {
			http.Error(w, "the wrong key", http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, `{"id":"x_1"}`)
	}))
	defer provider.Close()
	config := write(t, "c.yaml", fmt.Sprintf(`defaults: {owner: o, workflow: w, actor: a}
tools:
  load: {effect: read, http: {method: GET, url: "%[1]s"}}
  pay: {effect: write, http: {method: POST, url: "%[1]s"}, evidence_ref: body.id}
`, provider.URL))
	s := bustest.Start(t)
	data := t.TempDir()
	p := serve(t, "--nats", s.URL, "--config", config, "--data", data)
	if code, body := p.get(t, "/readyz"); code != 200 || body != "ready\n" {
		t.Errorf("/readyz: %d %q", code, body)
	}
	job := `{"schema":"agentrun.job/v1","tenant":"acme","run_id":"r1","steps":[{"step":"load","tool":"load","args":{}},{"step":"pay","tool":"pay","args":{"of":{"$from":"load#/id"}}}]}`
	code, out, errs := command(t, nil, job, "submit", "--nats", s.URL, "--wait", "--timeout", "20s")
	if code != 0 || lines(t, out) != "load:ok pay:ok RUN:ok" {
		t.Errorf("submit: exit code %d, %q, %q", code, out, errs)
	}
	if _, body := p.get(t, "/metrics"); !strings.Contains(body, `agentrun_tool_calls_total{code="ok",effect="write",tool="pay"} 1`) {
		t.Errorf("the call is not counted:\n%s", body)
	}

	// A second process on the journal is refused at once, naming the file.
	code, _, errs = command(t, nil, "", "serve", "--nats", s.URL, "--config", config, "--data", data, "--http", "127.0.0.1:0")
	if code != 1 || !strings.Contains(errs, filepath.Join(data, "journal.db")) {
		t.Errorf("a second executor on the journal: exit code %d, %q", code, errs)
	}
	if code := p.end(t); code != 0 {
		t.Errorf("a drained executor exits with %d:\n%s", code, p.log)
	}
	if code, out, _ := command(t, nil, "", "journal", "ls", "--data", data); code != 0 || !strings.Contains(out, "ok x_1") {
		t.Errorf("the journal: exit code %d, %q", code, out)
	}
}

// Without its server the process is not ready, says so, lives on, and is ready again when the server is.
func TestReadinessFollowsTheConnection(t *testing.T) {
	t.Parallel()
	config := write(t, "c.yaml", "tools: {}\n")
	s := bustest.Start(t)
	p := serve(t, "--nats", s.URL, "--config", config, "--data", t.TempDir())
	s.Stop()
	bustest.Eventually(t, "/readyz is 503", func() bool {
		code, body := p.get(t, "/readyz")
		return code == 503 && strings.Contains(body, "nats: ")
	})
	if code, body := p.get(t, "/healthz"); code != 200 {
		t.Errorf("/healthz: %d %q", code, body)
	}
	s.StartAgain()
	bustest.Eventually(t, "/readyz is 200", func() bool {
		code, _ := p.get(t, "/readyz")
		return code == 200
	})
	if code := p.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.log)
	}
}

// A stop signal while the process waits for NATS ends it at once and cleanly; until then it says why it is not ready.
func TestServeStopsWhileItWaitsForNATS(t *testing.T) {
	t.Parallel()
	config := write(t, "c.yaml", "tools: {}\n")
	var c app.ExecutorConfig
	args := []string{"--nats", "nats://127.0.0.1:1", "--config", config, "--data", t.TempDir(), "--http", "127.0.0.1:0"}
	if err := app.Defaults(&c, args); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- app.Executor(ctx, c) }()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("still waiting for NATS")
	}
}

func TestServeWithEmbeddedNATS(t *testing.T) {
	t.Parallel()
	config := write(t, "c.yaml", "tools: {}\n")
	data := t.TempDir()
	p := serve(t, "--embedded-nats", "--nats", "nats://127.0.0.1:0", "--config", config, "--data", data)
	if code := p.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.log)
	}
	stores, err := filepath.Glob(filepath.Join(data, "nats", "jetstream", "*"))
	if err != nil || len(stores) == 0 {
		t.Errorf("no store under --data: %v, %v", stores, err)
	}
	taken := bustest.Start(t)
	code, _, errs := command(t, nil, "", "serve", "--embedded-nats", "--nats", taken.URL, "--config", config, "--data", data, "--http", "127.0.0.1:0")
	if code != 1 || !strings.Contains(errs, strings.TrimPrefix(taken.URL, "nats://")) {
		t.Errorf("a port in use: exit code %d, %q", code, errs)
	}
}
