package app

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/fair"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/trace"
	"github.com/agentrun/executor/internal/worker"
	"github.com/agentrun/executor/pkg/connector"
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
	retired []string // secrets of earlier configs, the latest first: answers to calls that carried them may still come
}

// retiredMax is how many earlier secrets are remembered for redaction.
const retiredMax = 64

func newLive(box *Toolbox) *live {
	t := &live{executors: func() int { return 1 }, messageMax: func() int { return 0 }}
	t.put(box)
	return t
}

// NewTools are the worker's tools.
func NewTools(r *connector.Registry) worker.Tools {
	return newLive(&Toolbox{File: &config.File{}, Registry: r})
}

func (t *live) put(box *Toolbox) {
	next := &loaded{box: box, digests: box.File.Digests()}
	if old := t.current.Load(); old != nil {
		for _, s := range slices.Concat(old.box.File.Secrets, old.retired) {
			if !slices.Contains(box.File.Secrets, s) && !slices.Contains(next.retired, s) && len(next.retired) < retiredMax {
				next.retired = append(next.retired, s)
			}
		}
	}
	all := slices.Concat(box.File.Secrets, next.retired)
	// The longest first, so that no piece of a longer one is left behind.
	slices.SortStableFunc(all, func(a, b string) int { return len(b) - len(a) })
	next.secrets = record.Redactions(all)
	t.current.Store(next)
}

func (t *live) box() *Toolbox { return t.current.Load().box }

func (t *live) digests() config.Digests { return t.current.Load().digests }

func (t *live) secrets() [][]byte { return t.current.Load().secrets }

// share is a tenant's part of the executor's slots.
func (t *live) share(tenant string) fair.Limit {
	s := t.box().File.Tenants[tenant]
	return fair.Limit{Concurrency: s.Concurrency, Weight: s.Weight}
}

func (t *live) defaults() engine.Defaults {
	d := t.box().defaults()
	d.MessageMax = t.messageMax()
	return d
}

// unknownToolGrace is for how long a run waits for another executor that has its tool.
func (t *live) unknownToolGrace() time.Duration { return t.box().File.Defaults.UnknownToolGrace }
