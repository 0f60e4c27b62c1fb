package mcptool_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/connectortest"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/envelope"
)

// peer is an MCP server by hand, so that nothing of an SDK stands between the test and the wire. Over stdio it is the test
// binary, which passes what it reads on to the peer and writes what the peer says.
type peer struct {
	kind     *mcptool.Kind
	listener net.Listener
	arrived  chan connectortest.Seen
	done     chan struct{}
	wg       sync.WaitGroup

	stdio, events, structured bool

	mu       sync.Mutex
	script   connectortest.Script
	tools    string                                      // what tools/list says
	list     func(m message) string                      // wins over tools if set
	handle   func(w http.ResponseWriter, m message) bool // of tools/call; wins over script if it returns true
	discover func(w http.ResponseWriter, r *http.Request, m message)
	refuse   func(w http.ResponseWriter, m message) // answers what names an unknown session; nil: sessions are not used
	session  string
	methods  []string // as they arrived
	open     map[net.Conn]bool
}

type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

const relayVariable = "MCPTOOL_RELAY"

// quickExit keeps a program with the race detector in it from lingering for a second.
const quickExit = "atexit_sleep_ms=0"

func TestMain(m *testing.M) {
	if addr := os.Getenv(relayVariable); addr != "" {
		os.Exit(relay(addr))
	}
	if os.Getenv(sdkVariable) != "" {
		os.Exit(sdkStdio())
	}
	if _, is := os.LookupEnv(flawVariable); is {
		os.Exit(flawed(os.Getenv(flawVariable)))
	}
	os.Exit(m.Run())
}

// relay is the stdio server's process: every line of its input is posted to the peer, every answer is a line of output.
func relay(url string) int {
	in := bufio.NewReader(os.Stdin)
	var wg sync.WaitGroup
	defer wg.Wait()
	var mu sync.Mutex
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0
		}
		wg.Go(func() {
			resp, err := http.Post(url, "application/json", strings.NewReader(line))
			if err != nil {
				os.Exit(1) // the far side is lost
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			mu.Lock()
			defer mu.Unlock()
			_, _ = os.Stdout.Write(body)
			if err != nil {
				os.Exit(1)
			}
			if len(body) > 0 {
				_, _ = os.Stdout.WriteString("\n")
			}
		})
	}
}

func newPeer(t testing.TB, edit func(*peer)) *peer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{
		listener: l, arrived: make(chan connectortest.Seen, 1024), done: make(chan struct{}), open: map[net.Conn]bool{},
		tools: `{"tools":[{"name":"credit","inputSchema":{"type":"object"}}]}`,
	}
	if edit != nil {
		edit(p)
	}
	p.kind = mcptool.New(map[string]connector.MCPServerSpec{"billing": p.spec(), "nowhere": {URL: "http://127.0.0.1:1/mcp"}})
	server := &http.Server{Handler: http.HandlerFunc(p.serve), ConnState: func(c net.Conn, s http.ConnState) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if s == http.StateNew {
			p.open[c] = true
		}
	}}
	p.wg.Go(func() { _ = server.Serve(l) })
	if p.stdio {
		// A process takes its time to start; what is measured is the call.
		if _, err := p.kind.List(t.Context(), "billing"); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		close(p.done)
		p.kind.Close()
		_ = server.Close()
		p.wg.Wait()
	})
	return p
}

func (p *peer) url() string { return "http://" + p.listener.Addr().String() + "/mcp" }

func (p *peer) spec() connector.MCPServerSpec {
	if p.stdio {
		return connector.MCPServerSpec{Command: []string{os.Args[0]}, Env: map[string]string{relayVariable: p.url(), "GORACE": quickExit}}
	}
	return connector.MCPServerSpec{URL: p.url(), Headers: map[string]string{"Authorization": "Bearer s3cr3t", "X-Idempotency-Key": "fixed"}}
}

