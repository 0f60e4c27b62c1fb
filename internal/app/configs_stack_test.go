package app_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
)

// While executors of one queue work by different configs, the doctor names them and the tool that differs, and the metrics
// of a reconciler count them; once all have the same, neither does.
func TestExecutorsWithDifferentConfigs(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	former := filepath.Join(s.dir, "former.yaml")
	if err := os.WriteFile(former, []byte(strings.Replace(string(text), "effect: read\n", "effect: read\n    timeout: 7s\n", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	r := s.reconciler("r1")
	s.executor("w1")
	w2 := s.executor("w2", "--config", former)
	doctor := func() (configs, executors string) {
		t.Helper()
		var c app.ExecutorConfig
		if err := app.Defaults(&c, []string{"--nats", s.server.URL, "--config", s.config, "--data", t.TempDir(), "--id", "w1"}); err != nil {
			t.Fatal(err)
		}
		for _, f := range app.Doctor(t.Context(), c, "") {
			if f.Check == "configs" {
				configs += f.Health.String() + ": " + f.Found + "\n"
			}
			if id, is := strings.CutPrefix(f.Check, "executor "); is {
				executors += id + ": " + f.Found + "\n"
			}
		}
		return configs, executors
	}
	configs, executors := doctor()
	for _, want := range []string{"warning: executors of queue default", " has w2", "has w1, the file " + s.config, "they differ in tool load\n"} {
		if !strings.Contains(configs, want) {
			t.Errorf("the doctor does not say %q:\n%s", want, configs)
		}
	}
	if strings.Count(executors, "4 tools, queues default") != 2 || !strings.Contains(executors, "w2: version ") {
		t.Errorf("the doctor lists\n%s", executors)
	}
	counted := func(want string) {
		t.Helper()
		bustest.Eventually(t, want, func() bool { return strings.Contains(r.page(t, "/metrics"), "\n"+want+"\n") })
	}
	counted(`agentrun_fleet_configs{queue="default"} 2`)
	if err := w2.stop(); err != nil {
		t.Fatal(err)
	}
	w2 = s.executor("w2")
	counted(`agentrun_fleet_configs{queue="default"} 1`)
	info := func(p *process) string {
		for line := range strings.Lines(p.page(t, "/metrics")) {
			if strings.HasPrefix(line, "agentrun_config_info{") {
				return line
			}
		}
		return ""
	}
	if a := info(w2); a == "" || a != info(r) {
		t.Errorf("one file is shown as %q and %q", a, info(r))
	}
	if configs, _ := doctor(); configs != "ok: executors of one queue work by one config\n" {
		t.Errorf("all have the same, and the doctor says\n%s", configs)
	}
}
