package deploy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus/bustest"
)

// outcome is as much of an outcome as the flows look at.
type outcome struct {
	Scope, Step, Outcome string
	Terminal             bool
	ReasonCode           string `json:"reason_code"`
}

// publisher publishes jobs as a tenant.
type publisher struct {
	t  *testing.T
	nc *nats.Conn
	js jetstream.JetStream
}

func (n *natsServer) publisher(t *testing.T, user string) *publisher {
	t.Helper()
	nc, _ := n.client(t, user)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return &publisher{t: t, nc: nc, js: js}
}

// submit publishes a job whose steps s0, s1, … call these tools ("tool from s0#/key" takes an arg from an earlier result),
// and returns all outcomes up to the run's end.
func (p *publisher) submit(runID string, tools ...string) []outcome {
	p.t.Helper()
	sub, err := p.nc.SubscribeSync("agentrun.results.acme." + runID + ".>")
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	steps := make([]string, len(tools))
	for i, tool := range tools {
		tool, from, _ := strings.Cut(tool, " from ")
		args := fmt.Sprintf(`{"n":%d}`, i)
		if from != "" {
			args = fmt.Sprintf(`{"x":{"$from":%q}}`, from)
		}
		steps[i] = fmt.Sprintf(`{"step":"s%d","tool":%q,"args":%s}`, i, tool, args)
	}
	job := fmt.Sprintf(`{"schema":"agentrun.job/v1","tenant":"acme","run_id":%q,"steps":[%s]}`, runID, strings.Join(steps, ","))
	if _, err := p.js.Publish(p.t.Context(), "agentrun.jobs.default.acme."+runID, []byte(job)); err != nil {
		p.t.Fatalf("publishing %s: %v", runID, err)
	}
	var all []outcome
	for {
		m, err := sub.NextMsg(limit)
		if err != nil {
			p.t.Fatalf("after %v of %s: %v", all, runID, err)
		}
		var o outcome
		if err := json.Unmarshal(m.Data, &o); err != nil {
			p.t.Fatal(err)
		}
		all = append(all, o)
		if o.Scope == "run" {
			return all
		}
	}
}

// call makes an operator call.
func call(t *testing.T, nc *nats.Conn, verb, tenant, request string) map[string]any {
	t.Helper()
	m, err := nc.Request("agentrun.op."+verb+"."+tenant, []byte(request), limit)
	if err != nil {
		t.Fatalf("%s: %v", verb, err)
	}
	var reply map[string]any
	if err := json.Unmarshal(m.Data, &reply); err != nil {
		t.Fatalf("%s: %v: %s", verb, err, m.Data)
	}
	return reply
}

// TestTheFlowsNeedNoMoreThanTheirPermissions runs every kind of end and every operator call as the users of
// accounts.conf: none is refused anything.
func TestTheFlowsNeedNoMoreThanTheirPermissions(t *testing.T) {
	t.Parallel()
	flows(t, startShipped(t))
}

// flows runs them with these flags more.
func flows(t *testing.T, n *natsServer, more ...string) {
	t.Helper()
	f := n.fleet(t, toolConfig(t), more...)
	t.Cleanup(func() {
		f.executor.stop()
		f.reconciler.stop()
		for _, line := range n.refuse.take() {
			t.Errorf("refused in an ordinary flow: %s", line)
		}
	})
	p := n.publisher(t, "publisher-acme")
	for _, x := range []struct {
		run   string
		tools []string
		want  string
	}{
		{"ok", []string{"get_invoice", "apply_credit"}, "ok"},
		{"retried", []string{"get_flaky"}, "ok"},
		{"large", []string{"get_large", "apply_credit from s0#/id"}, "ok"},
		{"verified", []string{"apply_lost"}, "ok"},
		{"denied", []string{"apply_denied"}, "fatal"},
		{"denied2", []string{"apply_denied"}, "fatal"},
		{"unknown-tool", []string{"no_such_tool"}, "fatal"},
	} {
		all := p.submit(x.run, x.tools...)
		if end := all[len(all)-1]; end.Outcome != x.want {
			t.Errorf("%s ended %+v, wanted %s\n%s", x.run, end, x.want, f.executor.log)
		}
	}
	for _, user := range []string{"publisher-acme", "operator", "inspector"} {
		queuesFlow(t, n, user)
	}
	operatorFlow(t, n)
	inspectorFlow(t, n)
	observerFlow(t, n)
}

