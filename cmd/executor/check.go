package main

import (
	"errors"
	"fmt"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/config"
)

// checkCommand reads a config file as serve would, compiles every tool and prints them.
type checkCommand struct {
	Config string `name:"config" required:"" placeholder:"FILE" help:"Config file to check."`
}

// run prints the tools on standard output, warnings and errors on standard error, one per line as file:line:column:
// message. No value that came from the environment is printed.
func (c *checkCommand) run(env app.Env) int {
	tools, warnings, err := app.Check(c.Config, env.Lookup)
	for _, w := range warnings {
		fmt.Fprintln(env.Stderr, w)
	}
	var faults config.Errors
	if errors.As(err, &faults) {
		fmt.Fprintln(env.Stderr, faults)
		return app.ExitFailed
	}
	if err != nil {
		return env.Report("executor check", app.ExitFailed, err)
	}
	fmt.Fprint(env.Stdout, tools)
	return app.ExitOK
}
