package gateway

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/run"
)

var ada = &Caller{Tenant: "acme", Actor: "agent:ada"}

func read(t *testing.T, who *Caller, tool, args string, meta map[string]any) *Call {
	t.Helper()
	c, bad := ReadCall(who, tool, json.RawMessage(args), meta)
	if bad != nil {
		t.Fatal(bad)
	}
	return c
}

// Every place is a run and a step that the contract takes, and every job is valid, also where all names are as long as they
// may be.
func TestPlacesAreValid(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("r", runNameMax)
	day := time.Date(2026, 12, 3, 23, 59, 59, 0, time.UTC)
	for _, meta := range []map[string]any{nil, {MetaKey: strings.Repeat("k", keyMax)}, {MetaRun: long}, {MetaRun: long, MetaKey: "a key\nwith anything/in it"}} {
		c := read(t, ada, "refund", `{"a": 1}`, meta)
		for _, at := range []Place{c.Keyed(), c.Nth(day, 1), c.Nth(day, 999_999_999), c.Alone(strings.Repeat("x", 26))} {
			if _, err := client.Prepare(c.Job(at, "", "")); err != nil {
				t.Errorf("%v: %v", at, err)
			}
			if got, ok := ParseRef("acme", at.Ref()); !ok || got != at {
				t.Errorf("%s is read as %v", at.Ref(), got)
			}
			if got, ok := ParseRef("acme", "acme/"+at.Ref()); !ok || got != at {
				t.Errorf("acme/%s is read as %v", at.Ref(), got)
			}
		}
	}
	for _, ref := range []string{"", "a", "a/b/c", "other/a/b", "acme/a/*", "a/b/c/d", "../a", "a/"} {
		if _, ok := ParseRef("acme", ref); ok {
			t.Errorf("%q is read as an operation of acme", ref)
		}
	}
}

// The same call has the same place wherever it is made; whatever is not the same has another.
func TestTheSameCallHasTheSamePlace(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, 12, 3, 1, 0, 0, 0, time.UTC)
	bob := &Caller{Tenant: "acme", Actor: "agent:bob"}
	away := &Caller{Tenant: "other", Actor: "agent:ada"}
	k := map[string]any{MetaKey: "k1"}
	first := read(t, ada, "refund", `{"a":1,"b":[2]}`, k)
	same := read(t, &Caller{Name: "another token", Tenant: "acme", Actor: "agent:ada"}, "refund", ` {"b" : [2], "a":1}`, map[string]any{MetaKeySEP: "k1"})
	if first.Keyed() != same.Keyed() || first.Nth(day, 1) != same.Nth(day.Add(time.Hour), 1) {
		t.Error("the same call has two places")
	}
	for name, c := range map[string]*Call{
		"actor": read(t, bob, "refund", `{"a":1,"b":[2]}`, k), "tenant": read(t, away, "refund", `{"a":1,"b":[2]}`, k),
		"run": read(t, ada, "refund", `{"a":1,"b":[2]}`, map[string]any{MetaKey: "k1", MetaRun: "r"}),
	} {
		if c.Keyed() == first.Keyed() || c.Nth(day, 1) == first.Nth(day, 1) {
			t.Errorf("another %s has the same place", name)
		}
	}
	for name, c := range map[string]*Call{"args": read(t, ada, "refund", `{"a":1,"b":[3]}`, k), "tool": read(t, ada, "pay", `{"a":1,"b":[2]}`, k)} {
		if c.Keyed() != first.Keyed() || c.Nth(day, 1) == first.Nth(day, 1) {
			t.Errorf("other %s: a key is one operation, and calls without one are told by %s", name, name)
		}
		if flow := first.Job(first.Keyed(), "", "").Workflow; c.Same(flow) || !same.Same(flow) {
			t.Errorf("other %s are not told by the workflow %q", name, flow)
		}
	}
	if first.Nth(day, 1) == first.Nth(day, 2) || first.Nth(day, 1) == first.Nth(day.Add(24*time.Hour), 1) {
		t.Error("two calls have one place")
	}
	// A run is its actor's: whoever else names it gets another.
	if RunOf(ada, "r") == RunOf(bob, "r") || RunOf(ada, "r") == RunOf(away, "r") || !run.ValidID(RunOf(ada, strings.Repeat("r", runNameMax))) {
		t.Error("two actors meet in one run")
	}
}

// The caller's tenant and actor are in the job, whatever the call says.
func TestNobodyNamesWhoCalls(t *testing.T) {
	t.Parallel()
	c := read(t, ada, "refund", `{"tenant":"other"}`, map[string]any{"tenant": "other", "actor": "root", "agentrun/tenant": "other"})
	if j := c.Job(c.Keyed(), "", ""); j.Tenant != "acme" || j.Actor != "agent:ada" || j.More {
		t.Errorf("the job is %+v", j)
	}
}

func TestMay(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		tools []string
		tool  string
		may   bool
	}{
		{nil, "refund", true},
		{[]string{"refund"}, "refund", true},
		{[]string{"refund"}, "refunds", false},
		{[]string{"crm/*"}, "crm/find", true},
		{[]string{"crm/*"}, "crm", false},
		{[]string{"crm/*"}, "x/crm/find", false},
		{[]string{"*"}, "refund", true},
		{[]string{""}, "refund", false},
	} {
		if got := (&Caller{Tools: x.tools}).May(x.tool); got != x.may {
			t.Errorf("%q may %s: %v", x.tools, x.tool, got)
		}
	}
}

// Whatever comes, a call is refused or its job is one that every executor reads.
func FuzzReadCall(f *testing.F) {
	f.Add("refund", `{"a":1}`, `{"agentrun/idempotency_key":"k","agentrun/run_id":"r","agentrun/more":false,"traceparent":"x"}`)
	f.Add("a/b", `{"$from":"x#/y"}`, `{"idempotencyKey":"\u0000"}`)
	f.Fuzz(func(t *testing.T, tool, args, metaText string) {
		var meta map[string]any
		if json.Unmarshal([]byte(metaText), &meta) != nil || !run.ValidTool(tool) {
			return
		}
		c, bad := ReadCall(ada, tool, json.RawMessage(args), meta)
		if bad != nil {
			if Refuse(bad).Text == "" {
				t.Error("a refusal says nothing")
			}
			return
		}
		for _, at := range []Place{c.Keyed(), c.Nth(time.Now(), 1), c.Alone("x")} {
			if _, err := client.Prepare(c.Job(at, "flow", "owner")); err != nil && len(args) < run.MaxArgsBytes/2 {
				t.Errorf("%v: %v", at, err)
			}
		}
	})
}
