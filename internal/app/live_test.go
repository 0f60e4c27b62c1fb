package app

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/observe"
)

const liveConfig = `
defaults: {owner: ops, workflow: w, actor: a}
tools:
  first: {effect: read, http: {url: "http://127.0.0.1:1/"}, concurrency: 2}
`

// A reload takes a good file whole and keeps the old config where the new file is bad; calls of a tool that is gone are
// never sent.
func TestReload(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(liveConfig)
	reload := make(chan struct{})
	c := &Process{Config: path, Seams: Seams{Reload: reload, Lookup: func(string) (string, bool) { return "", false }}}
	kinds := testKinds(t)
	box, _, err := kinds.load(t.Context(), path, c.lookup(), importWait)
	if err != nil {
		t.Fatal(err)
	}
	tools := newLive(box)
	done := make(chan struct{}, 1)
	var log strings.Builder
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		p := &process{log: slog.New(slog.NewTextHandler(&log, nil)), observer: observe.New(observe.Executor)}
		tools.follow(ctx, c, p, func() { done <- struct{}{} }, kinds)
		close(ended)
	}()
	if got := tools.Limits("first").Concurrency; got != 2 {
		t.Fatalf("concurrency %d", got)
	}
	write(strings.Replace(liveConfig, "concurrency: 2", "concurrency: 7", 1) + `  second: {effect: read, http: {url: "http://127.0.0.1:1/"}}` + "\n")
	reload <- struct{}{}
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("not reloaded")
	}
	if _, ok := tools.Tool("second"); !ok || tools.Limits("first").Concurrency != 7 {
		t.Fatal("the new config is not in force")
	}
	write("tools: {x: {effect: reed}}\n")
	reload <- struct{}{}
	close(reload) // the loop ends after it has looked at the bad file
	<-ended
	cancel()
	if _, ok := tools.Tool("second"); !ok {
		t.Fatal("a bad file changed the config")
	}
	if !strings.Contains(log.String(), "config.yaml:1:") {
		t.Fatalf("the log does not say what is wrong: %s", log.String())
	}
}

func testKinds(t *testing.T) *kinds {
	t.Helper()
	k := newKinds()
	t.Cleanup(k.close)
	return k
}
