package deploy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
)

// doctor asks about an executor with these flags; findings are by what was checked.
func doctor(t *testing.T, monitor string, args ...string) map[string]app.Finding {
	t.Helper()
	var c app.ExecutorConfig
	if err := app.Defaults(&c, append([]string{"--id", "executor"}, args...)); err != nil {
		t.Fatal(err)
	}
	found := map[string]app.Finding{}
	for _, f := range app.Doctor(t.Context(), c, monitor) {
		if (f.Fix == "") != (f.Health == app.Well) {
			t.Errorf("%+v: what is well needs no fix, all else does", f)
		}
		found[f.Check] = f
	}
	return found
}

// monitored opens a server's monitoring.
func monitored(o *server.Options) { o.HTTPHost, o.HTTPPort = "127.0.0.1", server.RANDOM_PORT }

func (n *natsServer) monitor() string { return "http://" + n.MonitorAddr().String() }

// TestTheDoctorFindsNothingWhereAllIsWell: with the shipped configuration and a fleet, as the executor's user.
func TestTheDoctorFindsNothingWhereAllIsWell(t *testing.T) {
	t.Parallel()
	n := start(t, filepath.Join(root, "deploy/nats/nats.conf"), monitored)
	config := toolConfig(t)
	n.fleet(t, config)
	client, _ := n.client(t, "executor")
	others := []string{"AGENTRUN_RESULTS", "AGENTRUN_WAKES", "AGENTRUN_DEADLETTERS", "AGENTRUN_ALERTS"} // of the fleet's own record there is always news
	var before []uint64
	for _, stream := range others {
		before = append(before, stored(t, client, stream))
	}
	found := doctor(t, n.monitor(), "--nats", n.as("executor"), "--inbox-prefix", inbox("executor"), "--config", config, "--data", t.TempDir())
	for _, f := range found {
		if f.Health != app.Well && f.Check != "journal disk" { // the machine's own disk may be full
			t.Errorf("%+v", f)
		}
	}
	for _, check := range []string{"config", "tool apply_credit", "journal", "nats", "max payload", "health", "sync", "clock", "AGENTRUN_RUNS", "AGENTRUN_JOBS", "queue default", "queues", "executor executor", "configs", "fairness", "permissions"} {
		if _, ok := found[check]; !ok {
			t.Errorf("%s was not checked", check)
		}
	}
	for i, stream := range others {
		if now := stored(t, client, stream); now != before[i] {
			t.Errorf("the doctor has written to %s", stream)
		}
	}
	if m, err := client.Request("$JS.API.DIRECT.GET.AGENTRUN_RUNS.agentrun.runs.doctor.doctor", nil, limit); err != nil || m.Header.Get("Status") != "404" {
		t.Errorf("the doctor has written a record: %v, %v", m, err)
	}
	for _, line := range n.refuse.take() {
		t.Errorf("it tried more than an executor may: %s", line)
	}
}

// TestTheDoctorFindsAServerThatCannotStore: it answers all that a client may ask, and only its own word says that it stores
// nothing since its disk was full.
func TestTheDoctorFindsAServerThatCannotStore(t *testing.T) {
	t.Parallel()
	disk := bustest.SmallDisk(t)
	file := filepath.Join(t.TempDir(), "nats.conf")
	writeFile(t, file, "jetstream {store_dir: \"/replaced\"}\naccounts { $SYS: {users: [{user: sys, password: p}]}, A: {jetstream: enabled, users: [{user: a, password: p}]} }\n")
	n := start(t, file, func(o *server.Options) { monitored(o); disk.On()(o) })
	nc, err := nats.Connect("nats://a:p@" + n.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "AGENTRUN_RUNS", Subjects: []string{"agentrun.runs.>"}}); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--config", toolConfig(t), "--data", t.TempDir()}
	asked := map[string]func() app.Finding{
		"by its monitoring": func() app.Finding {
			return doctor(t, n.monitor(), append(flags, "--nats", "nats://a:p@"+n.url)...)["health"]
		},
		"by the system account": func() app.Finding { return doctor(t, "", append(flags, "--nats", "nats://sys:p@"+n.url)...)["health"] },
	}
	for how, ask := range asked {
		if f := ask(); f.Health != app.Well {
			t.Errorf("%s, while it stores: %+v", how, f)
		}
	}
	if f := doctor(t, "", append(flags, "--nats", "nats://a:p@"+n.url)...)["health"]; f.Health != app.Doubtful || !strings.Contains(f.Fix, "--monitor") {
		t.Errorf("where it cannot be asked: %+v", f)
	}
	disk.Fill()
	bustest.Eventually(t, "the server cannot store", func() bool {
		_, err := nc.Request("agentrun.runs.t.r", make([]byte, 16<<10), 50*time.Millisecond)
		return err != nil
	})
	for how, ask := range asked {
		if f := ask(); f.Health != app.Ill || !strings.Contains(f.Found, "no space left") || !strings.Contains(f.Fix, "start the server anew") {
			t.Errorf("%s, on a full disk: %+v", how, f)
		}
	}
}

