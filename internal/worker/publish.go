package worker

import (
	"context"
	"errors"

	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/port"
)

// publish makes known what the record owes. The letter's stream may be full or away: then the run waits, and readiness
// says so.
func (l *loop) publish(ctx context.Context) error {
	if l.h == nil || l.h.Run == nil || l.h.Seq == 0 || len(l.h.Run.Owed) == 0 {
		return nil
	}
	blocked := condition{ready: l.w.Ready, name: "publish", who: l.id.String()}
	defer blocked.clear()
	for tries := (pause.Longer{}); ; {
		err := l.w.Records.Publish(ctx, l.h)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		blocked.set("an outcome or a dead letter cannot be written: " + err.Error())
		l.w.Log.Warn("outcome not published yet", "tenant", l.id.Tenant, "run_id", l.id.Run, "trace_id", l.traceID(), "error", err)
		if len(l.calls) == 0 {
			l.slots(0)
		}
		if !tries.Wait(ctx) {
			return ctx.Err()
		}
		if errors.Is(err, port.ErrNotFound) || errors.Is(err, port.ErrConflict) {
			l.h = nil
			return nil
		}
	}
}

// condition is what one run keeps the process from being ready by. Whoever set it clears it when it leaves, whatever became
// of what it tried: the next try sets it anew.
type condition struct {
	ready     Ready
	name, who string
	is        bool
}

func (c *condition) set(reason string) {
	c.is = true
	c.ready.BlockFor(c.name, c.who, reason)
}

func (c *condition) clear() {
	if c.is {
		c.ready.ClearFor(c.name, c.who)
	}
}
