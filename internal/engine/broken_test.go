package engine

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Whatever rule a stored record breaks, it is ErrBroken to whoever would go on from it, and setting it aside makes a whole
// record of it: ended, with what it proves, its numbers after those in the stream, and no step that could start.
func TestSetAside(t *testing.T) {
	const whole = `{"schema":"agentrun.record/v1","tenant":"acme","run_id":"r1","queue":"default","first":7,"episode":1,"created_at":"2026-01-01T00:00:00.000Z",` +
		`"updated_at":"2026-01-01T00:00:00.000Z","deadline":"2026-01-02T00:00:00.000Z","budget":{"max_tool_calls":4,"max_attempts_per_step":3},"spent":{"tool_calls":1},"step_n":1,` +
		`"effects":[{"step":"a","at":"2026-01-01T00:00:00.000Z"}],"steps":[` +
		`{"step":"a","tool":"t","effect":"write","digest":"d","state":"ok","proposal":1,"attempt":1,"used":1,"dispatch":"x","proof":"reply","proven_at":"2026-01-01T00:00:00.000Z"},` +
		`{"step":"b","tool":"t","effect":"write","digest":"d","state":"ready","proposal":1}]}`
	if _, err := Decode([]byte(whole)); err != nil {
		t.Fatal(err)
	}
	if _, err := SetAside(run.ID{Tenant: "acme", Run: "r1"}, []byte(whole), "alice", "x", "o", Published{}, Published{}, 1); !errors.Is(err, ErrWhole) {
		t.Errorf("a whole record: %v", err)
	}
	b := `"state":"ready","proposal":1}`
	for rule, c := range map[string][]string{
		RuleOneLease + " without a step":    {`"steps":[`, `"lease":{"holder":"h","id":"l","renewal":0,"seconds":1},"steps":[`},
		RuleOneLease + " without a lease":   {b, `"state":"executing","proposal":1,"dispatch":"y"}`},
		RuleIntentFirst:                     {b, `"state":"executing","proposal":1}`},
		RuleBlockedByUnknown + " no doubt":  {b, `"state":"unknown","proposal":1,"dispatch":"y"}`},
		RuleBlockedByUnknown + " no reason": {b, `"state":"ready","proposal":1,"doubt":{"since":null,"next":null,"row":{}}}`},
		RuleSameRef:                         {b, `"state":"ready","proposal":1,"proposals":2}`},
		RuleBudgetBeforeWork + " calls":     {`"tool_calls":1}`, `"tool_calls":9}`},
		RuleBudgetBeforeWork + " attempts":  {b, `"state":"ready","proposal":1,"used":9}`},
		RuleProvenOK + " step":              {b, `"state":"ok","proposal":1}`},
		RuleProvenOK + " run":               {`"steps":[`, `"end":{"outcome":"ok","at":null},"steps":[`},
		RuleNothingVanishes + " reason":     {b, `"state":"fatal","proposal":1}`},
		RuleNothingVanishes + " deadline":   {`"deadline":"2026-01-02T00:00:00.000Z"`, `"deadline":null`},
		RuleNothingVanishes + " letter":     {`"steps":[`, `"letter":{"id":"acme/r1/1","owner":"o","open":true,"at":null},"steps":[`},
		RuleNothingVanishes + " no letter":  {`"steps":[`, `"end":{"outcome":"fatal","at":null},"steps":[`},
		RuleOneEnd:                          {`"steps":[`, `"end":{"outcome":"cancelled","at":null},"steps":[{"step":"c","tool":"t","effect":"write","digest":"d","state":"executing","proposal":1,"dispatch":"z"},`},
	} {
		data := []byte(strings.Replace(whole, c[0], c[1], 1))
		name, _, _ := strings.Cut(rule, " ")
		if _, err := Decode(data); !errors.Is(err, ErrBroken) || !json.Valid(data) {
			t.Errorf("%s: %v", rule, err)
			continue
		}
		r, err := SetAside(run.ID{Tenant: "acme", Run: "r1"}, data, "alice", "a test", "o", Published{N: 2, Seq: 9}, Published{N: 1, Seq: 8}, 1000)
		if err != nil {
			t.Errorf("%s: %v", rule, err)
			continue
		}
		if r.End == nil || r.End.Outcome != envelope.Cancelled || r.Episode != 2 || r.StepN != 2 || len(r.Effects) != 1 || r.Step("a").State != run.OK || r.Step("b").State != run.Cancelled {
			t.Errorf("%s: made %s", rule, r.dump())
		}
		if n := r.History[len(r.History)-1]; n.Kind != EventDiscard || n.By != "alice" || !strings.Contains(n.Reason, name) && name != RuleOneEnd {
			t.Errorf("%s: the history says %+v", rule, n)
		}
		again, err := r.Encode()
		if err == nil {
			_, err = Decode(again)
		}
		if err != nil {
			t.Errorf("%s: what it made: %v", rule, err)
		}
	}
}

// What is no record at all is broken like one that breaks a rule; setting it aside leaves a run that has ended, whose
// numbers go on. A record of a newer version is neither.
func TestSetAsideOfWhatCannotBeRead(t *testing.T) {
	for _, data := range []string{``, `{}`, `null`, `{"schema":"agentrun.job/v1","tenant":"acme","run_id":"r1"}`, `{"schema":"agentrun.record/v1","te`, `[]`, `"x"`, `no JSON`, `{"schema":"agentrun.record/v1","tenant":7}`, `{"schema":"agentrun.record/v1"}{}`} {
		if _, err := Decode([]byte(data)); !errors.Is(err, ErrBroken) || !errors.Is(err, ErrUnreadable) || errors.Is(err, ErrNewer) {
			t.Errorf("%s: %v", data, err)
		}
		r, err := SetAside(run.ID{Tenant: "acme", Run: "r1"}, []byte(data), "alice", "a test", "o", Published{N: 2, Seq: 9}, Published{N: 1, Seq: 8}, 1000)
		if err != nil {
			t.Errorf("%s: %v", data, err)
			continue
		}
		if r.ID() != (run.ID{Tenant: "acme", Run: "r1"}) || r.End == nil || r.End.Outcome != envelope.Cancelled || r.Episode != 2 || r.StepN != 2 {
			t.Errorf("%s: made %s", data, r.dump())
		}
		if n := r.History[len(r.History)-1]; n.Kind != EventDiscard || n.By != "alice" || !strings.Contains(n.Reason, "cannot be read") || !strings.Contains(n.Reason, "kept as o") {
			t.Errorf("%s: the history says %+v", data, n)
		}
		again, err := r.Encode()
		if err == nil {
			_, err = Decode(again)
		}
		if err != nil {
			t.Errorf("%s: what it made: %v", data, err)
		}
	}
	if _, err := Decode([]byte(`{"schema":"agentrun.record/v9"}`)); !errors.Is(err, ErrNewer) || errors.Is(err, ErrBroken) {
		t.Errorf("a newer one: %v", err)
	}
}
