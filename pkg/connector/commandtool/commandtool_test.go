package commandtool_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/commandtool"
	"github.com/agentrun/executor/pkg/connector/connectortest"
	"github.com/agentrun/executor/pkg/envelope"
)

// The test binary is also the program that the tools run: peerVariable says where the peer listens that tells it what to
// do, callVariable makes it a process that calls a tool itself.
const (
	peerVariable = "COMMANDTOOL_PEER"
	callVariable = "COMMANDTOOL_CALL"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(peerVariable) != "":
		os.Exit(program(os.Getenv(peerVariable)))
	case os.Getenv(callVariable) != "":
		os.Exit(caller(os.Getenv(callVariable)))
	}
	os.Exit(m.Run())
}

// program is a tool: it reports what it got and does what it is told.
func program(addr string) int {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return 3
	}
	defer c.Close()
	args, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 3
	}
	seen := connectortest.Seen{
		OperationRef: os.Getenv("AGENTRUN_OPERATION_REF"), IdempotencyKey: os.Getenv("AGENTRUN_IDEMPOTENCY_KEY"), Args: string(args),
	}
	var script connectortest.Script
	if json.NewEncoder(c).Encode(seen) != nil || json.NewDecoder(c).Decode(&script) != nil {
		return 3
	}
	switch script.Do {
	case connectortest.Hang:
		_, _ = c.Read(make([]byte, 1)) // until the peer is closed
	case connectortest.Garble:
		script.Body = garbled
	}
	if _, err := io.WriteString(os.Stdout, script.Body); err != nil {
		return 3
	}
	if script.Do == connectortest.Fail {
		return 1
	}
	return 0
}

// garbled cannot travel in JSON to the program.
const garbled = "{\"id\":\"\xff\"}"

type peer struct {
	listener net.Listener
	arrived  chan connectortest.Seen
	wg       sync.WaitGroup

	mu     sync.Mutex
	script connectortest.Script
	open   []net.Conn
}

func newPeer(t *testing.T) *peer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{listener: l, arrived: make(chan connectortest.Seen, 64)}
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.open = append(p.open, c)
			p.mu.Unlock()
			p.wg.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for _, c := range p.open {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

func (p *peer) serve(c net.Conn) {
	var seen connectortest.Seen
	if json.NewDecoder(c).Decode(&seen) != nil {
		return
	}
	p.mu.Lock()
	script := p.script
	p.mu.Unlock()
	p.arrived <- seen
	_ = json.NewEncoder(c).Encode(script)
}

func (*peer) Kind() connector.Kind { return commandtool.New() }

func (p *peer) Spec(envelope.Effect) connector.KindSpec {
	return connector.KindSpec{Command: &connector.CommandSpec{
		Argv: []string{os.Args[0]}, Env: map[string]string{
			peerVariable: p.listener.Addr().String(),
			"GORACE":     "atexit_sleep_ms=0", // a program with the race detector in it lingers for a second else
		},
	}}
}

func (*peer) Unreachable(envelope.Effect) connector.KindSpec {
	return connector.KindSpec{Command: &connector.CommandSpec{Argv: []string{"/nonexistent/program"}}}
}

// Can: a program that ends without a word has said that by its exit code, and what it writes is one answer.
func (*peer) Can(d connectortest.Do) bool {
	return d == connectortest.Answer || d == connectortest.Fail || d == connectortest.Hang || d == connectortest.Garble
}

// StartTime is generous: the program is this test binary, perhaps with the race detector in it.
func (*peer) StartTime() time.Duration { return 3 * time.Second }

func (p *peer) Script(s connectortest.Script) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = s
}

func (p *peer) Arrived() <-chan connectortest.Seen { return p.arrived }

func TestConformance(t *testing.T) {
	t.Parallel() // it waits
	connectortest.Run(t, func(t *testing.T) connectortest.Peer { return newPeer(t) })
}

