// Command reconciler watches the run records: it settles what a lost executor left behind, wakes what is due and verifies
// what is unknown.
package main

import (
	"context"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/child"
)

const name = "reconciler"

const about = "Settles what lost executors left behind, wakes runs that are due, verifies unknown writes. Any number may run; one is active."

// commands is the command line. Flags that set up a process have an environment variable, see app.Variables.
type commands struct {
	Version kong.VersionFlag `name:"version" help:"Print the version and exit."`

	Serve       serveCommand       `cmd:"" help:"Watch the run records until a stop signal."`
	Deadletters deadlettersCommand `cmd:"" help:"Look at dead letters and answer them."`
	Runs        runsCommand        `cmd:"" help:"Look at runs and cancel them."`
	Queues      queuesCommand      `cmd:"" help:"Look at the queues of jobs."`
	Audit       auditCommand       `cmd:"" help:"Check all records, letters and outcomes against the rules; exit code 1 if anything is broken."`
}

type serveCommand struct {
	app.ReconcilerConfig `embed:""`
}

func main() {
	if code, was := child.Init(); was {
		os.Exit(code)
	}
	log.SetOutput(io.Discard) // what a library prints by itself may hold text of a tool's
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
	c.Serve.Log, c.Serve.Lookup, c.Serve.Reload = env.Stderr, env.Lookup, env.Reload
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
func (c *commands) task(command string) (task, *asking) {
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
