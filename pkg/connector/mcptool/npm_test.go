package mcptool_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/envelope"
)

// The servers that the protocol's own project publishes, pinned.
var npmServers = []string{
	"@modelcontextprotocol/server-everything@2026.8.31", "@modelcontextprotocol/server-filesystem@2026.8.31",
}

var npm struct {
	once sync.Once
	dir  string
	why  string
}

// installed is the directory of npmServers. It is kept in the user's cache directory under a name that tells the versions:
// npm takes ten seconds even when it has everything. It gets that name only once it is whole.
func installed() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(strings.Join(npmServers, " ")))
	dir := filepath.Join(cache, fmt.Sprintf("agentrun-test-npm-%x", sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(cache, "agentrun-test-npm-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	args := append([]string{"install", "--prefix", fresh, "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"}, npmServers...)
	if out, err := exec.CommandContext(ctx, "npm", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm install: %w\n%s", err, out)
	}
	if err := os.Rename(fresh, dir); err != nil {
		if _, there := os.Stat(dir); there != nil { // else another test process was faster
			return "", err
		}
	}
	return dir, nil
}

// npmProgram returns the script of one of npmServers.
func npmProgram(t *testing.T, name string) string {
	t.Helper()
	npm.once.Do(func() {
		for _, program := range []string{"node", "npm"} {
			if _, err := exec.LookPath(program); err != nil {
				npm.why = "there is no " + program + " here"
				return
			}
		}
		dir, err := installed()
		if err != nil {
			npm.why = err.Error()
		}
		npm.dir = dir
	})
	if npm.why != "" {
		t.Skip("the servers of the npm registry are not tested: " + npm.why)
	}
	return filepath.Join(npm.dir, "node_modules", ".bin", "mcp-"+name)
}

func mcpTool(t *testing.T, kind *mcptool.Kind, server, name string, effect envelope.Effect, edit func(*connector.Spec)) *connector.Tool {
	t.Helper()
	return compile(t, &peer{kind: kind}, effect, func(s *connector.Spec) {
		s.Kind.MCP = &connector.MCPSpec{Server: server, Tool: name}
		if edit != nil {
			edit(s)
		}
	})
}

// freeAddress is a port that is the test's.
func freeAddress(t *testing.T) (addr, port string) {
	t.Helper()
	port = strconv.Itoa(bustest.Port(t))
	return "127.0.0.1:" + port, port
}

// startNode runs a server until stop is called, and returns once it listens.
func startNode(t *testing.T, addr, port, program string) (stop func()) {
	t.Helper()
	cmd := exec.Command("node", program, "streamableHttp")
	cmd.Env = append(os.Environ(), "PORT="+port)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	stop = sync.OnceFunc(func() { _ = cmd.Process.Kill(); <-ended })
	t.Cleanup(stop)
	for begun := time.Now(); ; {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
			return stop
		}
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("the server does not listen: %v", err)
		}
	}
}

func TestEverythingServer(t *testing.T) {
	t.Parallel()
	program := npmProgram(t, "server-everything")
	addr, port := freeAddress(t)
	startNode(t, addr, port, program)
	for name, spec := range map[string]connector.MCPServerSpec{
		"stdio": {Command: []string{"node", program, "stdio"}},
		"http":  {URL: "http://" + addr + "/mcp"},
	} {
		t.Run(name, func(t *testing.T) {
			kind := mcptool.New(map[string]connector.MCPServerSpec{"everything": spec})
			t.Cleanup(kind.Close)
			do := func(tool, args string, edit func(*connector.Spec)) envelope.Reply {
				return mcpTool(t, kind, "everything", tool, envelope.Write, edit).Caller.Call(t.Context(), call(args))
			}
			if got := do("echo", `{"message":"12345678901234567890"}`, nil); !strings.Contains(string(got.Result), "12345678901234567890") {
				t.Errorf("echo: %+v", got)
			}
			if got := do("get-sum", `{"a":2,"b":3}`, nil); !got.OK || !strings.Contains(string(got.Result), "sum of 2 and 3 is 5") {
				t.Errorf("get-sum: %+v", got)
			}
			got := do("get-structured-content", `{"location":"New York"}`, func(s *connector.Spec) { s.EvidenceRef = "string(body.temperature)" })
			if !got.OK || got.Result[0] != '{' {
				t.Errorf("get-structured-content: %+v", got)
			}
			if got := do("get-sum", `{"a":"x"}`, nil); got.OK || got.NotSent {
				t.Errorf("args that do not fit: %+v", got)
			}
			if got := do("no-such-tool", `{}`, nil); got.OK || got.NotSent {
				t.Errorf("no such tool: %+v", got)
			}
			got = do("trigger-long-running-operation", `{"duration":20,"steps":40}`, func(s *connector.Spec) { s.Timeout = 300 * time.Millisecond })
			if !got.NoReply || got.Row.Code != envelope.CodeOutcomeUnknown {
				t.Errorf("out of time: %+v", got)
			}
			if got := do("trigger-long-running-operation", `{"duration":1,"steps":5}`, nil); !got.OK {
				t.Errorf("with time enough: %+v", got)
			}
			offers, err := kind.List(t.Context(), "everything")
			if err != nil || len(offers) < 5 {
				t.Errorf("%v: %d tools", err, len(offers))
			}
		})
	}
}

