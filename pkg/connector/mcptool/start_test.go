package mcptool_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/envelope"
)

// listener is who a kind tells of its servers.
type listener struct {
	mu     sync.Mutex
	log    bytes.Buffer
	strays int
}

func listen(kind *mcptool.Kind) *listener {
	l := &listener{}
	kind.Watch(mcptool.Watch{Log: slog.New(slog.NewJSONHandler(l, nil)), Stray: func(string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.strays++
	}})
	return l
}

func (l *listener) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.Write(b)
}

// heard are the lines of the log with this text, and all of it.
func (l *listener) heard(t *testing.T, text string) (lines []map[string]any, all string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.log.Bytes()) {
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(fmt.Sprint(m["msg"]), text) {
			lines = append(lines, m)
		}
	}
	return lines, l.log.String()
}

// A server that does not know server/discover gets initialize, whatever it makes of the question, in another process if it
// has not survived it; after that it is not asked again.
func TestServerBeforeDiscover(t *testing.T) {
	t.Parallel() // it waits
	for flaw, want := range map[string]struct {
		found    string
		services int
	}{
		"":                          {"error -32601", 1},
		"ignores discover":          {"no answer within 500ms", 1},
		"ends at discover":          {"the end of the program, with exit code 3", 2},
		"hangs at discover":         {"no answer within 500ms", 2},
		"refuses discover and ends": {"error -32602", 2},
	} {
		t.Run(flaw, func(t *testing.T) {
			t.Parallel()
			s := newFlawed(t, flaw)
			if got := s.call(t, 20*time.Second, `{"good":1}`); !got.OK {
				t.Fatalf("got %+v", got)
			}
			heard := listen(s.kind) // also of what was before
			_, pids := s.logged(t)
			if len(pids) != want.services {
				t.Errorf("it was started %d times, want %d", len(pids), want.services)
			}
			_ = syscall.Kill(pids[len(pids)-1], syscall.SIGKILL)
			gone(t, pids[len(pids)-1])
			calls := 1
			for got := (envelope.Reply{}); !got.OK; calls++ { // the first one may find its end out, and be lost
				if got = s.call(t, 20*time.Second, `{"good":1}`); !got.OK && calls == 3 {
					t.Fatalf("its successor: %+v", got)
				}
			}
			lines, pids := s.logged(t)
			if n := count(lines, "server/discover"); n != 1 {
				t.Errorf("asked %d times: %q", n, lines)
			}
			if n := count(lines, "tools/call"); n < 2 || n > calls || len(pids) != want.services+1 {
				t.Errorf("%d calls were %d, at %d servers", calls, n, len(pids))
			}
			told, all := heard.heard(t, "does not know server/discover")
			if len(told) != 1 || told[0]["server"] != "billing" || told[0]["found"] != want.found {
				t.Errorf("the log: %s", all)
			}
			if seen := s.kind.Seen("billing"); seen.Discover != want.found {
				t.Errorf("seen: %+v", seen)
			}
		})
	}
}

// The same over HTTP, where there is nothing to start again.
func TestHTTPServerBeforeDiscover(t *testing.T) {
	t.Parallel() // it waits
	status := func(code int, body string) func(http.ResponseWriter, *http.Request, message) {
		return func(w http.ResponseWriter, _ *http.Request, _ message) { http.Error(w, body, code) }
	}
	lost := func(w http.ResponseWriter, _ message) { http.Error(w, "session not found", http.StatusNotFound) }
	for name, c := range map[string]struct {
		discover func(http.ResponseWriter, *http.Request, message)
		found    string
	}{
		"an error":   {nil, "error -32601"},
		"404":        {status(404, "not found"), "status 404"},
		"405":        {status(405, ""), "status 405"},
		"400":        {status(400, "Bad Request: Server not initialized"), "status 400"},
		"500":        {status(500, "oops"), "status 500"},
		"a web page": {func(w http.ResponseWriter, _ *http.Request, _ message) { fmt.Fprint(w, "<html>") }, "status 200"},
		"no JSON":    {func(w http.ResponseWriter, _ *http.Request, _ message) { write(w, "{}") }, "status 200"},
		"silence":    {func(_ http.ResponseWriter, r *http.Request, _ message) { <-r.Context().Done() }, "no answer within 500ms"},
		"silence after the header": {func(w http.ResponseWriter, r *http.Request, _ message) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, "no answer within 500ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPeer(t, func(p *peer) { p.discover, p.refuse, p.session = c.discover, lost, "one" })
			probe := 10 * time.Second
			if strings.Contains(name, "silence") {
				probe = 500 * time.Millisecond
			}
			p.kind = mcptool.NewImpatient(map[string]connector.MCPServerSpec{"billing": p.spec()}, probe, 2*probe, 20*time.Second, false)
			heard := listen(p.kind)
			tool := compile(t, p, envelope.Write, nil)
			p.handleWith(func(w http.ResponseWriter, m message) bool {
				answer(w, m, `{"content":[]}`)
				return true
			})
			if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.OK {
				t.Fatalf("got %+v", got)
			}
			p.mu.Lock()
			p.session = "two"
			p.mu.Unlock()
			if got := tool.Caller.Call(t.Context(), call(`{}`)); got.Row.CommitState != envelope.NotCommitted {
				t.Fatalf("in a lost session: %+v", got)
			}
			if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.OK {
				t.Fatalf("in the next session: %+v", got)
			}
			if n, m := p.count("server/discover"), p.count("initialize"); n != 1 || m != 2 {
				t.Errorf("server/discover %d times, initialize %d times", n, m)
			}
			told, all := heard.heard(t, "does not know server/discover")
			if len(told) != 1 || told[0]["found"] != c.found {
				t.Errorf("the log: %s", all)
			}
		})
	}
}

