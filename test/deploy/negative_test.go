package deploy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/bus/bustest"
)

// attempt is something that a user tries.
type attempt struct {
	what      string
	publish   string // subject
	subscribe string // subject
	body      string
}

// TestWhatEachUserIsRefused: for each attempt the server answers with a permission violation, so that nothing was sent or
// can be received.
func TestWhatEachUserIsRefused(t *testing.T) {
	t.Parallel()
	n := startShipped(t)
	n.fleet(t, toolConfig(t))
	n.publisher(t, "publisher-acme").submit("r1", "apply_denied")
	everyone := []attempt{
		{what: "read everyone's replies", subscribe: "_INBOX.>"},
		{what: "read the executor's replies", subscribe: "_INBOX_executor.>"},
		{what: "read the reconciler's replies", subscribe: "_INBOX_reconciler.>"},
		{what: "read everything", subscribe: ">"},
		{what: "take jobs of others as they come", subscribe: "agentrun.jobs.>"},
		{what: "read records as they come", subscribe: "agentrun.runs.>"},
		{what: "read letters as they come", subscribe: "agentrun.deadletters.>"},
		{what: "purge the queue", publish: "$JS.API.STREAM.PURGE.AGENTRUN_JOBS"},
		{what: "purge the records", publish: "$JS.API.STREAM.PURGE.AGENTRUN_RUNS"},
		{what: "purge the outcomes", publish: "$JS.API.STREAM.PURGE.AGENTRUN_RESULTS"},
		{what: "purge the letters", publish: "$JS.API.STREAM.PURGE.AGENTRUN_DEADLETTERS"},
		{what: "delete a stream", publish: "$JS.API.STREAM.DELETE.AGENTRUN_RUNS"},
		{what: "delete a record", publish: "$JS.API.STREAM.MSG.DELETE.AGENTRUN_RUNS", body: `{"seq":1}`},
		{what: "delete an outcome", publish: "$JS.API.STREAM.MSG.DELETE.AGENTRUN_RESULTS", body: `{"seq":1}`},
		{what: "delete the queue's consumer", publish: "$JS.API.CONSUMER.DELETE.AGENTRUN_JOBS.executor-default"},
		{what: "make a stream of its own", publish: "$JS.API.STREAM.CREATE.OTHER"},
		{what: "take a copy of a stream", publish: "$JS.API.STREAM.SNAPSHOT.AGENTRUN_RUNS"},
	}
	unprivileged := []attempt{
		{what: "write a record", publish: "agentrun.runs.acme.r1"},
		{what: "write an outcome", publish: "agentrun.results.acme.r1.run"},
		{what: "write a letter", publish: "agentrun.deadletters.acme.o.r1"},
		{what: "write an alert", publish: "agentrun.alerts.acme.o.poison_job"},
		{what: "wake a run", publish: "agentrun.wakes.default.acme.r1"},
		{what: "hint an executor", publish: "agentrun.hint.x.1"},
		{what: "read a record", publish: "$JS.API.DIRECT.GET.AGENTRUN_RUNS.agentrun.runs.acme.r1"},
		{what: "read a letter", publish: "$JS.API.STREAM.MSG.GET.AGENTRUN_DEADLETTERS", body: `{"seq":1}`},
		{what: "read any outcome by its sequence", publish: "$JS.API.STREAM.MSG.GET.AGENTRUN_RESULTS", body: `{"seq":1}`},
		{what: "pull jobs", publish: "$JS.API.CONSUMER.MSG.NEXT.AGENTRUN_JOBS.executor-default", body: "1"},
		{what: "acknowledge another's job", publish: "$JS.ACK.AGENTRUN_JOBS.executor-default.1.1.1.1.0", body: "+ACK"},
		{what: "have outcomes delivered somewhere", publish: "$JS.API.CONSUMER.CREATE.AGENTRUN_RESULTS.x.agentrun.results.acme.>"},
		{what: "answer operator calls", subscribe: "agentrun.op.>"},
		{what: "empty the store of large results", publish: "$O.AGENTRUN_OBJECTS.M.x"},
	}
	for user, own := range map[string][]attempt{
		"publisher-acme": append([]attempt{
			{what: "publish a job for another tenant", publish: "agentrun.jobs.default.globex.r1"},
			{what: "publish a job for every tenant", publish: "agentrun.jobs.default.>"},
			{what: "read another tenant's outcomes", subscribe: "agentrun.results.globex.>"},
			{what: "read all outcomes", subscribe: "agentrun.results.>"},
			{what: "read another tenant's last outcome", publish: "$JS.API.DIRECT.GET.AGENTRUN_RESULTS.agentrun.results.globex.r1.run"},
			{what: "read with a filter of its own", publish: "$JS.API.DIRECT.GET.AGENTRUN_RESULTS", body: `{"next_by_subj":">"}`},
			{what: "make an operator call", publish: "agentrun.op.deadletters.list.acme"},
			{what: "see how much others have waiting", publish: "agentrun.op.queues.list._all"},
			{what: "ask for another tenant", publish: "agentrun.op.queues.get.globex"},
			{what: "read alerts", subscribe: "agentrun.alerts.acme.>"},
		}, unprivileged...),
		"operator": append([]attempt{
			{what: "publish a job", publish: "agentrun.jobs.default.acme.r1"},
			{what: "read outcomes", subscribe: "agentrun.results.acme.>"},
			{what: "see args and results", publish: "agentrun.op.runs.payload.acme"},
		}, unprivileged...),
		"inspector": append([]attempt{
			{what: "publish a job", publish: "agentrun.jobs.default.acme.r1"},
			{what: "cancel a run", publish: "agentrun.op.runs.cancel.acme"},
			{what: "answer a letter", publish: "agentrun.op.deadletters.discard.acme"},
			{what: "hand a letter to another", publish: "agentrun.op.deadletters.assign.acme"},
		}, unprivileged...),
		"observer": append([]attempt{
			{what: "publish a job", publish: "agentrun.jobs.default.acme.r1"},
			{what: "read outcomes", subscribe: "agentrun.results.acme.>"},
			{what: "make an operator call", publish: "agentrun.op.runs.cancel.acme"},
		}, unprivileged...),
		"auditor": {
			{what: "publish a job", publish: "agentrun.jobs.default.acme.r1"},
			{what: "write a record", publish: "agentrun.runs.acme.r1"},
			{what: "write an outcome", publish: "agentrun.results.acme.r1.run"},
			{what: "write a letter", publish: "agentrun.deadletters.acme.o.r1"},
			{what: "delete a letter", publish: "$JS.API.STREAM.MSG.DELETE.AGENTRUN_DEADLETTERS", body: `{"seq":1}`},
			{what: "delete a job", publish: "$JS.API.STREAM.MSG.DELETE.AGENTRUN_JOBS", body: `{"seq":1}`},
			{what: "make a consumer on the jobs", publish: "$JS.API.CONSUMER.CREATE.AGENTRUN_JOBS.x.agentrun.jobs.>"},
			{what: "make an operator call", publish: "agentrun.op.runs.cancel.acme"},
		},
		"executor": {
			{what: "publish a job", publish: "agentrun.jobs.default.acme.r1"},
			{what: "say which reconciler is active", publish: "agentrun.runs._fleet.reconciler"},
			{what: "pull another queue", publish: "$JS.API.CONSUMER.MSG.NEXT.AGENTRUN_JOBS.executor-other", body: "1"},
			{what: "make a consumer on the outcomes", publish: "$JS.API.CONSUMER.CREATE.AGENTRUN_RESULTS.x.agentrun.results.>"},
			{what: "change the queue", publish: "$JS.API.STREAM.UPDATE.AGENTRUN_JOBS"},
			{what: "change the records' stream", publish: "$JS.API.STREAM.UPDATE.AGENTRUN_RUNS"},
			{what: "make an operator call", publish: "agentrun.op.deadletters.discard.acme"},
			{what: "answer operator calls", subscribe: "agentrun.op.>"},
		},
		"reconciler": {
			{what: "publish a job", publish: "agentrun.jobs.default.acme.r1"},
			{what: "pull jobs", publish: "$JS.API.CONSUMER.MSG.NEXT.AGENTRUN_JOBS.executor-default", body: "1"},
			{what: "acknowledge a job", publish: "$JS.ACK.AGENTRUN_JOBS.executor-default.1.1.1.1.0", body: "+ACK"},
			{what: "make a consumer on the jobs", publish: "$JS.API.CONSUMER.CREATE.AGENTRUN_JOBS.x.agentrun.jobs.>"},
			{what: "read hints to executors", subscribe: "agentrun.hint.>"},
		},
	} {
		t.Run(user, func(t *testing.T) {
			nc, refused := n.client(t, user)
			for _, a := range append(own, everyone...) {
				if a.subscribe == inbox(user)+".>" {
					continue // its own
				}
				a.try(t, nc)
				if errs := refused.take(t, nc, 1, a.what); len(errs) != 1 || !strings.Contains(strings.ToLower(errs[0]), "permissions violation") {
					t.Errorf("it may %s: %v", a.what, errs)
				}
			}
		})
	}
}

