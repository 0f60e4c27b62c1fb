package audit

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// one is a store with one run, whose job could not be read and whose outcomes have these numbers.
type one struct {
	port.Store
	data    []byte
	numbers []int
}

var oneID = run.ID{Tenant: "acme", Run: "r"}

func (o *one) ScanRuns(_ context.Context, _ uint64, fn func(run.ID, uint64, []byte)) error {
	fn(oneID, 7, o.data)
	return nil
}

func (o *one) ScanOutcomes(_ context.Context, fn func(port.Outcome)) error {
	for _, n := range o.numbers {
		fn(o.outcome(n))
	}
	return nil
}

func (o *one) outcome(n int) port.Outcome {
	return port.Outcome{ID: oneID, Scope: envelope.RunScope, N: n, First: 7, Time: time.Unix(1, 0)}
}

func (o *one) ScanLetters(context.Context, func(port.Letter)) error { return nil }
func (o *one) LettersFull(context.Context) (bool, error)            { return true, nil }

func (o *one) Load(context.Context, run.ID) (port.Record, error) {
	return port.Record{Data: o.data, Seq: 7}, nil
}

func (o *one) GetLetter(context.Context, run.ID, string) (port.Letter, error) {
	return port.Letter{}, port.ErrNotFound
}

func (o *one) LastOutcome(_ context.Context, _ run.ID, scope envelope.Scope) (port.Outcome, error) {
	if scope != envelope.RunScope || len(o.numbers) == 0 {
		return port.Outcome{}, port.ErrNotFound
	}
	return o.outcome(o.numbers[len(o.numbers)-1]), nil
}

// A second look reads only the last outcome of a run: what the pass over the whole stream has seen of their numbers is not
// forgotten by it.
func TestASecondLookKeepsWhatThePassHasSeen(t *testing.T) {
	for want, numbers := range map[string][]int{"": nil, "missing or comes twice": {1, 1}, "outcome run/1 is in the stream": {1}} {
		synctest.Test(t, func(t *testing.T) {
			d := engine.Defaults{Owner: "o", Workflow: "w", Budget: budget.Limits{
				MaxTurns: 9, MaxToolCalls: 9, MaxAttemptsPerStep: 3, MaxElapsedMillis: 900_000,
			}}
			now := envelope.TimeOf(time.Now())
			r := engine.Create(oneID, engine.Message{Queue: "default", Seq: 1, Time: now, Data: []byte("{")}, d, now)
			data, err := r.Encode()
			if err != nil {
				t.Fatal(err)
			}
			store := &one{data: data, numbers: numbers}
			report, err := All(t.Context(), store, store, now)
			if err != nil {
				t.Fatal(err)
			}
			var found []string
			for _, f := range report.Found {
				found = append(found, f.What)
			}
			if got := strings.Join(found, "; "); want == "" && got != "" || !strings.Contains(got, want) {
				t.Errorf("outcomes %v: found %q", numbers, got)
			}
		})
	}
}
