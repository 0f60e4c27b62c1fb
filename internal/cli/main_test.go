package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/journal/journaltest"
)

// command runs the executor with an environment of its own.
func command(t *testing.T, vars map[string]string, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	env := app.Env{
		Lookup: func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
		Stdin:  strings.NewReader(stdin), Stdout: &out, Stderr: &errs,
	}
	code = Run(t.Context(), args, env)
	return code, out.String(), errs.String()
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	unreadable := filepath.Join(t.TempDir(), "none.yaml")
	broken := write(t, "broken.yaml", "tools: {x: {effect: maybe, command: {argv: [/bin/true]}}}")
	for _, x := range []struct {
		name string
		args []string
		code int
		out  string // part of standard output
		errs string // part of standard error
	}{
		{"no command", nil, 2, "", "serve"},
		{"unknown command", []string{"swerve"}, 2, "", "swerve"},
		{"help", []string{"--help"}, 0, "serve", ""},
		{"help of a command", []string{"serve", "--help"}, 0, "AGENTRUN_LEASE", ""},
		{"version", []string{"--version"}, 0, "executor ", ""},
		{"serve: unknown flag", []string{"serve", "--nope"}, 2, "", "--nope"},
		{"serve: no config", []string{"serve"}, 2, "", "--config"},
		{"serve: bad bound", []string{"serve", "--config", broken, "--concurrency", "0"}, 2, "", "--concurrency"},
		{"serve: no such config", []string{"serve", "--config", unreadable}, 1, "", "none.yaml"},
		{"serve: bad config", []string{"serve", "--config", broken}, 1, "", "broken.yaml:1:"},
		{"check: no config", []string{"check"}, 2, "", "--config"},
		{"check: no such config", []string{"check", "--config", unreadable}, 1, "", "none.yaml"},
		{"check: bad config", []string{"check", "--config", broken}, 1, "", "broken.yaml:1:"},
		{"submit: unknown flag", []string{"submit", "--nope"}, 1, "", "--nope"},
		{"submit: bad queue", []string{"submit", "--queue", "*"}, 1, "", "--queue"},
		{"submit: bad timeout", []string{"submit", "--timeout", "0s"}, 1, "", "--timeout"},
		{"submit: bad server", []string{"submit", "--nats", "nowhere"}, 1, "", "--nats"},
		{"journal: no data", []string{"journal", "ls"}, 2, "", "--data"},
		{"journal: no such file", []string{"journal", "check", "--data", t.TempDir()}, 1, "", "journal.db"},
	} {
		code, out, errs := command(t, nil, "", x.args...)
		if code != x.code || !strings.Contains(out, x.out) || !strings.Contains(errs, x.errs) {
			t.Errorf("%s: exit code %d, wanted %d\nstdout: %s\nstderr: %s", x.name, code, x.code, out, errs)
		}
		if x.code != 0 && strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: wanted one line, got %q", x.name, errs)
		}
		if x.code == 0 && errs != "" {
			t.Errorf("%s: unexpected %q", x.name, errs)
		}
	}
}

const good = `tools:
  get_invoice:
    effect: read
    http: {method: GET, url: "http://127.0.0.1:1/invoices/{invoice_id}"}
  apply_credit:
    effect: write
    http: {method: POST, url: "http://127.0.0.1:1/credits", headers: {Authorization: "Bearer ${TOKEN}"}}
    verify:
      http: {method: GET, url: "http://127.0.0.1:1/credits?all=1"}
      committed: "size(body.items) > 0"
      not_committed: "size(body.items) == 0"
`

// check prints a table of the tools and what is odd about them, and never a value that came from the environment.
func TestCheckPrintsTheTools(t *testing.T) {
	t.Parallel()
	file := write(t, "good.yaml", good)
	code, out, errs := command(t, map[string]string{"TOKEN": "s3cret-s3cret"}, "", "check", "--config", file)
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d, stderr %q", code, errs)
	}
	for _, want := range []string{"get_invoice", "apply_credit", "read", "write", "warning"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "s3cret") {
		t.Errorf("check prints a secret:\n%s", out)
	}
	code, out, _ = command(t, map[string]string{"TOKEN": "s3cret-s3cret", "AGENTRUN_CONFIG": file}, "", "check")
	if code != 0 || !strings.Contains(out, "apply_credit") {
		t.Errorf("AGENTRUN_CONFIG is not read: exit code %d, %q", code, out)
	}
}

