package cli

import (
	"context"
	"errors"
	"time"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/internal/terminal"
)

// auditCommand checks everything that is stored.
type auditCommand struct {
	app.Connection `embed:""`
	JSON           bool          `name:"json" help:"Print what is found as JSON."`
	Timeout        time.Duration `name:"timeout" default:"10m" placeholder:"D" help:"How long the audit may take."`
}

var errBroken = errors.New("something is broken")

func (c *auditCommand) run(ctx context.Context, env app.Env, command string) error {
	if err := c.Connection.Check(); err != nil {
		return &app.Usage{Command: command, Err: err}
	}
	nc, err := app.Dial(c.Connection, command) // fails at once where there is no server
	if err != nil {
		return err
	}
	nc.Close()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	report, err := app.Audit(ctx, c.Connection, command)
	if err != nil {
		return err
	}
	out := terminal.New(env.Stdout, env.Getenv)
	if c.JSON {
		type finding struct {
			Tenant string `json:"tenant"`
			RunID  string `json:"run_id"`
			Rule   string `json:"rule"`
			What   string `json:"what"`
		}
		found := []finding{}
		for _, f := range report.Found {
			found = append(found, finding{f.Run.Tenant, f.Run.Run, f.Rule, f.What})
		}
		data, err := strictjson.Marshal(map[string]any{
			"ok": len(found) == 0, "runs": report.Records, "deadletters": report.Letters, "outcomes": report.Outcomes, "waiting": report.Waiting, "found": found,
		})
		if err != nil {
			return err
		}
		out.Line("%s", data)
	} else {
		for _, f := range report.Found {
			out.Line("%s  %s  %s", terminal.Clean(f.Run.String()), out.Paint(terminal.Red, f.Rule), terminal.Clean(f.What))
		}
		if report.Waiting > 0 {
			out.Line("%d ends wait for room for their dead letter: settle some, or raise --max-letters", report.Waiting)
		}
		out.Line("%s, %s, %s: %s", terminal.Count(report.Records, "run", "runs"), terminal.Count(report.Letters, "dead letter", "dead letters"),
			terminal.Count(report.Outcomes, "outcome", "outcomes"), verdict(len(report.Found)))
	}
	if len(report.Found) > 0 {
		return errBroken
	}
	return nil
}

func verdict(n int) string {
	if n == 0 {
		return "nothing is broken"
	}
	return terminal.Count(n, "finding", "findings")
}
