package commandtool_test

import (
	"bufio"
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

// A process that leaves the group lives on, but the call does not wait for it, and gets all that was written before.
func TestLeftTheGroup(t *testing.T) {
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("no setsid on this machine")
	}
	path := filepath.Join(t.TempDir(), "pid")
	script := fmt.Sprintf(`setsid sh -c 'echo $$ > %s.part; mv %s.part %s; exec sleep 600' & while [ ! -f %s ]; do :; done; head -c 4000 /dev/zero | tr '\0' '7'`, path, path, path, path)
	got := shell(t, envelope.Write, script, nil).Caller.Call(t.Context(), call(`{}`))
	pid := pidIn(t, path)
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	if !got.OK || len(got.Result) != 4000 {
		t.Fatalf("got %+v", got)
	}
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

// caller is a process that calls a tool that never ends.
func caller(ready string) int {
	spec := connector.Spec{
		Name: "x", Effect: envelope.Write,
		Kind: connector.KindSpec{Command: &connector.CommandSpec{Argv: []string{"/bin/sh", "-c", "echo $$ > " + ready + "; exec sleep 600"}}},
	}
	tool, err := connector.Compile(spec, commandtool.New())
	if err != nil {
		return 1
	}
	tool.Caller.Call(context.Background(), call(`{}`))
	return 0
}

// A program dies with the process that called it, even when that is killed; other threads of it may end before.
func TestDiesWithItsParent(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	if err := syscall.Mkfifo(ready, 0o600); err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), callVariable+"="+ready)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(ready)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	line, err := bufio.NewReader(f).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || !alive(pid) {
		t.Fatalf("%q: %v", line, err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := parent.Wait(); !errors.As(err, &exit) {
		t.Fatal(err)
	}
	gone(t, pid)
}
