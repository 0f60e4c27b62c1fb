package app

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/streams"
)

// A command that does one thing ends, with the reason, where no server listens, where the server refuses it something, and
// where it has no JetStream. What serves would wait.
func TestACommandDoesNotWaitForEver(t *testing.T) {
	soon(t)
	s := bustest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "p"},
			{Username: "none", Password: "p", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Allow: []string{"agentrun.>"}}}},
		}
	})
	plain := bustest.Start(t, func(o *server.Options) { o.JetStream = false })
	as := func(user string) string { return strings.Replace(s.URL, "nats://", "nats://"+user+":p@", 1) }
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("tools: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	restore := func(url string) error {
		var c ExecutorConfig
		if err := Defaults(&c, []string{"--nats", url, "--config", file, "--data", t.TempDir(), "--id", "w"}); err != nil {
			t.Fatal(err)
		}
		return RestoreJournal(t.Context(), c)
	}
	commands := map[string]func(url string) error{
		"restore": restore,
		"audit": func(url string) error {
			_, err := Audit(t.Context(), Connection{NATS: url}, "test")
			return err
		},
		"lost": func(url string) error { return LostJournal(t.Context(), Connection{NATS: url}, "j1") },
	}
	for name, command := range commands {
		for _, x := range []struct{ where, url, want string }{
			{"no server", "nats://127.0.0.1:1", "cannot reach NATS at nats://127.0.0.1:1 (--nats)"},
			{"no permission", as("none"), "the server refuses this user what is needed (the user "},
			{"no JetStream", plain.URL, "no responders available for request ("},
		} {
			if err := command(x.url); err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(x.want)) {
				t.Errorf("%s, %s: %v", name, x.where, err)
			}
		}
	}
	if err := restore(as("all")); err != nil {
		t.Errorf("where nothing is missing: %v", err)
	}
}

// A server that goes for good while a command uses it ends the command.
func TestACommandEndsWithoutItsServer(t *testing.T) {
	soon(t)
	s := bustest.Start(t)
	o := Connection{NATS: s.URL}.bus("test")
	o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	err := once(t.Context(), o, "x", func(ctx context.Context, conn *streams.Conn) error {
		s.Stop()
		<-ctx.Done()
		return ctx.Err()
	})
	if err == nil || !strings.Contains(err.Error(), "has been away for") {
		t.Errorf("%v", err)
	}
}

// soon shortens how long commands wait.
func soon(t *testing.T) {
	t.Helper()
	usual := onceAway
	onceAway = time.Second
	t.Cleanup(func() { onceAway = usual })
}
