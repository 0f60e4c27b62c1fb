package deploy

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// idle are permissions that the ordinary flows on one server do not use, and what does.
var idle = map[string]string{
	"$JS.API.STREAM.UPDATE.": "a size or the number of copies is changed",
	"$JS.FC.":                "a watch is behind: flow control",
	"$JS.API.STREAM.MSG.GET.AGENTRUN_RESULTS":  "three copies; a result that is kept by its place in the stream",
	"$JS.API.STREAM.MSG.GET.AGENTRUN_JOBS":     "a run is cancelled while its job waits",
	"$JS.API.STREAM.MSG.DELETE.AGENTRUN_DEADL": "a letter that was answered as it was written",
	"$JS.API.DIRECT.GET.AGENTRUN_JOBS":         "TestBacklogUnderTheShippedPermissions",
	"$JS.API.STREAM.MSG.DELETE.AGENTRUN_JOBS":  "TestBacklogUnderTheShippedPermissions",
	"$JS.API.DIRECT.GET.AGENTRUN_WAKES":        "the same for runs that are woken",
	"$JS.API.STREAM.MSG.DELETE.AGENTRUN_WAKES": "the same for runs that are woken",
	"agentrun.op.queues.list._all":             "executor doctor",
}

// TestNoPermissionIsIdle: whatever the fleet's users may publish to is published to in the ordinary flows, or is named
// above with its use. A user that hears everything in the fleet's account is added for it.
func TestNoPermissionIsIdle(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	accounts := strings.Replace(read(t, "deploy/nats/accounts.conf"), "user: executor, password", "user: hears-all, password: p }\n{ user: executor, password", 1)
	writeFile(t, filepath.Join(dir, "accounts.conf"), accounts)
	writeFile(t, filepath.Join(dir, "nats.conf"), read(t, "deploy/nats/nats.conf"))
	n := start(t, filepath.Join(dir, "nats.conf"), nil)
	drained := make(chan struct{})
	nc, err := nats.Connect("nats://hears-all:p@"+n.url, nats.ClosedHandler(func(*nats.Conn) { close(drained) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	var mu sync.Mutex
	heard := map[string]bool{}
	if _, err := nc.Subscribe(">", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		heard[m.Subject] = true
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.FlushTimeout(limit); err != nil {
		t.Fatal(err)
	}
	f := n.fleet(t, toolConfig(t))
	p := n.publisher(t, "publisher-acme")
	for _, x := range [][]string{
		{"ok", "get_invoice", "apply_credit"},
		{"retried", "get_flaky"},
		{"large", "get_large", "apply_credit from s0#/id"},
		{"verified", "apply_lost"},
		{"denied", "apply_denied"},
		{"denied2", "apply_denied"},
	} {
		p.submit(x[0], x[1:]...)
	}
	operatorFlow(t, n)
	f.executor.stop()
	f.reconciler.stop()
	if err := nc.Drain(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-drained:
	case <-time.After(limit):
		t.Fatal("not everything was heard")
	}
	o, err := server.ProcessConfigFile(filepath.Join(dir, "nats.conf"))
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, u := range o.Users {
		if u.Account.Name != "AGENTRUN" || u.Permissions == nil {
			continue
		}
		for _, allowed := range u.Permissions.Publish.Allow {
			if !used(heard, allowed) && !excused(allowed) {
				t.Errorf("%s may publish to %s, which no flow needs", u.Username, allowed)
			}
		}
	}
}

func used(heard map[string]bool, allowed string) bool {
	for subject := range heard {
		if server.SubjectsCollide(subject, allowed) {
			return true
		}
	}
	return false
}

func excused(allowed string) bool {
	for prefix := range idle {
		if strings.HasPrefix(allowed, prefix) {
			return true
		}
	}
	return false
}
