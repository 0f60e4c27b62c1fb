package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/agentrun/executor/internal/observe"
	"github.com/agentrun/executor/pkg/connector/httptool"
)

// errNotWired stands where the worker and the reconciler are put in.
var errNotWired = errors.New("this process has no loops yet")

// Executor runs executor serve until ctx ends, then drains. It returns nil after a clean drain; any error means that the
// process could not start or could not go on.
func Executor(ctx context.Context, c ExecutorConfig) error {
	http := httptool.New()
	defer http.Close()
	box, warnings, err := LoadTools(c.Config, c.lookup(), http)
	if err != nil {
		return err
	}
	p, err := begin(observe.Executor, &c.Process, box.Registry.Names())
	if err != nil {
		return err
	}
	defer p.close()
	for _, w := range warnings {
		p.log.Warn("config", "place", w.Place.String(), "warning", w.Message)
	}
	if c.EmbeddedNATS {
		addr, err := EmbeddedAddr(c.NATS)
		if err != nil {
			return err
		}
		nats, err := StartEmbedded(addr, filepath.Join(c.Data, "nats"))
		if err != nil {
			return err
		}
		defer nats.Close()
		p.log.Info("embedded NATS listens", "url", nats.URL())
	}
	return fmt.Errorf("executor: %w", errNotWired)
}
