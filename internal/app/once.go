package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentrun/executor/internal/streams"
)

// onceAway is how long a command that does one thing waits for a server that has gone, and for streams to be made; a test
// does not wait so long. Who serves waits for ever instead: somebody sees that it is not ready. A command has nobody but who
// typed it.
var onceAway = 30 * time.Second

// once runs do on a connection of a command. It ends, and says why, where no server answers, where the server is away for
// onceAway, and as soon as the server refuses this user anything; rights says who has what is needed.
func once(ctx context.Context, o streams.Options, rights string, do func(ctx context.Context, conn *streams.Conn) error) error {
	probe, err := Dial(Connection{NATS: o.URL, Creds: o.Creds, TLSCA: o.TLSCA, TLSCert: o.TLSCert, TLSKey: o.TLSKey, Inbox: o.InboxPrefix}, o.Name)
	if err != nil {
		return err
	}
	probe.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	o.Refused = func(err error) {
		cancel(fmt.Errorf("the server refuses this user what is needed (%s): %w", rights, err))
	}
	conn, err := streams.Connect(o)
	if err != nil {
		return err
	}
	defer conn.Close()
	away := onceAway
	go func() {
		if err := gone(ctx, conn, away); err != nil {
			cancel(fmt.Errorf("the NATS server at %s has been away for %s: %w", withoutPassword(o.URL), away, err))
		}
	}()
	if err = conn.WaitConnected(ctx); err == nil {
		err = do(ctx, conn)
	}
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		return cause
	}
	return err
}

// gone returns why there has been no server for so long, or nil when ctx ends.
func gone(ctx context.Context, conn *streams.Conn, away time.Duration) error {
	tick := time.NewTicker(away / 30)
	defer tick.Stop()
	for seen := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if conn.Connected() {
			seen = time.Now()
		} else if time.Since(seen) >= away {
			return conn.Healthy()
		}
	}
}
