package deploy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/run"
)

// A test that kills an executor starts this test's own binary again, which then is that executor and nothing else.
const roleVariable = "DEPLOY_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) == "" {
		setPasswords()
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var c app.ExecutorConfig
	err := app.Defaults(&c, os.Args[1:])
	if err == nil {
		c.Log, c.OnReady = os.Stderr, func(string) { fmt.Println("ready") }
		err = app.Executor(ctx, c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// executorProcess is an executor in a process of its own; kill ends it as a power cut does.
func executorProcess(t *testing.T, data string, args ...string) (kill func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"--http", "127.0.0.1:0", "--data", data, "--lease", "1s", "--id", "killed"}, args...)...)
	cmd.Env = append(os.Environ(), roleVariable+"=executor")
	log := &lockedLog{}
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(kill)
	var word string
	if _, err := fmt.Fscan(out, &word); err != nil || word != "ready" {
		t.Fatalf("the executor is not ready: %v\n%s", err, log)
	}
	return kill
}

// place is where a fleet's processes reach NATS, and how they name the JetStream that has the streams.
type place struct {
	url    string
	flags  []string
	client []client.Option
	inbox  string
	store  string // a URL at which the streams must be
	other  string // a URL at which there must be none; optional

	stopHub, startHub func() // of a leaf node
}

const twoAccounts = "accounts { $SYS: {users: [{user: sys, password: p}]}, A: {jetstream: enabled, users: [{user: a, password: p}]} }\n"

// hubAndLeaf runs a hub with a domain and a leaf node with another, both with JetStream, in one account.
func hubAndLeaf(t *testing.T) place {
	t.Helper()
	dir, port := t.TempDir(), bustest.Port(t)
	hubFile, leafFile := filepath.Join(dir, "hub.conf"), filepath.Join(dir, "leaf.conf")
	writeFile(t, hubFile, fmt.Sprintf("jetstream {store_dir: \"/replaced\", domain: hub}\nleafnodes {listen: \"127.0.0.1:%d\"}\n", port)+twoAccounts)
	writeFile(t, leafFile, fmt.Sprintf("jetstream {store_dir: \"/replaced\", domain: edge}\nleafnodes {remotes: [{url: \"nats-leaf://a:p@127.0.0.1:%d\", account: A}]}\n", port)+twoAccounts)
	store := t.TempDir()
	startHub := func() *natsServer { return start(t, hubFile, func(o *server.Options) { o.StoreDir = store }) }
	hub, leaf := startHub(), start(t, leafFile, nil)
	bustest.Eventually(t, "the leaf node is connected", func() bool { return leaf.NumLeafNodes() == 1 && hub.NumLeafNodes() == 1 })
	return place{
		url: "nats://a:p@" + leaf.url, flags: []string{"--js-domain", "hub"}, client: []client.Option{client.Domain("hub")}, inbox: "_INBOX",
		store: "nats://a:p@" + hub.url, other: "nats://a:p@" + leaf.url,
		stopHub: func() {
			hub.Shutdown()
			hub.WaitForShutdown()
			bustest.Eventually(t, "the leaf node has lost its hub", func() bool { return leaf.NumLeafNodes() == 0 })
		},
		startHub: func() { startHub() },
	}
}

// TestAFleetAtALeafNode: the streams are the hub's, whatever the leaf node has itself.
func TestAFleetAtALeafNode(t *testing.T) {
	t.Parallel() // it waits for leases
	fleetElsewhere(t, hubAndLeaf(t))
}