// A real server is restarted under a session: the call is refused, not sent again, and the next one works.
func TestEverythingServerRestarted(t *testing.T) {
	t.Parallel()
	program := npmProgram(t, "server-everything")
	addr, port := freeAddress(t)
	stop := startNode(t, addr, port, program)
	kind := mcptool.New(map[string]connector.MCPServerSpec{"everything": {URL: "http://" + addr + "/mcp"}})
	t.Cleanup(kind.Close)
	tool := mcpTool(t, kind, "everything", "echo", envelope.Write, nil)
	if got := tool.Caller.Call(t.Context(), call(`{"message":"a"}`)); !got.OK {
		t.Fatalf("got %+v", got)
	}
	stop()
	if got := tool.Caller.Call(t.Context(), call(`{"message":"b"}`)); got.OK || got.Row.Code == envelope.CodeUpstreamRejectedInput {
		t.Fatalf("while it is away: %+v", got)
	}
	startNode(t, addr, port, program)
	got := tool.Caller.Call(t.Context(), call(`{"message":"c"}`))
	if !got.OK && (got.Row.CommitState != envelope.NotCommitted || got.Row.Code != envelope.CodeUpstreamUnavailable) {
		t.Fatalf("without its session: %+v", got)
	}
	if got := tool.Caller.Call(t.Context(), call(`{"message":"d"}`)); !got.OK {
		t.Fatalf("in a new session: %+v", got)
	}
}

// A write with a lookup at a real server: what became of it is read back from the file.
func TestFilesystemServer(t *testing.T) {
	t.Parallel()
	program := npmProgram(t, "server-filesystem")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	kind := mcptool.New(map[string]connector.MCPServerSpec{"files": {Command: []string{"node", program, dir}}})
	t.Cleanup(kind.Close)
	tool := mcpTool(t, kind, "files", "write_file", envelope.Write, func(s *connector.Spec) {
		s.Verify = &connector.VerifySpec{
			Kind:         connector.KindSpec{MCP: &connector.MCPSpec{Server: "files", Tool: "read_text_file"}},
			Committed:    "!is_error && body.content == args.content",
			NotCommitted: "is_error && string(body).contains('ENOENT')", HasWindow: true,
			Result: "{'written': args.path}", EvidenceRef: "args.path",
		}
	})
	path := filepath.Join(dir, "note.txt")
	c := call(fmt.Sprintf(`{"path":%q,"content":"paid 500"}`, path))
	if got := tool.Looker.Lookup(t.Context(), c); got.Answer != envelope.Absent {
		t.Errorf("before: %+v", got)
	}
	if got := tool.Caller.Call(t.Context(), c); !got.OK {
		t.Fatalf("got %+v", got)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "paid 500" {
		t.Errorf("%v: %s", err, b)
	}
	if got := tool.Looker.Lookup(t.Context(), c); got.Answer != envelope.Found || got.EvidenceRef != path {
		t.Errorf("after: %+v", got)
	}
	got := tool.Caller.Call(t.Context(), call(`{"path":"/etc/passwd","content":"x"}`))
	if got.OK || got.Row.Code != envelope.CodeOutcomeUnknown {
		t.Errorf("outside of what it may write: %+v", got)
	}
	read := mcpTool(t, kind, "files", "write_file", envelope.Read, nil)
	if got := read.Caller.Call(t.Context(), c); got.Row.Code != mcptool.CodeNotReadOnly {
		t.Errorf("a write that the config calls a read: %+v", got)
	}
}
