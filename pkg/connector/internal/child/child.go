// Package child starts programs that do not outlive what started them: each is the leader of a process group that is
// killed as a whole, and dies with this process even when that is killed.
package child

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// Inherited are the variables that a child gets from this process's environment, where they are set. Nothing else is
// passed on: credentials of the runtime are none of a tool's business.
var Inherited = []string{
	"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
}

// Environment is what a child gets: what is inherited, and then these. A later one wins.
func Environment(more ...map[string]string) []string {
	var out []string
	for _, name := range Inherited {
		if v, ok := os.LookupEnv(name); ok {
			out = append(out, name+"="+v)
		}
	}
	for _, vars := range more {
		for name, v := range vars {
			out = append(out, name+"="+v)
		}
	}
	return out
}

// ErrHeld is returned by Start when before said no.
var ErrHeld = errors.New("held back")

// Child is a running program. Its standard error goes nowhere.
type Child struct {
	Stdin  *os.File // write to it from a goroutine, a program need not read; Kill and Wait do not close it
	Stdout *os.File // ends when the program and its group are gone; a process that left the group may hold it open

	cmd    *exec.Cmd
	exited chan struct{}
	code   int // valid once exited is closed

	mu     sync.Mutex
	reaped bool // the process id is no longer ours to kill
}

// Start runs a program. before is asked as the last statement before there is one (nil: yes). An error means that
// nothing ran.
func Start(argv, env []string, before func() bool) (*Child, error) {
	c := &Child{exited: make(chan struct{})}
	c.cmd = exec.Command(argv[0], argv[1:]...)
	c.cmd.Env = env
	c.cmd.SysProcAttr = attributes()
	in, stdin, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	stdout, out, err := os.Pipe()
	if err != nil {
		_, _ = in.Close(), stdin.Close()
		return nil, err
	}
	c.cmd.Stdin, c.cmd.Stdout = in, out
	c.Stdin, c.Stdout = stdin, stdout
	err = onStarter(func() error {
		if before != nil && !before() {
			return ErrHeld
		}
		return c.cmd.Start()
	})
	_, _ = in.Close(), out.Close()
	if err != nil {
		c.Close()
		return nil, err
	}
	go c.wait()
	return c, nil
}

// The kernel sends a parent-death signal when the thread that made the child ends, not the process. All children are
// therefore made by one thread that never does. Making a child is exclusive in Go anyway.
var starter = sync.OnceValue(func() chan func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

func onStarter(f func() error) error {
	done := make(chan error, 1)
	starter() <- func() { done <- f() }
	return <-done
}

// wait notes the end, kills what the program left in its group, and closes exited.
func (c *Child) wait() {
	err := c.reap()
	c.code = exitCode(c.cmd.ProcessState, err)
	close(c.exited)
}

// exitCode is what a shell would say: the status, or 128 and the number of the signal that ended the program.
func exitCode(s *os.ProcessState, err error) int {
	if s == nil {
		return -1 // lost: somebody else has waited for it
	}
	if status, ok := s.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	if code := s.ExitCode(); code >= 0 || err == nil {
		return code
	}
	return -1
}

// Exited is closed when the program has ended, and with it everything in its group.
func (c *Child) Exited() <-chan struct{} { return c.exited }

// Code is the exit code, once Exited is closed: 128 and more for a program that a signal ended.
func (c *Child) Code() int { return c.code }

// Kill ends the program and its group, now. It does not wait for the end.
func (c *Child) Kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		killGroup(c.cmd.Process)
	}
}

// Close closes both pipes.
func (c *Child) Close() {
	_, _ = c.Stdin.Close(), c.Stdout.Close()
}