// queuesFlow asks whether anybody pulls; who is no publisher may ask for all queues.
func queuesFlow(t *testing.T, n *natsServer, user string) {
	t.Helper()
	nc, _ := n.client(t, user)
	for queue, want := range map[string]bool{"default": true, "defualt": false} {
		var reply map[string]any
		bustest.Eventually(t, user+" learns whether "+queue+" is pulled", func() bool {
			reply = call(t, nc, "queues.get", "acme", `{"queue":"`+queue+`"}`)
			return reply["code"] != "UNAVAILABLE" // the reconciler has only just started
		})
		if reply["pulled"] != want {
			t.Errorf("%s: %v", user, reply)
		}
	}
	if user == "publisher-acme" {
		return
	}
	if queues, _ := call(t, nc, "queues.list", "_all", `{}`)["queues"].([]any); len(queues) != 1 {
		t.Errorf("%s sees the queues %v", user, queues)
	}
}

// operatorFlow drains a dead letter and looks at runs.
func operatorFlow(t *testing.T, n *natsServer) {
	t.Helper()
	nc, _ := n.client(t, "operator")
	for _, x := range []struct{ verb, tenant, request string }{
		{"deadletters.list", "_all", `{}`},
		{"deadletters.get", "acme", `{"run_id":"denied"}`},
		{"deadletters.claim", "acme", `{"by":"alice"}`},
		{"deadletters.assign", "acme", `{"run_id":"denied","to":"billing","by":"alice","reason":"a test"}`},
		{"deadletters.discard", "acme", `{"run_id":"denied","by":"alice","reason":"a test"}`},
		{"deadletters.replay", "acme", `{"run_id":"denied2","by":"alice","reason":"a test"}`},
		{"runs.get", "acme", `{"run_id":"ok"}`},
		{"runs.list", "acme", `{}`},
		{"runs.cancel", "acme", `{"run_id":"ok","by":"alice","reason":"a test"}`},
	} {
		if reply := call(t, nc, x.verb, x.tenant, x.request); reply["ok"] != true {
			t.Errorf("%s: %v", x.verb, reply)
		}
	}
	if m, err := nc.Request("$SRV.PING.agentrun-operator", nil, limit); err != nil || !strings.Contains(string(m.Data), "agentrun-operator") {
		t.Errorf("no service found: %v", err)
	}
}

// inspectorFlow sees what a run was asked and gave, and what else there is to see of it.
func inspectorFlow(t *testing.T, n *natsServer) {
	t.Helper()
	nc, _ := n.client(t, "inspector")
	for _, x := range []struct{ verb, tenant, request string }{
		{"runs.get", "acme", `{"run_id":"ok"}`},
		{"runs.list", "_all", `{}`},
		{"deadletters.list", "acme", `{}`},
		{"deadletters.get", "acme", `{"run_id":"unknown-tool"}`},
	} {
		if reply := call(t, nc, x.verb, x.tenant, x.request); reply["ok"] != true {
			t.Errorf("%s: %v", x.verb, reply)
		}
	}
	steps, _ := call(t, nc, "runs.payload", "acme", `{"run_id":"ok"}`)["steps"].([]any)
	if len(steps) != 2 || steps[0].(map[string]any)["result"] == nil {
		t.Errorf("args and results: %v", steps)
	}
}

// observerFlow reads what an observer may see.
func observerFlow(t *testing.T, n *natsServer) {
	t.Helper()
	nc, _ := n.client(t, "observer")
	for _, x := range []struct{ subject, want string }{
		{"agentrun.api.STREAM.INFO.AGENTRUN_JOBS", `"messages":`},
		{"agentrun.api.CONSUMER.INFO.AGENTRUN_JOBS.executor-default", `"num_pending":`},
		{"agentrun.api.DIRECT.GET.AGENTRUN_ALERTS.agentrun.alerts.acme.billing-oncall.provider_denied", `"agentrun.alert/v1"`},
	} {
		m, err := nc.Request(x.subject, nil, limit)
		if err != nil {
			t.Errorf("%s: %v", x.subject, err)
			continue
		}
		if !strings.Contains(string(m.Data), x.want) {
			t.Errorf("%s: %s", x.subject, m.Data)
		}
	}
}
