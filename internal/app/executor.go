package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/internal/observe"
)

// errNotWired stands where the worker and the reconciler are put in.
var errNotWired = errors.New("this process has no loops yet")

// Executor runs executor serve until ctx ends, then drains. It returns nil after a clean drain; any error means that the
// process could not start or could not go on.
func Executor(ctx context.Context, c ExecutorConfig) error {
	file, _, err := config.Load(c.Config, c.lookup())
	if err != nil {
		return err
	}
	p, err := begin(observe.Executor, &c.Process, toolNames(file))
	if err != nil {
		return err
	}
	defer p.close()
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

func toolNames(file *config.File) []string {
	names := make([]string, len(file.Tools))
	for i := range file.Tools {
		names[i] = file.Tools[i].Name
	}
	return names
}
