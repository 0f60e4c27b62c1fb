package app

import (
	"context"
	"fmt"

	"github.com/agentrun/executor/internal/observe"
	"github.com/agentrun/executor/pkg/connector/httptool"
)

// Reconciler runs reconciler serve until ctx ends. It returns nil after a clean stop; any error means that the process
// could not start or could not go on.
func Reconciler(ctx context.Context, c ReconcilerConfig) error {
	http := httptool.New()
	defer http.Close()
	box, warnings, err := LoadTools(c.Config, c.lookup(), http)
	if err != nil {
		return err
	}
	p, err := begin(observe.Reconciler, &c.Process, box.Registry.Names())
	if err != nil {
		return err
	}
	defer p.close()
	for _, w := range warnings {
		p.log.Warn("config", "place", w.Place.String(), "warning", w.Message)
	}
	return fmt.Errorf("reconciler: %w", errNotWired)
}
