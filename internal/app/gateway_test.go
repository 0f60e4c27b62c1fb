package app_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/gateway"
	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
)

// gate starts a gateway on the stack and returns its address.
func (s *stack) gate(args ...string) string {
	s.t.Helper()
	var c app.GatewayConfig
	if err := app.Defaults(&c, append([]string{"--nats", s.server.URL, "--config", s.config, "--http", "127.0.0.1:0"}, args...)); err != nil {
		s.t.Fatal(err)
	}
	ready := make(chan string, 1)
	c.OnReady = func(addr string) { ready <- addr }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- app.Gateway(ctx, c) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("the gateway ended with %v", err)
		}
	})
	select {
	case addr := <-ready:
		return "http://" + addr + "/mcp"
	case err := <-ended:
		ended <- nil
		s.t.Fatalf("the gateway did not start: %v", err)
	case <-time.After(20 * time.Second):
		s.t.Fatal("the gateway was not ready in time")
	}
	return ""
}

// countJobs counts the jobs that are published from now on, by the beginning of their run ids.
func (s *stack) countJobs() func(beginning string) int {
	s.t.Helper()
	var mu sync.Mutex
	var runs []string
	if _, err := s.nc.Subscribe("agentrun.jobs.>", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		runs = append(runs, m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
	}); err != nil {
		s.t.Fatal(err)
	}
	if err := s.nc.Flush(); err != nil {
		s.t.Fatal(err)
	}
	return func(beginning string) (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range runs {
			if strings.HasPrefix(r, beginning) {
				n++
			}
		}
		return n
	}
}

const openGate = "--open --tenant acme --actor agent:support"

type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+string(b))
	}
	return http.DefaultTransport.RoundTrip(r)
}

// dialMCP connects the SDK's client.
func dialMCP(t *testing.T, url, token string, options *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, options)
	s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: bearer(token)}, DisableStandaloneSSE: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// said is what a call came to: its text, its structured content, and whether it is an error.
type said struct {
	text      string
	data      map[string]any
	isError   bool
	operation string
}

func (s said) String() string { return fmt.Sprintf("%v %v %q", s.isError, s.data, s.text) }

func callTool(ctx context.Context, s *mcp.ClientSession, tool string, args any, meta mcp.Meta) (out said, err error) {
	r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args, Meta: meta})
	if err != nil {
		return out, err
	}
	out.isError = r.IsError
	for _, c := range r.Content {
		if text, is := c.(*mcp.TextContent); is {
			out.text += text.Text
		}
	}
	out.data, _ = r.StructuredContent.(map[string]any)
	out.operation, _ = r.Meta["agentrun/operation"].(string)
	return out, nil
}

func mustCall(t *testing.T, s *mcp.ClientSession, tool string, args any, meta mcp.Meta) said {
	t.Helper()
	out, err := callTool(t.Context(), s, tool, args, meta)
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return out
}

func key(k string) mcp.Meta { return mcp.Meta{"agentrun/idempotency_key": k} }

// A call is done, and its result is the tool's; the same key gets it again from another gateway, and no other args do.
func TestGatewayCalls(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.executor("e1")
	s.reconciler("r1")
	one := dialMCP(t, s.gate(strings.Fields(openGate)...), "", nil)
	two := dialMCP(t, s.gate(strings.Fields(openGate)...), "", nil)
	first := mustCall(t, one, "pay", map[string]any{"amount": 3}, key("k1"))
	if first.isError || first.data["id"] != "x1" || !strings.Contains(first.text, `"id":"x1"`) {
		t.Fatalf("the call came to %v", first)
	}
	again := mustCall(t, two, "pay", map[string]any{"amount": 3}, mcp.Meta{"idempotencyKey": "k1"})
	if again.isError || again.data["id"] != "x1" || again.operation != first.operation {
		t.Errorf("the same key came to %v, %s; first %s", again, again.operation, first.operation)
	}
	other := mustCall(t, two, "pay", map[string]any{"amount": 4}, key("k1"))
	if !other.isError || other.data["code"] != "KEY_TAKEN" {
		t.Errorf("the same key with other args came to %v", other)
	}
	if told := mustCall(t, two, "agentrun_status", map[string]any{"operation": first.operation}, nil); told.isError || told.data["id"] != "x1" {
		t.Errorf("the status of it is %v", told)
	}
	if n := s.count("POST /pay"); n != 1 {
		t.Errorf("%d payments", n)
	}
	// Without a key each is a call of its own once the one before is settled, through whatever gateway.
	for i, c := range []*mcp.ClientSession{one, one, two, one, two} {
		if got := mustCall(t, c, "tell", map[string]any{"text": "hello"}, nil); got.isError {
			t.Errorf("call %d without a key came to %v", i, got)
		}
	}
	if n := s.count("POST /tell"); n != 5 {
		t.Errorf("5 calls without a key were sent %d times", n)
	}
}

