package worker

import (
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
)

// While a fleet's config is changed, and in one whose executors have different tools, a step's tool may be known to
// another executor only. Its run then is not judged by this one's config: what was delivered is given back until one comes
// by that knows the tool, for UnknownToolGrace from the last time that anything happened in the run.

// passOn is after how long a run that waits for another executor is delivered again, perhaps to that one.
const passOn = 500 * time.Millisecond

// judge looks ahead at what has not started yet; it reports whether the record must be written.
func (l *loop) judge(r *engine.Run, now envelope.Time) bool {
	return r.Judge(l.w.Tools, func(tool string) bool { return l.elsewhere(r, tool, now) }, now)
}

// elsewhere says whether the run waits for another executor that has the tool, which this one does not know.
func (l *loop) elsewhere(r *engine.Run, tool string, now envelope.Time) bool {
	if l.w.Elsewhere == nil || now >= r.UpdatedAt.Add(l.w.UnknownToolGrace()) {
		return false
	}
	return l.w.Elsewhere(r.Queue, tool)
}

// away reports whether a step whose turn has come is one that only another executor can start.
func (l *loop) away(r *engine.Run, s *engine.Step, now envelope.Time) bool {
	if _, known := l.w.Tools.Tool(s.Tool); known || !l.elsewhere(r, s.Tool, now) {
		return false
	}
	if l.w.warnOf(s.Tool) {
		l.w.Log.Warn("another executor has the tool and this one does not: the run waits for that one", "tenant", l.id.Tenant, "run_id", l.id.Run,
			"step", s.Name, "tool", s.Tool, "trace_id", l.traceID())
	}
	l.w.Observe.PassedOn(s.Tool)
	l.passes = true
	return true
}

// warnEvery is how often a tool that only others have is spoken of.
const warnEvery = time.Minute

// warnOf reports whether it is time to speak of the tool again. Only tools that an executor has come here.
func (w *Worker) warnOf(tool string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.warned[tool]) < warnEvery {
		return false
	}
	w.warned[tool] = time.Now()
	return true
}
