package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/fair"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// world is a worker among parts in memory, each of which can be made to fail.
type world struct {
	port.Store // what no test here needs

	mu      sync.Mutex
	records map[run.ID]port.Record
	seq     uint64
	saved   func(*engine.Run)          // told of each record that is stored
	store   func(op string) error      // nil: the store works
	journal func(e engine.Entry) error // nil: the journal takes everything
	entries []engine.Entry             // of the journal, in order
	later   []engine.Entry
	facts   []engine.Fact // that are not settled
	calls   []string      // steps whose tool was called
	effect  envelope.Effect
}

func (w *world) fails(op string) error {
	if w.store == nil {
		return nil
	}
	return w.store(op)
}

func (w *world) Load(_ context.Context, id run.ID) (port.Record, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.fails("load"); err != nil {
		return port.Record{}, err
	}
	if st, ok := w.records[id]; ok {
		return st, nil
	}
	return port.Record{}, port.ErrNotFound
}

func (w *world) Save(_ context.Context, id run.ID, data []byte, _ port.Header, expect uint64) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.fails("save"); err != nil {
		return 0, err
	}
	if w.records[id].Seq != expect {
		return 0, port.ErrConflict
	}
	w.seq++
	w.records[id] = port.Record{Data: slices.Clone(data), Seq: w.seq}
	if w.saved != nil {
		r, err := engine.Decode(data)
		if err != nil {
			panic(err)
		}
		w.saved(r)
	}
	return w.seq, nil
}

func (w *world) Server() string { return "" }

func (w *world) Append(_ context.Context, _ string, out []port.Outgoing) ([]uint64, error) {
	seqs := make([]uint64, len(out))
	for i := range seqs {
		seqs[i] = uint64(out[i].N) //nolint:gosec // small
	}
	return seqs, nil
}

func (w *world) LastOutcome(context.Context, run.ID, envelope.Scope) (port.Outcome, error) {
	return port.Outcome{}, port.ErrNotFound
}

func (w *world) PutLetter(context.Context, run.ID, string, []byte, string, uint64) (uint64, error) {
	return 1, nil
}

func (w *world) Write(_ context.Context, entries ...engine.Entry) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range entries {
		if w.journal == nil {
			break
		}
		if err := w.journal(e); err != nil {
			return err
		}
	}
	w.entries = append(w.entries, entries...)
	return nil
}

func (w *world) Later(entries ...engine.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.later = append(w.later, entries...)
}

func (w *world) Unsettled() ([]engine.Fact, error)   { return w.facts, nil }
func (w *world) Facts(func(engine.Fact) error) error { return nil }
func (w *world) Saw(uint64)                          {}

func (w *world) Tool(name string) (*run.Tool, bool) {
	return &run.Tool{Name: name, Effect: w.effect, Timeout: time.Second}, name == "tool"
}

func (w *world) Call(_ context.Context, d *engine.Dispatch, info CallInfo) envelope.Reply {
	if err := info.Last(); err != nil {
		return envelope.Reply{NotSent: true, Row: envelope.RowFor(envelope.CodeOutcomeUnknown, d.Effect)}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, d.Step)
	return envelope.Reply{OK: true, Result: []byte("1")}
}

func (w *world) Lookup(context.Context, run.ID, *engine.Lookup, string) (envelope.Lookup, bool) {
	return envelope.Lookup{}, false
}
func (w *world) Limits(string) Limits { return Limits{} }

func (w *world) ReadyWithin(string) time.Duration { return 0 }

type quiet struct{}

func (quiet) Hint(string, run.ID) error                                      { return nil }
func (quiet) Current() (string, bool)                                        { return "the store", true }
func (quiet) Vanished(string)                                                {}
func (quiet) Sent()                                                          {}
func (quiet) Lower() time.Time                                               { return time.Now() }
func (quiet) Upper() time.Time                                               { return time.Now() }
func (quiet) Outcome(string, string, string)                                 {}
func (quiet) ToolCall(string, envelope.Effect, envelope.Code, time.Duration) {}
func (quiet) RunsInFlight(int)                                               {}
func (quiet) Refusal(string)                                                 {}
func (quiet) DuplicatePrevented(string)                                      {}
func (quiet) Breaker(string, bool)                                           {}
func (quiet) RetryLate(time.Duration)                                        {}
func (quiet) PassedOn(string)                                                {}
func (quiet) BlockFor(string, string, string)                                {}
func (quiet) ClearFor(string, string)                                        {}

func (w *world) worker(t *testing.T) *Worker {
	t.Helper()
	w.records = map[run.ID]port.Record{}
	wk := New(Config{
		ID: "x", Holder: "h.1", Lease: 10 * time.Second, Concurrency: 4, PoisonAfter: 3,
		Defaults: func() engine.Defaults {
			d := engine.Defaults{Owner: "o", Workflow: "w", Actor: "a"}
			d.Budget.MaxTurns, d.Budget.MaxToolCalls, d.Budget.MaxAttemptsPerStep, d.Budget.MaxElapsedMillis = 10, 10, 3, 600_000
			return d
		},
		Shares: func(string) fair.Limit { return fair.Limit{} },
		Boot:   func() time.Duration { return time.Duration(time.Now().UnixNano()) }, Random: func() float64 { return 0 },
		Records: &record.Records{Store: w, Clock: quiet{}, Retention: time.Hour}, Journal: w, Tools: w,
		Hints: quiet{}, Store: quiet{}, Observe: quiet{}, Ready: quiet{}, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	t.Cleanup(wk.Stop)
	return wk
}

// answered says how a delivery was answered.
type answered struct{ how chan string }

func (a answered) tell(how string) error {
	a.how <- how
	return nil
}
func (a answered) Ack() error                  { return a.tell("acknowledged") }
func (a answered) InProgress() error           { return nil }
func (a answered) Release(time.Duration) error { return a.tell("given back") }

func delivery(job string) (port.Delivery, <-chan string) {
	a := answered{make(chan string, 8)}
	id := run.ID{Tenant: "t", Run: "r"}
	return port.Delivery{
		Message: engine.Message{Queue: "default", Seq: 1, Time: envelope.TimeOf(time.Now()), Data: []byte(job)},
		ID:      id, Valid: true, Subject: "agentrun.jobs.default.t.r", Acker: a,
	}, a.how
}

// jobOf is a job of the steps, each of which calls a tool of that name.
func jobOf(tools ...string) string {
	steps := ""
	for i, tool := range tools {
		if i > 0 {
			steps += ","
		}
		steps += fmt.Sprintf(`{"step":"s%d","tool":%q}`, i+1, tool)
	}
	return fmt.Sprintf(`{"schema":"agentrun.job/v1","tenant":"t","run_id":"r","steps":[%s]}`, steps)
}

var errDiskFull = errors.New("no space left on device")
