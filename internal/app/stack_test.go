package app_test

import (
	"context"
	"encoding/json"
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

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/run"
)

// provider is the far side of every tool: what it answers is up to the test, and it counts.
type provider struct {
	URL string

	mu    sync.Mutex
	calls map[string]int // by method and path
	reply func(r *http.Request, body string, n int) (status int, answer string)
}

func newProvider(t *testing.T) *provider {
	p := &provider{calls: map[string]int{}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		p.mu.Lock()
		key := r.Method + " " + r.URL.Path
		p.calls[key]++
		n, reply := p.calls[key], p.reply
		p.mu.Unlock()
		status, answer := 200, `{"id":"x1"}`
		if reply != nil {
			status, answer = reply(r, string(body), n)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	p.URL = s.URL
	return p
}

func (p *provider) answer(f func(r *http.Request, body string, n int) (int, string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reply = f
}

func (p *provider) count(call string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[call]
}

// stack is a server, a provider and a config; processes are started on it as a test needs them.
type stack struct {
	t      *testing.T
	server *bustest.Server
	*provider
	config string
	dir    string
	nc     *nats.Conn
	js     jetstream.JetStream
	args   []string // for every process
}

const stackConfig = `
defaults:
  owner: platform
  workflow: testing
  actor: "agent:test"
  max_budget: {max_tool_calls: 100}
  retry: {initial_delay: 20ms, max_delay: 50ms, jitter: 0}
tools:
  load:
    effect: read
    http: {method: GET, url: "PROVIDER/load"}
  pay:
    effect: write
    http: {method: POST, url: "PROVIDER/pay"}
    output_schema: {type: object, required: [id]}
  tell:
    effect: write
    http: {method: POST, url: "PROVIDER/tell"}
  approved:
    effect: write
    requires_approval: true
    http: {method: POST, url: "PROVIDER/approved"}
`

func newStack(t *testing.T, options ...bustest.Option) *stack {
	t.Helper()
	s := &stack{t: t, server: bustest.Start(t, options...), provider: newProvider(t), dir: t.TempDir(), args: []string{"--lease", "2s"}}
	s.config = filepath.Join(s.dir, "config.yaml")
	if err := os.WriteFile(s.config, []byte(strings.ReplaceAll(stackConfig, "PROVIDER", s.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.nc = s.server.Conn()
	js, err := jetstream.New(s.nc)
	if err != nil {
		t.Fatal(err)
	}
	s.js = js
	return s
}

// process is a process inside the test.
type process struct {
	http string
	stop func() error // waits; the error of serve
}

func (s *stack) start(flags interface{ Complete() error }, common *app.Process, id string, serve func(context.Context) error, args ...string) *process {
	s.t.Helper()
	all := append([]string{"--nats", s.server.URL, "--config", s.config, "--id", id, "--http", "127.0.0.1:0"}, s.args...)
	if err := app.Defaults(flags, append(all, args...)); err != nil {
		s.t.Fatal(err)
	}
	ready := make(chan string, 1)
	common.OnReady = func(addr string) { ready <- addr }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx) }()
	p := &process{}
	stopped := false
	p.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}
	s.t.Cleanup(func() { _ = p.stop() })
	select {
	case p.http = <-ready:
	case err := <-ended:
		s.t.Fatalf("%s did not start: %v", id, err)
	case <-time.After(30 * time.Second):
		s.t.Fatalf("%s was not ready in time", id)
	}
	return p
}

func (s *stack) executor(id string, args ...string) *process {
	s.t.Helper()
	var c app.ExecutorConfig
	args = append([]string{"--data", filepath.Join(s.dir, id), "--drain-timeout", "2s"}, args...)
	return s.start(&c, &c.Process, id, func(ctx context.Context) error { return app.Executor(ctx, c) }, args...)
}

func (s *stack) reconciler(id string, args ...string) *process {
	s.t.Helper()
	var c app.ReconcilerConfig
	return s.start(&c, &c.Process, id, func(ctx context.Context) error { return app.Reconciler(ctx, c) }, args...)
}

// M is a JSON object.
type M map[string]any

// publish publishes a job; more members may be given.
func (s *stack) publish(tenant, runID string, steps []M, more ...M) error {
	job := M{"schema": "agentrun.job/v1", "tenant": tenant, "run_id": runID, "steps": steps}
	for _, m := range more {
		for k, v := range m {
			job[k] = v
		}
	}
	data, err := json.Marshal(job)
	if err != nil {
		return err
	}
	_, err = s.js.Publish(s.t.Context(), "agentrun.jobs.default."+tenant+"."+runID, data)
	return err
}

func (s *stack) submit(tenant, runID string, steps []M, more ...M) {
	s.t.Helper()
	if err := s.publish(tenant, runID, steps, more...); err != nil {
		s.t.Fatal(err)
	}
}

func step(name, tool string, args M) M {
	if args == nil {
		args = M{}
	}
	return M{"step": name, "tool": tool, "args": args}
}

// reply is an operator call's answer.
type reply struct {
	OK          bool              `json:"ok"`
	Code        string            `json:"code"`
	Message     string            `json:"message"`
	RunID       string            `json:"run_id"`
	Episode     int               `json:"episode"`
	State       string            `json:"state"`
	DeadLetter  json.RawMessage   `json:"deadletter"`
	DeadLetters []json.RawMessage `json:"deadletters"`
	Total       int               `json:"total"`
	After       string            `json:"after"`
	Left        int               `json:"left"`
	Runs        []json.RawMessage `json:"runs"`
	Results     []struct {
		RunID   string `json:"run_id"`
		OK      bool   `json:"ok"`
		Episode int    `json:"episode"`
		Code    string `json:"code"`
	} `json:"results"`
	Run   *run.View     `json:"run"`
	Steps []run.Payload `json:"steps"`

	header nats.Header
}

// ask makes an operator call.
func (s *stack) ask(call, tenant string, request any) (*reply, error) {
	data, ok := request.([]byte)
	if !ok {
		var err error
		if data, err = json.Marshal(request); err != nil {
			return nil, err
		}
	}
	msg, err := s.nc.Request("agentrun.op."+call+"."+tenant, data, time.Minute)
	if err != nil {
		return nil, fmt.Errorf("%s of %s: %w", call, tenant, err)
	}
	r := &reply{header: msg.Header}
	if err := json.Unmarshal(msg.Data, r); err != nil {
		return nil, fmt.Errorf("%s of %s answers %q: %w", call, tenant, msg.Data, err)
	}
	return r, nil
}

// op makes an operator call that must be accepted.
func (s *stack) op(call, tenant string, request any) *reply {
	s.t.Helper()
	r, err := s.ask(call, tenant, request)
	if err != nil {
		s.t.Fatal(err)
	}
	if !r.OK {
		s.t.Fatalf("%s of %s with %v is refused: %s %s", call, tenant, request, r.Code, r.Message)
	}
	return r
}

// refused makes an operator call that must be refused with this code.
func (s *stack) refused(code, call, tenant string, request any) {
	s.t.Helper()
	r, err := s.ask(call, tenant, request)
	if err != nil {
		s.t.Fatal(err)
	}
	status := map[string]string{"BAD_REQUEST": "400", "NOT_ALLOWED": "403", "NOT_FOUND": "404", "CONFLICT": "409", "CLAIMED": "409"}[code]
	if r.OK || r.Code != code || r.Message == "" || r.header.Get("Nats-Service-Error-Code") != status || r.header.Get("Nats-Service-Error") == "" {
		s.t.Errorf("%s of %s with %s: ok %v, code %q, message %q, headers %v; wanted %s", call, tenant, request, r.OK, r.Code, r.Message, r.header, code)
	}
}

// outcome is what the tests read of one.
type outcome struct {
	N                int            `json:"n"`
	Scope            string         `json:"scope"`
	Outcome          string         `json:"outcome"`
	Reason           string         `json:"reason_code"`
	Step             string         `json:"step"`
	CommitState      string         `json:"commit_state"`
	CompletedEffects []M            `json:"completed_effects"`
	Envelope         map[string]any `json:"envelope"`
}

// end waits for the run outcome of an episode.
func (s *stack) end(tenant, runID string, episode int) outcome {
	s.t.Helper()
	var o outcome
	bustest.Eventually(s.t, fmt.Sprintf("run %s/%s ends episode %d", tenant, runID, episode), func() bool {
		stream, err := s.js.Stream(s.t.Context(), topology.ResultsStream)
		if err != nil {
			return false
		}
		m, err := stream.GetLastMsgForSubject(s.t.Context(), "agentrun.results."+tenant+"."+runID+".run")
		return err == nil && json.Unmarshal(m.Data, &o) == nil && o.N >= episode
	})
	if o.N != episode {
		s.t.Fatalf("run %s/%s has ended episode %d, not %d", tenant, runID, o.N, episode)
	}
	return o
}

// outcomes are all messages of a filter in the results.
func (s *stack) outcomes(filter string) []outcome {
	s.t.Helper()
	var out []outcome
	for _, m := range s.messages(topology.ResultsStream, filter) {
		var o outcome
		if err := json.Unmarshal(m.Data(), &o); err != nil {
			s.t.Fatal(err)
		}
		out = append(out, o)
	}
	return out
}

// messages are all messages of a stream that match.
func (s *stack) messages(stream, filter string) []jetstream.Msg {
	s.t.Helper()
	consumer, err := s.js.CreateConsumer(s.t.Context(), stream, jetstream.ConsumerConfig{FilterSubject: filter, AckPolicy: jetstream.AckNonePolicy})
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = s.js.DeleteConsumer(context.Background(), stream, consumer.CachedInfo().Name) }()
	info := consumer.CachedInfo()
	var out []jetstream.Msg
	for left := int(info.NumPending); left > 0; {
		batch, err := consumer.Fetch(min(left, 500), jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			s.t.Fatal(err)
		}
		n := 0
		for m := range batch.Messages() {
			out = append(out, m)
			n++
		}
		if left -= n; n == 0 {
			break
		}
	}
	return out
}

// letters are the subjects of the letters that are in the stream.
func (s *stack) letters() []string {
	var out []string
	for _, m := range s.messages(topology.LettersStream, "agentrun.deadletters.>") {
		out = append(out, m.Subject())
	}
	return out
}

// records are run records on a connection of the test's own, with the streams made.
func (s *stack) records() (*record.Records, *streams.Conn) {
	s.t.Helper()
	conn, err := streams.Connect(streams.Options{Options: bus.Options{URL: s.server.URL, Name: "test"}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(conn.Close)
	if err := conn.Setup(s.t.Context(), streams.Config{Replicas: 1, RunRetention: time.Hour, MaxRuns: 1e6, MaxJobs: 1e6, MaxLetters: 1e6, AckWait: time.Minute}); err != nil {
		s.t.Fatal(err)
	}
	return app.NewRecords(conn, time.Hour), conn
}

// record reads a run's record.
func (s *stack) record(rs *record.Records, tenant, runID string) *record.Handle {
	s.t.Helper()
	h, err := rs.Load(s.t.Context(), run.ID{Tenant: tenant, Run: runID})
	if err != nil {
		s.t.Fatal(err)
	}
	return h
}

// metric is a line of /metrics.
func (s *stack) metrics(p *process) string {
	s.t.Helper()
	res, err := http.Get("http://" + p.http + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(data)
}
