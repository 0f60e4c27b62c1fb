//go:build !linux

package child

import (
	"io"
	"os/exec"
	"syscall"
)

// Contained says whether a program, with all that it starts, is certain to end when its call does and when this process
// does. Here only the program itself is killed, and nothing happens when this process dies.
const Contained = false

type hold struct{ cmd *exec.Cmd }

// Start runs a program. before is asked as the last statement before there is one (nil: yes). An error means that
// nothing ran.
func Start(argv, env []string, before func() bool) (*Child, error) {
	c := &Child{exited: make(chan struct{})}
	in, out, err := c.pipes()
	if err != nil {
		return nil, err
	}
	c.cmd = exec.Command(argv[0], argv[1:]...)
	c.cmd.Env, c.cmd.Stdin, c.cmd.Stdout = env, in, out
	if err = ErrHeld; before == nil || before() {
		err = c.cmd.Start()
	}
	_, _ = in.Close(), out.Close()
	if err != nil {
		c.Close()
		return nil, err
	}
	go func() {
		defer close(c.exited)
		_ = c.cmd.Wait()
		c.code = c.cmd.ProcessState.ExitCode()
		if s, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			c.code = 128 + int(s.Signal())
		}
	}()
	return c, nil
}

// Kill ends the program, now. It does not wait for the end.
func (c *Child) Kill() { _ = c.cmd.Process.Kill() }

// Finish waits for the reading to end.
func (c *Child) Finish(read <-chan struct{}, _ io.Writer, _ int) error {
	<-read
	return nil
}

// Init does nothing here.
func Init() (code int, was bool) { return 0, false }