// While it is not settled the same call is the same operation, key or not; a caller that goes away changes nothing.
func TestGatewayJoins(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	jobs := s.countJobs()
	hold, begun := make(chan struct{}), make(chan struct{}, 10)
	s.answer(func(*http.Request, string, int) (int, string) {
		begun <- struct{}{}
		<-hold
		return 200, `{"id":"x1"}`
	})
	release := sync.OnceFunc(func() { close(hold) })
	t.Cleanup(release)
	s.executor("e1")
	s.reconciler("r1")
	url := s.gate(append(strings.Fields(openGate), "--answer-within", "20s")...)
	gone, leave := context.WithCancel(t.Context())
	first := dialMCP(t, url, "", nil)
	left := make(chan error, 1)
	go func() {
		_, err := callTool(gone, first, "pay", map[string]any{"amount": 3}, nil)
		left <- err
	}()
	<-begun
	leave()
	if err := <-left; err == nil {
		t.Fatal("the caller did not go away")
	}
	answers := make(chan said, 4)
	for range 4 {
		c := dialMCP(t, s.gate(append(strings.Fields(openGate), "--answer-within", "20s")...), "", nil)
		go func() {
			out, err := callTool(t.Context(), c, "pay", map[string]any{"amount": 3}, nil)
			if err != nil {
				out.text = err.Error()
			}
			answers <- out
		}()
	}
	bustest.Eventually(t, "all have joined", func() bool { return jobs("c-") >= 5 })
	release()
	for range 4 {
		if got := <-answers; got.isError || got.data["id"] != "x1" {
			t.Errorf("a call that joined came to %v", got)
		}
	}
	if n := s.count("POST /pay"); n != 1 {
		t.Errorf("%d payments", n)
	}
}

// Past the caller's time the answer is that it is not known, and agentrun_status has the end.
func TestGatewayDoesNotKnowYet(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	hold := make(chan struct{})
	s.answer(func(*http.Request, string, int) (int, string) {
		<-hold
		return 200, `{"id":"x1"}`
	})
	release := sync.OnceFunc(func() { close(hold) })
	t.Cleanup(release)
	s.executor("e1")
	s.reconciler("r1")
	progress := make(chan *mcp.ProgressNotificationParams, 100)
	c := dialMCP(t, s.gate(append(strings.Fields(openGate), "--answer-within", "2s")...), "", &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { progress <- r.Params },
	})
	meta := key("k1")
	meta["progressToken"] = "p1"
	got := mustCall(t, c, "pay", map[string]any{"amount": 3}, meta)
	if !got.isError || got.data["outcome"] != "not_known_yet" || got.data["may_do"] != "ask_status" || !strings.Contains(got.text, "Do not send this call again") {
		t.Fatalf("a call that is not through came to %v", got)
	}
	if p := <-progress; p.ProgressToken != "p1" {
		t.Errorf("progress for %v", p.ProgressToken)
	}
	if still := mustCall(t, c, "agentrun_status", map[string]any{"operation": got.data["operation"]}, nil); still.data["outcome"] != "not_known_yet" || still.data["state"] != "executing" {
		t.Errorf("while it is under way its status is %v", still)
	}
	release()
	bustest.Eventually(t, "it has ended", func() bool {
		told := mustCall(t, c, "agentrun_status", map[string]any{"operation": got.data["operation"], "wait_seconds": 2}, nil)
		return !told.isError && told.data["id"] == "x1"
	})
	if n := s.count("POST /pay"); n != 1 {
		t.Errorf("%d payments", n)
	}
}

