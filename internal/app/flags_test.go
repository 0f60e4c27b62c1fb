package app

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the generated part of README.md anew")

func environ(vars map[string]string) Env {
	return Env{
		Lookup: func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
		Stdin:  strings.NewReader(""), Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{},
	}
}

func executor(t *testing.T, vars map[string]string, args ...string) (ExecutorConfig, error) {
	t.Helper()
	var c ExecutorConfig
	if _, err := Parse("executor", "", &c, args, environ(vars)); err != nil {
		return c, err
	}
	return c, c.Complete()
}

// The defaults of contract §11.
func TestDefaults(t *testing.T) {
	t.Parallel()
	c, err := executor(t, nil, "--config", "c.yaml")
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	want := ExecutorConfig{
		Process: Process{
			Connection: Connection{NATS: "nats://127.0.0.1:4222", Inbox: "_INBOX"},
			Config:     "c.yaml", ID: host, Lease: 30 * time.Second, HTTP: "127.0.0.1:9464", Replicas: 1, RunRetention: 168 * time.Hour,
			MaxRuns: 4_000_000, MaxJobs: 1_000_000, MaxLetters: 1_000_000, LogFormat: "text", LogLevel: "info",
		},
		Data: filepath.Join("data", host), Queues: []string{"default"}, Concurrency: 64, DrainTimeout: 30 * time.Second,
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// Each flag can be given, by itself and by its variable; the flag wins over the variable, the variable over the default.
func TestEveryFlagHasAVariable(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ flag, variable, value, other, field, want string }{
		{"--nats", "AGENTRUN_NATS", "nats://n:1", "nats://o:1", "NATS", "nats://n:1"},
		{"--nats", "NATS_URL", "nats://n:1,tls://m:2", "nats://o:1", "NATS", "nats://n:1,tls://m:2"},
		{"--creds", "AGENTRUN_CREDS", file, "/none", "Creds", file},
		{"--tls-ca", "AGENTRUN_TLS_CA", file, "/none", "TLSCA", file},
		{"--inbox-prefix", "AGENTRUN_INBOX_PREFIX", "_INBOX_w", "_INBOX_x", "Inbox", "_INBOX_w"},
		{"--js-domain", "AGENTRUN_JS_DOMAIN", "hub", "other", "JSDomain", "hub"},
		{"--js-prefix", "AGENTRUN_JS_PREFIX", "agentrun.hub.API", "x.API", "JSPrefix", "agentrun.hub.API"},
		{"--config", "AGENTRUN_CONFIG", "x.yaml", "y.yaml", "Config", "x.yaml"},
		{"--id", "AGENTRUN_ID", "w-1.example", "w-2", "ID", "w-1.example"},
		{"--lease", "AGENTRUN_LEASE", "2s", "3s", "Lease", "2s"},
		{"--http", "AGENTRUN_HTTP", "127.0.0.1:0", ":1", "HTTP", "127.0.0.1:0"},
		{"--replicas", "AGENTRUN_REPLICAS", "3", "5", "Replicas", "3"},
		{"--run-retention", "AGENTRUN_RUN_RETENTION", "1h", "2h", "RunRetention", "1h0m0s"},
		{"--max-runs", "AGENTRUN_MAX_RUNS", "7", "8", "MaxRuns", "7"},
		{"--max-jobs", "AGENTRUN_MAX_JOBS", "7", "8", "MaxJobs", "7"},
		{"--max-letters", "AGENTRUN_MAX_LETTERS", "7", "8", "MaxLetters", "7"},
		{"--log-format", "AGENTRUN_LOG_FORMAT", "json", "text", "LogFormat", "json"},
		{"--log-level", "AGENTRUN_LOG_LEVEL", "debug", "warn", "LogLevel", "debug"},
		{"--data", "AGENTRUN_DATA", "/d", "/e", "Data", "/d"},
		{"--queues", "AGENTRUN_QUEUES", "a,b", "c", "Queues", "[a b]"},
		{"--concurrency", "AGENTRUN_CONCURRENCY", "2", "3", "Concurrency", "2"},
		{"--drain-timeout", "AGENTRUN_DRAIN_TIMEOUT", "10s", "11s", "DrainTimeout", "10s"},
		{"--embedded-nats", "AGENTRUN_EMBEDDED_NATS", "true", "false", "EmbeddedNATS", "true"},
	} {
		base := []string{"--config", "c.yaml"}
		if x.flag == "--config" {
			base = nil
		}
		for how, given := range map[string]struct {
			vars map[string]string
			args []string
		}{
			"flag":          {nil, []string{x.flag + "=" + x.value}},
			"variable":      {map[string]string{x.variable: x.value}, nil},
			"flag wins":     {map[string]string{x.variable: x.other}, []string{x.flag + "=" + x.value}},
			"empty is none": {map[string]string{x.variable: ""}, []string{x.flag + "=" + x.value}},
		} {
			c, err := executor(t, given.vars, append(base, given.args...)...)
			if err != nil {
				t.Errorf("%s by %s: %v", x.flag, how, err)
				continue
			}
			if got := fmt.Sprint(reflect.ValueOf(c).FieldByName(x.field).Interface()); got != x.want {
				t.Errorf("%s by %s: %s, wanted %s", x.flag, how, got, x.want)
			}
		}
	}
	c, err := executor(t, map[string]string{"AGENTRUN_NATS": "nats://a:1", "NATS_URL": "nats://b:1"}, "--config", "c.yaml")
	if err != nil || c.NATS != "nats://a:1" {
		t.Errorf("AGENTRUN_NATS does not win over NATS_URL: %s, %v", c.NATS, err)
	}
}

// Bad usage is one line that names the flag, and the bound where there is one.
func TestBadUsageNamesFlagAndBound(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		args []string
		want []string
	}{
		{[]string{"--config", ""}, []string{"--config"}},
		{[]string{"--nats", "127.0.0.1:4222"}, []string{"--nats", "nats://"}},
		{[]string{"--nats", "http://127.0.0.1:4222"}, []string{"--nats", "nats://"}},
		{[]string{"--nats", "nats://a:1,,nats://b:1"}, []string{"--nats"}},
		{[]string{"--creds", "/no/such/file"}, []string{"--creds", "/no/such/file"}},
		{[]string{"--tls-ca", "/no/such/file"}, []string{"--tls-ca", "/no/such/file"}},
		{[]string{"--tls-cert", file}, []string{"--tls-cert", "--tls-key"}},
		{[]string{"--tls-key", file}, []string{"--tls-cert", "--tls-key"}},
		{[]string{"--inbox-prefix", "_INBOX.>"}, []string{"--inbox-prefix", "_INBOX.>"}},
		{[]string{"--js-domain", "a.b"}, []string{"--js-domain", "a.b"}},
		{[]string{"--js-domain", ">"}, []string{"--js-domain", ">"}},
		{[]string{"--js-prefix", "agentrun.hub.API."}, []string{"--js-prefix", "agentrun.hub.API."}},
		{[]string{"--js-prefix", "agentrun.*"}, []string{"--js-prefix", "agentrun.*"}},
		{[]string{"--js-domain", "hub", "--js-prefix", "a.API"}, []string{"--js-domain", "--js-prefix"}},
		{[]string{"--embedded-nats", "--js-prefix", "a.API"}, []string{"--js-prefix", "embedded"}},
		{[]string{"--id", "a/b"}, []string{"--id", "a/b"}},
		{[]string{"--id", ".."}, []string{"--id", ".."}},
		{[]string{"--lease", "1"}, []string{"--lease"}},
		{[]string{"--lease", "199ms"}, []string{"--lease", "200ms"}},
		{[]string{"--lease", "1h1s"}, []string{"--lease", "1h"}},
		{[]string{"--http", "9464"}, []string{"--http", "host:port"}},
		{[]string{"--replicas", "0"}, []string{"--replicas", "1 to 5"}},
		{[]string{"--replicas", "6"}, []string{"--replicas", "1 to 5"}},
		{[]string{"--run-retention", "999ms"}, []string{"--run-retention", "1s"}},
		{[]string{"--max-runs", "0"}, []string{"--max-runs", "from 1"}},
		{[]string{"--max-jobs=-1"}, []string{"--max-jobs", "from 1"}},
		{[]string{"--max-letters", "many"}, []string{"--max-letters"}},
		{[]string{"--log-format", "xml"}, []string{"--log-format", "text, json"}},
		{[]string{"--log-level", "loud"}, []string{"--log-level", "debug"}},
		{[]string{"--queues", ""}, []string{"--queues"}},
		{[]string{"--queues", "a,*"}, []string{"--queues", "*"}},
		{[]string{"--queues", "a,a"}, []string{"--queues", "twice"}},
		{[]string{"--concurrency", "0"}, []string{"--concurrency", "from 1"}},
		{[]string{"--concurrency", "65537"}, []string{"--concurrency", "65536"}},
		{[]string{"--drain-timeout=-1s"}, []string{"--drain-timeout", "0s"}},
		{[]string{"--embedded-nats", "--nats", "nats://a:1,nats://b:1"}, []string{"--nats", "--embedded-nats"}},
		{[]string{"--embedded-nats", "--nats", "nats://a"}, []string{"--nats", "host:port"}},
		{[]string{"--embedded-nats", "--nats", "tls://a:1"}, []string{"--nats", "nats://"}},
		{[]string{"--embedded-nats", "--nats", "nats://u:secret@a:1"}, []string{"--nats", "no users"}},
		{[]string{"--unknown"}, []string{"--unknown"}},
		{[]string{"extra"}, []string{"extra"}},
	} {
		_, err := executor(t, nil, append([]string{"--config", "c.yaml"}, x.args...)...)
		if err == nil {
			t.Errorf("%v is accepted", x.args)
			continue
		}
		for _, want := range x.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %q does not name %s", x.args, err, want)
			}
		}
		if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: %q is not one line, or tells a secret", x.args, err)
		}
	}
}

