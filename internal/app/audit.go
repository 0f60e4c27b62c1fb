package app

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/agentrun/executor/internal/audit"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
)

// Audit checks everything that is stored against the nine rules. The error is about reading, not about what was found; a
// permission that the server refuses, or an account without the streams, ends it at once.
func Audit(ctx context.Context, c Connection, name string) (*audit.Report, error) {
	o := c.bus(name)
	o.Logger = slog.New(slog.DiscardHandler) // the error says it
	var report *audit.Report
	err := once(ctx, o, "the user auditor of deploy/nats/accounts.conf has it", func(ctx context.Context, conn *streams.Conn) (err error) {
		// Whoever serves waits for the streams; an audit of none would wait for ever.
		if err := conn.Require(ctx, topology.ResultsStream, topology.LettersStream, topology.RunsStream); err != nil {
			return fmt.Errorf("%w (is this a user of the fleet's account, and has a reconciler been started?)", err)
		}
		report, err = audit.All(ctx, conn, conn, envelope.TimeOf(time.Now()))
		return err
	})
	if err != nil {
		return nil, err
	}
	return report, nil
}
