package reconcile

import (
	"fmt"
	"testing"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/run"
)

// What is kept of an end that somebody was told of goes with its letter, however that was settled, and with the store.
func TestToldIsForgottenWithTheLetter(t *testing.T) {
	rc := watching()
	seq := uint64(0)
	step := func(id run.ID, h port.Header) {
		seq++
		rc.change(port.Change{ID: id, Seq: seq, Header: h})
	}
	for i := range 100 {
		id := run.ID{Tenant: "t", Run: fmt.Sprint(i)}
		step(id, port.Header{State: "needs_human", Episode: 1, Letter: "o"})
		rc.told[id] = telling{episode: 1} // as tendEnd does
		step(id, port.Header{State: "needs_human", Episode: 1, Letter: "o"})
		if rc.told[id] != (telling{episode: 1}) {
			t.Fatal("a claim of the letter, and it is forgotten that somebody was told")
		}
		step(id, port.Header{State: "ready", Episode: 2}) // approved, and the run goes on to its end
		step(id, port.Header{State: "ok", Episode: 2})
		rc.outcome(port.Outcome{ID: id, N: 2})
	}
	if len(rc.told) != 0 || len(rc.runs) != 0 {
		t.Errorf("of 100 approved runs %d ends are kept as told, %d runs", len(rc.told), len(rc.runs))
	}
	id := run.ID{Tenant: "t", Run: "again"}
	step(id, port.Header{State: "needs_human", Episode: 1, Letter: "o"})
	rc.told[id], rc.overdue[id] = telling{episode: 1}, true
	rc.change(port.Change{Report: port.Reset})
	if len(rc.told) != 0 || rc.Overdue() != 0 {
		t.Errorf("of a store that was made anew %d ends count as told, %d runs as overdue", len(rc.told), rc.Overdue())
	}
}