// What waits for an approval says so, and a call that is made again waits with it, whatever its key.
func TestGatewayApproval(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.executor("e1")
	s.reconciler("r1")
	c := dialMCP(t, s.gate(strings.Fields(openGate)...), "", nil)
	var operations []string
	for range 2 {
		got := mustCall(t, c, "approved", map[string]any{"amount": 3}, nil)
		if !got.isError || got.data["may_do"] != "wait_for_person" || got.data["owner"] != "platform" || got.data["code"] != "MISSING_APPROVAL" {
			t.Fatalf("it came to %v", got)
		}
		operations = append(operations, got.operation)
	}
	if operations[0] != operations[1] {
		t.Errorf("a call that waits for a person was made anew: %v", operations)
	}
	runID, _, _ := strings.Cut(operations[0], "/")
	var letter struct{ ID string }
	if err := json.Unmarshal(s.op("deadletters.get", "acme", M{"run_id": runID}).DeadLetter, &letter); err != nil {
		t.Fatal(err)
	}
	s.op("deadletters.approve", "acme", M{"run_id": runID, "letter": letter.ID, "by": "ada", "reason": "fine"})
	bustest.Eventually(t, "it is done", func() bool {
		got := mustCall(t, c, "agentrun_status", map[string]any{"operation": operations[0], "wait_seconds": 2}, nil)
		return !got.isError && got.data["id"] == "x1"
	})
	if n := s.count("POST /approved"); n != 1 {
		t.Errorf("%d calls after one approval", n)
	}
}

// Several calls of a conversation are steps of one run, which its last call ends.
func TestGatewayNamedRun(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.executor("e1")
	s.reconciler("r1")
	c := dialMCP(t, s.gate(strings.Fields(openGate)...), "", nil)
	in := func(more map[string]any) mcp.Meta {
		m := mcp.Meta{"agentrun/run_id": "ticket_7"}
		for k, v := range more {
			m[k] = v
		}
		return m
	}
	var runs []string
	for i, meta := range []mcp.Meta{in(nil), in(nil), in(map[string]any{"agentrun/idempotency_key": "k1"}), in(map[string]any{"agentrun/idempotency_key": "k1"}), in(map[string]any{"agentrun/more": false})} {
		got := mustCall(t, c, "tell", map[string]any{"n": 1}, meta)
		if got.isError {
			t.Fatalf("call %d came to %v", i, got)
		}
		runID, _, _ := strings.Cut(got.operation, "/")
		runs = append(runs, runID)
	}
	for _, r := range runs {
		if r != runs[0] || !strings.HasPrefix(r, "ticket_7-") {
			t.Errorf("the calls were in the runs %v", runs)
		}
	}
	if n := s.count("POST /tell"); n != 4 {
		t.Errorf("5 calls, one of them twice, were sent %d times", n)
	}
	if got := mustCall(t, c, "tell", map[string]any{"n": 2}, in(nil)); !got.isError || got.data["code"] != "RUN_CLOSED" {
		t.Errorf("a call after the run's end came to %v", got)
	}
}