func (a attempt) try(t *testing.T, nc *nats.Conn) {
	t.Helper()
	if a.publish != "" {
		if err := nc.Publish(a.publish, []byte(a.body)); err != nil {
			t.Fatal(err)
		}
		return
	}
	sub, err := nc.SubscribeSync(a.subscribe)
	if err != nil {
		t.Fatal(err)
	}
	_ = sub.Unsubscribe()
}

// TestHeadersGiveNoPowers: a publisher may set any header. The queue refuses those that reach beyond the message, and says
// so; and an answer never goes to another account, whatever reply subject was asked for.
func TestHeadersGiveNoPowers(t *testing.T) {
	t.Parallel()
	n := startShipped(t)
	f := n.fleet(t, toolConfig(t))
	p := n.publisher(t, "publisher-acme")
	f.executor.stop() // so that jobs stay where they are
	other, _ := n.client(t, "publisher-acme")
	if _, err := other.Request("agentrun.jobs.default.acme.waiting", []byte(`{}`), limit); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		what   string
		header nats.Header
	}{
		{"roll up the stream", nats.Header{"Nats-Rollup": {"all"}}},
		{"roll up the subject", nats.Header{"Nats-Rollup": {"sub"}}},
		{"schedule", nats.Header{"Nats-Schedule": {"@at 2036-01-01T00:00:00Z"}, "Nats-Schedule-Target": {"agentrun.jobs.default.globex.r"}}},
		{"purge a schedule", nats.Header{"Nats-Schedule-Next": {"purge"}, "Nats-Scheduler": {"agentrun.jobs.default.globex.r"}}},
		{"expire", nats.Header{"Nats-TTL": {"1s"}}},
		{"count", nats.Header{"Nats-Incr": {"+1"}}},
		{"write in a batch", nats.Header{"Nats-Batch-Id": {"b"}, "Nats-Batch-Sequence": {"1"}, "Nats-Batch-Commit": {"1"}}},
	} {
		m := &nats.Msg{Subject: "agentrun.jobs.default.acme.h", Header: x.header, Data: []byte(`{}`)}
		reply, err := p.nc.RequestMsg(m, limit)
		if err != nil {
			t.Errorf("%s: %v", x.what, err)
			continue
		}
		var answer struct {
			Error *struct {
				Code        int    `json:"err_code"`
				Description string `json:"description"`
			}
		}
		if err := json.Unmarshal(reply.Data, &answer); err != nil || answer.Error == nil {
			t.Errorf("it may %s: %s, %v", x.what, reply.Data, err)
		}
	}
	replies(t, n, p.nc)
	trace(t, n, p.nc)
}

