// Package executor makes processes with tools written in Go. A program that calls Main is the executor command, with these
// tools beside those of its config file:
//
//	func main() { executor.Main(refund) }
//
// Run is the same inside a program of your own, such as a service or a test, until a context ends.
//
// On Linux the program is also started again for each command tool's call and each MCP server, with argv[0] agentrun-guard: that
// process ends before main, during package initialisation, which must therefore have no effects outside the process.
//
// Tools are made with connector.Func and connector.Typed. A reconciler must know the same tools, because it holds unknown
// writes to their policy and does their lookups: that is a program that calls Reconciler or RunReconciler.
package executor

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/child"
	"github.com/agentrun/executor/internal/cli"
	"github.com/agentrun/executor/pkg/connector"
)

// Main runs the executor's command line with the process's arguments, environment and standard files, and ends the process
// with the command's exit code. The first interrupt or termination signal drains, the second ends the process at once, a
// hang-up reloads the config. As the first process of a container it starts itself a second time, which does the work. A tool that has the name of one of the config's is an error of the start. A tool without a
// retry policy has the config's default one.
func Main(tools ...*connector.Tool) { run(cli.Run, tools) }

// Reconciler is Main for the reconciler's command line.
func Reconciler(tools ...*connector.Tool) { run(cli.RunReconciler, tools) }

// run is what both are. Where the process is the first of a container, the work is done by a second one, see child.Init.
func run(command func(context.Context, []string, app.Env, ...*connector.Tool) int, tools []*connector.Tool) {
	if code, was := child.Init(); was {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal drains; after it the handler is gone, so that a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(command(ctx, os.Args[1:], app.Env{
		Lookup: os.LookupEnv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Reload: app.OnSignal(syscall.SIGHUP),
	}, tools...))
}
