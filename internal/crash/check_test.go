package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// made is a run that went as it should, as the provider, the results and the streams tell of it. Tests break it.
type made struct {
	plan *Plan
	j    *judge
	ref  string
}

// goodRun is one write, committed once, of a run that ended ok.
func goodRun(t *testing.T) *made {
	t.Helper()
	id := run.ID{Tenant: tenant, Run: "r1"}
	ref := id.String() + "/w"
	now := time.Now()
	p := &Provider{requests: map[string][]*Request{}, rows: map[string][]Row{}, lookups: map[string][]Lookup{}}
	p.requests[ref] = []*Request{{Tool: "pay", Ref: ref, Key: ref, Worker: "e1.1", Nth: 1, At: now, Plan: "commit,answer", Done: now}}
	p.rows[ref] = []Row{{ID: ref + "#1", Tool: "pay", Ref: ref, Key: ref, Worker: "e1.1", Nth: 1, At: now}}
	at := envelope.TimeOf(now)
	r := engine.Create(id, engine.Message{Seq: 1, Time: at, Queue: queue, Data: []byte(`{"schema":"agentrun.job/v1","tenant":"crash","run_id":"r1","workflow":"w","owner":"o","actor":"a","budget":{"max_turns":9,"max_tool_calls":9,"max_attempts_per_step":9,"max_elapsed_seconds":60,"max_input_tokens":9,"max_output_tokens":9,"max_estimated_cost_minor_units":9},"steps":[{"step":"w","tool":"pay","args":{}}]}`)}, engine.Defaults{}, at)
	d := r.Begin("w", deadTools{}, engine.Start{Dispatch: "d1", LeaseID: "l1", Holder: "h.1", Seconds: 1, Worker: "w1"}, at)
	r.Reply(d.ID, envelope.Reply{OK: true, Result: json.RawMessage(`{"id":"x"}`), EvidenceRef: ref + "#1"}, deadTools{}, engine.Source{By: "w1", At: at})
	results := newResults()
	for i := range r.Owed {
		o := *r.Outcome(&r.Owed[i])
		told := Told{message: o, Seq: uint64(i + 1), Stored: now}
		if o.Scope == envelope.RunScope {
			results.runs[id] = append(results.runs[id], told)
		} else {
			results.steps[id] = append(results.steps[id], told)
		}
	}
	state := &State{Records: map[run.ID]*engine.Run{id: r}, Letters: map[run.ID][]deadletter.Letter{}, Alerts: map[string]int{}}
	plan := &Plan{ID: id, Shape: "single write", Accepted: now, Jobs: []run.Job{{Steps: []run.JobStep{{Step: "w", Tool: "pay"}}}}}
	return &made{plan: plan, ref: ref, j: &judge{provider: p, faults: &Chronicle{}, lease: time.Second, results: results, state: state}}
}

