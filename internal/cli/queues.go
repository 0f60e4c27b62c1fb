package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/agentrun/executor/internal/terminal"
	"github.com/agentrun/executor/pkg/client"
)

type queuesCommand struct {
	List queuesList `cmd:"" help:"List the queues of jobs: how many wait, and how many executors take them."`
}

type queuesList struct {
	asking `embed:""`
}

func (c *queuesList) run(ctx context.Context, d *desk) error {
	var list client.QueueList
	raw, err := d.call(ctx, "queues.list", c.everyone(), struct{}{}, &list)
	if err != nil {
		return d.failed(c.JSON, raw, err)
	}
	if c.JSON {
		d.json(raw)
		return nil
	}
	if len(list.Queues) == 0 && list.Unnamed == 0 {
		d.out.Line("no queues")
		return nil
	}
	d.out.Line("%s %s %s", terminal.Pad("QUEUE", 32), terminal.Pad("WAITING", 10), "EXECUTORS")
	for _, q := range list.Queues {
		takers := strconv.Itoa(q.Executors)
		if !q.Pulled {
			takers = d.out.Paint(terminal.Yellow, "none")
		}
		d.out.Line("%s %s %s", terminal.Pad(terminal.Clean(q.Queue), 32), terminal.Pad(fmt.Sprint(q.Waiting), 10), takers)
	}
	if list.Unnamed > 0 {
		d.out.Line("%s %s %s", terminal.Pad("(others)", 32), terminal.Pad(fmt.Sprint(list.Unnamed), 10), d.out.Paint(terminal.Yellow, "none"))
	}
	return nil
}