// Who has which token sees and may do what it says, and nothing of another's.
func TestGatewayTokens(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.executor("e1")
	s.reconciler("r1")
	sum := func(token string) string { h := sha256.Sum256([]byte(token)); return hex.EncodeToString(h[:]) }
	file := filepath.Join(s.dir, "tokens.json")
	write := func(tokens ...map[string]any) {
		data, err := json.Marshal(map[string]any{"tokens": tokens})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ada := map[string]any{"name": "ada", "sha256": sum("t-ada"), "tenant": "acme", "actor": "agent:ada"}
	bob := map[string]any{"name": "bob", "sha256": sum("t-bob"), "tenant": "other", "actor": "agent:ada", "tools": []string{"pa*"}}
	write(ada, bob)
	url := s.gate("--tokens", file)
	a, b := dialMCP(t, url, "t-ada", nil), dialMCP(t, url, "t-bob", nil)
	names := func(c *mcp.ClientSession) (out []string) {
		list, err := c.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range list.Tools {
			out = append(out, tool.Name)
		}
		return out
	}
	if got := fmt.Sprint(names(a), names(b)); got != "[agentrun_status approved load pay tell] [agentrun_status pay]" {
		t.Errorf("the tools shown are %s", got)
	}
	if _, err := callTool(t.Context(), b, "tell", nil, nil); err == nil {
		t.Error("a tool that the token does not name was called")
	}
	mine := mustCall(t, a, "pay", map[string]any{"n": 1}, key("k"))
	theirs := mustCall(t, b, "pay", map[string]any{"n": 1}, key("k"))
	if mine.isError || theirs.isError || s.count("POST /pay") != 2 {
		t.Errorf("one key of two tenants came to %v and %v", mine, theirs)
	}
	for _, operation := range []string{mine.operation, "acme/" + mine.operation} {
		if got := mustCall(t, b, "agentrun_status", map[string]any{"operation": operation}, nil); !got.isError || got.data["id"] != nil {
			t.Errorf("another tenant's operation was told: %v", got)
		}
	}
	runID, _, _ := strings.Cut(mine.operation, "/")
	for _, forged := range []string{"acme/" + runID, "../acme", "*", strings.Repeat("a", 51)} {
		if got := mustCall(t, b, "pay", nil, mcp.Meta{"agentrun/run_id": forged}); !got.isError || got.data["code"] != "INVALID_ARGUMENT" {
			t.Errorf("a forged run id came to %v", got)
		}
	}
	for _, token := range []string{"", "t-eve", sum("t-ada")} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := bearer(token).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("the token %q was answered %d", token, resp.StatusCode)
		}
	}
	write(ada) // bob's is taken away
	bustest.Eventually(t, "bob's token is not taken any more", func() bool {
		_, err := callTool(t.Context(), b, "pay", map[string]any{"n": 1}, key("k"))
		return err != nil
	})
	if got := mustCall(t, a, "pay", map[string]any{"n": 1}, key("k")); got.isError {
		t.Errorf("ada's call came to %v", got)
	}
}

