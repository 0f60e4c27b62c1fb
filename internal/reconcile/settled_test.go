package reconcile

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/run"
)

type still struct{}

func (still) Lower() time.Time { return time.Unix(1, 0) }
func (still) Upper() time.Time { return time.Unix(1, 0) }

func watching() *Reconciler {
	rc := New(Config{Lease: time.Minute, Records: &record.Records{Clock: still{}}, Random: rand.Float64})
	rc.ready = [3]bool{true, true, true}
	return rc
}

func seen(rc *Reconciler, id, seq int, state string) {
	rc.change(port.Change{ID: run.ID{Tenant: "t", Run: fmt.Sprint(id)}, Seq: uint64(seq), Header: port.Header{State: state, Episode: 1}}) //nolint:gosec // small
}

// What is settled ends below the first end that may owe something, whatever came and went before.
func TestSettledThrough(t *testing.T) {
	rc := watching()
	r := rand.New(rand.NewPCG(1, 2))
	states := []string{"open", "running", string(run.Waiting), "ok", "fatal"}
	for seq := 1; seq <= 2000; seq++ {
		id := r.IntN(60)
		if r.IntN(4) == 0 {
			rc.outcome(port.Outcome{ID: run.ID{Tenant: "t", Run: fmt.Sprint(id)}, N: 1})
		}
		seen(rc, id, seq, states[r.IntN(len(states))])
		want := rc.through
		for _, e := range rc.runs {
			if run.Ended(e.h.State) && e.seq <= want {
				want = e.seq - 1
			}
		}
		if got, _ := rc.settledThrough(fleetState{}, true); got != want {
			t.Fatalf("after revision %d: settled through %d, want %d", seq, got, want)
		}
	}
}

// BenchmarkSettledThrough is what the active reconciler does every second or so, with many runs that wait.
func BenchmarkSettledThrough(b *testing.B) {
	rc := watching()
	for i := range 100_000 {
		seen(rc, i, i+1, string(run.Waiting))
	}
	for b.Loop() {
		rc.settledThrough(fleetState{}, true)
	}
}