// check names what would keep a program from being started here, and where the config says so. It is no error: the machine
// that checks may be another one.
func TestCheckTriesPrograms(t *testing.T) {
	t.Parallel()
	file := write(t, "programs.yaml", `
mcp_servers:
  s: {command: ["true"], user: nosuchuser}
tools:
  fine: {effect: read, command: {argv: ["true"], cwd: /}}
  a: {effect: read, command: {argv: [no-such-program]}}
  b: {effect: read, command: {argv: ["true"], cwd: "${SECRET}"}}
  c:
    effect: write
    nats: {subject: x}
    verify: {command: {argv: ["true"], limits: {nofile: 1099511627776}}, committed: "true"}
`)
	if runtime.GOOS != "linux" {
		t.Skip("users and limits need Linux")
	}
	code, out, errs := command(t, map[string]string{"SECRET": "/s3cret-s3cret"}, "", "check", "--config", file)
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d, stderr %q", code, errs)
	}
	const what = ": calls will not be sent from this machine: "
	for _, want := range []string{
		":3:32: warning: mcp_servers.s.user" + what + `there is no user "nosuchuser" on this machine`,
		":6:31: warning: tools.a.command.argv" + what + "there is no program no-such-program in PATH",
		":7:52: warning: tools.b.command.cwd" + what + "no such file or directory",
		":11:57: warning: tools.c.verify.command.limits.nofile" + what + "higher than this process's own hard limit, or than the system allows",
	} {
		if !strings.Contains(out, "programs.yaml"+want+"\n") {
			t.Errorf("it lacks %s:\n%s", want, out)
		}
	}
	if strings.Contains(out, "tools.fine") || strings.Contains(out, "s3cret") {
		t.Errorf("it says too much:\n%s", out)
	}
}

// What is wrong is told as file:line:column: message, whether reading or compiling finds it.
func TestCheckNamesThePlace(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ name, config, want string }{
		{"an unknown key", "tools:\n  x:\n    effect: read\n    efect: read\n    http: {method: GET, url: \"http://127.0.0.1:1/\"}\n", ":4:5: "},
		{"an unset variable", good, ":7:"},
		{"no CEL", "tools:\n  x:\n    effect: read\n    http: {method: GET, url: \"http://127.0.0.1:1/\"}\n    errors:\n      - {when: \"status ==\", code: SOME_CODE, category: conflict}\n", ":6:"},
		{"no method", "tools:\n  x:\n    effect: read\n    http: {method: SING, url: \"http://127.0.0.1:1/\"}\n", ":4:"},
	} {
		file := write(t, "bad.yaml", x.config)
		code, out, errs := command(t, nil, "", "check", "--config", file)
		if code != 1 || out != "" || !strings.Contains(errs, file+x.want) {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q, wanted %s", x.name, code, out, errs, x.want)
		}
	}
}

func TestJournalCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := app.JournalPath(dir)
	t.Run("fill", func(t *testing.T) {
		j := journaltest.OpenAt(t, path, journal.Options{})
		intent := engine.Intent{
			Dispatch: "0190f8f0-0000-7000-8000-000000000001", Tenant: "acme", RunID: "run_1", Queue: "default", Step: "pay", Tool: "apply_credit",
			Args: json.RawMessage(`{"card":"card-of-ann"}`), Attempt: 1, Proposal: 1, Key: "acme/run_1/pay", At: 1764583200000,
		}
		if err := j.Write(context.Background(), engine.Entry{Intent: &intent}); err != nil {
			t.Fatal(err)
		}
	})
	code, out, errs := command(t, nil, "", "journal", "ls", "--data", dir)
	if code != 0 || !strings.Contains(out, "acme/run_1/pay") || !strings.Contains(out, "no reply known") || strings.Contains(out, "card-of-ann") {
		t.Errorf("ls: exit code %d, stdout %q, stderr %q", code, out, errs)
	}
	code, out, errs = command(t, nil, "", "journal", "ls", "--data", dir, "--json", "--unsettled")
	var d dispatch
	if err := json.Unmarshal([]byte(out), &d); err != nil || code != 0 || d.Ref != "acme/run_1/pay" || d.Settled {
		t.Errorf("ls --json: exit code %d, %+v, %v, stderr %q", code, d, err, errs)
	}
	code, out, errs = command(t, nil, "", "journal", "compact", "--data", dir)
	if code != 0 || !strings.Contains(out, path) {
		t.Errorf("compact: exit code %d, stdout %q, stderr %q", code, out, errs)
	}
	code, out, errs = command(t, nil, "", "journal", "check", "--data", dir)
	if code != 0 || !strings.Contains(out, "1 intents, 0 effects, 1 unsettled") {
		t.Errorf("check: exit code %d, stdout %q, stderr %q", code, out, errs)
	}
	t.Run("in use", func(t *testing.T) {
		journaltest.OpenAt(t, path, journal.Options{})
		for _, verb := range []string{"ls", "check", "compact"} {
			if code, _, errs := command(t, nil, "", "journal", verb, "--data", dir); code != 1 || !strings.Contains(errs, path) {
				t.Errorf("%s of a journal in use: exit code %d, %q", verb, code, errs)
			}
		}
	})
	t.Run("damaged", func(t *testing.T) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data[:len(data)/2], 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out, errs := command(t, nil, "", "journal", "check", "--data", dir); code != 1 || !strings.Contains(out+errs, "damaged") {
			t.Errorf("check of half a journal: exit code %d, %q %q", code, out, errs)
		}
	})
}