// TestTheDoctorFindsWhatIsWrong: every fault is a finding that says how to mend it.
func TestTheDoctorFindsWhatIsWrong(t *testing.T) {
	t.Parallel() // it waits
	file := filepath.Join(t.TempDir(), "nats.conf")
	writeFile(t, file, "max_payload: 64KiB\njetstream {store_dir: \"/replaced\"}\n"+
		"authorization { users: [{user: all, password: p}, {user: none, password: p, permissions: {publish: \"$JS.API.STREAM.INFO.AGENTRUN_RUNS\", subscribe: \"_INBOX_none.>\"}}] }\n")
	n := start(t, file, monitored)
	nc, err := nats.Connect("nats://all:p@" + n.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []jetstream.StreamConfig{
		{Name: "AGENTRUN_JOBS", Subjects: []string{"agentrun.jobs.>"}, Retention: jetstream.WorkQueuePolicy, AllowRollup: true},
		{Name: "AGENTRUN_RUNS", Subjects: []string{"agentrun.runs.>"}, Storage: jetstream.MemoryStorage, Discard: jetstream.DiscardNew},
		{Name: "AGENTRUN_RESULTS", Subjects: []string{"agentrun.results.>"}, MaxMsgs: 10},
	} {
		if _, err := js.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(t.TempDir(), "c.yaml")
	writeFile(t, config, fmt.Sprintf("tools:\n  gone: {effect: read, http: {method: GET, url: \"http://127.0.0.1:%d/x\"}}\n", bustest.Port(t)))
	flags := []string{"--config", config, "--data", t.TempDir()}
	found := doctor(t, n.monitor(), append(flags, "--nats", "nats://all:p@"+n.url)...)
	for check, want := range map[string]struct {
		health app.Health
		text   string
	}{
		"tool gone":            {app.Ill, "cannot be reached"},
		"max payload":          {app.Doubtful, "65536"},
		"sync":                 {app.Ill, "2m0s"},
		"AGENTRUN_JOBS":        {app.Ill, "drops old messages"},
		"AGENTRUN_RUNS":        {app.Ill, "memory"},
		"AGENTRUN_RESULTS":     {app.Ill, "drops old messages by number"},
		"AGENTRUN_WAKES":       {app.Doubtful, "not there yet"},
		"queue default":        {app.Doubtful, "not pulled"},
		"AGENTRUN_DEADLETTERS": {app.Doubtful, "not there yet"},
		"fairness":             {app.Doubtful, "first come, first served"},
		"queues":               {app.Doubtful, "no reconciler answers"},
		"executors":            {app.Well, "none runs"},
	} {
		if f := found[check]; f.Health != want.health || !strings.Contains(f.Found, want.text) {
			t.Errorf("%s: %+v, wanted %s, %q", check, f, want.health, want.text)
		}
	}
	none := append(flags, "--nats", "nats://none:p@"+n.url)
	found = doctor(t, n.monitor(), none...)
	if f := found["inbox"]; f.Health != app.Ill || !strings.Contains(f.Found, "Permissions Violation for Subscription") || !strings.Contains(f.Fix, "--inbox-prefix") {
		t.Errorf("without its inbox: %+v", f)
	}
	for check, f := range found { // what could not be asked has no finding, and none has another fault's remedy
		if f.Health != app.Well && !slices.Contains([]string{"tool gone", "max payload", "journal disk", "inbox"}, check) {
			t.Errorf("beside the refused inbox: %+v", f)
		}
	}
	found = doctor(t, "", append(none, "--inbox-prefix", "_INBOX_none")...)
	for _, check := range []string{"AGENTRUN_JOBS", "AGENTRUN_WAKES", "queue default", "fairness"} {
		if f := found[check]; !strings.Contains(f.Found, "Permissions Violation for Publish") {
			t.Errorf("%s waited for an answer that was refused: %+v", check, f)
		}
	}
	if f := found["permissions"]; f.Health != app.Ill || !strings.Contains(f.Found, "agentrun.runs.doctor.doctor") {
		t.Errorf("%+v", f)
	}
	if f := found["queues"]; f.Health != app.Doubtful || !strings.Contains(f.Found, "no permission") || strings.Contains(found["permissions"].Found, "queues.list") {
		t.Errorf("who may not ask: %+v", f)
	}
	if f := found["executors"]; f.Health != app.Doubtful || !strings.Contains(strings.ToLower(f.Found), "violation") || strings.Contains(found["permissions"].Found, "hint") {
		t.Errorf("who may not hear executors: %+v", f)
	}
	if f := found["sync"]; f.Health != app.Doubtful {
		t.Errorf("without --monitor: %+v", f)
	}
	found = doctor(t, "", append(flags, "--nats", "nats://127.0.0.1:1")...)
	if f := found["nats"]; f.Health != app.Ill {
		t.Errorf("without a server: %+v", f)
	}
	found = doctor(t, "", "--nats", "nats://127.0.0.1:1", "--config", "/none", "--data", "/none")
	if f := found["config"]; f.Health != app.Ill {
		t.Errorf("without a config: %+v", f)
	}
}

// TestTheDoctorNamesAQueueThatNobodyPulls: beside those of the executor that it is asked about.
func TestTheDoctorNamesAQueueThatNobodyPulls(t *testing.T) {
	t.Parallel()
	n := startShipped(t)
	config := toolConfig(t)
	n.fleet(t, config)
	p := n.publisher(t, "publisher-acme")
	if _, err := p.js.Publish(t.Context(), "agentrun.jobs.defualt.acme.r", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	found := doctor(t, "", "--nats", n.as("executor"), "--inbox-prefix", inbox("executor"), "--config", config, "--data", t.TempDir())
	f := found["queue defualt"]
	if f.Health != app.Doubtful || !strings.Contains(f.Found, "1 job waits and no executor takes it") || !strings.Contains(f.Fix, "--queues defualt") {
		t.Errorf("%+v", f)
	}
	if f, ok := found["queues"]; ok {
		t.Errorf("and all is well: %+v", f)
	}
}
