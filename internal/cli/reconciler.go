package cli

import (
	"context"

	"github.com/alecthomas/kong"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/pkg/connector"
)

// reconcilerCommands is the command line of a reconciler with tools of its program's own. The operator commands need no
// tools: they are cmd/reconciler's.
type reconcilerCommands struct {
	Version kong.VersionFlag `name:"version" help:"Print the version and exit."`

	Serve struct {
		app.ReconcilerConfig `embed:""`
	} `cmd:"" help:"Watch the run records until a stop signal."`
}

// RunReconciler is reconciler serve with tools of the program itself: args in, exit code out.
func RunReconciler(ctx context.Context, args []string, env app.Env, tools ...*connector.Tool) int {
	const name = "reconciler"
	var c reconcilerCommands
	command, err := app.Parse(name, "Settles what lost executors left behind, wakes runs that are due, verifies unknown writes.", &c, args, env)
	if err != nil {
		return env.Report(name, app.ExitOK, err)
	}
	c.Serve.Log, c.Serve.Lookup, c.Serve.Reload, c.Serve.Tools = env.Stderr, env.Lookup, env.Reload, tools
	return env.Serve(ctx, name+" "+command, c.Serve.Complete, func(ctx context.Context) error {
		app.KeepMemory(ctx, false)
		return app.Reconciler(ctx, c.Serve.ReconcilerConfig)
	})
}