func compile(t testing.TB, effect envelope.Effect, edit func(*connector.Spec), argv ...string) *connector.Tool {
	t.Helper()
	spec := connector.Spec{
		Name: "script", Effect: effect, Timeout: 20 * time.Second, MaxResultBytes: 4 << 10,
		Kind: connector.KindSpec{Command: &connector.CommandSpec{Argv: argv}},
	}
	if edit != nil {
		edit(&spec)
	}
	tool, err := connector.Compile(spec, commandtool.New())
	if err != nil {
		t.Fatal(err)
	}
	return tool
}

func shell(t testing.TB, effect envelope.Effect, script string, edit func(*connector.Spec)) *connector.Tool {
	t.Helper()
	return compile(t, effect, edit, "/bin/sh", "-c", script)
}

func call(args string) *connector.Call {
	return &connector.Call{
		OperationRef: "acme/r/s", IdempotencyKey: "acme/r/s.p2", Args: json.RawMessage(args), Traceparent: "00-trace",
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("AGENTRUN_SECRET_OF_THE_RUNTIME", "s3cr3t")
	t.Setenv("LANG", "C.UTF-8")
	got := shell(t, envelope.Read, `exec /usr/bin/env`, func(s *connector.Spec) {
		s.Kind.Command.Env = map[string]string{"REGION": "eu", "LANG": "de_DE"}
	}).Caller.Call(t.Context(), call(`{}`))
	var text string
	if err := json.Unmarshal(got.Result, &text); err != nil {
		t.Fatalf("%v: %+v", err, got)
	}
	for _, want := range []string{
		"AGENTRUN_OPERATION_REF=acme/r/s\n", "AGENTRUN_IDEMPOTENCY_KEY=acme/r/s.p2\n", "TRACEPARENT=00-trace\n", "REGION=eu\n",
		"LANG=de_DE\n", "PATH=" + os.Getenv("PATH") + "\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %s", want)
		}
	}
	if strings.Contains(text, "s3cr3t") || strings.Contains(text, "LANG=C") {
		t.Errorf("it has too much:\n%s", text)
	}
}

func TestExitCodes(t *testing.T) {
	rules := func(s *connector.Spec) {
		s.Errors = []connector.Rule{
			{When: "exit_code == 3", Code: "NO_MONEY", Category: envelope.Conflict},
			{When: "exit_code == 4", Code: "ALREADY_DONE", CommitState: envelope.Committed},
			{When: "exit_code == 137", Code: "KILLED", Category: envelope.Internal},
		}
	}
	for _, c := range []struct {
		script      string
		read, write envelope.Code // "" for success
	}{
		{`echo '{}'`, "", ""},
		{`echo '{}'; exit 1`, envelope.CodeUpstreamError, envelope.CodeOutcomeUnknown},
		{`exit 3`, "NO_MONEY", "NO_MONEY"},
		{`echo '{"id":1}'; exit 4`, "", ""},
		{`kill -9 $$`, "KILLED", "KILLED"},
		{`kill -15 $$`, envelope.CodeUpstreamError, envelope.CodeOutcomeUnknown},
	} {
		for effect, want := range map[envelope.Effect]envelope.Code{envelope.Read: c.read, envelope.Write: c.write} {
			got := shell(t, effect, c.script, rules).Caller.Call(t.Context(), call(`{}`))
			if got.OK != (want == "") || (want != "" && got.Row.Code != want) {
				t.Errorf("%s, %s: %+v", c.script, effect, got)
			}
		}
	}
}