// Bad input gets a clear word and reaches nobody.
func TestGatewayBadInput(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	jobs := s.countJobs()
	url := s.gate(strings.Fields(openGate)...)
	call := func(args string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","arguments":` + args + `}}`
	}
	for name, x := range map[string]struct {
		body   string
		header map[string]string
		host   string
		status int
		says   string
	}{
		"10 MiB":        {body: call(`{"a":"` + strings.Repeat("x", 10<<20) + `"}`), status: 413},
		"deep":          {body: call(strings.Repeat(`{"a":`, 500) + "1" + strings.Repeat("}", 500)), status: 200, says: "Nothing was sent"},
		"deeper":        {body: call(strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000)), status: 400, says: "nesting depth"},
		"twice a key":   {body: call(`{"a":1,"a":2}`), status: 200, says: "Nothing was sent"},
		"args a list":   {body: call(`[1]`), status: 200, says: "Nothing was sent"},
		"no JSON":       {body: `{"jsonrpc"`, status: 400},
		"unknown tool":  {body: strings.Replace(call(`{}`), `"pay"`, `"nope"`, 1), status: 200, says: "unknown tool"},
		"foreign page":  {body: call(`{}`), header: map[string]string{"Origin": "https://evil.example"}, status: 403},
		"rebound host":  {body: call(`{}`), host: "evil.example", status: 403},
		"key no text":   {body: strings.Replace(call(`{}`), `"arguments"`, `"_meta":{"agentrun/idempotency_key":7},"arguments"`, 1), status: 200, says: "1 to 256 bytes"},
		"two keys":      {body: strings.Replace(call(`{}`), `"arguments"`, `"_meta":{"agentrun/idempotency_key":"a","idempotencyKey":"b"},"arguments"`, 1), status: 200, says: "two keys"},
		"more, no name": {body: strings.Replace(call(`{}`), `"arguments"`, `"_meta":{"agentrun/more":true},"arguments"`, 1), status: 200, says: "goes with"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(x.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		for k, v := range x.header {
			r.Header.Set(k, v)
		}
		if x.host != "" {
			r.Host = x.host
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var body strings.Builder
		buf := make([]byte, 64<<10)
		for {
			n, err := resp.Body.Read(buf)
			body.Write(buf[:n])
			if err != nil {
				break
			}
		}
		_ = resp.Body.Close()
		if resp.StatusCode != x.status || !strings.Contains(body.String(), x.says) {
			t.Errorf("%s: %d %.300s", name, resp.StatusCode, body.String())
		}
	}
	if n := s.count("POST /pay"); n != 0 || jobs("") != 0 {
		t.Errorf("%d calls, %d jobs of bad input", n, jobs(""))
	}
}

// A call without a key that is begun before midnight is joined after it, and is a new one once it has its last word.
func TestGatewayOverMidnight(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	hold, begun := make(chan struct{}), make(chan struct{}, 10)
	s.answer(func(*http.Request, string, int) (int, string) {
		begun <- struct{}{}
		<-hold
		return 200, `{"id":"x1"}`
	})
	release := sync.OnceFunc(func() { close(hold) })
	t.Cleanup(release)
	s.executor("e1")
	s.reconciler("r1")
	pay, err := connector.Func("pay", envelope.Write, func(context.Context, *connector.Call) (json.RawMessage, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	tools, err := connector.NewRegistry(pay)
	if err != nil {
		t.Fatal(err)
	}
	publisher, err := client.New(s.nc)
	if err != nil {
		t.Fatal(err)
	}
	at := func(now string, within time.Duration) *gateway.Gateway {
		clock, err := time.Parse(time.RFC3339, now)
		if err != nil {
			t.Fatal(err)
		}
		return gateway.New(gateway.Config{
			Client: publisher, Tools: func() *connector.Registry { return tools }, Within: within, Log: slog.New(slog.DiscardHandler),
			Now: func() time.Time { return clock },
		})
	}
	call := func(g *gateway.Gateway) *gateway.Answer {
		c, bad := gateway.ReadCall(&gateway.Caller{Tenant: "acme", Actor: "agent:support"}, "pay", json.RawMessage(`{"n":1}`), nil)
		if bad != nil {
			t.Fatal(bad)
		}
		return g.Call(t.Context(), pay, c, nil)
	}
	before := make(chan *gateway.Answer, 1)
	go func() { before <- call(at("2026-12-03T23:59:59Z", 20*time.Second)) }()
	<-begun
	after := call(at("2026-12-04T00:00:01Z", time.Second))
	release()
	first := <-before
	if first.IsError || after.Place != first.Place || after.State != "not_known_yet" {
		t.Errorf("before midnight %+v, after it %+v", first, after)
	}
	bustest.Eventually(t, "the run has its end", func() bool {
		known, err := publisher.Look(t.Context(), "acme", first.Place.Run)
		return err == nil && known.Run != nil
	})
	if next := call(at("2026-12-04T00:00:02Z", 20*time.Second)); next.IsError || next.Place == first.Place || s.count("POST /pay") != 2 {
		t.Errorf("after it was done the same call came to %+v, %d payments", next, s.count("POST /pay"))
	}
}
