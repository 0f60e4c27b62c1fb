//go:build !linux

package child

import (
	"io"
	"os"
	"os/exec"
	"syscall"
)

// Contained says whether a program, with all that it starts, is certain to end when its call does and when this process
// does. Here only the program itself is killed, and nothing happens when this process dies.
const Contained = false

type hold struct{ cmd *exec.Cmd }

// Start runs a program. before is asked as the last statement before there is one (nil: yes). An error means that
// nothing ran; it is a *NotStarted where the program, or what it is to find, is to blame.
func Start(p Program, before func() bool) (*Child, error) {
	if err := Try(p); err != nil {
		return nil, err
	}
	env := p.environment(nil)
	path, err := p.find(env["PATH"])
	if err != nil {
		return nil, err
	}
	c := &Child{exited: make(chan struct{})}
	in, out, err := c.pipes()
	if err != nil {
		return nil, err
	}
	c.cmd = &exec.Cmd{Path: path, Args: p.Argv, Env: list(env), Dir: p.Cwd, Stdin: in, Stdout: out}
	if p.Stderr != nil {
		c.cmd.Stderr = p.Stderr
	}
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

// Try says whether Start would have started the program, as far as that can be seen: nil, or a *NotStarted. Nothing runs.
func Try(p Program) error {
	if err := p.Check(); err != nil {
		return err
	}
	if p.Cwd != "" {
		if info, err := os.Stat(p.Cwd); err != nil || !info.IsDir() {
			return fault("cwd", "is no directory on this machine")
		}
	}
	_, err := p.find(p.environment(nil)["PATH"])
	return err
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

// KillLeftovers knows of none.
func KillLeftovers() (found int) { return 0 }
