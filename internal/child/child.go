// Package child starts programs that do not outlive what started them: when a program's call is over, or this process ends,
// however it ends, everything that the program has started ends too.
package child

import (
	"errors"
	"os"
)

// Inherited are the variables that a child gets from this process's environment, where they are set. Nothing else is
// passed on: credentials of the runtime are none of a tool's business.
var Inherited = []string{
	"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
}

// Environment is what a child gets: what is inherited, and then these. A later one wins.
func Environment(more ...map[string]string) []string {
	out := []string{} // never nil: to os/exec that means everything
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

// Child is a running program with all that it starts. Its standard error goes nowhere.
type Child struct {
	Stdin  *os.File // write to it from a goroutine, a program need not read; Kill does not close it
	Stdout *os.File // ends when the program and all that it has started are gone

	exited chan struct{}
	code   int // valid once exited is closed
	hold       // what the program is held by, see Kill
}

// Exited is closed when the program has ended, and with it everything that it has started.
func (c *Child) Exited() <-chan struct{} { return c.exited }

// Code is the exit code, once Exited is closed: what a shell would say, so 128 and more for a program that a signal ended.
// -1 if it was lost.
func (c *Child) Code() int { return c.code }

// Close closes both pipes.
func (c *Child) Close() {
	_, _ = c.Stdin.Close(), c.Stdout.Close()
}

// pipes makes the program's two pipes: its ends, and ours in the child.
func (c *Child) pipes() (in, out *os.File, err error) {
	in, stdin, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	stdout, out, err := os.Pipe()
	if err != nil {
		_, _ = in.Close(), stdin.Close()
		return nil, nil, err
	}
	c.Stdin, c.Stdout = stdin, stdout
	return in, out, nil
}
