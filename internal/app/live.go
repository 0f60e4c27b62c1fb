package app

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/internal/fair"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/trace"
	"github.com/agentrun/executor/pkg/run"
)

// live is the config as it stands: a reload replaces it whole, and calls in flight finish under the old one.
type live struct {
	current atomic.Pointer[loaded]
	// executors is how many executors share a fleet-wide rate; at least 1.
	executors func() int
	// messageMax is how many bytes a message may have at the server; 0: as many as the contract allows.
	messageMax func() int
	tracer     *trace.Tracer // nil: no traces
}

type loaded struct {
	box     *Toolbox
	secrets [][]byte
	digests config.Digests
}

func newLive(box *Toolbox) *live {
	t := &live{executors: func() int { return 1 }, messageMax: func() int { return 0 }}
	t.put(box)
	return t
}

func (t *live) put(box *Toolbox) {
	t.current.Store(&loaded{box: box, secrets: record.Redactions(box.File.Secrets), digests: box.File.Digests()})
}

func (t *live) box() *Toolbox { return t.current.Load().box }

func (t *live) digests() config.Digests { return t.current.Load().digests }

func (t *live) secrets() [][]byte { return t.current.Load().secrets }

// share is a tenant's part of the executor's slots.
func (t *live) share(tenant string) fair.Limit {
	s := t.box().File.Tenants[tenant]
	return fair.Limit{Concurrency: s.Concurrency, Weight: s.Weight}
}

func (t *live) defaults() run.Defaults {
	d := t.box().defaults()
	d.MessageMax = t.messageMax()
	return d
}

// unknownToolGrace is for how long a run waits for another executor that has its tool.
func (t *live) unknownToolGrace() time.Duration { return t.box().File.Defaults.UnknownToolGrace }

// follow reloads the config whenever reload says so, until ctx ends. It is validated first: a bad file changes nothing.
// done is called after each change.
func (t *live) follow(ctx context.Context, c *Process, log *slog.Logger, done func(), kinds *kinds) {
	for {
		select {
		case <-ctx.Done():
			return
		case _, more := <-c.Reload:
			if !more {
				return
			}
		}
		box, warnings, err := kinds.load(ctx, c.Config, c.lookup(), kinds.again)
		if err != nil {
			log.Error("the config is not reloaded; the old one stays", "error", err)
			continue
		}
		for _, w := range warnings {
			log.Warn("config", "warning", w.String())
		}
		t.put(box)
		done()
		log.Info("config reloaded", "tools", len(box.Registry.Names()))
	}
}
