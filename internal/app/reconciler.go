package app

import (
	"context"
	"fmt"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/internal/observe"
)

// Reconciler runs reconciler serve until ctx ends. It returns nil after a clean stop; any error means that the process
// could not start or could not go on.
func Reconciler(ctx context.Context, c ReconcilerConfig) error {
	file, _, err := config.Load(c.Config, c.lookup())
	if err != nil {
		return err
	}
	p, err := begin(observe.Reconciler, &c.Process, toolNames(file))
	if err != nil {
		return err
	}
	defer p.close()
	return fmt.Errorf("reconciler: %w", errNotWired)
}
