package reconcile

import (
	"context"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// alerted counts the alerts that are stored.
type alerted struct {
	port.Store
	n int
}

func (a *alerted) PutAlert(context.Context, string, string, string, []byte, string) error {
	a.n++
	return nil
}

// A letter that was claimed before the reconciler came to it is one of a burst all the same.
func TestClaimedLettersCountForABurst(t *testing.T) {
	for _, claimed := range []int{0, 1, engine.BurstRuns} {
		store := &alerted{}
		rc := watching()
		rc.Records = &record.Records{Store: store, Clock: exact{}}
		now := envelope.TimeOf(time.Now())
		for i := range engine.BurstRuns {
			id := run.ID{Tenant: "t", Run: string(rune('a' + i))}
			r := engine.Create(id, engine.Message{Seq: uint64(i + 1), Time: now, Queue: "default", Data: []byte(`{}`)}, engine.Defaults{Owner: "o", Workflow: "w", Actor: "a"}, now)
			if r.End == nil || r.End.Outcome != envelope.Fatal || r.Letter == nil {
				t.Fatalf("not an end with a letter: %+v", r)
			}
			if i < claimed {
				r.Letter.Claim = &engine.Claim{}
			}
			if !rc.untold(r) {
				t.Error("nobody was told")
			}
			if err := rc.alert(t.Context(), &record.Handle{ID: id, Run: r, Seq: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if store.n != 1 {
			t.Errorf("%d of %d letters were claimed: %d alerts", claimed, engine.BurstRuns, store.n)
		}
	}
}