// replies: the acknowledgement of a job, and an outcome that is read, are sent to the reply subject that the publisher
// names. In the fleet's account they would overwrite a record.
func replies(t *testing.T, n *natsServer, nc *nats.Conn) {
	t.Helper()
	fleet, _ := n.client(t, "executor")
	before := stored(t, fleet, "AGENTRUN_RUNS")
	jobs := stored(t, fleet, "AGENTRUN_JOBS")
	for i, reply := range []string{"agentrun.runs.globex.r1", "agentrun.runs.acme.waiting", "agentrun.jobs.default.globex.r1"} {
		if err := nc.PublishRequest(fmt.Sprintf("agentrun.jobs.default.acme.reply%d", i), reply, []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishRequest("$JS.API.DIRECT.GET.AGENTRUN_RESULTS.agentrun.results.acme.none.run", reply, nil); err != nil {
			t.Fatal(err)
		}
	}
	// Answered after them on the same connection.
	if _, err := nc.Request("agentrun.jobs.default.acme.last", []byte(`{}`), limit); err != nil {
		t.Fatal(err)
	}
	// The same by a user of the fleet's account, which shows that the server does send answers anywhere.
	if err := fleet.PublishRequest("$JS.API.DIRECT.GET.AGENTRUN_RUNS.agentrun.runs.acme.none", "agentrun.jobs.default.globex.control", nil); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "the control is stored", func() bool { return stored(t, fleet, "AGENTRUN_JOBS") >= jobs+5 })
	if after := stored(t, fleet, "AGENTRUN_RUNS"); after != before {
		t.Errorf("an answer was stored as a record: %d, then %d messages ever", before, after)
	}
	if after := stored(t, fleet, "AGENTRUN_JOBS"); after != jobs+5 {
		t.Errorf("answers were stored as jobs: %d, then %d messages ever, wanted 5 more", jobs, after)
	}
}

