package app

import (
	"context"
	"errors"

	"github.com/agentrun/executor/internal/observe"
	"github.com/agentrun/executor/pkg/connector/httptool"
)

// errNoLoop stands where the reconciler's loop is put in.
var errNoLoop = errors.New("the reconciler has no loop yet")

// Reconciler runs reconciler serve until ctx ends. It returns nil after a clean stop; any error means that the process
// could not start.
func Reconciler(ctx context.Context, c ReconcilerConfig) error {
	http := httptool.New()
	defer http.Close()
	box, warnings, err := LoadTools(c.Config, c.lookup(), http)
	if err != nil {
		return err
	}
	p, err := newProcess(observe.Reconciler, &c.Process, box)
	if err != nil {
		return err
	}
	p.warn(warnings)
	if err := p.listen(c.HTTP); err != nil {
		return err
	}
	defer p.close()
	conn, err := connect(&c.Process, p, "reconciler")
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Setup(ctx, streams(&c.Process)); err != nil {
		return stopped(ctx, err)
	}
	return errNoLoop
}
