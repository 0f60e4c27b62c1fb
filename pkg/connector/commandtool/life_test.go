package commandtool_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/commandtool"
	"github.com/agentrun/executor/pkg/envelope"
)

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// gone waits until a process has ended: the kernel takes a moment to end what was killed.
func gone(t *testing.T, pid int) {
	t.Helper()
	for begun := time.Now(); alive(pid); {
		if time.Since(begun) > 10*time.Second {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("process %d lives on", pid)
		}
		runtime.Gosched()
	}
}

func pidIn(t *testing.T, path string) int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// What a program leaves behind does not hold up the call, does not add to its answer, and does not live on.
func TestLeftBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	script := fmt.Sprintf(`(sleep 600; echo late) & echo $! > %s; echo '{"id":1}'`, path)
	got := shell(t, envelope.Write, script, nil).Caller.Call(t.Context(), call(`{}`))
	if !got.OK || string(got.Result) != `{"id":1}` {
		t.Fatalf("got %+v", got)
	}
	gone(t, pidIn(t, path))
}

func TestTimeoutKillsTheGroup(t *testing.T) {
	t.Parallel() // it waits
	for _, how := range []string{"timeout", "cancel"} {
		t.Run(how, func(t *testing.T) {
			dir := t.TempDir()
			ready := filepath.Join(dir, "ready")
			if err := syscall.Mkfifo(ready, 0o600); err != nil {
				t.Fatal(err)
			}
			script := fmt.Sprintf(`trap '' TERM INT; sleep 600 & echo $! > %s/child; echo $$ > %s/self; echo > %s; wait`, dir, dir, ready)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			tool := shell(t, envelope.Write, script, func(s *connector.Spec) {
				if how == "timeout" {
					s.Timeout = 3 * time.Second
				}
			})
			done := make(chan envelope.Reply, 1)
			go func() { done <- tool.Caller.Call(ctx, call(`{}`)) }()
			if _, err := os.ReadFile(ready); err != nil {
				t.Fatal(err)
			}
			if how == "cancel" {
				cancel()
			}
			if got := <-done; !got.NoReply || got.Row.Code != envelope.CodeOutcomeUnknown {
				t.Fatalf("got %+v", got)
			}
			gone(t, pidIn(t, dir+"/child"))
			gone(t, pidIn(t, dir+"/self"))
		})
	}
}

// ways are how a program gets something out of its own hands. Each starts last.sh, which says its process id and stays.
var ways = map[string]string{
	"background": `sh last.sh said &`,
	"deaf":       `(trap '' HUP TERM INT; sh last.sh said) &`,
	"session":    `setsid sh last.sh said &`,
	"twice":      `(setsid sh -c 'sh last.sh said &' &)`,
	"deep":       `sh -c 'sh -c "sh -c \"sh last.sh said; :\"; :"; :' &`,
}

// stage is a directory with last.sh and two pipes: what last.sh says is read from one, and a script that reads the other goes
// on when it is told.
type stage struct{ dir string }

func newStage(t *testing.T) stage {
	t.Helper()
	s := stage{t.TempDir()}
	if err := os.WriteFile(filepath.Join(s.dir, "last.sh"), []byte("echo $$ > $1; exec sleep 600"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"said", "on"} {
		if err := syscall.Mkfifo(filepath.Join(s.dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s stage) script(lines string) string { return "cd " + s.dir + "; " + lines }

// last is the process that was started last; it runs.
func (s stage) last(t *testing.T) int {
	t.Helper()
	pid := pidIn(t, filepath.Join(s.dir, "said"))
	if !alive(pid) {
		t.Fatalf("process %d has not lived to see the test", pid)
	}
	return pid
}

func (s stage) goOn(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, "on"), []byte("on\n"), 0); err != nil {
		t.Fatal(err)
	}
}

func needSetsid(t *testing.T, way string) {
	t.Helper()
	if _, err := exec.LookPath("setsid"); err != nil && strings.Contains(way, "setsid") {
		t.Skip("no setsid on this machine")
	}
}

// Whatever a program has started ends with its call, and the call has all that was written before.
func TestNothingOutlivesItsCall(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			needSetsid(t, way)
			s := newStage(t)
			done := make(chan envelope.Reply, 1)
			tool := shell(t, envelope.Write, s.script(way+"\n"+`head -c 4000 /dev/zero | tr '\0' '7'; read x < on`), nil)
			go func() { done <- tool.Caller.Call(t.Context(), call(`{}`)) }()
			pid := s.last(t)
			s.goOn(t)
			if got := <-done; !got.OK || len(got.Result) != 4000 {
				t.Errorf("got %+v", got)
			}
			if alive(pid) {
				t.Errorf("%d has outlived the call", pid)
			}
		})
	}
}

// The process that called is killed: so is whatever the program has started, also in its other ways, before it can do
// anything that a lookup would have missed.
func TestNothingOutlivesTheCaller(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			needSetsid(t, way)
			s := newStage(t)
			parent := exec.Command(os.Args[0])
			parent.Env = append(os.Environ(), callVariable+"="+s.script(way+"\n"+`sleep 600`))
			if err := parent.Start(); err != nil {
				t.Fatal(err)
			}
			pid := s.last(t)
			if err := parent.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			var exit *exec.ExitError
			if err := parent.Wait(); !errors.As(err, &exit) {
				t.Fatal(err)
			}
			gone(t, pid)
		})
	}
}

// A guard that is killed takes the program and its group with it; the call ends, and says that its end is not known.
func TestGuardIsKilled(t *testing.T) {
	s := newStage(t)
	done := make(chan envelope.Reply, 1)
	tool := shell(t, envelope.Write, s.script(`sh last.sh said & echo $PPID > guard; read x < on`), nil)
	go func() { done <- tool.Caller.Call(t.Context(), call(`{}`)) }()
	pid := s.last(t)
	var guard int
	for guard == 0 {
		b, _ := os.ReadFile(filepath.Join(s.dir, "guard"))
		guard, _ = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	if err := syscall.Kill(guard, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got.OK || got.NotSent || got.Row.Code != envelope.CodeOutcomeUnknown {
		t.Errorf("got %+v", got)
	}
	gone(t, pid)
}

// A service manager that sends its signal to every process of a service stops no call by that.
func TestSignalsToTheGuard(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		s := newStage(t)
		done := make(chan envelope.Reply, 1)
		tool := shell(t, envelope.Write, s.script(`echo $PPID > said; read x < on; kill -s TERM $$`), nil)
		go func() { done <- tool.Caller.Call(t.Context(), call(`{}`)) }()
		guard := s.last(t)
		if err := syscall.Kill(guard, signal); err != nil {
			t.Fatal(err)
		}
		s.goOn(t)
		// The program itself hears its signals as usual.
		if got := <-done; got.OK || got.NoReply || got.Row.Code != envelope.CodeOutcomeUnknown {
			t.Errorf("%s: %+v", signal, got)
		}
	}
}

// caller is a process that calls a tool that never ends.
func caller(script string) int {
	spec := connector.Spec{
		Name: "x", Effect: envelope.Write, Kind: connector.KindSpec{Command: &connector.CommandSpec{Argv: []string{"/bin/sh", "-c", script}}},
	}
	tool, err := connector.Compile(spec, commandtool.New())
	if err != nil {
		return 1
	}
	tool.Caller.Call(context.Background(), call(`{}`))
	return 0
}