// The comparison finds what is planted, under the name of the promise that it breaks, and nothing in a run that went well.
func TestJudgeFindsWhatIsPlanted(t *testing.T) {
	id := run.ID{Tenant: tenant, Run: "r1"}
	again := func(m *made, worker string) {
		row := m.j.provider.rows[m.ref][0]
		row.Nth, row.ID, row.Worker = 2, m.ref+"#2", worker
		m.j.provider.rows[m.ref] = append(m.j.provider.rows[m.ref], row)
		q := *m.j.provider.requests[m.ref][0]
		q.Nth, q.After, q.Worker, q.At = 2, true, worker, q.At.Add(time.Millisecond)
		m.j.provider.requests[m.ref] = append(m.j.provider.requests[m.ref], &q)
	}
	for _, c := range []struct {
		name  string
		plant func(m *made)
		rule  string // "" if nothing is to be found
		what  string
	}{
		{"nothing", func(*made) {}, "", ""},
		{"a write committed twice", func(m *made) { again(m, "e2.1") }, RuleDuplicate, "committed 2 times"},
		{"asked for again once committed", func(m *made) {
			again(m, "e2.1")
			m.j.provider.rows[m.ref] = m.j.provider.rows[m.ref][:1]
		}, RuleDuplicate, "asked for again"},
		{"another key", func(m *made) {
			q := *m.j.provider.requests[m.ref][0]
			q.Key, q.Nth = q.Key+".a2", 2
			m.j.provider.requests[m.ref] = append(m.j.provider.requests[m.ref], &q)
		}, RuleDuplicate, "under 2 keys"},
		{"twice from a paused machine, not said", func(m *made) {
			at := m.j.provider.requests[m.ref][0].At
			m.j.faults.Note(Fault{Kind: PauseExecutor, Process: "e2.1", At: at.Add(-2 * time.Second), Until: at})
			again(m, "e2.1")
		}, RuleDuplicate, "does not say so"},
		{"no end", func(m *made) { delete(m.j.results.runs, id) }, RuleLoss, "0 terminal"},
		{"two ends", func(m *made) {
			second := m.j.results.runs[id][0]
			second.N, second.ID = 2, id.String()+"/run/2"
			m.j.results.runs[id] = append(m.j.results.runs[id], second)
		}, RuleLoss, "2 terminal"},
		{"a gap in the numbers", func(m *made) { m.j.results.steps[id][0].N = 2 }, RuleOutcome, "has n 2"},
		{"a step ends twice", func(m *made) {
			second := m.j.results.steps[id][0]
			second.N, second.ID = 2, id.String()+"/step/2"
			m.j.results.steps[id] = append(m.j.results.steps[id], second)
		}, RuleOutcome, "2 terminal outcomes"},
		{"ok without its step", func(m *made) { delete(m.j.results.steps, id) }, RuleOutcome, "has no ok outcome"},
		{"an effect that did not happen", func(m *made) { delete(m.j.provider.rows, m.ref) }, RuleEffects, "the ledger has nothing"},
		{"an effect that is not told", func(m *made) { m.j.results.runs[id][0].CompletedEffects = nil }, RuleEffects, "no completed effect"},
		{"other evidence", func(m *made) { m.j.provider.rows[m.ref][0].ID = "z" }, RuleEffects, "has evidence"},
		{"more requests than reserved", func(m *made) {
			q := *m.j.provider.requests[m.ref][0]
			q.Nth = 2
			m.j.provider.requests[m.ref] = append(m.j.provider.requests[m.ref], &q)
		}, RuleBudget, "2 requests"},
		{"a letter of a run that is ok", func(m *made) { m.j.state.Letters[id] = make([]deadletter.Letter, 1) }, RuleLetter, "has 1 letters"},
		{"no letter", func(m *made) { m.j.results.runs[id][0].message.Outcome = envelope.NeedsHuman }, RuleLetter, "has 0 letters"},
		{"an end that nothing explains", func(m *made) {
			m.j.results.runs[id][0].message.Outcome, m.j.results.runs[id][0].ReasonCode = envelope.NeedsHuman, "poison_job"
		}, RuleOutcome, "nothing that happened explains it"},
		{"a rate limit that would have passed in time", func(m *made) {
			m.plan.Shape = shortTime
			m.j.provider.requests[m.ref][0].Plan = "none,429"
			m.j.results.runs[id][0].message.Outcome, m.j.results.runs[id][0].ReasonCode = envelope.NeedsHuman, "provider_rate_limited"
		}, RuleOutcome, "nothing that happened explains it"},
		{"no record", func(m *made) { delete(m.j.state.Records, id) }, RuleRecord, "no record"},
		{"a record that goes on", func(m *made) { m.j.state.Records[id].End = nil }, RuleRecord, "the outcome says ok"},
		{"work that nobody ordered", func(m *made) { m.j.provider.requests["crash/r9/w"] = nil }, RuleOutcome, "nobody ordered"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := goodRun(t)
			c.plant(m)
			v := m.j.run([]*Plan{m.plan})
			if c.rule == "" {
				if len(v.Findings) != 0 || v.Ends["ok"] != 1 || v.Rows != 1 {
					t.Errorf("%+v", v)
				}
				return
			}
			for _, f := range v.Findings {
				if f.Rule == c.rule && strings.Contains(f.What, c.what) {
					return
				}
			}
			t.Errorf("not found: %+v", v.Findings)
		})
	}
}

// A second commit by a request that left a paused machine after its lease is counted apart if the run says disputed.
func TestJudgeCountsTheGapApart(t *testing.T) {
	m := goodRun(t)
	id := m.plan.ID
	at := m.j.provider.requests[m.ref][0].At
	m.j.faults.Note(Fault{Kind: PauseExecutor, Process: "e1.1", At: at.Add(-2 * time.Second), Until: at})
	row := m.j.provider.rows[m.ref][0]
	row.Nth, row.ID = 2, m.ref+"#2"
	m.j.provider.rows[m.ref] = append(m.j.provider.rows[m.ref], row)
	end := &m.j.results.runs[id][0]
	end.message.Outcome, end.ReasonCode, end.message.Step, end.Tool = envelope.NeedsHuman, "external_outcome_disputed", "w", "pay"
	v := m.j.run([]*Plan{m.plan})
	if v.Gaps != 1 || v.count(RuleDuplicate) != 0 {
		t.Errorf("%d gaps, findings %+v", v.Gaps, v.Findings)
	}
}
