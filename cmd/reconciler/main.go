// Command reconciler watches the run records: it settles what a lost executor left behind, wakes what is due and verifies
// what is unknown.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/agentrun/executor/internal/app"
)

const name = "reconciler"

const about = "Settles what lost executors left behind, wakes runs that are due, verifies unknown writes. Any number may run; one is active."

// commands is the command line. Every flag has an environment variable, see app.Variables.
type commands struct {
	Version kong.VersionFlag `name:"version" help:"Print the version and exit."`

	Serve serveCommand `cmd:"" help:"Watch the run records until a stop signal."`
}

type serveCommand struct {
	app.ReconcilerConfig `embed:""`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal stops in good order; after it the handler is gone, so that a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], app.Env{Lookup: os.LookupEnv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Reload: app.OnSignal(syscall.SIGHUP)}))
}

// run is the whole command: args in, exit code out.
func run(ctx context.Context, args []string, env app.Env) int {
	var c commands
	command, err := app.Parse(name, about, &c, args, env)
	if err != nil {
		return env.Report(name, app.ExitOK, err)
	}
	c.Serve.Log, c.Serve.Lookup, c.Serve.Reload = env.Stderr, env.Lookup, env.Reload
	return env.Serve(ctx, name+" "+command, c.Serve.Complete, func(ctx context.Context) error { return app.Reconciler(ctx, c.Serve.ReconcilerConfig) })
}
