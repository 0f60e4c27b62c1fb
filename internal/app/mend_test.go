package app

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/pkg/run"
)

// seenLines is a log that is read while it is written.
type seenLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *seenLines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *seenLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// The disk of an embedded server was full for a moment. It is started anew as soon as there is room, at its old address and
// on its old store, and what waits is stored without anybody doing anything.
func TestEmbeddedServerIsMended(t *testing.T) {
	t.Parallel()
	disk := bustest.SmallDisk(t)
	server, err := StartEmbedded("127.0.0.1:0", disk.Dir, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	lines := &seenLines{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go server.Mend(ctx, slog.New(slog.NewTextHandler(lines, nil)), 10*time.Millisecond)
	conn, err := streams.Connect(streams.Options{Options: bus.Options{URL: server.URL(), Logger: slog.New(slog.DiscardHandler), AttemptTimeout: 100 * time.Millisecond, StalledAfter: 300 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if err := conn.Setup(ctx, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	save := func(name string) error {
		_, err := conn.Save(ctx, run.ID{Tenant: "t", Run: name}, make([]byte, 16<<10), port.Header{}, 0)
		return err
	}
	if err := save("before"); err != nil {
		t.Fatal(err)
	}
	disk.Fill()
	waiting := make(chan error, 1)
	go func() { waiting <- save("meanwhile") }()
	bustest.Eventually(t, "the log says that the server cannot store, with its own words", func() bool {
		return strings.Contains(lines.String(), "no space left on device")
	})
	bustest.Eventually(t, "not healthy", func() bool { return conn.Healthy() != nil })
	if strings.Contains(lines.String(), "was started anew") {
		t.Error("it was started anew on a full disk")
	}
	disk.Clear()
	if err := <-waiting; err != nil {
		t.Errorf("what waited: %v", err)
	}
	if _, err := conn.Load(ctx, run.ID{Tenant: "t", Run: "before"}); err != nil {
		t.Errorf("what was stored before: %v", err)
	}
	bustest.Eventually(t, "healthy", func() bool { return conn.Healthy() == nil })
	if n := strings.Count(lines.String(), "was started anew"); n != 1 {
		t.Errorf("it was started anew %d times", n)
	}
}
