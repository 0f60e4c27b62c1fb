package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/demo"
	"github.com/agentrun/executor/internal/observe"
	"github.com/agentrun/executor/internal/terminal"
	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/envelope"
)

// demoCommand runs the billing case of the contract with everything in this process.
type demoCommand struct {
	Keep bool `name:"keep" help:"Keep the directory with config, journal, NATS store and log."`
}

// The demo takes about three seconds, most of it the provider's Retry-After.
const (
	demoStart = 20 * time.Second
	demoRun   = 30 * time.Second
	demoStop  = 10 * time.Second
)

var errDemo = errors.New("the demo did not hold what it promises")

func (c *demoCommand) run(ctx context.Context, env app.Env) (err error) {
	begun := time.Now()
	dir, err := os.MkdirTemp("", "agentrun-demo-")
	if err != nil {
		return fmt.Errorf("a directory for the demo: %w", err)
	}
	defer func() {
		if c.Keep || err != nil {
			fmt.Fprintf(env.Stderr, "executor demo: config, journal, NATS store and log are in %s\n", dir)
			return
		}
		if err = os.RemoveAll(dir); err != nil {
			err = fmt.Errorf("removing the demo's directory: %w", err)
		}
	}()
	provider := demo.NewProvider(demo.Script{RateLimited: 2, DraftErrors: 1})
	if err := provider.Start(); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), demoStop)
		defer cancel()
		err = errors.Join(err, provider.Close(ctx))
	}()
	s, err := startStack(ctx, dir, demo.Config(provider.URL()))
	if err != nil {
		return err
	}
	out := terminal.New(env.Stdout, env.Getenv)
	demo.Intro(out, time.Since(begun))
	end, err := s.submit(ctx, demo.Job(), out)
	if err = errors.Join(err, s.stop()); err != nil {
		return err
	}
	verdict := demo.Judge(provider, end)
	demo.Show(out, provider, verdict)
	if len(verdict.Problems) > 0 {
		return fmt.Errorf("%w: %s", errDemo, verdict.Problems[0])
	}
	return nil
}

// stack is NATS, an executor and a reconciler in this process.
type stack struct {
	nats   *app.Embedded
	log    *os.File
	cancel context.CancelFunc
	ended  *errgroup.Group
}

// startStack returns when all is ready.
func startStack(ctx context.Context, dir string, config []byte) (*stack, error) {
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, fmt.Errorf("the demo's config: %w", err)
	}
	log, err := os.Create(filepath.Join(dir, "demo.log"))
	if err != nil {
		return nil, fmt.Errorf("the demo's log: %w", err)
	}
	logger, err := observe.NewLogger(log, "text", "debug")
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	app.SpareMemory()
	nats, err := app.StartEmbedded("127.0.0.1:0", filepath.Join(dir, "nats"), "")
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	s := &stack{nats: nats, log: log, cancel: cancel, ended: group}

	ready := make(chan string, 2)
	seams := app.Seams{Logger: logger, OnReady: func(addr string) { ready <- addr }}
	var executor app.ExecutorConfig
	var reconciler app.ReconcilerConfig
	args := []string{"--nats", nats.URL(), "--config", file, "--http", "127.0.0.1:0", "--lease", "5s", "--log-level", "debug"}
	if err := app.Defaults(&executor, append(args, "--id", "executor", "--data", filepath.Join(dir, "journal"))); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	if err := app.Defaults(&reconciler, append(args, "--id", "reconciler")); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	executor.Seams, reconciler.Seams = seams, seams
	group.Go(func() error { return app.Executor(ctx, executor) })
	group.Go(func() error { return app.Reconciler(ctx, reconciler) })

	late := time.NewTimer(demoStart)
	defer late.Stop()
	for range 2 {
		select {
		case <-ready:
		case <-ctx.Done(): // one of them ended, and stop says why; or it was asked to
			if err := s.stop(); err != nil {
				return nil, err
			}
			return nil, context.Cause(ctx)
		case <-late.C:
			return nil, errors.Join(fmt.Errorf("executor and reconciler were not ready within %s", demoStart), s.stop())
		}
	}
	return s, nil
}

// submit publishes the job and prints its outcomes until the run ends. It returns the run's outcome.
func (s *stack) submit(ctx context.Context, data []byte, out *terminal.Printer) (*envelope.Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, demoRun)
	defer cancel()
	job, err := client.PrepareJSON(data)
	if err != nil {
		return nil, fmt.Errorf("the demo's job: %w", err)
	}
	nc, err := app.Dial(app.Connection{NATS: s.nats.URL()}, "agentrun demo")
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	publisher, err := client.New(nc)
	if err != nil {
		return nil, err
	}
	show := func(s *client.Outcome) { out.Outcome(&s.Outcome) }
	result, err := await(ctx, publisher, job, client.Options{Queue: demo.Queue, OnOutcome: show}, out)
	if err != nil {
		return nil, fmt.Errorf("waiting for the run to end: %w", err)
	}
	if result.Run == nil {
		return nil, nil
	}
	return &result.Run.Outcome, nil
}

// stop ends executor and reconciler, then NATS. It returns what they ended with.
func (s *stack) stop() error {
	s.cancel()
	err := s.ended.Wait()
	s.nats.Close()
	return errors.Join(err, s.log.Close())
}
