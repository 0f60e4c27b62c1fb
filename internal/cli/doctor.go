package cli

import (
	"context"
	"errors"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/terminal"
)

// doctorCommand has the flags of serve, so that it is asked about the very executor that is to run.
type doctorCommand struct {
	app.ExecutorConfig `embed:""`
	Monitor            string `name:"monitor" placeholder:"URL" help:"The NATS server's monitoring, for example http://127.0.0.1:8222: what no client can see."`
}

var errIll = errors.New("something is wrong")

// run prints a table and returns an error if anything must be mended; warnings are none.
func (c *doctorCommand) run(ctx context.Context, env app.Env, command string) error {
	if err := c.Complete(); err != nil {
		return &app.Usage{Command: command, Err: err}
	}
	c.Lookup = env.Lookup
	out := terminal.New(env.Stdout, env.Getenv)
	styles := map[app.Health]terminal.Style{app.Well: terminal.Green, app.Doubtful: terminal.Yellow, app.Ill: terminal.Red}
	var err error
	for _, f := range app.Doctor(ctx, c.ExecutorConfig, c.Monitor) {
		out.Line("%s %s %s", out.Paint(styles[f.Health], terminal.Pad(f.Health.String(), 8)), terminal.Pad(f.Check, 24), terminal.Clean(f.Found))
		if f.Fix != "" {
			out.Line("%s %s → %s", terminal.Pad("", 8), terminal.Pad("", 24), terminal.Clean(f.Fix))
		}
		if f.Health == app.Ill {
			err = errIll
		}
	}
	return err
}