// Text on a server's standard output is skipped and counted, and warned of once per process, without a word of it.
func TestStrayLines(t *testing.T) {
	t.Parallel()
	for flaw, want := range map[string]int{
		"logs to standard output": 2,
		"logs before its answers": len(stray), // each time
	} {
		t.Run(flaw, func(t *testing.T) {
			s := newFlawed(t, flaw)
			heard := listen(s.kind)
			for range 2 {
				if got := s.call(t, 20*time.Second, `{"good":1}`); !got.OK {
					t.Fatalf("got %+v", got)
				}
			}
			lines, pids := s.logged(t)
			if flaw == "logs before its answers" {
				want *= len(lines) - count(lines, "notifications/initialized") - count(lines, "notifications/cancelled")
			}
			if len(pids) != 1 || count(lines, "tools/call") != 2 {
				t.Errorf("at %d servers: %q", len(pids), lines)
			}
			told, all := heard.heard(t, "no JSON-RPC")
			if len(told) != 1 || told[0]["level"] != "WARN" || told[0]["server"] != "billing" || strings.Contains(all, "s3cr3t") || strings.Contains(all, "starting") {
				t.Errorf("the log: %s", all)
			}
			heard.mu.Lock()
			defer heard.mu.Unlock()
			if heard.strays != want || s.kind.Seen("billing").Strays != want {
				t.Errorf("%d lines counted, %+v, want %d", heard.strays, s.kind.Seen("billing"), want)
			}
		})
	}
}

// Why a server cannot be used is said in words of ours; what it wrote to its standard error comes apart from them.
func TestTrouble(t *testing.T) {
	t.Parallel() // it waits
	notRun := t.TempDir() + "/server"
	if err := os.WriteFile(notRun, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	page := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }))
	missing := newServer(t, http.NotFoundHandler())
	refusing := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m message
		_ = json.NewDecoder(r.Body).Decode(&m)
		write(w, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32001,"message":"s3cr3t"}}`, m.ID))
	}))
	own := func(flaw string) connector.MCPServerSpec {
		return connector.MCPServerSpec{
			Command: []string{os.Args[0]}, Env: map[string]string{flawVariable: flaw, logVariable: t.TempDir() + "/log", "GORACE": quickExit},
		}
	}
	for name, c := range map[string]struct {
		spec   connector.MCPServerSpec
		cause  string
		stderr []string
	}{
		"no program":   {connector.MCPServerSpec{Command: []string{"no-such-server-here"}}, "there is no program no-such-server-here in PATH", nil},
		"no such file": {connector.MCPServerSpec{Command: []string{"/nonexistent/server"}}, "there is no program /nonexistent/server", nil},
		"not to run":   {connector.MCPServerSpec{Command: []string{notRun}}, notRun + " may not be executed", nil},
		"ends":         {own("dies with a word"), "its program ended with exit code 7 before it answered initialize", []string{"\x1b[31mno license\x1b[0m", "for this host"}},
		"no server":    {own("is no server"), "it does not speak MCP: on its standard output there were 1 lines, and none is JSON-RPC", nil},
		"silent":       {own("never begins"), "it does not answer initialize in time", nil},
		"refused":      {connector.MCPServerSpec{URL: "http://127.0.0.1:1/mcp"}, "the connection is refused: nobody listens there", nil},
		"no TLS":       {connector.MCPServerSpec{URL: strings.Replace(page, "http:", "https:", 1)}, "it does not speak TLS", nil},
		"404":          {connector.MCPServerSpec{URL: missing}, "it answers with status 404 Not Found", nil},
		"a web page":   {connector.MCPServerSpec{URL: page}, "it answers, and not as an MCP server does: its answer is neither JSON nor an event stream", nil},
		"it refuses":   {connector.MCPServerSpec{URL: refusing}, "it refuses initialize with JSON-RPC error -32001", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			probe, connect := 10*time.Second, 20*time.Second
			if name == "silent" || name == "no server" {
				probe, connect = 200*time.Millisecond, time.Second
			}
			kind := mcptool.NewImpatient(map[string]connector.MCPServerSpec{"billing": c.spec}, probe, 2*probe, connect, true)
			t.Cleanup(kind.Close)
			_, err := kind.List(t.Context(), "billing")
			trouble, ok := err.(*mcptool.Trouble)
			if !ok || trouble.Cause != c.cause || fmt.Sprintf("%q", trouble.Stderr) != fmt.Sprintf("%q", c.stderr) {
				t.Errorf("got %T %+v %q", err, err, trouble)
			}
		})
	}
}
