//go:build linux

package child_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/child"
)

// background is a program that says its own process id, and that of one that it has put into a session of its own.
var background = shell("setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $$ $!; sleep 1000")

// leaveBehind starts a program, says of it what it says, and waits.
func leaveBehind() int {
	c, err := child.Start(background, nil)
	if err != nil {
		fmt.Println(err)
		return 3
	}
	line, _ := bufio.NewReader(c.Stdout).ReadString('\n')
	fmt.Print(line)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// ids reads what background says, and the guard's id: the parent of the program.
func ids(t *testing.T, from io.Reader) (guard, program, left int) {
	t.Helper()
	line, err := bufio.NewReader(from).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(line, &program, &left); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return parent(t, program), program, left
}

func parent(t *testing.T, pid int) int {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	id, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// needGroup skips a test where no control group can be made.
func needGroup(t *testing.T, program int) {
	t.Helper()
	own, err := os.ReadFile("/proc/" + strconv.Itoa(program) + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(own), "/agentrun-") {
		t.Skip("no control group can be made here: it takes cgroup v2 and the right to make one")
	}
}

// gone waits until a process is gone, or a zombie that somebody else has to reap.
func gone(t *testing.T, pid int) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Since(began) > 20*time.Second {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("process %d lives on", pid)
		}
	}
}

// A program that kills its guard takes what it has put into the background with it.
func TestTheGroupEndsWithTheGuard(t *testing.T) {
	c, err := child.Start(background, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	guard, program, left := ids(t, c.Stdout)
	defer func() { _ = syscall.Kill(left, syscall.SIGKILL) }()
	needGroup(t, program)
	if err := syscall.Kill(guard, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.Exited()
	gone(t, left)
}

// Guard and executor die in the same moment: what is left in the background is ended by whoever comes next.
func TestLeftoversAreEnded(t *testing.T) {
	first := exec.Command(os.Args[0])
	first.Env = append(os.Environ(), leftVariable+"=1")
	in, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	guard, program, left := ids(t, out)
	defer func() { _ = syscall.Kill(left, syscall.SIGKILL) }()
	grouped, err := os.ReadFile("/proc/" + strconv.Itoa(program) + "/cgroup")
	_ = syscall.Kill(guard, syscall.SIGSTOP) // it does not see the other's death
	_ = first.Process.Kill()
	_ = first.Wait()
	_ = syscall.Kill(guard, syscall.SIGKILL)
	gone(t, guard)
	if err != nil || !strings.Contains(string(grouped), "/agentrun-") {
		t.Skip("no control group can be made here: it takes cgroup v2 and the right to make one")
	}
	child.KillLeftovers() // finds nothing where an executor of another test has started in this moment, and has ended it
	gone(t, left)
}