// trace: where the server sends what it traces is checked against the publisher's permissions.
func trace(t *testing.T, n *natsServer, nc *nats.Conn) {
	t.Helper()
	fleet, _ := n.client(t, "executor")
	before := stored(t, fleet, "AGENTRUN_JOBS")
	m := &nats.Msg{
		Subject: "agentrun.jobs.default.acme.traced", Data: []byte(`{}`),
		Header: nats.Header{"Nats-Trace-Dest": {"agentrun.jobs.default.globex.r1"}},
	}
	if err := nc.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Request("agentrun.jobs.default.acme.after", []byte(`{}`), limit); err != nil {
		t.Fatal(err)
	}
	if after := stored(t, fleet, "AGENTRUN_JOBS"); after > before+2 {
		t.Errorf("a trace was stored as a job: %d, then %d messages ever", before, after)
	}
}

// stored is the sequence of a stream's last message.
func stored(t *testing.T, nc *nats.Conn, stream string) uint64 {
	t.Helper()
	m, err := nc.Request("$JS.API.STREAM.INFO."+stream, nil, limit)
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		State struct {
			LastSeq uint64 `json:"last_seq"`
		} `json:"state"`
	}
	if err := json.Unmarshal(m.Data, &info); err != nil || info.State.LastSeq == 0 && stream == "AGENTRUN_JOBS" {
		t.Fatalf("%s: %v: %s", stream, err, m.Data)
	}
	return info.State.LastSeq
}

// TestWhatAPublisherCanLearn pins what permissions cannot refuse: a job may carry the condition that a subject of the
// queue has a certain last sequence, and the answer tells whether another tenant has jobs waiting. docs/operations.md says
// so. Nothing of the job itself is told.
func TestWhatAPublisherCanLearn(t *testing.T) {
	t.Parallel()
	n := startTenants(t)
	n.fleet(t, toolConfig(t)).executor.stop()
	acme, _ := n.client(t, "publisher-acme")
	// The server's code for "wrong last sequence"; 0 if it stored the message. It is read from its place in the answer: the
	// sequence beside it has 16 digits, which hold any number now and then.
	const wrongLastSequence = 10071
	probe := func() (code int, answer string) {
		t.Helper()
		reply, err := acme.RequestMsg(&nats.Msg{
			Subject: "agentrun.jobs.default.acme.probe", Data: []byte(`{}`),
			Header: nats.Header{
				"Nats-Expected-Last-Subject-Sequence":         {"0"},
				"Nats-Expected-Last-Subject-Sequence-Subject": {"agentrun.jobs.*.globex.*"},
			},
		}, limit)
		if err != nil {
			t.Fatal(err)
		}
		var ack struct {
			Stream string `json:"stream"`
			Error  struct {
				Code int `json:"err_code"`
			} `json:"error"`
		}
		if err := json.Unmarshal(reply.Data, &ack); err != nil || ack.Stream != "AGENTRUN_JOBS" && ack.Error.Code == 0 {
			t.Fatalf("this is no answer of the queue: %v: %s", err, reply.Data)
		}
		return ack.Error.Code, string(reply.Data)
	}
	if code, answer := probe(); code != 0 {
		t.Errorf("without jobs of globex: %s", answer)
	}
	globex, _ := n.client(t, "publisher-globex")
	if _, err := globex.Request("agentrun.jobs.default.globex.secret", []byte(`{"secret":true}`), limit); err != nil {
		t.Fatal(err)
	}
	if code, answer := probe(); code != wrongLastSequence || strings.Contains(answer, "secret") {
		t.Errorf("with a job of globex: %s", answer)
	}
}

// TestATenantIsAddedByCopyingItsBlock: the copy has the same rights for itself, and none for the other.
func TestATenantIsAddedByCopyingItsBlock(t *testing.T) {
	t.Parallel()
	n := startTenants(t)
	n.fleet(t, toolConfig(t))
	for tenant, other := range map[string]string{"acme": "globex", "globex": "acme"} {
		nc, refused := n.client(t, "publisher-"+tenant)
		heard, err := nc.SubscribeSync("agentrun.results." + tenant + ".*.run")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Request("agentrun.jobs.default."+tenant+".r1", []byte(`{}`), limit); err != nil {
			t.Fatal(err)
		}
		if m, err := heard.NextMsg(limit); err != nil || m.Subject != "agentrun.results."+tenant+".r1.run" {
			t.Errorf("%s does not hear of its run: %v", tenant, err)
		}
		attempt{publish: "agentrun.jobs.default." + other + ".r2"}.try(t, nc)
		attempt{subscribe: "agentrun.results." + other + ".>"}.try(t, nc)
		if errs := refused.take(t, nc, 2, "act for "+other); len(errs) != 2 {
			t.Errorf("%s, trying to act for %s, was refused %v", tenant, other, errs)
		}
	}
}
