package child

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Contained says whether a program, with all that it starts, is certain to end when its call does and when this process
// does: see guard.
const Contained = true

// hold is how a program is held: by its guard, which kills all of it when the leash ends.
type hold struct {
	guard   *exec.Cmd
	leash   *os.File // closed, or this process dead: the guard kills
	said    *os.File // what the guard says
	program int      // process id, also of its group
	let     sync.Once
}

// guardPatience is how long a guard may take to be ready, and then to start its program.
const guardPatience = 30 * time.Second

// Start runs a program. before is asked as the last statement before there is one (nil: yes). An error means that
// nothing ran; it is a *NotStarted where the program, or what it is to find, is to blame.
func Start(p Program, before func() bool) (*Child, error) { return start(p, false, before) }

// Try says whether Start would have started the program, here and now: nil, or a *NotStarted. Nothing runs.
func Try(p Program) error {
	_, err := start(p, true, nil)
	var cause *NotStarted
	if errors.As(err, &cause) && cause.Key == "" && cause.Err == nil {
		return nil
	}
	return err
}

func start(p Program, try bool, before func() bool) (*Child, error) {
	err := p.Check()
	if err != nil {
		return nil, err
	}
	o := order{Try: try, Cwd: p.Cwd, Limits: p.limits()}
	var as *identity
	if p.User != "" {
		if as, err = identify(p.User); err != nil {
			return nil, err
		}
		o.User, o.UID, o.GID = true, as.uid, as.gid
	}
	if o.Umask, err = p.umask(); err != nil {
		return nil, err
	}
	env := p.environment(as)
	path, err := p.find(env["PATH"])
	if err != nil {
		return nil, err
	}
	c := &Child{exited: make(chan struct{})}
	in, out, err := c.pipes()
	if err != nil {
		return nil, err
	}
	err = c.startGuard(append([]string{guardName, o.encode(), path}, p.Argv...), list(env), in, out, p.Stderr)
	_, _ = in.Close(), out.Close()
	if err != nil {
		c.Close()
		return nil, err
	}
	if err := c.begin(before); err != nil {
		c.Kill()
		_ = c.guard.Process.Kill() // it has started nothing, and may hang
		_ = c.guard.Wait()
		_ = c.said.Close()
		c.Close()
		return nil, err
	}
	go c.wait()
	return c, nil
}

// startGuard starts this very program again as a guard, which does nothing yet.
func (c *Child) startGuard(args, env []string, in, out, stderr *os.File) error {
	leashed, leash, err := os.Pipe()
	if err != nil {
		return err
	}
	said, says, err := os.Pipe()
	if err != nil {
		_, _ = leashed.Close(), leash.Close()
		return err
	}
	c.leash, c.said = leash, said
	c.guard = &exec.Cmd{
		// Not its path: the file there may be another version by now.
		Path: self, Args: args, Env: env, Stdin: in, Stdout: out, ExtraFiles: []*os.File{leashed, says},
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if stderr != nil {
		c.guard.Stderr = stderr
	}
	err = c.guard.Start()
	_, _ = leashed.Close(), says.Close()
	if err != nil {
		_, _ = leash.Close(), said.Close()
	}
	return err
}

// self is the file of this very program.
const self = "/proc/self/exe"

var errNoGuard = errors.New("its guard has not answered")

// begin has the guard start the program. An error means that it did not.
func (c *Child) begin(before func() bool) error {
	if c.hears() != guardReady {
		return errNoGuard
	}
	if before != nil && !before() {
		return ErrHeld
	}
	if _, err := c.leash.Write([]byte{guardBegin}); err != nil {
		return errNoGuard // it is gone, and nobody has read it
	}
	switch c.hears() {
	case guardFailed:
		f := failure{part: c.hears(), errno: syscall.Errno(c.hears())}
		return f.explain()
	case guardStarted:
		var pid [4]byte
		if _, err := io.ReadFull(c.said, pid[:]); err == nil {
			c.program = int(binary.LittleEndian.Uint32(pid[:]))
		}
	default:
		c.Kill() // it may have been started: its end will be one that nobody knows
	}
	_ = c.said.SetReadDeadline(time.Time{})
	return nil
}

// hears reads the guard's next word, 0 for none.
func (c *Child) hears() byte {
	_ = c.said.SetReadDeadline(time.Now().Add(guardPatience))
	var b [1]byte
	if _, err := io.ReadFull(c.said, b[:]); err != nil {
		return 0
	}
	return b[0]
}

// wait notes the end, when the guard has seen to it that nothing of the program is left.
func (c *Child) wait() {
	c.code = -1
	rest, _ := io.ReadAll(c.said)
	if len(rest) == 2 && rest[0] == guardEnded {
		c.code = int(rest[1])
	} else {
		// Somebody has killed the guard. The kernel has killed the program with it; this is for what is in its groups.
		if c.program > 0 {
			_ = syscall.Kill(-c.program, syscall.SIGKILL)
		}
		g := groupOf(c.guard.Process.Pid)
		g.kill()
		g.remove()
	}
	_ = c.guard.Wait()
	c.Kill()
	_ = c.said.Close()
	close(c.exited)
}

// Kill ends the program and all that it has started, now. It does not wait for the end.
func (c *Child) Kill() { c.let.Do(func() { _ = c.leash.Close() }) }

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
