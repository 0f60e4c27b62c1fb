package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"text/template"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/topology"
)

// Fleet is a NATS server, executors and reconcilers, each a process of its own, and the provider that they call.
type Fleet struct {
	Dir         string
	Lease       time.Duration
	Provider    *Provider
	NATS        *Process
	Executors   []*Process
	Reconcilers []*Process
	Gateways    []*Process
	Links       map[string]*Link // by process
	Faults      *Chronicle
	Slots       int // --concurrency of each executor

	bin   binaries
	addr  string   // of the server
	gates []string // addresses of the gateways
	conn  *nats.Conn
	js    jetstream.JetStream
	ctx   context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup
	fail  chan error
}

// binaries are the commands under test and the server, as files.
type binaries struct{ dir string }

func (b binaries) path(r Role) string { return filepath.Join(b.dir, string(r)) }

// build compiles the real commands and the real server into dir.
func build(ctx context.Context, root, dir string) (binaries, error) {
	for _, x := range []struct {
		role Role
		pkg  string
	}{{Executor, "./cmd/executor"}, {Reconciler, "./cmd/reconciler"}, {Server, "github.com/nats-io/nats-server/v2"}} {
		cmd := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, string(x.role)), x.pkg)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return binaries{}, fmt.Errorf("building %s: %w\n%s", x.role, err, out)
		}
	}
	return binaries{dir}, nil
}

// moduleRoot finds the directory of go.mod.
func moduleRoot() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("where is the module? %w", err)
	}
	return string(bytes.TrimSpace(out)), nil
}

