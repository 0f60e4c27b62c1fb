package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/internal/terminal"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/envelope"
	agentrun "github.com/agentrun/executor/pkg/run"
)

// Exit codes of submit --wait (contract §11); every other error is app.ExitFailed.
const (
	exitFatal      = 2
	exitNeedsHuman = 3
	exitCancelled  = 4
	exitTimedOut   = 5
)

// submitCommand publishes a job and can wait for what becomes of it.
type submitCommand struct {
	app.Connection `embed:""`
	File           string        `name:"file" short:"f" default:"-" placeholder:"FILE" help:"The job as JSON; - is standard input."`
	Queue          string        `name:"queue" default:"default" placeholder:"NAME" help:"Queue to publish to."`
	Wait           bool          `name:"wait" help:"Print each outcome until the run ends (with more: true, until the job's own steps end); the exit code tells how."`
	JSON           bool          `name:"json" help:"Print one JSON object a line on a terminal too."`
	Timeout        time.Duration `name:"timeout" default:"15m" placeholder:"D" help:"How long to wait, connecting and publishing included."`
}

// jobBytesMax is the contract's bound on a job (§11).
const jobBytesMax = agentrun.MaxJobBytes

// run publishes the job and, with --wait, follows it. It returns the exit code.
func (c *submitCommand) run(ctx context.Context, env app.Env) (int, error) {
	if err := c.check(); err != nil {
		return app.ExitFailed, &app.Usage{Command: "executor submit", Err: err}
	}
	data, err := c.read(env)
	if err != nil {
		return app.ExitFailed, err
	}
	if err := app.KnownKeys(data, agentrun.Job{}, "job"); err != nil {
		return app.ExitFailed, err
	}
	job, err := client.PrepareJSON(data)
	if err != nil {
		return app.ExitFailed, c.placed(data, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, errTimedOut)
	defer cancel()
	nc, err := app.Dial(c.Connection, "agentrun submit")
	if err != nil {
		return app.ExitFailed, err
	}
	defer nc.Close()
	publisher, err := client.New(nc, client.Domain(c.JSDomain), client.APIPrefix(c.JSPrefix))
	if err != nil {
		return app.ExitFailed, err
	}
	out := terminal.New(env.Stdout, env.Getenv)
	if c.JSON {
		out = terminal.Piped(env.Stdout)
	}
	sayRefusals(env, nc, job.ID().Tenant)
	c.warnUnpulled(ctx, env, publisher, job.ID().Tenant)
	options := client.Options{Queue: c.Queue, Traceparent: env.Getenv("TRACEPARENT")}
	if !c.Wait {
		return app.ExitOK, publish(ctx, publisher, job, options, out)
	}
	options.OnOutcome = func(s *client.Outcome) {
		if out.Terminal() {
			out.Outcome(&s.Outcome)
			return
		}
		out.Line("%s", s.Raw)
	}
	result, err := await(ctx, publisher, job, options, out)
	switch {
	case err != nil && errors.Is(context.Cause(ctx), errTimedOut):
		return exitTimedOut, fmt.Errorf("no end of %s within %s (--timeout); it goes on without this command", job.ID(), c.Timeout)
	case err != nil && ctx.Err() != nil:
		return app.ExitFailed, fmt.Errorf("stopped waiting for %s; it goes on without this command", job.ID())
	case err != nil:
		return app.ExitFailed, err
	}
	if result.Repeated && result.Run != nil {
		fmt.Fprintf(env.Stderr, "executor submit: nothing was done: %s had its answer before this job, and this is it; a new run_id starts a new run\n", job.ID())
	}
	return exitCode(result.Outcome), nil
}

// sayRefusals prints what the server refuses this user, but for what only adds to the answer and what is asked for in
// another way, or returned as an error, where it is refused.
func sayRefusals(env app.Env, nc *nats.Conn, tenant string) {
	question := `"` + topology.OpSubject("queues.get", tenant) + `"`
	const outcomes = ".CONSUMER.CREATE.AGENTRUN_RESULTS."
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if text := err.Error(); !strings.Contains(text, question) && !strings.Contains(text, outcomes) {
			fmt.Fprintln(env.Stderr, "executor submit:", bus.Denied(err))
		}
	})
}

// pulledWithin is how long the answer to whether anybody takes the queue's jobs may take: it decides nothing.
const pulledWithin = 300 * time.Millisecond

