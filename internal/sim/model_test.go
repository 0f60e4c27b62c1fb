package sim

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// The protocol's model on the real core: every interleaving of two executors, reconcilers, a tool, operators and a reporter
// around one record, breadth first, up to a bound. The record is an engine.Run and every event on it is the engine's; what is
// modelled is the rest: who stands where in the one order, what is journaled, and what the tool has done. Times stand still
// (every delay is zero), a lease runs out by an event of its own, and a consistency window passes when its call can have no
// effect any more. Publishing is one step except in the scenarios about letters.

var (
	modelMost = flag.Int("model.states", 12_000, "states at most per scenario")
	modelOnly = flag.String("model.only", "", "part of the names of the scenarios to run")
)

const (
	slots      = 3 // 0 and 1 are executor A's, 2 is B's
	dispatches = 6 // ids 1 to 5
)

// Where an executor's slot stands: one state for each line of the one order.
const (
	atIdle uint8 = iota
	atRead
	atStart // the intent and the compare-and-set, in either order
	atUnsureStart
	atCheck
	atSend // between the check and the wire
	atWait
	atEffect
	atRecord
	atUnsureRecord
	atPublish
	atLetter
	atPublishRun
	atSettle
	atAck
	atDead
	atRestart
)

// What a call came to.
const (
	said     uint8 = 1 + iota // done
	refusal                   // nothing was done
	silence                   // no reply
	noLookup                  // a lookup that failed
)

// Phases of a call on the tool's side.
const (
	unsent uint8 = iota
	running
	cutShort // the caller has gone, it may still be done
	closed   // nothing can follow
)

type mCall struct {
	step, attempt, by, phase, done, reply uint8 // done: 0 open, 1 committed, 2 never
	late                                  bool
}

type mSlot struct {
	at, step, d, rev, intent, stored, value uint8
	has                                     uint8 // bit 0 and 1: jobs, bit 2: the wake
	letter, next, nextStep, lease           uint8
}

type mRecon struct {
	at, d, step, verdict, letter uint8
	proves                       bool
}

// mCore is the part of a state beside the record; it is compared by value.
type mCore struct {
	rev, alive               uint8
	calls                    [dispatches]mCall
	ledger                   [2]uint8
	nd                       uint8
	message                  uint8 // episode of the letter's message, 0: none
	job                      [2]uint8
	wake                     uint8
	slot                     [slots]mSlot
	journal                  [2][dispatches]uint8 // 1 intent, 2 done, 3 nothing done, 4 settled
	recon                    [2]mRecon
	pend                     [5]uint8 // a write that lands later: kind, slot or step, dispatch, value, revision
	crash, unsure, lost, del uint8
	op, report, cancel, gap  uint8
	expire, fail             uint8
	opSaw, opSays            uint8
	repSays, repD            uint8
	known, killed            bool
}

type mState struct {
	mCore
	r   *engine.Run // shared between states; replaced by a copy when it changes
	key string      // of the record
	bad string
}

type mID struct {
	core mCore
	rec  string
	bad  string
}

// rules are the readings of the architecture that a scenario can switch off, and the bugs that it can plant. They live here,
// around the core: none is in production code.
type rules struct {
	bindEvidence, bindVerdict, reread, reportRule, letterTruth, opNames, windowEnd, sendAfter, lateReady, drainEnd bool

	goesOnRefused, acksEarly bool
}

type mOpt struct {
	name                                                            string
	steps, recons, attempts, jobs                                   int
	crash, unsure, lost, del, op, report, cancel, expire, gap, fail uint8
	noVerify, parallel, fine                                        bool
	rules
}

// model explores one scenario.
type model struct {
	mOpt
	tools map[string]*run.Tool
	now   envelope.Time
	mints int // dispatch ids that a scenario may draw
}

func (m *model) Tool(name string) (*run.Tool, bool) {
	t, ok := m.tools[name]
	return t, ok
}

func newModel(o mOpt) *model {
	m := &model{mOpt: o, now: envelope.TimeOf(time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)), mints: dispatches - 1}
	t := &run.Tool{
		Name: "w", Effect: envelope.Write, PoisonAfter: 1 << 20,
		Retry:  run.Retry{MaxAttempts: o.attempts, Multiplier: 1, MaxRetryAfter: time.Hour},
		Verify: &run.Verify{HasWindow: true, MaxAttempts: 1 << 20},
	}
	if o.noVerify {
		t.Verify = nil
	}
	m.tools = map[string]*run.Tool{"w": t}
	return m
}

func (m *model) source(by string) engine.Source {
	return engine.Source{By: by, At: m.now, Start: m.now}
}

