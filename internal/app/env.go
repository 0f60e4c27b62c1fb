package app

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Env is what a command has of the outside: tests give their own.
type Env struct {
	Lookup         func(name string) (value string, set bool) // environment variables, as os.LookupEnv
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Reload         <-chan struct{} // each message asks a serving process to read its config again; may be nil
}

// Getenv is Lookup for callers to whom an unset variable and an empty one are the same.
func (e Env) Getenv(name string) string {
	v, _ := e.Lookup(name)
	return v
}

// Report prints what a command came to on standard error, if there is something to say, and returns the exit code: code
// if it is not 0, else what the error stands for.
func (e Env) Report(command string, code int, err error) int {
	switch {
	case err == nil:
		return code
	case Done(err):
		return ExitOK
	}
	var faults Faults
	if errors.As(err, &faults) {
		fmt.Fprintln(e.Stderr, faults)
		return ExitFailed
	}
	var usage *Usage
	if errors.As(err, &usage) {
		fmt.Fprintln(e.Stderr, usage)
		if code == ExitOK {
			code = ExitUsage
		}
		return code
	}
	fmt.Fprintf(e.Stderr, "%s: %s\n", command, oneLine(err.Error()))
	if code == ExitOK {
		code = ExitFailed
	}
	return code
}

// Serve runs one process until ctx ends: complete checks its flags and serve is Executor or Reconciler. The exit codes
// are those of contract §11: 0 after a clean drain, 1 on a failure to start, 2 on bad usage.
func (e Env) Serve(ctx context.Context, command string, complete func() error, serve func(context.Context) error) int {
	if err := complete(); err != nil {
		return e.Report(command, ExitUsage, &Usage{Command: command, Err: err})
	}
	return e.Report(command, ExitOK, serve(ctx))
}
