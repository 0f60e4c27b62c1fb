package engine_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
)

// members are the keys of a message as it is sent.
func members(t *testing.T, o *envelope.Outcome) map[string]json.RawMessage {
	t.Helper()
	data, err := strictjson.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// Which members an outcome has and which it has not (contract §5).
func TestMembersOfOutcomes(t *testing.T) {
	always := []string{
		"schema", "id", "n", "scope", "terminal", "tenant", "run_id", "workflow", "owner", "actor", "outcome", "completed_effects",
		"remaining_steps", "spent", "at",
	}
	about := []string{"step", "tool", "operation_ref", "attempt", "envelope", "commit_state"}
	failure := []string{"reason_code", "next_action", "failed_step", "customer_message", "operator_detail"}
	later := []string{"retry_after_seconds", "not_before"}
	last := func(d *driver, scope envelope.Scope) *envelope.Outcome { return d.last(scope) }
	for _, c := range []struct {
		name string
		play func(*driver)
		of   envelope.Scope
		has  [][]string
		not  [][]string
	}{
		{"ok step", func(d *driver) { d.call("a", ok("{}")) }, envelope.StepScope, [][]string{always, about}, [][]string{failure, later}},
		{"ok run", func(d *driver) { d.call("a", ok("{}")) }, envelope.RunScope, [][]string{always}, [][]string{about, failure, later}},
		{"retryable", func(d *driver) { d.call("a", fails(envelope.CodeUpstreamUnavailable, envelope.Write)) }, envelope.StepScope, [][]string{always, about, failure, later}, nil},
		{"unknown", func(d *driver) { d.call("a", silent()) }, envelope.StepScope, [][]string{always, about, failure}, [][]string{later}},
		{"fatal step", func(d *driver) { d.call("a", fails(envelope.CodeUpstreamDenied, envelope.Write)) }, envelope.StepScope, [][]string{always, about, failure}, [][]string{later}},
		{"fatal run", func(d *driver) { d.call("a", fails(envelope.CodeUpstreamDenied, envelope.Write)) }, envelope.RunScope, [][]string{always, about, failure}, [][]string{later}},
		{"cancelled run", func(d *driver) { d.cancel() }, envelope.RunScope, [][]string{always, about, failure}, [][]string{later}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := create(t, job("", step("a", "write", "{}")))
			c.play(d)
			m := members(t, last(d, c.of))
			for _, key := range slices.Concat(c.has...) {
				if _, there := m[key]; !there {
					t.Errorf("%s is absent", key)
				}
			}
			for _, key := range slices.Concat(c.not...) {
				if v, there := m[key]; there {
					t.Errorf("%s is there: %s", key, v)
				}
			}
			for _, list := range []string{"completed_effects", "remaining_steps"} {
				if m[list][0] != '[' {
					t.Errorf("%s is %s", list, m[list])
				}
			}
		})
	}
}

func TestSuccess(t *testing.T) {
	d := create(t, job("", step("r", "read", "{}"), step("w", "write", "{}"), step("x", "read", "{}")))
	d.call("r", ok(`{"n":12345678901234567890.50}`))
	reply := ok(`{"id":"c"}`)
	reply.EvidenceRef = "cr_3"
	d.call("w", reply)
	read, write := d.r.Outcome(&d.r.Owed[0]), d.r.Outcome(&d.r.Owed[1])
	if string(read.Envelope.Result) != `{"n":12345678901234567890.50}` || read.CommitState != envelope.Committed || read.Envelope.Verification != nil || len(read.CompletedEffects) != 0 {
		t.Errorf("%+v", read.Envelope)
	}
	if v := write.Envelope.Verification; v == nil || v.EvidenceRef != "cr_3" || v.CheckedAt != d.now || write.Envelope.OperationRef != "acme/run_1/w" {
		t.Errorf("%+v", write.Envelope)
	}
	e := write.CompletedEffects[0]
	if e.Step != "w" || e.Tool != "write" || e.OperationRef != "acme/run_1/w" || e.CommittedAt != d.now || e.EvidenceRef != "cr_3" {
		t.Errorf("%+v", e)
	}
	if !slices.Equal(write.RemainingSteps, []string{"x"}) {
		t.Errorf("%v", write.RemainingSteps)
	}
	d.call("x", ok(""))
	for i := range d.r.Owed[:3] {
		if o := d.r.Outcome(&d.r.Owed[i]); o.N != i+1 || o.ID != fmt.Sprintf("acme/run_1/step/%d", i+1) {
			t.Errorf("%s is number %d", o.ID, o.N)
		}
	}
	if o := d.r.Outcome(&d.r.Owed[2]); string(o.Envelope.Result) != "null" {
		t.Errorf("an empty result is %s", o.Envelope.Result)
	}
	if o := d.last(envelope.RunScope); o.N != 1 || o.ID != "acme/run_1/run/1" || !o.Terminal || o.Spent.ToolCalls != 3 || o.Spent.Turns != 1 {
		t.Errorf("%+v", o)
	}
}

// The record drops what it has published, and remembers where.
func TestPublished(t *testing.T) {
	d := create(t, job(`"more":true`, step("a", "read", "{}"), step("b", "read", "{}")))
	d.call("a", ok(`"`+stringOf('x', 5000)+`"`))
	d.call("b", ok("{}"))
	d.r.Published(envelope.StepScope, 1, 41)
	if len(d.r.Owed) != 1 || d.r.Owed[0].N != 2 || d.r.PublishedBefore(envelope.StepScope) != (engine.Published{N: 1, Seq: 41}) {
		t.Fatalf("%+v", d.r.Owed)
	}
	d.check()
	if s := d.r.Step("a"); s.Result != nil || s.OutcomeSeq != 41 {
		t.Errorf("a large result stays in an open run's record: %d bytes, at %d", len(s.Result), s.OutcomeSeq)
	}
	d.r.Published(envelope.StepScope, 2, 42)
	d.job(job(""))
	d.check()
	if s := d.r.Step("b"); s.Result != nil || s.Args != nil || s.Digest == "" {
		t.Errorf("an ok run keeps args and results that nothing needs: %+v", s)
	}
	d.r.Published(envelope.RunScope, 1, 43)
	if len(d.r.Owed) != 0 {
		t.Errorf("%+v", d.r.Owed)
	}
}

// An ended run keeps the results that an unpublished outcome needs.
func TestOwedResultsStay(t *testing.T) {
	d := create(t, job("", step("a", "read", "{}")))
	d.call("a", ok(`{"id":1}`))
	d.ended(envelope.OK, "", "")
	if got := string(d.r.Outcome(&d.r.Owed[0]).Envelope.Result); got != `{"id":1}` {
		t.Errorf("%s", got)
	}
}

// A record of another schema is not touched.
func TestDecode(t *testing.T) {
	for _, data := range []string{`{`, `[]`, `{"schema":"agentrun.record/v2","steps":[]}`, `{}`} {
		if _, err := engine.Decode([]byte(data)); err == nil {
			t.Errorf("%s is read", data)
		}
	}
}

// Details keep every digit through the record.
func TestDetailsKeepDigits(t *testing.T) {
	d := create(t, job("", step("a", "read", "{}")))
	r := fails(envelope.CodeUpstreamRejectedInput, envelope.Read)
	r.Details = envelope.Details{"limit": json.Number("12345678901234567890"), "field": "/x", "hard": true}
	d.call("a", r)
	if got := string(members(t, d.last(envelope.StepScope))["envelope"]); !json.Valid([]byte(got)) || !strings.Contains(got, `"limit":12345678901234567890`) {
		t.Errorf("%s", got)
	}
}