// A bad value from the environment is blamed on its variable.
func TestABadVariableIsNamed(t *testing.T) {
	t.Parallel()
	_, err := executor(t, map[string]string{"AGENTRUN_LEASE": "soon"}, "--config", "c.yaml")
	if err == nil || !strings.Contains(err.Error(), "$AGENTRUN_LEASE") || !strings.Contains(err.Error(), "--lease") {
		t.Errorf("got %v", err)
	}
}

func TestReportTellsTheExitCode(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		code int
		err  error
		want int
		text string
	}{
		{0, nil, 0, ""},
		{3, nil, 3, ""},
		{0, errDone, 0, ""},
		{0, os.ErrNotExist, 1, "x y: file does not exist\n"},
		{5, os.ErrNotExist, 5, "x y: file does not exist\n"},
		{0, &Usage{Command: "x y", Err: os.ErrInvalid}, 2, "x y: invalid argument (see x y --help)\n"},
		{1, &Usage{Command: "x y", Err: os.ErrInvalid}, 1, "x y: invalid argument (see x y --help)\n"},
	} {
		env := environ(nil)
		code := env.Report("x y", x.code, x.err)
		if text := env.Stderr.(*bytes.Buffer).String(); code != x.want || text != x.text {
			t.Errorf("%d, %v: exit code %d, %q", x.code, x.err, code, text)
		}
	}
}

const (
	flagsBegin = "<!-- flags: written by go test ./internal/app -update -->\n"
	flagsEnd   = "<!-- end of flags -->"
)

// README.md shows the flags as the code has them.
func TestTheFlagsInTheReadmeAreCurrent(t *testing.T) {
	t.Parallel()
	path := filepath.Join("..", "..", "README.md")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(data), flagsBegin)
	old, tail, ok2 := strings.Cut(rest, flagsEnd)
	if !ok || !ok2 {
		t.Fatalf("README.md lacks its markers %q and %q", flagsBegin, flagsEnd)
	}
	want := "\n" + FlagTable() + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(head+flagsBegin+want+flagsEnd+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != want {
		t.Error("the flags in README.md are not those of the code; make golden writes them anew")
	}
}
