package reconcile

import (
	"fmt"

	"github.com/agentrun/executor/pkg/run"
)

// noRoom keeps that the store refuses what a run must write, which is its dead letter: the process is not ready while that
// holds of any run.
func (rc *Reconciler) noRoom(id run.ID) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.refused[id] = true
	rc.showRefused()
}

// hasRoom ends that for a run; rc.mu is held.
func (rc *Reconciler) hasRoom(id run.ID) {
	if rc.refused[id] {
		delete(rc.refused, id)
		rc.showRefused()
	}
}

func (rc *Reconciler) showRefused() {
	if len(rc.refused) == 0 {
		rc.Health.Clear("letters")
		return
	}
	rc.Health.Block("letters", fmt.Sprintf("the store has no room for the dead letters of %d runs, whose ends wait for it: settle some, or raise --max-letters", len(rc.refused)))
}
