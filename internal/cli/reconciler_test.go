package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/app"
)

func TestReconcilerExitCodes(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.yaml")
	if err := os.WriteFile(broken, []byte("tools:\n  x: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name string
		args []string
		code int
		out  string // part of standard output
		errs string // part of standard error
	}{
		{"no command", nil, 2, "", "serve"},
		{"help", []string{"serve", "--help"}, 0, "AGENTRUN_LEASE", ""},
		{"version", []string{"--version"}, 0, "reconciler ", ""},
		{"no config", []string{"serve"}, 2, "", "--config"},
		{"an executor's flag", []string{"serve", "--config", broken, "--concurrency", "1"}, 2, "", "--concurrency"},
		{"bad bound", []string{"serve", "--config", broken, "--lease", "1ms"}, 2, "", "--lease"},
		{"no such config", []string{"serve", "--config", filepath.Join(dir, "none.yaml")}, 1, "", "none.yaml"},
		{"bad config", []string{"serve", "--config", broken}, 1, "", "broken.yaml:2:"},
	} {
		var out, errs bytes.Buffer
		env := app.Env{
			Lookup: func(string) (string, bool) { return "", false },
			Stdin:  strings.NewReader(""), Stdout: &out, Stderr: &errs,
		}
		code := RunReconciler(t.Context(), x.args, env)
		if code != x.code || !strings.Contains(out.String(), x.out) || !strings.Contains(errs.String(), x.errs) {
			t.Errorf("%s: exit code %d, wanted %d\nstdout: %s\nstderr: %s", x.name, code, x.code, out.String(), errs.String())
		}
		if x.code != 0 && strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%s: wanted one line, got %q", x.name, errs.String())
		}
	}
}
