// Package child starts programs that do not outlive what started them: when a program's call is over, or this process ends,
// however it ends, everything that the program has started ends too.
package child

import (
	"errors"
	"os"
)

// ErrHeld is returned by Start when before said no.
var ErrHeld = errors.New("held back")

// Child is a running program with all that it starts.
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
