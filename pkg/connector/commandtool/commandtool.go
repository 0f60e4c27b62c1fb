// Package commandtool calls tools that are programs on this machine. There is no shell: argv is the program and its
// arguments, as they are.
//
// The args come on standard input as one JSON object, the result goes to standard output as JSON (other text is a string),
// standard error goes nowhere. The environment has the variables of child.Inherited, those of the config, and
//
//	AGENTRUN_OPERATION_REF    the operation
//	AGENTRUN_IDEMPOTENCY_KEY  the key of this dispatch, or of the one that is looked up
//	TRACEPARENT               the trace context, where there is one
//
// A program that cannot be started has done nothing. A call's effects end with the call: when the program ends, runs out of
// time or is cancelled, or when this process ends, however it ends, everything that the program has started is killed, also
// what has made a session of its own or has forked twice. What is to go on must be started by somebody else, a service
// manager for example. That holds on Linux, with /proc mounted: see package child. Elsewhere only the program itself is
// killed, nothing happens when this process dies, and a write's consistency window must cover its timeout.
package commandtool

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/child"
	"github.com/agentrun/executor/pkg/connector"
)

// Names of what the runtime adds to the environment.
const (
	operationRefVariable   = "AGENTRUN_OPERATION_REF"
	idempotencyKeyVariable = "AGENTRUN_IDEMPOTENCY_KEY"
	traceparentVariable    = "TRACEPARENT"
)

// reapPatience is how long a call waits for the end of a program that was killed. A process in the middle of a system call
// that cannot be interrupted ends when that does; nobody waits for it.
const reapPatience = 2 * time.Second

// Kind makes command tools.
type Kind struct{}

// New returns the kind.
func New() Kind { return Kind{} }

// Name implements connector.Kind.
func (Kind) Name() string { return connector.KindCommand }

// Prepare implements connector.Kind. Whether the program exists is seen when it is called.
func (Kind) Prepare(p connector.Preparation) (connector.Transport, error) {
	c := p.Spec.Command
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return nil, &connector.SpecError{Path: []any{"argv"}, Message: "must name a program"}
	}
	for i, arg := range c.Argv {
		if strings.ContainsRune(arg, 0) {
			return nil, &connector.SpecError{Path: []any{"argv", i}, Message: "holds a NUL byte"}
		}
	}
	for name, value := range c.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return nil, &connector.SpecError{Path: []any{"env", name}, Message: "is no environment variable"}
		}
	}
	program := child.Program{Argv: c.Argv, Env: []map[string]string{c.Env}, Setting: child.Setting(c.ProcessSpec)}
	var cause *child.NotStarted
	if errors.As(program.Check(), &cause) {
		path, name, deeper := strings.Cut(cause.Key, ".")
		e := &connector.SpecError{Path: []any{path}, Message: cause.Err.Error()}
		if deeper {
			e.Path = append(e.Path, name)
		}
		return nil, e
	}
	return &transport{program}, nil
}

type transport struct{ program child.Program }

// CheckArgs implements connector.Transport: any object can be written to a pipe.
func (*transport) CheckArgs(map[string]any) (string, bool) { return "", true }

// Outlives implements connector.Outliving.
func (*transport) Outlives() bool { return !child.Contained }

// RoundTrip implements connector.Transport.
func (t *transport) RoundTrip(ctx context.Context, r *connector.Request) connector.Response {
	own := map[string]string{operationRefVariable: r.OperationRef, idempotencyKeyVariable: r.IdempotencyKey}
	if r.Traceparent != "" {
		own[traceparentVariable] = r.Traceparent
	}
	// The program starts here and nowhere else.
	program := t.program
	program.Env = append(slices.Clip(program.Env), own)
	c, err := child.Start(program, func() bool { return ctx.Err() == nil && r.Leave() })
	if err != nil {
		return connector.Response{Failure: connector.NotSent}
	}
	defer c.Close()
	args := []byte(r.Args)
	if len(args) == 0 {
		args = []byte("{}")
	}
	go func() {
		// A program need not read its input; what it does not want is its own business.
		_, _ = c.Stdin.Write(args)
		_ = c.Stdin.Close()
	}()
	out := output{limit: r.BodyMax}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&out, c.Stdout)
	}()
	select {
	case <-c.Exited():
	case <-ctx.Done():
		if !ended(c) {
			return killed(ctx, c)
		}
	}
	return result(c, &out, read)
}

// ended reports whether the program has ended already.
func ended(c *child.Child) bool {
	select {
	case <-c.Exited():
		return true
	default:
		return false
	}
}

func killed(ctx context.Context, c *child.Child) connector.Response {
	c.Kill()
	patience := time.NewTimer(reapPatience)
	defer patience.Stop()
	select {
	case <-c.Exited():
	case <-patience.C:
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return connector.Response{Failure: connector.Cancelled}
	}
	return connector.Response{Failure: connector.NoReply}
}

// result is what a program that has ended has said. Everything that it wrote is in the pipe by now; whoever was handed the
// pipe, or escaped, may hold it open, so its end is not waited for.
func result(c *child.Child, out *output, read <-chan struct{}) connector.Response {
	if err := c.Finish(read, out, out.limit+pipeMax); err != nil {
		return connector.Response{Failure: connector.Unreadable, ExitCode: c.Code()}
	}
	if out.over {
		return connector.Response{Failure: connector.TooLarge, ExitCode: c.Code()}
	}
	return connector.Response{Body: out.kept.Bytes(), ExitCode: c.Code()}
}

// pipeMax is the most that a pipe holds, in bytes, unless the system's administrator has raised it.
const pipeMax = 1 << 20

// output keeps what a program writes up to limit bytes and lets the rest go by, so that a program that says too much is
// not stopped in the middle of what it does.
type output struct {
	limit int
	kept  bytes.Buffer
	over  bool
}

func (o *output) Write(b []byte) (int, error) {
	switch {
	case o.over:
	case o.kept.Len()+len(b) > o.limit:
		o.over = true
		o.kept = bytes.Buffer{}
	default:
		o.kept.Write(b)
	}
	return len(b), nil
}
