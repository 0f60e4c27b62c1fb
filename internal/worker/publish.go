package worker

import (
	"context"
	"errors"
	"time"

	"github.com/agentrun/executor/internal/record"
)

// publish makes known what the record owes. The letter's stream may be full or away: then the run waits, and readiness
// says so.
func (l *loop) publish(ctx context.Context) error {
	if l.h == nil || l.h.Run == nil || l.h.Seq == 0 || len(l.h.Run.Owed) == 0 {
		return nil
	}
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := l.w.Records.Publish(ctx, l.h)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return err
		}
		l.w.Ready.Block("publish", "an outcome or a dead letter cannot be written: "+err.Error())
		l.w.Log.Warn("outcome not published yet", "tenant", l.id.Tenant, "run_id", l.id.Run, "trace_id", l.traceID(), "error", err)
		if len(l.calls) == 0 {
			l.slots(0)
		}
		if !sleep(ctx, wait) {
			return ctx.Err()
		}
		if errors.Is(err, record.ErrNotFound) || errors.Is(err, record.ErrConflict) {
			l.h = nil
			return nil
		}
	}
	l.w.Ready.Clear("publish")
	return nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
