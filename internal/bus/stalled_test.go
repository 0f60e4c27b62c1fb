package bus_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/streams/streamstest"
	"github.com/agentrun/executor/internal/topology"
)

// The server's disk is full. It goes on answering questions and leaves what it would have to store without an answer; with
// room again it stays like that until it is started anew. All that time Healthy names the stream and the remedy, also while
// whoever writes gives up after each attempt and tries again.
func TestFullDiskIsNotHealthy(t *testing.T) {
	t.Parallel()
	disk := bustest.SmallDisk(t)
	server := bustest.Start(t, disk.On())
	c, err := streams.Connect(streams.Options{Options: bus.Options{
		URL: server.URL, Name: t.Name(), Logger: slog.New(slog.DiscardHandler), AttemptTimeout: 100 * time.Millisecond, StalledAfter: 300 * time.Millisecond,
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Setup(streamstest.Deadline(t), streams.Config{}); err != nil {
		t.Fatal(err)
	}
	record := make([]byte, 16<<10)
	if _, err := c.Save(streamstest.Deadline(t), streamstest.RunID(1), record, port.Header{}, 0); err != nil {
		t.Fatal(err)
	}
	if err := c.Healthy(); err != nil || c.Unstored() != (bus.Unstored{}) {
		t.Fatalf("with room: %v, %+v", err, c.Unstored())
	}

	disk.Fill()
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := c.Save(ctx, streamstest.RunID(2), record, port.Header{}, 0)
		failed <- err
	}()
	stalled := func() bool {
		err := c.Healthy()
		return err != nil && strings.Contains(err.Error(), topology.RunsStream) && strings.Contains(err.Error(), "/healthz")
	}
	bustest.Eventually(t, "unhealthy while a write waits", stalled)
	if _, err := c.Load(streamstest.Deadline(t), streamstest.RunID(1)); err != nil {
		t.Errorf("a question is not answered: %v", err)
	}
	if !stalled() {
		t.Errorf("a question was answered, and that counts as stored: %v", c.Healthy())
	}
	cancel()
	if err := <-failed; !errors.Is(err, bus.ErrUnsettled) {
		t.Errorf("given up: %v", err)
	}
	if !stalled() {
		t.Errorf("nobody waits at this moment, and that counts as stored: %v", c.Healthy())
	}
	disk.Clear()
	short, done := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer done()
	if _, err := c.Save(short, streamstest.RunID(3), record, port.Header{}, 0); err == nil {
		t.Log("this server mends itself once there is room")
	} else if !stalled() {
		t.Errorf("room again, and nothing stored: %v", c.Healthy())
	}

	server.Stop()
	server.StartAgain()
	if _, err := c.Save(streamstest.Deadline(t), streamstest.RunID(4), record, port.Header{}, 0); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "healthy again", func() bool { return c.Healthy() == nil && c.Unstored() == (bus.Unstored{}) })
}

// A server that has no storage left for the account refuses, and says so.
func TestNoStorageLeftIsNotHealthy(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t, bustest.MaxStore(64<<10))
	c, err := streams.Connect(streams.Options{Options: bus.Options{URL: server.URL, Name: t.Name(), Logger: slog.New(slog.DiscardHandler), StalledAfter: 200 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Setup(streamstest.Deadline(t), streams.Config{}); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "the store is used up, which shows with the server's words", func() bool {
		for i := range 10 {
			if _, err := c.Save(streamstest.Deadline(t), streamstest.RunID(i), make([]byte, 16<<10), port.Header{}, 0); err != nil && !errors.Is(err, port.ErrConflict) && !errors.Is(err, port.ErrFull) {
				t.Fatal(err)
			}
		}
		err := c.Healthy()
		return err != nil && strings.Contains(err.Error(), "resources")
	})
}
