package app

import (
	"context"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/internal/observe"
)

// process is what executor and reconciler have in common: a log, metrics, readiness and the HTTP endpoints.
type process struct {
	log      *slog.Logger
	observer *observe.Observer
	ready    *observe.Readiness
	http     *observe.Server

	onStarted  func()         // told that the start is over; may be nil
	onDraining func()         // told that nothing new is taken; may be nil
	beside     sync.WaitGroup // what goes on beside the work until the process's context ends
}

// httpGrace is how long requests in flight may take when the process ends.
const httpGrace = 2 * time.Second

// newProcess makes the log and the metrics. listen makes them visible.
func newProcess(role observe.Role, c *Process, box *Toolbox) (*process, error) {
	p := &process{log: c.Logger, observer: observe.New(role, box.Registry.Names()...), ready: observe.NewReadiness()}
	if p.log == nil {
		w := c.Log
		if w == nil {
			w = io.Discard
		}
		var err error
		if p.log, err = observe.NewLogger(w, c.LogFormat, c.LogLevel); err != nil {
			return nil, err
		}
	}
	p.log = p.log.With("id", c.ID)
	return p, nil
}

// listen serves the HTTP endpoints: from here on /healthz answers, and /readyz says "starting". Close it.
func (p *process) listen(c *Process) (err error) {
	h := observe.Handler(p.observer.Registry(), p.ready)
	if c.Endpoints != nil {
		c.Endpoints(h)
	}
	if c.HTTP != "" {
		p.http, err = observe.Listen(c.HTTP, h)
	}
	return err
}

// addr is where the HTTP endpoints are, "" if nowhere.
func (p *process) addr() string {
	if p.http == nil {
		return ""
	}
	return p.http.Addr()
}

// warn logs what is odd about the config.
func (p *process) warn(warnings []config.Warning) {
	for _, w := range warnings {
		p.log.Warn("config", "place", w.Place.String(), "warning", w.Message)
	}
}

// end closes a part of the process, and logs if that fails: there is nobody left to tell.
func (p *process) end(what string, close func() error) {
	if err := close(); err != nil {
		p.log.Error("closing "+what, "error", err)
	}
}

func (p *process) close() {
	if p.http == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), httpGrace)
	defer cancel()
	if err := p.http.Close(ctx); err != nil {
		p.log.Warn("the HTTP server did not end cleanly", "error", err)
	}
}

// draining tells everyone that the process ends in good order.
func (p *process) draining() {
	if p.onDraining != nil {
		p.onDraining()
	}
	p.ready.Draining()
}

// started tells everyone that the process is ready.
func (p *process) started(c *Process) {
	if p.onStarted != nil {
		p.onStarted()
	}
	p.ready.Started()
	p.log.Info("ready", "http", p.addr())
	if c.OnReady != nil {
		c.OnReady(p.addr())
	}
}

// lookup is the environment of the config file.
func (c *Process) lookup() func(string) (string, bool) {
	if c.Lookup != nil {
		return c.Lookup
	}
	return os.LookupEnv
}