// newFleet starts a NATS server. Close the fleet.
func newFleet(ctx context.Context, bin binaries, dir string, lease time.Duration, p *Provider) (*Fleet, error) {
	ctx, stop := context.WithCancel(ctx)
	f := &Fleet{
		Dir: dir, Lease: lease, Provider: p, Links: map[string]*Link{}, Faults: &Chronicle{}, Slots: 8,
		bin: bin, ctx: ctx, stop: stop, fail: make(chan error, 16),
	}
	if err := f.open(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (f *Fleet) open() error {
	if err := os.MkdirAll(f.Dir, 0o700); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	f.addr = net.JoinHostPort("127.0.0.1", port)
	if err := writeConfig(f.config(), f.Provider.URL); err != nil {
		return err
	}
	f.NATS = &Process{
		Name: "n1", Role: Server, path: f.bin.path(Server), log: filepath.Join(f.Dir, "n1.log"), faults: f.Faults,
		args: []string{"-a", "127.0.0.1", "-p", port, "-js", "-sd", filepath.Join(f.Dir, "nats")},
	}
	f.supervise(f.NATS)
	return f.connect()
}

func (f *Fleet) config() string { return filepath.Join(f.Dir, "config.yaml") }

// start adds processes and waits until NATS has its streams.
func (f *Fleet) start(executors, reconcilers int) error {
	for i := range reconcilers {
		p, err := f.process(Reconciler, fmt.Sprintf("r%d", i+1), fmt.Sprintf("rec%d", i+1))
		if err != nil {
			return err
		}
		f.Reconcilers = append(f.Reconcilers, p)
	}
	for i := range executors {
		name := fmt.Sprintf("e%d", i+1)
		data := filepath.Join(f.Dir, "data-"+name)
		// Two of several share an --id: names are for people, and must decide nothing.
		p, err := f.process(Executor, name, fmt.Sprintf("w%d", max(i, 1)), "--data", data, "--concurrency", strconv.Itoa(f.Slots), "--drain-timeout", "400ms")
		if err != nil {
			return err
		}
		p.Data = data
		f.Executors = append(f.Executors, p)
	}
	return f.waitStreams(f.ctx)
}

func (f *Fleet) process(role Role, name, id string, flags ...string) (*Process, error) {
	link, err := NewLink(f.addr)
	if err != nil {
		return nil, err
	}
	f.Links[name] = link
	p := &Process{Name: name, Role: role, path: f.bin.path(role), log: filepath.Join(f.Dir, name+".log"), faults: f.Faults}
	p.args = append([]string{
		"serve", "--nats", "nats://" + link.Addr, "--config", f.config(), "--id", id, "--lease", f.Lease.String(), "--http", "127.0.0.1:0",
	}, flags...)
	f.supervise(p)
	return p, nil
}

func (f *Fleet) supervise(p *Process) {
	f.wg.Go(func() {
		if err := p.Supervise(f.ctx); err != nil {
			select {
			case f.fail <- err:
			default:
			}
		}
	})
}

func (f *Fleet) connect() error {
	var err error
	f.conn, err = nats.Connect("nats://"+f.addr, nats.Name("crash"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(50*time.Millisecond), nats.ReconnectJitter(0, 0), nats.ReconnectBufSize(-1), nats.Timeout(2*time.Second),
		nats.PingInterval(2*time.Second), nats.MaxPingsOutstanding(2),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // the server is killed on purpose
	if err != nil {
		return fmt.Errorf("connecting to NATS: %w", err)
	}
	f.js, err = jetstream.New(f.conn)
	return err
}

func (f *Fleet) waitStreams(ctx context.Context) error {
	for start := time.Now(); time.Since(start) < 30*time.Second; {
		octx, cancel := context.WithTimeout(ctx, time.Second)
		_, err1 := f.js.Stream(octx, topology.JobsStream)
		_, err2 := f.js.Stream(octx, topology.ResultsStream)
		cancel()
		if err1 == nil && err2 == nil {
			return nil
		}
		select {
		case err := <-f.fail:
			return err
		default:
		}
		if !pause.For(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
	return errors.New("the fleet did not make its streams within 30 s; see its logs in " + f.Dir)
}

// Close ends every process that the fleet started.
func (f *Fleet) Close() {
	f.stop()
	f.wg.Wait()
	if f.conn != nil {
		f.conn.Close()
	}
	for _, l := range f.Links {
		l.Close()
	}
}

// All are the processes of the fleet.
func (f *Fleet) All() []*Process {
	out := append([]*Process{f.NATS}, f.Executors...)
	return append(append(out, f.Reconcilers...), f.Gateways...)
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

var configText = template.Must(template.New("config").Parse(`defaults:
  owner: oncall
  workflow: crash
  actor: "agent:crash"
  budget: {max_turns: 50, max_tool_calls: {{.MaxCalls}}, max_attempts_per_step: {{.MaxAttempts}}, max_elapsed: 1h}
  retry: {initial_delay: 50ms, max_delay: 400ms, multiplier: 2, jitter: 0.2}
  poison_after: 200
tools:
{{- range .Tools}}
  {{.Name}}:
    effect: {{if .Write}}write{{else}}read{{end}}
    timeout: {{.Timeout}}
    {{- if .Command}}
    command: {argv: ["{{$.Program}}", command, "{{$.URL}}", "{{.Name}}"], env: {CRASH_WORKER: "${CRASH_WORKER}"}, cwd: /, umask: "077", limits: {core: 0, nofile: 256}}
    {{- else}}
    http: {method: {{if .Write}}POST{{else}}GET{{end}}, url: "{{$.URL}}/call/{{.Name}}{{if not .Write}}?ref={operation_ref}{{end}}", headers: {X-Worker: "${CRASH_WORKER}"}}
    {{- end}}
    output_schema: {type: object, required: [id]}
    retry: {max_attempts: {{$.MaxAttempts}}}
    {{- if .Write}}
    evidence_ref: body.id
    {{- end}}
    {{- if and .Write (not .Command)}}
    errors:
      - {when: "status == 503", code: UPSTREAM_UNAVAILABLE, commit_state: not_committed}
    {{- end}}
    {{- if .Window}}
    verify:
      http: {method: GET, url: "{{$.URL}}/lookup/{{.Name}}?ref={operation_ref}&key={idempotency_key}"}
      committed: "status == 200 && size(body.items) > 0"
      not_committed: "status == 200 && size(body.items) == 0"
      result: "body.items[0]"
      evidence_ref: "body.items[0].id"
      consistency_window: {{.Window}}
      timeout: 1s
      max_attempts: 30
      always: {{.Always}}
    {{- end}}
    {{- if .PerTry}}
    idempotency_key: per_attempt
    {{- end}}
    {{- if .Keyed}}
    idempotent_for: 1h
    {{- end}}
{{- end}}
`))

// The budgets of every run.
const (
	MaxCalls    = 200
	MaxAttempts = 8
)

func writeConfig(path, url string) error {
	var b bytes.Buffer
	program, err := os.Executable()
	if err != nil {
		return err
	}
	err = configText.Execute(&b, map[string]any{"Tools": tools, "URL": url, "Program": program, "MaxCalls": MaxCalls, "MaxAttempts": MaxAttempts})
	if err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o600)
}
