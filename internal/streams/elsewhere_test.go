package streams_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/streams"
)

// TestSetupSaysThatTheStreamsMayBeElsewhere: a domain that nobody has is waited for, in words that name the flag.
func TestSetupSaysThatTheStreamsMayBeElsewhere(t *testing.T) {
	t.Parallel()
	s := bustest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said := make(chan string, 64)
	c, err := streams.Connect(streams.Options{Options: bus.Options{
		URL: s.URL, Name: "test", API: bus.API{Domain: "none"}, Logger: slog.New(remedies{slog.DiscardHandler, said}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ended := make(chan error, 1)
	go func() { ended <- c.Setup(ctx, streams.Config{}) }()
	if got := <-said; got != bus.ElsewhereRemedy {
		t.Errorf("the log's remedy: %s", got)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("setup: %v", err)
	}
}

// remedies is a log of which only the remedies are of interest.
type remedies struct {
	slog.Handler
	said chan string
}

func (r remedies) Enabled(context.Context, slog.Level) bool { return true }

func (r remedies) Handle(_ context.Context, line slog.Record) error {
	line.Attrs(func(a slog.Attr) bool {
		if a.Key == "remedy" {
			select {
			case r.said <- a.Value.String():
			default:
			}
		}
		return true
	})
	return nil
}
