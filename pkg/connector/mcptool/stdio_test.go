package mcptool_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/connectortest"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/envelope"
)

// The test binary is also a stdio server with a flaw, named by flawVariable. It appends what it reads to the file that
// logVariable names, its process id first.
const (
	flawVariable = "MCPTOOL_FLAW"
	logVariable  = "MCPTOOL_LOG"
)

func flawed(flaw string) int {
	log, err := os.OpenFile(os.Getenv(logVariable), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 1
	}
	defer log.Close()
	fmt.Fprintf(log, "started %d\n", os.Getpid())
	switch flaw {
	case "dies at once":
		return 1
	case "never begins":
		select {}
	case "dies with a word":
		fmt.Fprintln(os.Stderr, "\x1b[31mno license\x1b[0m\nfor this host")
		return 7
	case "logs to standard output":
		fmt.Println("server is starting\n\n{\"level\":\"info\"}")
	case "is no server":
		fmt.Println("usage: billing FILE")
	}
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0
		}
		var m message
		if json.Unmarshal([]byte(line), &m) != nil {
			return 1
		}
		fmt.Fprintln(log, m.Method)
		switch {
		case flaw == "is no server":
			continue
		case m.Method != "server/discover":
		case flaw == "ignores discover":
			continue
		case flaw == "ends at discover":
			return 3
		case flaw == "hangs at discover":
			select {}
		case flaw == "refuses discover and ends":
			fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"error\":{\"code\":-32602,\"message\":\"no\"}}\n", m.ID)
			return 0
		}
		if flaw == "logs before its answers" && len(m.ID) > 0 {
			for _, line := range stray {
				fmt.Println(line)
			}
		}
		if answerFlawed(flaw, &m) {
			continue
		}
		switch flaw {
		case "stops reading", "hangs":
			select {}
		case "dies in the call":
			return 1
		case "is killed in the call":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "says too much":
			for {
				if _, err := os.Stdout.WriteString(strings.Repeat("x", 1<<20)); err != nil {
					return 1
				}
			}
		case "talks without end":
			for {
				if _, err := fmt.Println(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`); err != nil {
					return 1
				}
			}
		}
	}
}

// stray is what ends up among the messages of servers that people have.
var stray = []string{
	"s3cr3t [info] connected", `{"level":"info","msg":"s3cr3t"}`, "null", "42", "[]", `["s3cr3t"]`, `{"jsonrpc":"2.0"}`, `{"jsonrpc":"1.0","id":1,"result":{}}`,
	"\x1b[2J", strings.Repeat("s3cr3t ", 40_000), `{"jsonrpc":"2.0","id":2,"resul`, "\xff\xfe",
}

// answerFlawed answers what is not the flaw.
func answerFlawed(flaw string, m *message) bool {
	result := ""
	switch m.Method {
	case "initialize":
		result = `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"flawed","version":"1"}}`
	case "tools/list":
		result = `{"tools":[]}`
		if flaw == "stops reading" {
			fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n", m.ID, result)
			return false
		}
	case "tools/call":
		if !strings.Contains(string(m.Params), `"good"`) {
			return false
		}
		result = `{"content":[]}`
	default:
		if len(m.ID) > 0 {
			fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"error\":{\"code\":-32601,\"message\":\"no\"}}\n", m.ID)
		}
		return true
	}
	fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n", m.ID, result)
	return true
}

type flawedServer struct {
	flaw string
	kind *mcptool.Kind
	log  string
}

// probe is for how long it is asked whether it knows server/discover: long, unless that is waited for.
func (s *flawedServer) probe() time.Duration {
	switch s.flaw {
	case "ignores discover", "hangs at discover", "is no server":
		return 500 * time.Millisecond
	}
	return 10 * time.Second
}

func newFlawed(t *testing.T, flaw string) *flawedServer {
	t.Helper()
	s := &flawedServer{flaw: flaw, log: filepath.Join(t.TempDir(), "log")}
	s.kind = mcptool.NewImpatient(map[string]connector.MCPServerSpec{"billing": {
		Command: []string{os.Args[0]}, Env: map[string]string{flawVariable: flaw, logVariable: s.log, "GORACE": quickExit},
	}}, s.probe(), 2*s.probe(), 20*time.Second, true)
	t.Cleanup(s.kind.Close)
	return s
}

func (s *flawedServer) call(t *testing.T, timeout time.Duration, args string) envelope.Reply {
	t.Helper()
	tool := compile(t, &peer{kind: s.kind}, envelope.Write, func(sp *connector.Spec) { sp.Timeout = timeout })
	return tool.Caller.Call(t.Context(), call(args))
}

func (s *flawedServer) logged(t *testing.T) (lines []string, pids []int) {
	t.Helper()
	b, err := os.ReadFile(s.log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if pid, ok := strings.CutPrefix(line, "started "); ok {
			n, err := strconv.Atoi(pid)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, n)
			continue
		}
		lines = append(lines, line)
	}
	return lines, pids
}

func count(lines []string, what string) (n int) {
	for _, l := range lines {
		if l == what {
			n++
		}
	}
	return n
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	for begun := time.Now(); ; {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if _, rest, _ := strings.Cut(string(b), ") "); err != nil || strings.HasPrefix(rest, "Z") {
			return
		}
		if time.Since(begun) > 15*time.Second {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("process %d lives on", pid)
		}
	}
}

func TestServerThatNeverBegins(t *testing.T) {
	t.Parallel()
	for _, flaw := range []string{"dies at once", "never begins"} {
		t.Run(flaw, func(t *testing.T) {
			s := newFlawed(t, flaw)
			s.kind = mcptool.NewImpatient(map[string]connector.MCPServerSpec{"billing": {
				Command: []string{os.Args[0]}, Env: map[string]string{flawVariable: flaw, logVariable: s.log, "GORACE": quickExit},
			}}, 50*time.Millisecond, 100*time.Millisecond, 500*time.Millisecond, false)
			t.Cleanup(s.kind.Close)
			for range 2 {
				if got := s.call(t, 500*time.Millisecond, `{}`); !got.NotSent || got.Row.Code != envelope.CodeUpstreamUnavailable {
					t.Fatalf("got %+v", got)
				}
			}
			s.kind.Close()
			lines, pids := s.logged(t)
			if n := count(lines, "tools/call"); n != 0 {
				t.Errorf("%d calls", n)
			}
			for _, pid := range pids {
				gone(t, pid)
			}
		})
	}
}

func TestServerThatCannotBeStarted(t *testing.T) {
	t.Parallel()
	kind := mcptool.New(map[string]connector.MCPServerSpec{"billing": {Command: []string{"/nonexistent/server"}}})
	t.Cleanup(kind.Close)
	if got := compile(t, &peer{kind: kind}, envelope.Write, nil).Caller.Call(t.Context(), call(`{}`)); !got.NotSent {
		t.Errorf("got %+v", got)
	}
}

// A server finds what its spec says: one that cannot is not started, and nothing was sent.
func TestServersSetting(t *testing.T) {
	t.Parallel()
	spec := newPeer(t, func(p *peer) { p.stdio = true }).spec()
	for cwd, sent := range map[string]bool{t.TempDir(): true, "/nonexistent": false} {
		spec.Cwd = cwd
		kind := mcptool.New(map[string]connector.MCPServerSpec{"billing": spec})
		if got := compile(t, &peer{kind: kind}, envelope.Read, nil).Caller.Call(t.Context(), call(`{}`)); got.NotSent == sent {
			t.Errorf("cwd %s: %+v", cwd, got)
		}
		kind.Close()
	}
	spec.Cwd = "here"
	kind := mcptool.New(map[string]connector.MCPServerSpec{"billing": spec})
	defer kind.Close()
	_, err := connector.Compile(connector.Spec{
		Name: "x", Effect: envelope.Read, Kind: connector.KindSpec{MCP: &connector.MCPSpec{Server: "billing", Tool: "x"}},
	}, kind)
	if err == nil || !strings.HasPrefix(err.Error(), "[mcp server]: billing: cwd") {
		t.Error(err)
	}
}

// A server that breaks in the middle of a call has lost it, once; the next call starts another server.
func TestServerThatBreaks(t *testing.T) {
	t.Parallel()
	for _, flaw := range []string{"dies in the call", "is killed in the call", "says too much"} {
		t.Run(flaw, func(t *testing.T) {
			s := newFlawed(t, flaw)
			if got := s.call(t, 20*time.Second, `{}`); !got.NoReply || got.NotSent || got.Row.Code != envelope.CodeOutcomeUnknown {
				t.Fatalf("got %+v", got)
			}
			if got := s.call(t, 20*time.Second, `{"good":1}`); !got.OK {
				t.Fatalf("the next call: %+v", got)
			}
			s.kind.Close()
			lines, pids := s.logged(t)
			if n := count(lines, "tools/call"); n != 2 || len(pids) != 2 {
				t.Errorf("two calls were %d, at %d servers", n, len(pids))
			}
			for _, pid := range pids {
				gone(t, pid)
			}
		})
	}
}

// A server that was killed between two calls is found out before anything of the second has left, or the second is lost;
// it is sent at most once.
func TestServerThatDiedMeanwhile(t *testing.T) {
	t.Parallel()
	s := newFlawed(t, "")
	for i := range 10 {
		got := s.call(t, 20*time.Second, `{"good":1}`)
		if !got.OK && !got.NoReply && !got.NotSent {
			t.Fatalf("call %d: %+v", i, got)
		}
		_, pids := s.logged(t)
		_ = syscall.Kill(pids[len(pids)-1], syscall.SIGKILL)
	}
	if lines, _ := s.logged(t); count(lines, "tools/call") > 10 {
		t.Errorf("10 calls were %d", count(lines, "tools/call"))
	}
}

// A call that a hung server lets run out of time is lost. The server does not answer a ping either, and is replaced.
func TestServerThatHangs(t *testing.T) {
	t.Parallel() // it waits
	s := newFlawed(t, "hangs")
	if got := s.call(t, 3*time.Second, `{}`); !got.NoReply || got.Row.Code != envelope.CodeOutcomeUnknown {
		t.Fatalf("got %+v", got)
	}
	_, pids := s.logged(t)
	gone(t, pids[0])
	if got := s.call(t, 20*time.Second, `{"good":1}`); !got.OK {
		t.Fatalf("the next call: %+v", got)
	}
}

// A server that does not read holds up a call that does not fit into the pipe; what was cut off has broken the stream.
func TestServerThatStopsReading(t *testing.T) {
	t.Parallel() // it waits
	s := newFlawed(t, "stops reading")
	big := `{"a":"` + strings.Repeat("x", 1<<20) + `"}`
	if got := s.call(t, 3*time.Second, big); !got.NoReply || got.NotSent {
		t.Fatalf("cut off in the middle: %+v", got)
	}
	_, pids := s.logged(t)
	gone(t, pids[0])
	// The pipe of the next one is filled by a call that fits into it; of the one after that nothing can be written.
	fits := `{"a":"` + strings.Repeat("x", 65000) + `"}`
	if got := s.call(t, 3*time.Second, fits); !got.NoReply || got.NotSent {
		t.Fatalf("in the pipe, never read: %+v", got)
	}
}

func TestServerThatTalksWithoutEnd(t *testing.T) {
	t.Parallel() // it waits
	s := newFlawed(t, "talks without end")
	if got := s.call(t, 3*time.Second, `{}`); !got.NoReply || got.NotSent {
		t.Fatalf("got %+v", got)
	}
}

// Close ends the calls in flight and the servers, also those that do not end by themselves.
func TestCloseInFlight(t *testing.T) {
	t.Parallel()
	for _, stdio := range []bool{true, false} {
		p := newPeer(t, func(p *peer) { p.stdio = stdio })
		p.Script(connectortest.Script{Do: connectortest.Hang})
		done := make(chan envelope.Reply, 1)
		tool := compile(t, p, envelope.Write, nil)
		go func() { done <- tool.Caller.Call(t.Context(), call(`{}`)) }()
		<-p.arrived
		p.kind.Close()
		if got := <-done; !got.NoReply || got.NotSent {
			t.Errorf("stdio %v: %+v", stdio, got)
		}
		if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.NotSent {
			t.Errorf("stdio %v, after: %+v", stdio, got)
		}
	}
}
