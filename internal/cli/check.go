package cli

import (
	"context"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/pkg/connector"
)

// checkCommand reads a config file as serve would, compiles every tool and prints them.
type checkCommand struct {
	Config string `name:"config" required:"" placeholder:"FILE" help:"Config file to check."`
	MCP    bool   `name:"mcp" help:"Also start or call the MCP servers, and print which tools they offer."`
}

// run prints the tools and warnings on standard output, or what is wrong on standard error, one per line as
// file:line:column: message. No value that came from the environment is printed.
func (c *checkCommand) run(ctx context.Context, env app.Env, tools []*connector.Tool) int {
	return env.Report("executor check", app.ExitOK, app.Check(ctx, env.Stdout, app.Checking{Config: c.Config, MCP: c.MCP, Tools: tools}, env.Lookup))
}