func (p *peer) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var m message
	_ = json.Unmarshal(body, &m)
	p.mu.Lock()
	script, handle, tools, list, refuse, session := p.script, p.handle, p.tools, p.list, p.refuse, p.session
	p.methods = append(p.methods, m.Method)
	p.mu.Unlock()
	if refuse != nil {
		switch given := r.Header.Get("Mcp-Session-Id"); {
		case m.Method == "initialize":
			w.Header().Set("Mcp-Session-Id", session)
		case given != "" && given != session:
			refuse(w, m)
			return
		}
	}
	switch {
	case len(m.ID) == 0:
		w.WriteHeader(http.StatusAccepted)
	case m.Method == "server/discover" && p.discover != nil:
		p.discover(w, r, m)
	case m.Method == "initialize":
		answer(w, m, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"peer","version":"1"}}`)
	case m.Method == "tools/list" && list != nil:
		answer(w, m, list(m))
	case m.Method == "tools/list":
		answer(w, m, tools)
	case m.Method == "tools/call":
		p.arrived <- seen(m)
		if handle == nil || !handle(w, m) {
			p.play(w, m, script)
		}
	case m.Method == "ping":
		answer(w, m, "{}")
	default:
		write(w, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, m.ID))
	}
}

func seen(m message) connectortest.Seen {
	var params struct {
		Arguments json.RawMessage `json:"arguments"`
		Meta      struct {
			Ref string `json:"agentrun/operation_ref"`
			Key string `json:"agentrun/idempotency_key"`
		} `json:"_meta"`
	}
	_ = json.Unmarshal(m.Params, &params)
	return connectortest.Seen{OperationRef: params.Meta.Ref, IdempotencyKey: params.Meta.Key, Args: string(params.Arguments)}
}

func write(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, body)
}

func answer(w http.ResponseWriter, m message, result string) {
	write(w, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result))
}

// result is a tool's result with this body.
func (p *peer) result(body string, failed bool) string {
	text, _ := json.Marshal(body)
	if strings.Contains(body, "\xff") {
		text = []byte(`"` + strings.ReplaceAll(body, `"`, `\"`) + `"`)
	}
	out := `{"content":[{"type":"text","text":` + string(text) + `}]`
	if body == "" {
		out = `{"content":[]`
	}
	if p.structured && json.Valid([]byte(body)) {
		out += `,"structuredContent":` + body
	}
	return out + fmt.Sprintf(`,"isError":%v}`, failed)
}

func (p *peer) play(w http.ResponseWriter, m message, s connectortest.Script) {
	whole := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, p.result(s.Body, s.Do == connectortest.Fail))
	kind := "application/json"
	if p.events {
		kind, whole = "text/event-stream", "event: message\ndata: "+whole+"\n\n"
	}
	switch s.Do {
	case connectortest.Lose:
		panic(http.ErrAbortHandler)
	case connectortest.Hang:
		<-p.done
		panic(http.ErrAbortHandler)
	case connectortest.Twice:
		if p.stdio {
			whole += "\n" + whole
		} else {
			whole += whole
		}
	case connectortest.Break:
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
		_, _ = io.WriteString(w, whole[:len(whole)/2])
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", kind)
	_, _ = io.WriteString(w, whole)
}

func (p *peer) Kind() connector.Kind { return p.kind }

func (*peer) Spec(envelope.Effect) connector.KindSpec {
	return connector.KindSpec{MCP: &connector.MCPSpec{Server: "billing", Tool: "credit"}}
}

func (*peer) Unreachable(envelope.Effect) connector.KindSpec {
	return connector.KindSpec{MCP: &connector.MCPSpec{Server: "nowhere", Tool: "credit"}}
}

// Can: two messages in one JSON answer are no answer, which the suite does not expect.
func (p *peer) Can(d connectortest.Do) bool {
	return d != connectortest.Twice || p.events || p.stdio
}

func (p *peer) Script(s connectortest.Script) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = s
}

func (p *peer) Arrived() <-chan connectortest.Seen { return p.arrived }

func (p *peer) handleWith(f func(w http.ResponseWriter, m message) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handle = f
}

func (p *peer) count(method string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.methods {
		if m == method {
			n++
		}
	}
	return n
}

func TestConformance(t *testing.T) {
	t.Parallel() // it waits
	for name, edit := range map[string]func(*peer){
		"http, text":                 func(p *peer) {},
		"http, structured":           func(p *peer) { p.structured = true },
		"http, events":               func(p *peer) { p.events = true },
		"http, structured in events": func(p *peer) { p.events, p.structured = true, true },
		"stdio, text":                func(p *peer) { p.stdio = true },
		"stdio, structured":          func(p *peer) { p.stdio, p.structured = true, true },
	} {
		t.Run(name, func(t *testing.T) {
			connectortest.Run(t, func(t *testing.T) connectortest.Peer { return newPeer(t, edit) })
		})
	}
}

func compile(t testing.TB, p *peer, effect envelope.Effect, edit func(*connector.Spec)) *connector.Tool {
	t.Helper()
	spec := connector.Spec{Name: "credit", Effect: effect, Timeout: 20 * time.Second, Kind: p.Spec(effect)}
	if edit != nil {
		edit(&spec)
	}
	tool, err := connector.Compile(spec, p.kind)
	if err != nil {
		t.Fatal(err)
	}
	return tool
}

func call(args string) *connector.Call {
	return &connector.Call{
		OperationRef: "acme/r/s", IdempotencyKey: "acme/r/s.p2", Args: json.RawMessage(args), Traceparent: "00-trace",
	}
}
