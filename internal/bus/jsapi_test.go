package bus

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/agentrun/executor/internal/bus/bustest"
)

func TestAPI(t *testing.T) {
	for _, x := range []struct {
		api  API
		want string // "": refused
	}{
		{API{}, "$JS.API.INFO"},
		{API{Domain: "hub"}, "$JS.hub.API.INFO"},
		{API{Prefix: "agentrun.hub.API"}, "agentrun.hub.API.INFO"},
		{API{Domain: "a.b"}, ""},
		{API{Domain: "a b"}, ""},
		{API{Domain: "*"}, ""},
		{API{Prefix: "a..b"}, ""},
		{API{Prefix: "a.>"}, ""},
		{API{Prefix: "a."}, ""},
		{API{Domain: "hub", Prefix: "a"}, ""},
	} {
		if err := x.api.Check(); (err == nil) != (x.want != "") {
			t.Errorf("%+v: %v", x.api, err)
		} else if err == nil && x.api.Subject("INFO") != x.want {
			t.Errorf("%+v: %s, wanted %s", x.api, x.api.Subject("INFO"), x.want)
		}
	}
	if _, err := Connect(Options{URL: "nats://127.0.0.1:1", API: API{Prefix: "a.>"}}); !errors.Is(err, ErrPrefix) {
		t.Errorf("a connection that asks nobody: %v", err)
	}
}

// TestSetupSaysThatTheStreamsMayBeElsewhere: a domain that nobody has is waited for, in words that name the flag.
func TestSetupSaysThatTheStreamsMayBeElsewhere(t *testing.T) {
	s := bustest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said := make(chan string, 64)
	c, err := Connect(Options{URL: s.URL, Name: "test", API: API{Domain: "none"}, Logger: slog.New(remedies{slog.DiscardHandler, said})})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ended := make(chan error, 1)
	go func() { ended <- c.Setup(ctx, Config{}) }()
	if got := <-said; got != ElsewhereRemedy {
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