func TestNotStartable(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, argv := range map[string][]string{
		"missing":             {filepath.Join(dir, "missing")},
		"not in PATH":         {"no-such-program-anywhere"},
		"not executable":      {write("plain", "text", 0o600)},
		"unknown format":      {write("junk", "\x00\x01\x02", 0o700)},
		"missing interpreter": {write("script", "#!/nonexistent/interpreter\n", 0o700)},
		"a directory":         {dir},
		"too many arguments":  {"/bin/true", strings.Repeat("x", 3<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			got := compile(t, envelope.Write, nil, argv...).Caller.Call(t.Context(), call(`{}`))
			if !got.NotSent || got.Row.Code != envelope.CodeUpstreamUnavailable {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// A directory that is not there, a user that nobody knows: nothing was done.
func TestSettingThatCannotBeHad(t *testing.T) {
	for name, setting := range map[string]connector.ProcessSpec{
		"cwd": {Cwd: "/nonexistent"}, "user": {User: "nosuchuser"}, "limits": {Limits: map[string]uint64{"nofile": 1 << 40}},
	} {
		if runtime.GOOS != "linux" && name != "cwd" {
			continue // refused when it is compiled
		}
		got := compile(t, envelope.Write, func(s *connector.Spec) { s.Kind.Command.ProcessSpec = setting }, "true").Caller.Call(t.Context(), call(`{}`))
		if !got.NotSent || got.Row.Code != envelope.CodeUpstreamUnavailable {
			t.Errorf("%s: %+v", name, got)
		}
	}
	// What can be had is there, for the program that a call starts.
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	got := shell(t, envelope.Write, `printf %s "$PWD"`, func(s *connector.Spec) { s.Kind.Command.Cwd = dir }).Caller.Call(t.Context(), call(`{}`))
	if string(got.Result) != strconv.Quote(dir) {
		t.Errorf("%+v", got)
	}
}

// A program that closes its input, or never reads it, is judged by what it says.
func TestInputNotRead(t *testing.T) {
	args := `{"a":"` + strings.Repeat("x", 200<<10) + `"}`
	for _, script := range []string{`exec 0<&-; echo '{"id":1}'`, `echo '{"id":1}'`, `head -c 10 >/dev/null; echo '{"id":1}'`} {
		if got := shell(t, envelope.Write, script, nil).Caller.Call(t.Context(), call(args)); !got.OK {
			t.Errorf("%s: %+v", script, got)
		}
	}
	if got := shell(t, envelope.Read, `wc -c`, nil).Caller.Call(t.Context(), call(args)); string(got.Result) != strconv.Itoa(len(args)) {
		t.Errorf("got %s", got.Result)
	}
}

func TestFlood(t *testing.T) {
	done := filepath.Join(t.TempDir(), "done")
	for _, stream := range []string{"1", "2"} {
		script := fmt.Sprintf(`head -c 20000000 /dev/zero | tr '\0' 'x' >&%s; echo done > %s`, stream, done)
		got := shell(t, envelope.Write, script, nil).Caller.Call(t.Context(), call(`{}`))
		if stream == "1" && got.Row.Code != envelope.CodeResultTooLarge || stream == "2" && !got.OK {
			t.Errorf("stream %s: %+v", stream, got)
		}
		if _, err := os.Stat(done); err != nil {
			t.Errorf("stream %s: the program did not come to its end: %v", stream, err)
		}
		_ = os.Remove(done)
	}
	got := shell(t, envelope.Write, `exec yes`, func(s *connector.Spec) { s.Timeout = 200 * time.Millisecond }).Caller.Call(t.Context(), call(`{}`))
	if !got.NoReply || got.Row.Code != envelope.CodeOutcomeUnknown {
		t.Errorf("a flood without end: %+v", got)
	}
}

func TestPrepare(t *testing.T) {
	for _, c := range []struct {
		spec connector.CommandSpec
		want string
	}{
		{connector.CommandSpec{}, "[command argv]"},
		{connector.CommandSpec{Argv: []string{""}}, "[command argv]"},
		{connector.CommandSpec{Argv: []string{"a", "b\x00"}}, "[command argv 1]"},
		{connector.CommandSpec{Argv: []string{"a"}, Env: map[string]string{"A=B": "c"}}, "[command env A=B]"},
		{connector.CommandSpec{Argv: []string{"a"}, Env: map[string]string{"A": "\x00"}}, "[command env A]"},
		{connector.CommandSpec{Argv: []string{"a"}, ProcessSpec: connector.ProcessSpec{Cwd: "here"}}, "[command cwd]"},
		{connector.CommandSpec{Argv: []string{"a"}, ProcessSpec: connector.ProcessSpec{Limits: map[string]uint64{"files": 1}}}, "[command limits files]"},
	} {
		_, err := connector.Compile(connector.Spec{
			Name: "x", Effect: envelope.Read, Kind: connector.KindSpec{Command: &c.spec},
		}, commandtool.New())
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.spec, err)
		}
	}
}
