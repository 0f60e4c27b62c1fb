package worker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// emptyStore has no record, and takes alerts when it can be reached.
type emptyStore struct {
	port.Store
	away   int // so many alerts cannot be stored
	alerts map[string][]byte
}

func (s *emptyStore) Server() string { return "" }

func (s *emptyStore) Load(context.Context, run.ID) (port.Record, error) {
	return port.Record{}, port.ErrNotFound
}

func (s *emptyStore) PutAlert(_ context.Context, _, _, _ string, data []byte, id string) error {
	if s.away > 0 {
		s.away--
		return errors.New("no connection")
	}
	s.alerts[id] = data
	return nil
}

type factsOnly struct {
	Journal
	facts   []engine.Fact
	settled []engine.DispatchID
}

func (j *factsOnly) Unsettled() ([]engine.Fact, error) { return j.facts, nil }
func (j *factsOnly) Later(entries ...engine.Entry) {
	for _, e := range entries {
		j.settled = append(j.settled, e.Settled)
	}
}

// A write that the journal knows to be done and that no record has raises an alert, and is settled only after that.
func TestAnEffectWhoseRunIsForgottenRaisesAnAlert(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &emptyStore{away: 1, alerts: map[string][]byte{}}
		fact := func(d engine.DispatchID, reply *envelope.Reply) engine.Fact {
			f := engine.Fact{Intent: engine.Intent{Dispatch: d, Tenant: "acme", RunID: "r", Step: "credit", Tool: "billing", Owner: "finance"}}
			if reply != nil {
				f.Effect = &engine.EffectFact{Dispatch: d, Reply: *reply, At: envelope.TimeOf(time.Now())}
			}
			return f
		}
		journal := &factsOnly{facts: []engine.Fact{
			fact("never-started", nil),
			fact("failed", &envelope.Reply{Row: envelope.RowFor(envelope.CodeInvalidArgument, envelope.Write)}),
			fact("done", &envelope.Reply{OK: true, Result: []byte(`{"secret":"of the tool"}`)}),
		}}
		w := New(Config{
			Tools: noTools{}, Store: quiet{}, Observe: deaf{}, Journal: journal, Records: &record.Records{Store: store, Clock: wallClock{}},
			Defaults: func() engine.Defaults { return engine.Defaults{Owner: "ops", Workflow: "w"} },
			Log:      slog.New(slog.NewTextHandler(io.Discard, nil)), Random: func() float64 { return 0 },
		})
		defer w.stop()
		if err := w.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(store.alerts) != 1 || len(journal.settled) != 3 {
			t.Fatalf("alerts %v, settled %v", store.alerts, journal.settled)
		}
		var got deadletter.Alert
		if err := json.Unmarshal(store.alerts["acme/r/forgotten/done"], &got); err != nil {
			t.Fatal(err)
		}
		at := envelope.TimeOf(time.Now())
		want := deadletter.Alert{
			Schema: deadletter.AlertSchema, Tenant: "acme", Owner: "finance", ReasonCode: "effect_without_run", Severity: deadletter.Page,
			RunID: "r", Workflow: "w", Tool: "billing", Count: 1, FirstAt: got.FirstAt, At: at, Summary: engine.SummaryOf(deadletter.ReasonForgotten),
		}
		if got.At = at; got != want {
			t.Errorf("%+v", got)
		}
	})
}
