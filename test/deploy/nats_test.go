// Package deploy tests what deploy/ ships, with the very files and, where they are installed, the real tools.
package deploy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
)

// root is the repository.
const root = "../.."

// limit bounds every wait for something that must happen.
const limit = 20 * time.Second

// users are those of deploy/nats/accounts.conf, and one of a second tenant.
var users = []string{"sys", "publisher-acme", "publisher-globex", "operator", "inspector", "observer", "executor", "reconciler", "auditor"}

func password(user string) string { return "password-of-" + user }

// setPasswords fills the environment that accounts.conf reads, once for all tests: those that run beside others may not.
func setPasswords() {
	for _, user := range users {
		name := "AGENTRUN_" + strings.ToUpper(strings.ReplaceAll(user, "-", "_")) + "_PASSWORD"
		_ = os.Setenv(name, password(user))
	}
}

// natsServer is a server with a shipped configuration and a log of what it refused.
type natsServer struct {
	*server.Server
	url    string // without user
	refuse *violations
}

// violations collects what the server logs about permissions.
type violations struct {
	mu    sync.Mutex
	lines []string
}

func (v *violations) add(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if strings.Contains(line, "Violation") || strings.Contains(line, "Authorization") {
		v.mu.Lock()
		v.lines = append(v.lines, line)
		v.mu.Unlock()
	}
}

func (v *violations) Noticef(format string, args ...any) { v.add(format, args...) }
func (v *violations) Warnf(format string, args ...any)   { v.add(format, args...) }
func (v *violations) Fatalf(format string, args ...any)  { v.add("Violation: "+format, args...) }
func (v *violations) Errorf(format string, args ...any)  { v.add(format, args...) }
func (v *violations) Debugf(format string, args ...any)  { v.add(format, args...) }
func (v *violations) Tracef(string, ...any)              {}

// take returns what was refused since the last take.
func (v *violations) take() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	lines := v.lines
	v.lines = nil
	return lines
}

// start runs a server with the configuration in file; change may replace what a test cannot have, such as ports.
func start(t *testing.T, file string, change func(*server.Options)) *natsServer {
	t.Helper()
	o, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	o.Host, o.Port, o.HTTPHost, o.HTTPPort = "127.0.0.1", server.RANDOM_PORT, "", 0
	o.StoreDir, o.NoSigs = t.TempDir(), true
	if change != nil {
		change(o)
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	n := &natsServer{Server: s, refuse: &violations{}}
	s.SetLoggerV2(n.refuse, true, false, false)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(limit) {
		t.Fatalf("the server with %s is not ready", file)
	}
	n.url = strings.TrimPrefix(s.ClientURL(), "nats://")
	n.url = strings.TrimPrefix(n.url, "tls://")
	return n
}

// startShipped runs deploy/nats/nats.conf.
func startShipped(t *testing.T) *natsServer {
	t.Helper()
	return start(t, filepath.Join(root, "deploy/nats/nats.conf"), nil)
}

// startTenants runs it with a second tenant, globex, made as accounts.conf says: by copying acme's block.
func startTenants(t *testing.T) *natsServer {
	t.Helper()
	dir := t.TempDir()
	accounts := read(t, "deploy/nats/accounts.conf")
	begin := strings.Index(accounts, "  TENANT_ACME {")
	end := begin + strings.Index(accounts[begin:], "\n  }\n") + len("\n  }\n")
	if begin < 0 || end < begin {
		t.Fatal("accounts.conf has no block TENANT_ACME")
	}
	block := strings.NewReplacer("acme", "globex", "ACME", "GLOBEX").Replace(accounts[begin:end])
	for name, text := range map[string]string{"accounts.conf": accounts[:end] + block + accounts[end:], "nats.conf": read(t, "deploy/nats/nats.conf")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return start(t, filepath.Join(dir, "nats.conf"), nil)
}

// read returns a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func (n *natsServer) as(user string) string {
	return "nats://" + user + ":" + password(user) + "@" + n.url
}

func inbox(user string) string { return "_INBOX_" + user }

// client connects as a user, and collects what the server tells it about permissions.
func (n *natsServer) client(t *testing.T, user string) (*nats.Conn, *refusals) {
	t.Helper()
	r := &refusals{}
	nc, err := nats.Connect(n.as(user), nats.CustomInboxPrefix(inbox(user)), nats.ErrorHandler(r.add))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc, r
}

// refusals are the permission errors that a client was told.
type refusals struct {
	mu   sync.Mutex
	errs []string
}

func (r *refusals) add(_ *nats.Conn, _ *nats.Subscription, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err.Error())
}

// take waits for as many refusals as are wanted and returns them, with any more that the server has sent until then.
func (r *refusals) take(t *testing.T, nc *nats.Conn, want int, what string) (errs []string) {
	t.Helper()
	if err := nc.FlushTimeout(limit); err != nil {
		t.Fatal(err)
	}
	// The client tells its handler from a goroutine of its own.
	bustest.Eventually(t, fmt.Sprintf("%d refusals when trying to %s", want, what), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.errs) < want {
			return false
		}
		errs, r.errs = r.errs, nil
		return true
	})
	return errs
}

