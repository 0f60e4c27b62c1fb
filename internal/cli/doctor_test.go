package cli

import (
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/bus/bustest"
)

// The doctor's exit code says whether anything must be mended; each such line is followed by how.
func TestDoctor(t *testing.T) {
	t.Parallel()
	config := write(t, "c.yaml", "tools: {}\n")
	s := bustest.Start(t)
	data := t.TempDir()
	p := serve(t, "--nats", s.URL, "--config", config, "--data", data)
	code, out, errs := command(t, nil, "", "doctor", "--nats", s.URL, "--config", config, "--data", data)
	if code != 0 || !strings.Contains(out, "in use by a running executor") || !strings.Contains(out, "AGENTRUN_RUNS") {
		t.Errorf("beside a working executor: exit code %d\n%s%s", code, out, errs)
	}
	if code := p.end(t); code != 0 {
		t.Errorf("the executor exits with %d", code)
	}
	code, out, errs = command(t, nil, "", "doctor", "--nats", "nats://127.0.0.1:1", "--config", config, "--data", data)
	if code != 1 || !strings.Contains(out, "wrong") || !strings.Contains(out, "→ start it") || !strings.Contains(errs, "something is wrong") {
		t.Errorf("without a server: exit code %d\n%s%s", code, out, errs)
	}
	if code, _, errs = command(t, nil, "", "doctor", "--config", config, "--lease", "1"); code != 2 || !strings.Contains(errs, "--lease") {
		t.Errorf("with a bad flag: exit code %d, %s", code, errs)
	}
}
