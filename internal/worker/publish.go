package worker

import (
	"context"
	"errors"
	"time"

	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// publish makes known what the record owes. The letter's stream may be full or away: then the run waits, and readiness
// says so.
func (l *loop) publish(ctx context.Context) error {
	if l.h == nil || l.h.Run == nil || l.h.Seq == 0 || len(l.h.Run.Owed) == 0 {
		return nil
	}
	owed := append([]run.Owed(nil), l.h.Run.Owed...)
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
	for i := range owed {
		o := &owed[i]
		reason := ""
		if o.Row != nil {
			reason = o.Row.ReasonCode
			if o.Scope == envelope.StepScope && o.Row.Code != "" && isRefusal(o) {
				l.w.Observe.Refusal(string(o.Row.Code))
			}
		}
		l.w.Observe.Outcome(string(o.Scope), string(o.Outcome), reason)
	}
	return nil
}

func isRefusal(o *run.Owed) bool {
	switch o.Row.Code {
	case envelope.CodeIdenticalRetry, envelope.CodeStepConflict, envelope.CodeRunClosed, envelope.CodeJobInvalid:
		return true
	}
	return false
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