func (m *model) defaults() engine.Defaults {
	return engine.Defaults{Owner: "o", Workflow: "w", Actor: "a", Budget: budget.Limits{
		MaxTurns: 100, MaxToolCalls: 100, MaxAttemptsPerStep: 100, MaxElapsedMillis: 1 << 40,
		MaxInputTokens: 1, MaxOutputTokens: 1, MaxEstimatedCostMinorUnits: 1,
	}}
}

var modelRun = run.ID{Tenant: "acme", Run: "r"}

func (m *model) create() *engine.Run {
	steps := make([]string, m.steps)
	for i := range steps {
		steps[i] = fmt.Sprintf(`{"step":"s%d","tool":"w","args":{}}`, i)
	}
	data := fmt.Sprintf(`{"schema":"agentrun.job/v1","tenant":"acme","run_id":"r","parallel":%v,"steps":[%s]}`, m.parallel, strings.Join(steps, ","))
	return engine.Create(modelRun, engine.Message{Seq: 1, Time: m.now, Queue: "default", Data: []byte(data)}, m.defaults(), m.now)
}

func stepName(i uint8) string              { return fmt.Sprintf("s%d", i) }
func dispatchID(d uint8) engine.DispatchID { return engine.DispatchID([]byte{'d', '0' + d}) }

func number(id string) uint8 {
	if id == "" {
		return 0
	}
	return id[1] - '0'
}

// copyRun copies what the engine changes in place.
func copyRun(r *engine.Run) *engine.Run {
	c := *r
	c.Steps = make([]*engine.Step, len(r.Steps))
	for i, s := range r.Steps {
		t := *s
		if s.Doubt != nil {
			d := *s.Doubt
			t.Doubt = &d
		}
		c.Steps[i] = &t
	}
	c.History, c.Owed, c.Effects = slices.Clone(r.History), slices.Clone(r.Owed), slices.Clone(r.Effects)
	c.Evidence, c.Alarms, c.Answers = slices.Clone(r.Evidence), slices.Clone(r.Alarms), slices.Clone(r.Answers)
	if r.Lease != nil {
		l := *r.Lease
		c.Lease = &l
	}
	if r.Letter != nil {
		l := *r.Letter
		c.Letter = &l
	}
	if r.Decided != nil {
		d := *r.Decided
		c.Decided = &d
	}
	return &c
}

// fingerprint is everything of a record that its future depends on. Numbers that only grow are left out: they decide
// nothing here.
func (m *model) fingerprint(r *engine.Run) string {
	if r == nil {
		return ""
	}
	b := make([]byte, 0, 96)
	flag := func(v bool) {
		if v {
			b = append(b, '1')
		} else {
			b = append(b, '0')
		}
	}
	for _, s := range r.Steps {
		b = append(b, s.State...)
		b = append(b, byte('0'+s.Used), '/')
		b = append(b, s.Dispatch...)
		b = append(b, '/')
		b = append(b, s.Doubted...)
		flag(s.Disputed)
		flag(s.Attempt > 0)
		if s.Doubt != nil {
			flag(s.Doubt.WindowOver)
		}
		if s.Fail != nil {
			b = append(b, s.Fail.Row.Code...)
		}
		b = append(b, ';')
	}
	for i := range r.History {
		if e := &r.History[i]; e.Kind == engine.EventDispatch {
			b = append(b, e.Dispatch...)
		}
	}
	if r.Lease != nil {
		b = append(b, r.Lease.Holder...)
		b = append(b, r.Lease.ID...)
	}
	flag(r.Cancel != nil)
	if r.Decided != nil {
		b = append(b, r.Decided.Why...)
		b = append(b, r.Decided.Step...)
	}
	if r.End != nil {
		b = append(b, r.End.Outcome...)
		b = append(b, r.End.Step...)
	}
	b = append(b, byte('0'+r.Episode))
	if r.Letter != nil {
		flag(r.Letter.Open)
		b = append(b, r.Letter.ID...)
	}
	if m.fine {
		owed := [2]byte{'0', '0'}
		for i := range r.Owed {
			if r.Owed[i].Scope == envelope.RunScope {
				owed[1]++
			} else {
				owed[0]++
			}
		}
		b = append(b, owed[0], owed[1])
	} else {
		flag(len(r.Owed) > 0)
	}
	for _, k := range r.Evidence {
		b = append(b, k.Step...)
		b = append(b, k.Dispatch...)
		b = append(b, k.CommitState...)
	}
	b = append(b, byte('0'+len(r.Effects)))
	return string(b)
}
