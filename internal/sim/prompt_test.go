package sim

import (
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// rulePrompt: nothing due is left while a worker is free. It holds where nothing befell anybody for long enough, and no
// executor had all its slots in use.
const rulePrompt = "prompt"

const (
	// promptly is how long a step that is due may take to be started: a wake's way, and what the clocks' bounds differ by.
	promptly = 500 * time.Millisecond
	// quietFor is how long the world must have been quiet before something is due: until then what befell somebody may
	// still have to be noticed, by a lease that ends or an acknowledgement that does not come.
	quietFor = 4 * lease
)

// disturb notes that something befell somebody.
func (w *world) disturb() { w.disturbed.Store(time.Now().UnixNano()) }

// checkPrompt keeps since when each step of a record, and each lookup, is due, and says which step was started late. In
// between nothing is looked at: what is never done leaves the world unsettled.
func (w *world) checkPrompt(id run.ID, old, st *storedRun) {
	r := st.run
	st.due = map[string]time.Time{}
	for _, name := range r.Next(r.Deadline - 1).Ready {
		s := r.Step(name)
		if s.Postponed || w.limits[s.Tool].Concurrency > 0 {
			continue // it waits for its tool
		}
		at := s.NotBefore
		if s.State == run.Unknown {
			at = s.Doubt.Next
		}
		st.dueFrom(name, at, old)
	}
	for _, s := range r.Steps {
		if s.State == run.Unknown && !s.Doubt.Resend {
			st.dueFrom(lookupOf(s.Dispatch), s.Doubt.Next, old)
		}
		if s.State == run.Executing {
			w.isPrompt(id, s.Name, old)
		}
	}
}

func lookupOf(d engine.DispatchID) string { return "the lookup of " + string(d) }

// dueFrom notes that something is due from at on, or since an earlier revision said so, or since this one.
func (st *storedRun) dueFrom(what string, at envelope.Time, old *storedRun) {
	due := at.Time()
	if old != nil && !old.due[what].Before(due) {
		due = old.due[what]
	}
	if old == nil || old.due[what].IsZero() {
		due = later(due, time.Now()) // its turn comes with this revision
	}
	st.due[what] = due
}

// isPrompt says that something is done now of which a revision of the record says since when it is due.
func (w *world) isPrompt(id run.ID, what string, st *storedRun) {
	if st == nil || st.due[what].IsZero() {
		return
	}
	since := st.due[what]
	late := time.Since(since)
	if w.full.Before(since) && time.Unix(0, w.disturbed.Load()).Before(since.Add(-quietFor)) {
		w.prompt++
		if late > promptly {
			w.violated(rulePrompt, "%s of %s was due at %s and is done %s late", what, id.Run, envelope.TimeOf(since), late)
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
