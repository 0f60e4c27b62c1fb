package cli

import (
	"context"

	"github.com/alecthomas/kong"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/pkg/connector"
)

const aboutReconciler = "Settles what lost executors left behind, wakes runs that are due, verifies unknown writes. Any number may run; one is active."

// reconcilerCommands is the command line of the reconciler.
type reconcilerCommands struct {
	Version kong.VersionFlag `name:"version" help:"Print the version and exit."`

	Serve struct {
		app.ReconcilerConfig `embed:""`
	} `cmd:"" help:"Watch the run records until a stop signal."`
	Deadletters deadlettersCommand `cmd:"" help:"Look at dead letters and answer them."`
	Runs        runsCommand        `cmd:"" help:"Look at runs and cancel them."`
	Queues      queuesCommand      `cmd:"" help:"Look at the queues of jobs."`
	Audit       auditCommand       `cmd:"" help:"Check all records, letters and outcomes against the rules; exit code 1 if anything is broken."`
}

// RunReconciler is the whole command of a reconciler, as Run is that of an executor.
func RunReconciler(ctx context.Context, args []string, env app.Env, tools ...*connector.Tool) int {
	const name = "reconciler"
	var c reconcilerCommands
	command, err := app.Parse(name, aboutReconciler, &c, args, env)
	if err != nil {
		return env.Report(name, app.ExitOK, err)
	}
	full := name + " " + command
	if task, flags := c.task(command); task != nil {
		d, err := flags.open(env, full)
		if err != nil {
			return env.Report(full, app.ExitOK, err)
		}
		defer d.nc.Close()
		return env.Report(full, app.ExitOK, task.run(ctx, d))
	}
	if command == "audit" {
		return env.Report(full, app.ExitOK, c.Audit.run(ctx, env, full))
	}
	c.Serve.Log, c.Serve.Lookup, c.Serve.Reload, c.Serve.Tools = env.Stderr, env.Lookup, env.Reload, tools
	return env.Serve(ctx, full, c.Serve.Complete, func(ctx context.Context) error {
		app.KeepMemory(ctx, false)
		return app.Reconciler(ctx, c.Serve.ReconcilerConfig)
	})
}

// task is an operator command.
type task interface {
	run(ctx context.Context, d *desk) error
}

// task finds the command that was given and the flags that all of them have; nil for serve.
func (c *reconcilerCommands) task(command string) (task, *asking) {
	l, r := &c.Deadletters, &c.Runs
	switch command {
	case "deadletters list":
		return &l.List, &l.List.asking
	case "deadletters show":
		return &l.Show, &l.Show.asking
	case "deadletters claim":
		return &l.Claim, &l.Claim.asking
	case "deadletters replay":
		return &l.Replay, &l.Replay.asking
	case "deadletters resolve":
		return &l.Resolve, &l.Resolve.asking
	case "deadletters approve":
		return &l.Approve, &l.Approve.asking
	case "deadletters discard":
		return &l.Discard, &l.Discard.asking
	case "deadletters assign":
		return &l.Assign, &l.Assign.asking
	case "queues list":
		return &c.Queues.List, &c.Queues.List.asking
	case "runs list":
		return &r.List, &r.List.asking
	case "runs show":
		return &r.Show, &r.Show.asking
	case "runs cancel":
		return &r.Cancel, &r.Cancel.asking
	case "runs discard":
		return &r.Discard, &r.Discard.asking
	}
	return nil, nil
}
