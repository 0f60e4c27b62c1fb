// Package quickstart holds what the README's "Running it" needs, and runs that block as it is printed.
package quickstart

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/demo"
)

// The block of the README, with other ports: another test may have those.
func TestRunningItAsPrinted(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, ok := strings.Cut(string(readme), "\n## Running it\n")
	_, block, fenced := strings.Cut(block, "\n```sh\n")
	block, _, closed := strings.Cut(block, "\n```")
	if !ok || !fenced || !closed || !strings.Contains(block, "submit") {
		t.Fatal("README.md has no block under Running it")
	}
	config, err := os.ReadFile("config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ports := map[string]string{"8099": port(t), "9464": port(t), "9465": port(t), "4222": port(t)}
	for from, to := range ports {
		block = strings.ReplaceAll(block, "127.0.0.1:"+from, "127.0.0.1:"+to)
		config = bytes.ReplaceAll(config, []byte("127.0.0.1:"+from), []byte("127.0.0.1:"+to))
	}
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	block = strings.ReplaceAll(block, "examples/quickstart/config.yaml", file)
	// The block is typed into a shell with jobs, line by line; here a line that fails ends it.
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash")
	shell.Dir = filepath.Join("..", "..")
	shell.Stdin = strings.NewReader("set -em\n" + block + "\nwait\n")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "AGENTRUN_") && !strings.HasPrefix(v, "NATS_URL=") {
			shell.Env = append(shell.Env, v)
		}
	}
	shell.Env = append(shell.Env, "AGENTRUN_NATS=nats://127.0.0.1:"+ports["4222"], "AGENTRUN_DATA="+filepath.Join(dir, "data"))
	// The flag of the executor has its default in the block; the reconciler's own is printed and wins.
	shell.Env = append(shell.Env, "AGENTRUN_HTTP=127.0.0.1:"+ports["9464"])
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	shell.Cancel = func() error { endSession(shell.Process.Pid); return nil }
	var out, errs bytes.Buffer
	shell.Stdout, shell.Stderr, shell.WaitDelay = &out, &errs, 5*time.Second
	err = shell.Run()
	if left := endSession(shell.Process.Pid); left > 0 {
		t.Errorf("%d processes are left", left)
	}
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out.String(), errs.String())
	}
	ended, proven := false, false
	for line := range strings.Lines(out.String()) {
		var o struct {
			Scope, Step, Outcome, RunID string
			CompletedEffects            []struct{ Step string } `json:"completed_effects"`
		}
		if json.Unmarshal([]byte(line), &o) == nil && o.Scope == "run" {
			ended = o.Outcome == "ok"
			proven = len(o.CompletedEffects) == 1 && o.CompletedEffects[0].Step == "apply_credit"
		}
	}
	if !ended || !proven {
		t.Errorf("no run ended ok with its credit\n%s\n%s", out.String(), errs.String())
	}
	if n := strings.Count(out.String(), "provider: POST /credits: 201"); n != 1 {
		t.Errorf("the provider gave %d credits\n%s", n, out.String())
	}
}

// endSession kills all that the shell has started and that still runs: each of its jobs has a process group of its own.
func endSession(session int) (killed int) {
	processes, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range processes {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
		}
		// pid (name) state ppid pgrp session …
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if len(fields) < 4 || fields[0] == "Z" || fields[3] != strconv.Itoa(session) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	return killed
}

func port(t *testing.T) string {
	t.Helper()
	return strconv.Itoa(bustest.Port(t))
}

// The files are those of make demo, with an address of their own.
func TestTheFilesAreTheDemos(t *testing.T) {
	config, err := os.ReadFile("config.yaml")
	if err != nil || !bytes.HasSuffix(config, demo.Config("http://127.0.0.1:8099")) {
		t.Errorf("config.yaml is not the demo's (%v)", err)
	}
	job, err := os.ReadFile("job.json")
	if err != nil || string(job) != string(demo.Job())+"\n" {
		t.Errorf("job.json is not the demo's (%v)", err)
	}
}