// process is an executor or a reconciler that serves inside the test.
type process struct {
	http string
	stop func() // waits until it has ended
	log  *lockedLog
}

// lockedLog is what a process logs.
type lockedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// serve runs what until the test ends, and waits until it is ready.
func serve(t *testing.T, name string, run func(ctx context.Context, ready func(string), log io.Writer) error) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{log: &lockedLog{}}
	ready, ended := make(chan string, 1), make(chan struct{})
	var failed error
	go func() {
		defer close(ended)
		failed = run(ctx, func(addr string) { ready <- addr }, p.log)
	}()
	p.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case <-ended:
			if failed != nil {
				t.Errorf("%s ended with %v", name, failed)
			}
		case <-time.After(limit):
			t.Errorf("%s did not end", name)
		}
	})
	t.Cleanup(p.stop)
	select {
	case p.http = <-ready:
	case <-ended:
		t.Fatalf("%s ended with %v:\n%s", name, failed, p.log)
	case <-time.After(limit):
		t.Fatalf("%s is not ready:\n%s", name, p.log)
	}
	return p
}

func executorServe(t *testing.T, args ...string) *process {
	t.Helper()
	var c app.ExecutorConfig
	args = append([]string{"--http", "127.0.0.1:0", "--log-level", "debug", "--data", t.TempDir(), "--lease", "1s"}, args...)
	if err := app.Defaults(&c, args); err != nil {
		t.Fatal(err)
	}
	return serve(t, "executor", func(ctx context.Context, ready func(string), log io.Writer) error {
		c.OnReady, c.Log = ready, log
		return app.Executor(ctx, c)
	})
}

func reconcilerServe(t *testing.T, args ...string) *process {
	t.Helper()
	var c app.ReconcilerConfig
	args = append([]string{"--http", "127.0.0.1:0", "--log-level", "debug", "--lease", "1s"}, args...)
	if err := app.Defaults(&c, args); err != nil {
		t.Fatal(err)
	}
	return serve(t, "reconciler", func(ctx context.Context, ready func(string), log io.Writer) error {
		c.OnReady, c.Log = ready, log
		return app.Reconciler(ctx, c)
	})
}

// fleet is an executor and a reconciler as their users.
type fleet struct{ executor, reconciler *process }

func (n *natsServer) fleet(t *testing.T, config string, more ...string) *fleet {
	t.Helper()
	flags := func(user string) []string {
		return append([]string{"--nats", n.as(user), "--inbox-prefix", inbox(user), "--config", config, "--id", user}, more...)
	}
	return &fleet{reconciler: reconcilerServe(t, flags("reconciler")...), executor: executorServe(t, flags("executor")...)}
}

// provider is what the tools call.
func provider(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /invoice/{id}", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"id":"inv_7"}`) })
	mux.HandleFunc("GET /invoice", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"id":"inv_7"}`) })
	mux.HandleFunc("POST /credit", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"credit_id":"cr_3"}`) })
	mux.HandleFunc("POST /lost", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	mux.HandleFunc("GET /lost", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"items":[{"credit_id":"cr_9"}]}`)
	})
	mux.HandleFunc("POST /denied", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	mux.HandleFunc("GET /large", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"id":"inv_8","text":"`+strings.Repeat("x", 400<<10)+`"}`)
	})
	var tries sync.Map
	mux.HandleFunc("GET /flaky", func(w http.ResponseWriter, r *http.Request) {
		if _, again := tries.LoadOrStore(r.URL.RawQuery, true); !again {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, `{}`)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// toolConfig writes a config file with one tool for each kind of end.
func toolConfig(t *testing.T) string {
	t.Helper()
	text := fmt.Sprintf(`
defaults: {owner: billing-oncall, workflow: w, actor: a, retry: {initial_delay: 50ms, max_delay: 100ms}}
tools:
  get_invoice: {effect: read, http: {method: GET, url: "%[1]s/invoice"}}
  get_large: {effect: read, max_result_bytes: 1048576, http: {method: GET, url: "%[1]s/large"}}
  get_flaky: {effect: read, http: {method: GET, url: "%[1]s/flaky"}}
  apply_credit: {effect: write, http: {method: POST, url: "%[1]s/credit"}, evidence_ref: body.credit_id}
  apply_lost:
    effect: write
    http: {method: POST, url: "%[1]s/lost"}
    verify:
      http: {method: GET, url: "%[1]s/lost?ref={operation_ref}"}
      committed: "size(body.items) > 0"
      not_committed: "size(body.items) == 0"
      result: "body.items[0]"
      consistency_window: 200ms
  apply_denied: {effect: write, http: {method: POST, url: "%[1]s/denied"}}
`, provider(t))
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
