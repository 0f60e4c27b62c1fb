//go:build linux

package child_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/child"
)

// roleVariable makes the test binary what the first process of a container runs, tryVariable one that tries to start a
// program as another user, capsVariable one that says what rights it and a program of its have.
const (
	roleVariable = "CHILD_TEST_FIRST"
	tryVariable  = "CHILD_TEST_TRY"
	capsVariable = "CHILD_TEST_CAPS"
	leftVariable = "CHILD_TEST_LEFT" // one that has a program in the background and waits to be killed
)

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		if os.Getpid() == 1 {
			if err := errors.Join(syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""), syscall.Mount("proc", "/proc", "proc", 0, "")); err != nil {
				fmt.Println("no /proc of its own:", err)
				os.Exit(3)
			}
		}
		code, was := child.Init()
		if !was {
			code = second()
		}
		os.Exit(code)
	}
	if user := os.Getenv(tryVariable); user != "" {
		fmt.Print(child.Try(child.Program{Argv: []string{"true"}, Setting: child.Setting{User: user}}))
		os.Exit(0)
	}
	if os.Getenv(capsVariable) != "" {
		os.Exit(rights())
	}
	if os.Getenv(leftVariable) != "" {
		os.Exit(leaveBehind())
	}
	os.Exit(m.Run())
}

// rights prints the ambient set of this process, and what a program of its has.
func rights() int {
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 3
	}
	_, own, _ = bytes.Cut(own, []byte("CapAmb:"))
	line, _, _ := strings.Cut(string(own), "\n")
	fmt.Println("own CapAmb:", line, "program")
	c, err := child.Start(child.Program{Argv: []string{"sh", "-c", "grep CapAmb /proc/self/status; grep CapEff /proc/self/status"}}, nil)
	if err != nil {
		fmt.Println(err)
		return 3
	}
	_, _ = io.Copy(os.Stdout, c.Stdout)
	<-c.Exited()
	return 0
}

// second is the working process: it leaves orphans behind as tools do, waits for a child of its own, says how many zombies
// there are when all orphans have ended, and ends by the signal that it is sent.
func second() int {
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGTERM)
	for range 5 {
		// The shell ends at once; what it has started loses its parent, and then ends.
		if err := exec.Command("/bin/sh", "-c", "sleep 0.01 &").Run(); err != nil {
			fmt.Println("a child of its own:", err)
			return 3
		}
	}
	for begun := time.Now(); orphans() > 0; {
		if time.Since(begun) > 10*time.Second {
			fmt.Println(orphans(), "orphans are left")
			return 3
		}
		runtime.Gosched()
	}
	fmt.Println("pid", os.Getpid() != 1, "orphans gone")
	<-heard
	return 7
}

// orphans counts the processes that are neither the first nor this one.
func orphans() (n int) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return -1
	}
	for _, p := range all {
		if name := filepath.Base(p); name != "1" && name != strconv.Itoa(os.Getpid()) {
			n++
		}
	}
	return n
}

func TestInitReapsOrphansAndHandsOnSignals(t *testing.T) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), roleVariable+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Skipf("no PID namespace can be made here: %v", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "pid true orphans gone\n" {
		_ = c.Process.Kill()
		t.Errorf("%q, %v", line, err)
	} else if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	_ = c.Wait()
	if got := c.ProcessState.ExitCode(); got != 7 {
		t.Errorf("exit code %d, wanted the second process's", got)
	}
}
