package child

import (
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// reap waits for the end, kills what the program left in its group, and only then lets go of its process id: until then
// no other process can have it.
func (c *Child) reap() error {
	for unix.Waitid(unix.P_PID, c.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	c.Kill()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reaped = true
	return c.cmd.Wait()
}

func killGroup(p *os.Process) { _ = unix.Kill(-p.Pid, unix.SIGKILL) }

// Finish ends a reading of the standard output that goes on in another goroutine, which closes read when it is over, and
// then puts into into what is left there: all that the program has written, up to limit bytes, even if another process
// holds the pipe open. Call it after the program's end.
func (c *Child) Finish(read <-chan struct{}, into io.Writer, limit int) error {
	_ = c.Stdout.SetReadDeadline(time.Now())
	<-read
	_ = c.Stdout.SetReadDeadline(time.Time{})
	raw, err := c.Stdout.SyscallConn()
	if err != nil {
		return err
	}
	b := make([]byte, 32<<10)
	for limit > 0 {
		var n int
		var failed error
		if err := raw.Read(func(fd uintptr) bool {
			n, failed = syscall.Read(int(fd), b)
			return true
		}); err != nil {
			return err
		}
		switch {
		case failed == syscall.EINTR:
			continue
		case failed == syscall.EAGAIN || (failed == nil && n == 0):
			return nil
		case failed != nil:
			return failed
		}
		if _, err := into.Write(b[:n]); err != nil {
			return err
		}
		limit -= n
	}
	return nil
}