// TestALeafNodeThatLosesItsHub: the processes' own connections do not notice; the work waits, and goes on when the hub is back.
func TestALeafNodeThatLosesItsHub(t *testing.T) {
	t.Parallel() // it waits for heartbeats
	p := hubAndLeaf(t)
	flags := append([]string{"--nats", p.url, "--config", toolConfig(t)}, p.flags...)
	reconcilerServe(t, append(flags, "--id", "r")...)
	executor := executorServe(t, append(flags, "--id", "e")...)
	nc, err := nats.Connect(p.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	c, err := client.New(nc, p.client...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, runID := range []string{"before", "after"} {
		if runID == "after" {
			p.stopHub()
			bustest.Eventually(t, "the executor is not ready", func() bool { return status(t, executor) == http.StatusServiceUnavailable })
			p.startHub()
		}
		job := &run.Job{Tenant: "acme", RunID: runID, Steps: []run.JobStep{{Step: "a", Tool: "apply_credit", Args: []byte(`{}`)}, {Step: "b", Tool: "apply_lost", Args: []byte(`{}`)}}}
		var r *client.Result
		bustest.Eventually(t, "the stream takes a job", func() bool { // the hub is there again, and known to be in a moment
			r, err = c.SubmitAndWait(ctx, job, client.Options{})
			return !errors.Is(err, client.ErrNoStreams)
		})
		if err != nil || r.Outcome != "ok" {
			t.Fatalf("%s: %+v, %v\n%s", runID, r, err, executor.log)
		}
	}
	bustest.Eventually(t, "the executor is ready again", func() bool { return status(t, executor) == http.StatusOK })
}

// status is what a process says of its readiness.
func status(t *testing.T, p *process) int {
	t.Helper()
	resp, err := http.Get("http://" + p.http + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// TestThePermissionsInADomain: at the hub, whose server maps its domain before it checks, accounts.conf is right as it is;
// at a leaf node's server $JS.<domain>.API. stands for $JS.API. in all of it, as docs/operations.md says.
func TestThePermissionsInADomain(t *testing.T) {
	t.Parallel()
	t.Run("hub", func(t *testing.T) {
		flows(t, start(t, filepath.Join(root, "deploy/nats/nats.conf"), func(o *server.Options) { o.JetStreamDomain = "hub" }), "--js-domain", "hub")
	})
	t.Run("leaf", func(t *testing.T) {
		dir, port := t.TempDir(), bustest.Port(t)
		writeFile(t, filepath.Join(dir, "hub.conf"), fmt.Sprintf("jetstream {store_dir: \"/replaced\", domain: hub}\nleafnodes {listen: \"127.0.0.1:%d\"}\n", port)+twoAccounts)
		writeFile(t, filepath.Join(dir, "accounts.conf"), strings.ReplaceAll(read(t, "deploy/nats/accounts.conf"), `"$JS.API.`, `"$JS.hub.API.`))
		writeFile(t, filepath.Join(dir, "nats.conf"), read(t, "deploy/nats/nats.conf")+
			fmt.Sprintf("leafnodes {remotes: [{url: \"nats-leaf://a:p@127.0.0.1:%d\", account: AGENTRUN}]}\n", port))
		hub := start(t, filepath.Join(dir, "hub.conf"), nil)
		leaf := start(t, filepath.Join(dir, "nats.conf"), func(o *server.Options) { o.JetStreamDomain = "edge" })
		bustest.Eventually(t, "the leaf node is connected", func() bool { return leaf.NumLeafNodes() == 1 && hub.NumLeafNodes() == 1 })
		flows(t, leaf, "--js-domain", "hub")
	})
}

// imports runs a server whose account FLEET has no JetStream and imports that of HUB, as docs/operations.md has it.
func imports(t *testing.T) place {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	_, rest, _ := strings.Cut(read(t, "docs/operations.md"), "<!-- imports -->\n```\n")
	text, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/operations.md does not show how an account imports the JetStream of another")
	}
	writeFile(t, file, "jetstream {store_dir: \"/replaced\"}\n"+text)
	n := start(t, file, nil)
	const prefix = "agentrun.hub.API"
	return place{
		url: "nats://fleet:p@" + n.url, flags: []string{"--js-prefix", prefix, "--inbox-prefix", "_INBOX_fleet"},
		client: []client.Option{client.APIPrefix(prefix)}, inbox: "_INBOX_fleet", store: "nats://hub:p@" + n.url,
	}
}

// TestAFleetThatImportsJetStream: the streams are another account's.
func TestAFleetThatImportsJetStream(t *testing.T) {
	t.Parallel() // it waits for leases
	fleetElsewhere(t, imports(t))
}

// gate is a provider that holds its first write until it is told to go on.
type gate struct {
	url     string
	reached chan struct{} // a write is held
	open    chan struct{}
	writes  atomic.Int64
}

func newGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{reached: make(chan struct{}, 1), open: make(chan struct{})}
	large := strings.Repeat("x", 400<<10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet && r.URL.Path == "/look":
			_, _ = fmt.Fprintf(w, `{"items":[{"id":"found"}]}`)
		case r.Method == http.MethodGet:
			_, _ = fmt.Fprintf(w, `{"id":"read","text":%q}`, large)
		case r.URL.Path == "/held":
			g.writes.Add(1)
			select {
			case g.reached <- struct{}{}:
			default:
			}
			select {
			case <-g.open:
			case <-r.Context().Done():
			}
			_, _ = io.WriteString(w, `{"id":"held"}`)
		default:
			_, _ = io.WriteString(w, `{"id":"written"}`)
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(g.open) })
	g.url = s.URL
	return g
}

// fleetElsewhere runs a fleet whose streams are elsewhere: a run with a result that is kept as an object, a run whose
// executor is killed in the middle of a write, what a client sees of both, an audit of what is stored, and doctor.
func fleetElsewhere(t *testing.T, p place) {
	t.Helper()
	g := newGate(t)
	config := filepath.Join(t.TempDir(), "config.yaml")
	writeFile(t, config, fmt.Sprintf(`
defaults: {owner: o, workflow: w, actor: a, retry: {initial_delay: 50ms, max_delay: 100ms}}
tools:
  get: {effect: read, max_result_bytes: 1048576, http: {method: GET, url: "%[1]s/large"}}
  put: {effect: write, http: {method: POST, url: "%[1]s/put"}, evidence_ref: body.id}
  held:
    effect: write
    http: {method: POST, url: "%[1]s/held"}
    verify:
      http: {method: GET, url: "%[1]s/look?ref={operation_ref}"}
      committed: "size(body.items) > 0"
      not_committed: "size(body.items) == 0"
      result: "body.items[0]"
      consistency_window: 100ms
`, g.url))
	flags := append([]string{"--nats", p.url, "--config", config}, p.flags...)
	reconcilerServe(t, append(flags, "--id", "r")...)
	kill := executorProcess(t, t.TempDir(), flags...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	nc, err := nats.Connect(p.url, nats.CustomInboxPrefix(p.inbox))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	c, err := client.New(nc, p.client...)
	if err != nil {
		t.Fatal(err)
	}
	job := func(runID, tool string) *run.Job {
		return &run.Job{Tenant: "acme", RunID: runID, Steps: []run.JobStep{
			{Step: "a", Tool: "get", Args: []byte(`{}`)}, {Step: "b", Tool: tool, Args: []byte(`{"of":{"$from":"a#/id"}}`)},
		}}
	}
	if r, err := c.SubmitAndWait(ctx, job("plain", "put"), client.Options{}); err != nil || r.Outcome != "ok" {
		t.Fatalf("a run ends %+v, %v", r, err)
	}
	w, err := c.Watch(ctx, "acme", "plain")
	if err != nil {
		t.Fatal(err)
	}
	if w.Live() {
		t.Error("the client could make no consumer where the streams are")
	}
	w.Stop()
	if _, err := c.Submit(ctx, job("killed", "held"), client.Options{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-g.reached:
	case <-ctx.Done():
		t.Fatal("the write was not sent")
	}
	kill()
	executor := executorServe(t, append(flags, "--id", "second")...)
	r, err := c.SubmitAndWait(ctx, job("killed", "held"), client.Options{})
	if err != nil || r.Outcome != "ok" || g.writes.Load() != 1 {
		t.Errorf("the run of a killed executor ends %+v, %v, after %d writes\n%s", r, err, g.writes.Load(), executor.log)
	}
	if page, err := c.List(ctx, client.AllTenants, client.ListRequest{}); err != nil || page.Total != 0 {
		t.Errorf("the open letters: %+v, %v", page, err)
	}
	lookElsewhere(t, p, config)
}

// streamsAt are the streams of a server's own JetStream, each with how many messages it has.
func streamsAt(t *testing.T, url string) map[string]uint64 {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	list, all := js.ListStreams(t.Context()), map[string]uint64{}
	for info := range list.Info() {
		all[info.Config.Name] = info.State.Msgs
	}
	if list.Err() != nil {
		t.Fatal(list.Err())
	}
	return all
}

// lookElsewhere looks at what such a fleet has stored, and where.
func lookElsewhere(t *testing.T, p place, config string) {
	t.Helper()
	all := []string{"AGENTRUN_ALERTS", "AGENTRUN_DEADLETTERS", "AGENTRUN_JOBS", "AGENTRUN_RESULTS", "AGENTRUN_RUNS", "AGENTRUN_WAKES", "OBJ_AGENTRUN_OBJECTS"}
	if got := slices.Sorted(maps.Keys(streamsAt(t, p.store))); !slices.Equal(got, all) {
		t.Errorf("the streams where they must be: %v", got)
	}
	bustest.Eventually(t, "every job is acknowledged", func() bool { return streamsAt(t, p.store)["AGENTRUN_JOBS"] == 0 })
	if p.other != "" && len(streamsAt(t, p.other)) > 0 {
		t.Errorf("streams where none must be: %v", streamsAt(t, p.other))
	}
	flags := append([]string{"--nats", p.url, "--config", config, "--data", t.TempDir()}, p.flags...)
	var c app.ExecutorConfig
	if err := app.Defaults(&c, append(flags, "--id", "executor")); err != nil {
		t.Fatal(err)
	}
	report, err := app.Audit(t.Context(), c.Connection, "audit")
	if err != nil || report.Records != 2 || len(report.Found) > 0 {
		t.Errorf("the audit: %+v, %v", report, err)
	}
	found := doctor(t, "", flags...)
	for _, check := range []string{"AGENTRUN_RUNS", "AGENTRUN_JOBS", "clock", "queue default", "fairness", "permissions"} {
		if f := found[check]; f.Health != app.Well || f.Found == "" {
			t.Errorf("doctor: %s: %+v", check, f)
		}
	}
	// Without the flag, or with a wrong one, it names the flag.
	var plain []string
	for i, f := range flags {
		if !strings.HasPrefix(f, "--js-") && (i == 0 || !strings.HasPrefix(flags[i-1], "--js-")) {
			plain = append(plain, f)
		}
	}
	for how, found := range map[string]map[string]app.Finding{
		"no flag":      doctor(t, "", plain...),
		"wrong domain": doctor(t, "", append(plain, "--js-domain", "none")...),
	} {
		check := "jetstream"
		if how == "no flag" && p.other != "" {
			check = "AGENTRUN_RUNS" // the leaf node's own JetStream answers
		}
		if f := found[check]; f.Health == app.Well || !strings.Contains(f.Fix, "--js-domain") || !strings.Contains(f.Fix, "--js-prefix") {
			t.Errorf("doctor with %s: %s: %+v", how, check, f)
		}
	}
}
