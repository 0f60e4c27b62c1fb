//go:build !linux

package child

import (
	"io"
	"os"
	"syscall"
)

// Elsewhere than on Linux only the program itself is killed, and nothing happens when this process dies.

func attributes() *syscall.SysProcAttr { return nil }

func (c *Child) reap() error { return c.cmd.Wait() }

func killGroup(p *os.Process) { _ = p.Kill() }

// Finish waits for the reading to end.
func (c *Child) Finish(read <-chan struct{}, _ io.Writer, _ int) error {
	<-read
	return nil
}
