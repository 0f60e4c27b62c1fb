package cli

import (
	"context"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/pkg/connector"
)

// gatewayCommand serves the tools to whoever speaks MCP.
type gatewayCommand struct {
	app.GatewayConfig `embed:""`
}

func (c *gatewayCommand) run(ctx context.Context, env app.Env, tools []*connector.Tool) int {
	c.Tools, c.Log, c.Lookup, c.Reload, c.In, c.Out = tools, env.Stderr, env.Lookup, env.Reload, env.Stdin, env.Stdout
	return env.Serve(ctx, "executor gateway", c.Complete, func(ctx context.Context) error { return app.Gateway(ctx, c.GatewayConfig) })
}
