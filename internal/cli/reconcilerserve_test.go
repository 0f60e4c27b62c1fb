package cli

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
)

// A reconciler makes the streams, is ready once it has read them, shows its audits as zero, and ends cleanly.
func TestReconcilerServes(t *testing.T) {
	config := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(config, []byte("tools: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var c app.ReconcilerConfig
	if err := app.Defaults(&c, []string{"--nats", bustest.Start(t).URL, "--config", config, "--http", "127.0.0.1:0"}); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	ready := make(chan string, 1)
	c.Log, c.OnReady = &log, func(addr string) { ready <- addr }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- app.Reconciler(ctx, c) }()
	var addr string
	select {
	case addr = <-ready:
	case err := <-done:
		cancel()
		t.Fatalf("ended with %v:\n%s", err, &log)
	case <-time.After(20 * time.Second):
		cancel()
		t.Fatal("not ready within 20 s")
	}
	if body := get(t, "http://"+addr+"/readyz"); body != "ready\n" {
		t.Errorf("/readyz: %q", body)
	}
	metrics := get(t, "http://"+addr+"/metrics")
	for _, name := range []string{"runs_overdue", "ok_without_result", "budget_end_without_dead_letter", "dead_letters_without_owner"} {
		if !strings.Contains(metrics, "\nagentrun_audit_"+name+" 0\n") {
			t.Errorf("audit_%s is not 0", name)
		}
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("ended with %v:\n%s", err, &log)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("did not end within 20 s")
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