// warnUnpulled asks whether an executor takes the queue's jobs, and says so where none does. A server where nobody answers,
// or where this user may not ask, is no reason to say anything. It comes before the job, not beside it: of several requests
// that are refused at once, the connection remembers one.
func (c *submitCommand) warnUnpulled(ctx context.Context, env app.Env, publisher *client.Client, tenant string) {
	ctx, cancel := context.WithTimeout(ctx, pulledWithin)
	defer cancel()
	if pulled, err := publisher.Pulled(ctx, tenant, c.Queue); err == nil && !pulled {
		fmt.Fprintf(env.Stderr, "executor submit: warning: no executor takes jobs of queue %s: this one waits until one does (executor serve --queues %s)\n", c.Queue, c.Queue)
	}
}

// publish submits the job and prints where it is.
func publish(ctx context.Context, c *client.Client, job *client.Prepared, o client.Options, out *terminal.Printer) error {
	receipt, err := c.Publish(ctx, job, o)
	if err != nil {
		return err
	}
	if out.Terminal() {
		out.Line("published %s as message %d of queue %s", job.ID(), receipt.Sequence, receipt.Queue)
		return nil
	}
	out.Line(`{"tenant":%q,"run_id":%q,"queue":%q,"sequence":%d}`, job.ID().Tenant, job.ID().Run, receipt.Queue, receipt.Sequence)
	return nil
}

// await submits the job and waits for its answer; out shows meanwhile what is being waited for.
func await(ctx context.Context, c *client.Client, job *client.Prepared, o client.Options, out *terminal.Printer) (*client.Result, error) {
	ended, shown := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(shown)
		begun := time.Now()
		for tick := time.NewTicker(time.Second); ; {
			select {
			case now := <-tick.C:
				out.Status(fmt.Sprintf("waiting for %s, %s", job.ID(), now.Sub(begun).Round(time.Second)))
			case <-ended:
				tick.Stop()
				out.Status("")
				return
			}
		}
	}()
	defer func() {
		close(ended)
		<-shown
	}()
	return c.PublishAndWait(ctx, job, o)
}

var errTimedOut = errors.New("timed out")

func (c *submitCommand) check() error {
	if err := c.Connection.Check(); err != nil {
		return err
	}
	if !agentrun.ValidID(c.Queue) {
		return fmt.Errorf("--queue: %q is no queue name (letters, digits, _ and -, at most 64, the first a letter or digit)", c.Queue)
	}
	if c.Timeout <= 0 {
		return fmt.Errorf("--timeout: %s is out of bounds, must be more than 0", c.Timeout)
	}
	return nil
}

// read takes the job from the file or standard input, and no more than a job may have.
func (c *submitCommand) read(env app.Env) ([]byte, error) {
	r := env.Stdin
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return nil, fmt.Errorf("--file: %w", err)
		}
		defer f.Close()
		r = f
	} else if terminal.IsInput(r) {
		fmt.Fprintln(env.Stderr, "executor submit: reading the job from standard input; Ctrl-D ends it")
	}
	data, err := io.ReadAll(io.LimitReader(r, jobBytesMax+1))
	if err != nil {
		return nil, fmt.Errorf("reading the job: %w", err)
	}
	if len(data) > jobBytesMax {
		return nil, fmt.Errorf("the job is larger than %d bytes", jobBytesMax)
	}
	return data, nil
}

// placed says of a job that is no JSON where in the file that begins.
func (c *submitCommand) placed(data []byte, err error) error {
	bad := new(strictjson.JSONError)
	if !errors.As(strictjson.CheckJSON(data, strictjson.Bounds{}), &bad) {
		return err
	}
	before := data[:min(bad.Offset, len(data))]
	name := c.File
	if name == "-" {
		name = "<stdin>"
	}
	begin := bytes.LastIndexByte(before, '\n') + 1
	return fmt.Errorf("%s:%d:%d: %w", name, bytes.Count(before, []byte("\n"))+1, utf8.RuneCount(before[begin:])+1, err)
}

// exitCode tells how a run or a step ended.
func exitCode(w envelope.Word) int {
	switch w {
	case envelope.OK:
		return app.ExitOK
	case envelope.Fatal:
		return exitFatal
	case envelope.NeedsHuman:
		return exitNeedsHuman
	case envelope.Cancelled:
		return exitCancelled
	}
	return app.ExitFailed
}
