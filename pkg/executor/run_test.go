package executor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/executor"
	"github.com/agentrun/executor/pkg/run"
)

// tool makes a read of a function.
func tool(t *testing.T, name string, fn connector.GoFunc) *connector.Tool {
	t.Helper()
	made, err := connector.Func(name, envelope.Read, fn)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// begun is a Run that is ready.
type begun struct {
	executor.Running
	stop  context.CancelFunc
	ended <-chan error
}

// end stops it and returns what Run did.
func (b *begun) end() error {
	b.stop()
	return <-b.ended
}

// begin runs and returns when it is ready.
func begin(t *testing.T, how func(context.Context, executor.Options) error, o executor.Options) *begun {
	t.Helper()
	ready, ended := make(chan executor.Running, 1), make(chan error, 1)
	o.OnReady = func(r executor.Running) { ready <- r }
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() { ended <- how(ctx, o) }()
	select {
	case r := <-ready:
		return &begun{r, cancel, ended}
	case err := <-ended:
		t.Fatalf("it did not start: %v", err)
		return nil
	}
}

// do submits a run of one step and waits for its end.
func do(t *testing.T, url, queue, name, tool, args string) *client.Result {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c, err := client.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	result, err := c.SubmitAndWait(t.Context(), job(name, tool, args), client.Options{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// job is a run of one step, of which a config with defaults would say the rest.
func job(name, tool, args string) *run.Job {
	return &run.Job{
		Tenant: "acme", RunID: name, Owner: "me", Workflow: "testing", Actor: "service:test",
		Steps: []run.JobStep{{Step: "s", Tool: tool, Args: json.RawMessage(args)}},
	}
}

// Two executors and a reconciler live in one process on an embedded server: each does its own queue's work, and when they have
// ended nothing of them is left.
func TestTwoExecutorsInOneProcess(t *testing.T) {
	dir := t.TempDir()
	which := func(id string) *connector.Tool {
		return tool(t, "which", func(context.Context, *connector.Call) (json.RawMessage, error) { return json.Marshal(id) })
	}
	a := begin(t, executor.Run, executor.Options{
		NATS: "nats://127.0.0.1:0", EmbeddedNATS: true, ID: "a", Data: filepath.Join(dir, "a"), Queues: []string{"qa"},
		Tools: []*connector.Tool{which("a")}, HTTP: "127.0.0.1:0",
	})
	b := begin(t, executor.Run, executor.Options{
		NATS: a.NATS, ID: "b", Data: filepath.Join(dir, "b"), Queues: []string{"qb"}, Tools: []*connector.Tool{which("b")}, HTTP: "127.0.0.1:0",
	})
	r := begin(t, executor.RunReconciler, executor.Options{NATS: a.NATS, ID: "r", Tools: []*connector.Tool{which("r")}})
	if r.HTTP != "" || a.HTTP == "" || b.HTTP == "" || a.HTTP == b.HTTP {
		t.Errorf("HTTP at %q, %q and %q", a.HTTP, b.HTTP, r.HTTP)
	}
	for _, id := range []string{"a", "b"} {
		result := do(t, a.NATS, "q"+id, "run_"+id, "which", `{}`)
		if got := string(result.Steps["s"].Envelope.Result); result.Outcome != envelope.OK || got != `"`+id+`"` {
			t.Errorf("queue q%s: %s %s", id, result.Outcome, got)
		}
	}
	for _, p := range []*begun{r, b, a} {
		if err := p.end(); err != nil {
			t.Error(err)
		}
	}
	nothingLeft(t)
}

// nothingLeft waits until no goroutine is left that this module has started; those of a connection that was closed end on
// their own.
func nothingLeft(t *testing.T) {
	t.Helper()
	stacks := make([]byte, 4<<20)
	for begun := time.Now(); ; runtime.Gosched() {
		var left []string
		for g := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(g, "created by github.com/agentrun/executor/internal/") && !strings.Contains(g, "/bustest") {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Since(begun) > 20*time.Second {
			t.Fatalf("%d goroutines are left, among them\n%s", len(left), left[0])
		}
	}
}

// A start that fails leaves nothing behind either, and says what is wrong instead of ending the process.
func TestAStartThatFails(t *testing.T) {
	server := bustest.Start(t)
	echo := []*connector.Tool{tool(t, "echo", func(_ context.Context, c *connector.Call) (json.RawMessage, error) { return c.Args, nil })}
	dir := t.TempDir()
	first := begin(t, executor.Run, executor.Options{NATS: server.URL, Data: dir, Tools: echo})
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, x := range []struct {
		name, says string
		o          executor.Options
		reconciler bool
	}{
		{"no data", "Data", executor.Options{Tools: echo}, false},
		{"nothing to call", "Tools", executor.Options{Data: "x"}, false},
		{"two configs", "Config", executor.Options{Data: "x", ConfigFile: "y", Config: []byte("tools: {}")}, false},
		{"a bad config", "config:1:1: ", executor.Options{Data: t.TempDir(), Config: []byte("tolls: {}")}, false},
		{"a bad id", "ID: ", executor.Options{Data: "x", Tools: echo, ID: "a b"}, false},
		{"a bad lease", "Lease: ", executor.Options{Data: "x", Tools: echo, Lease: time.Millisecond}, false},
		{"a negative drain", "DrainTimeout: ", executor.Options{Data: "x", Tools: echo, DrainTimeout: -1}, false},
		{"a bad queue", "Queues: ", executor.Options{Data: "x", Tools: echo, Queues: []string{"a.b"}}, false},
		{"no queue", "Queues: ", executor.Options{Data: "x", Tools: echo, Queues: []string{}}, false},
		{"a bad address", "HTTP: ", executor.Options{Data: "x", Tools: echo, HTTP: "nowhere"}, false},
		{"an address in use", taken.Addr().String(), executor.Options{NATS: server.URL, Data: t.TempDir(), Tools: echo, HTTP: taken.Addr().String()}, false},
		{"an embedded server's address in use", "listen", executor.Options{NATS: "nats://" + taken.Addr().String(), EmbeddedNATS: true, Data: t.TempDir(), Tools: echo}, false},
		{"a journal in use", dir, executor.Options{NATS: server.URL, Data: dir, Tools: echo, ID: "second"}, false},
		{"a reconciler with a journal", "Data", executor.Options{Data: "x", Tools: echo}, true},
		{"two tools of one name", "echo", executor.Options{NATS: server.URL, Tools: append(echo, echo...)}, true},
	} {
		how := executor.Run
		if x.reconciler {
			how = executor.RunReconciler
		}
		if err := how(t.Context(), x.o); err == nil || !strings.Contains(err.Error(), x.says) || strings.Contains(err.Error(), "--") {
			t.Errorf("%s: %v, must name %s and no flag", x.name, err, x.says)
		}
	}
	if err := first.end(); err != nil {
		t.Error(err)
	}
	nothingLeft(t)
}

// A context that ends lets calls in flight finish, and no longer than DrainTimeout.
func TestRunDrains(t *testing.T) {
	server := bustest.Start(t)
	for _, patient := range []bool{true, false} {
		t.Run(fmt.Sprint(patient), func(t *testing.T) {
			called, let := make(chan struct{}), make(chan struct{})
			var cut error
			log := &waiting{text: "draining", seen: make(chan struct{})}
			o := executor.Options{NATS: server.URL, Data: t.TempDir(), Queues: []string{fmt.Sprintf("q%v", patient)}, Logger: slog.New(log), Tools: []*connector.Tool{
				tool(t, "slow", func(ctx context.Context, _ *connector.Call) (json.RawMessage, error) {
					close(called)
					select {
					case <-let:
						return json.RawMessage(`"done"`), nil
					case <-ctx.Done():
						cut = ctx.Err()
						close(let)
						return nil, cut
					}
				}),
			}}
			if !patient {
				o.DrainTimeout = 1
			}
			e := begin(t, executor.Run, o)
			outcome := make(chan *client.Outcome, 8)
			nc := server.Conn()
			c, err := client.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			id := fmt.Sprintf("drained_%v", patient)
			w, err := c.Watch(t.Context(), "acme", id)
			if err != nil {
				t.Fatal(err)
			}
			watched, stopWatching := context.WithCancel(t.Context())
			over := make(chan struct{})
			defer func() {
				stopWatching()
				<-over
				w.Stop()
			}()
			go func() {
				defer close(over)
				for o, err := range w.All(watched) {
					if err == nil {
						outcome <- o
					}
				}
			}()
			if _, err := c.Submit(t.Context(), job(id, "slow", `{}`), client.Options{Queue: o.Queues[0]}); err != nil {
				t.Fatal(err)
			}
			<-called
			e.stop()
			<-log.seen
			if patient {
				select {
				case err := <-e.ended:
					t.Fatalf("Run returned (%v) before its call had", err)
				default:
				}
				close(let)
			}
			if err := <-e.ended; err != nil {
				t.Fatal(err)
			}
			if !patient {
				if <-let; !errors.Is(cut, context.Canceled) {
					t.Errorf("the call was cut off by %v", cut)
				}
				return
			}
			if o := <-outcome; o.Outcome.Outcome != envelope.OK || string(o.Envelope.Result) != `"done"` {
				t.Errorf("the step came to %s %s", o.Outcome.Outcome, o.Envelope.Result)
			}
		})
	}
}

// What belongs to the process stays as it is.
func TestRunChangesNothingOfTheProcess(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	const percent = 137
	defer debug.SetGCPercent(debug.SetGCPercent(percent))
	var std locked
	defer slog.SetDefault(slog.Default())
	defer stdlog.SetOutput(stdlog.Writer())
	mine := slog.New(slog.NewTextHandler(&std, nil))
	slog.SetDefault(mine)
	stdlog.SetOutput(&std)
	var log locked
	e := begin(t, executor.Run, executor.Options{
		NATS: "nats://127.0.0.1:0", EmbeddedNATS: true, Data: t.TempDir(),
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Tools:  []*connector.Tool{tool(t, "echo", func(_ context.Context, c *connector.Call) (json.RawMessage, error) { return c.Args, nil })},
	})
	if r := do(t, e.NATS, "", "run_1", "echo", `{"a":1}`); r.Outcome != envelope.OK {
		t.Errorf("the run is %s", r.Outcome)
	}
	if now := debug.SetGCPercent(percent); now != percent {
		t.Errorf("the collector's target is %d %%, was %d %%", now, percent)
	}
	if slog.Default() != mine {
		t.Error("the default logger was replaced")
	}
	if err := e.end(); err != nil {
		t.Error(err)
	}
	if s := std.String(); s != "" {
		t.Errorf("the default log has\n%s", s)
	}
	if s := log.String(); !strings.Contains(s, "ready") || strings.Contains(s, "traces") {
		t.Errorf("its log is\n%s", s)
	}
}

// The endpoints are had as a handler too, and the config as bytes with variables of the program's own.
func TestEndpointsAndConfig(t *testing.T) {
	server := bustest.Start(t)
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"id":"x"}`) }))
	defer provider.Close()
	var endpoints http.Handler
	var before int
	ask := func(path string) (int, string) {
		w := httptest.NewRecorder()
		endpoints.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	e := begin(t, executor.Run, executor.Options{
		NATS: "nats://nobody.invalid:4222", NATSOptions: []nats.Option{func(o *nats.Options) error {
			o.Url, o.Servers = server.URL, nil // the options reach the connection
			return nil
		}},
		Data: t.TempDir(),
		Config: []byte(`
defaults: {owner: me}
tools:
  load: {effect: read, http: {method: GET, url: "${PROVIDER}/load"}}
`),
		Lookup: func(name string) (string, bool) { return provider.URL, name == "PROVIDER" },
		Endpoints: func(h http.Handler) {
			endpoints = h
			before, _ = ask("/readyz")
		},
	})
	if code, _ := ask("/readyz"); before != http.StatusServiceUnavailable || code != http.StatusOK {
		t.Errorf("/readyz was %d before the start and is %d", before, code)
	}
	if r := do(t, server.URL, "", "run_1", "load", `{}`); r.Outcome != envelope.OK {
		t.Errorf("the run is %s", r.Outcome)
	}
	if _, metrics := ask("/metrics"); !strings.Contains(metrics, `agentrun_tool_calls_total{code="ok",effect="read",tool="load"} 1`) {
		t.Errorf("/metrics has\n%s", metrics)
	}
	if err := e.end(); err != nil {
		t.Error(err)
	}
}

// waiting is a log in which a message is waited for.
type waiting struct {
	slog.Handler
	text string
	seen chan struct{}
}

func (w *waiting) Enabled(context.Context, slog.Level) bool { return true }
func (w *waiting) WithAttrs([]slog.Attr) slog.Handler       { return w }

func (w *waiting) Handle(_ context.Context, r slog.Record) error {
	if r.Message == w.text {
		close(w.seen)
	}
	return nil
}

// locked is a log that several goroutines write.
type locked struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
