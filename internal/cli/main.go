// Package cli is both command lines: the executor's and the reconciler's.
package cli

import (
	"context"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/pkg/connector"
)

const name = "executor"

const about = "Pulls run jobs from NATS JetStream and calls tools that change things: nothing twice, nothing lost."

// commands is the command line of the executor. Flags that set up a process have an environment variable, see app.Variables.
type commands struct {
	Version kong.VersionFlag `name:"version" help:"Print the version and exit."`

	Serve   serveCommand   `cmd:"" help:"Pull jobs and run them until a stop signal."`
	Check   checkCommand   `cmd:"" help:"Check a config file and print its tools."`
	Submit  submitCommand  `cmd:"" help:"Publish a job; with --wait, print what becomes of it."`
	Doctor  doctorCommand  `cmd:"" help:"Look at everything that an executor needs, and say what is wrong and how to mend it."`
	Gateway gatewayCommand `cmd:"" help:"Serve the tools to whoever speaks MCP; each call becomes a job, and what became of it the result."`
	Demo    demoCommand    `cmd:"" help:"Run a billing case with everything in one process."`
	Journal journalCommand `cmd:"" help:"Look into an executor's journal."`
}

type serveCommand struct {
	app.ExecutorConfig `embed:""`
}

// Run is the whole command: args in, exit code out. tools are those of the program itself, beside the config's.
func Run(ctx context.Context, args []string, env app.Env, tools ...*connector.Tool) int {
	var c commands
	command, err := app.Parse(name, about, &c, args, env)
	if err != nil {
		code := app.ExitOK
		if len(args) > 0 && args[0] == "submit" {
			code = app.ExitFailed // 2 says that the run was fatal
		}
		return env.Report(name, code, err)
	}
	full := name + " " + command
	switch command {
	case "serve":
		c.Serve.Tools = tools
		c.Serve.Log, c.Serve.Lookup, c.Serve.Reload = env.Stderr, env.Lookup, env.Reload
		return env.Serve(ctx, full, c.Serve.Complete, func(ctx context.Context) error {
			app.KeepMemory(ctx, c.Serve.EmbeddedNATS)
			return app.Executor(ctx, c.Serve.ExecutorConfig)
		})
	case "check":
		return c.Check.run(ctx, env, tools)
	case "submit":
		code, err := c.Submit.run(ctx, env)
		return env.Report(full, code, err)
	case "doctor":
		return env.Report(full, app.ExitOK, c.Doctor.run(ctx, env, full))
	case "gateway":
		return c.Gateway.run(ctx, env, tools)
	case "demo":
		return env.Report(full, app.ExitOK, c.Demo.run(ctx, env))
	}
	return env.Report(full, app.ExitOK, c.Journal.run(ctx, strings.TrimPrefix(command, "journal "), env, tools))
}
