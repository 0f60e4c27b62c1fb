package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/terminal"
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
	Timeout        time.Duration `name:"timeout" default:"15m" placeholder:"D" help:"How long to wait, connecting and publishing included."`
}

// jobBytesMax is the contract's bound on a job (§12).
const jobBytesMax = 256 << 10

// job is as much of a job as submit must know; the executor checks the rest.
type job struct {
	Schema string `json:"schema"`
	Tenant string `json:"tenant"`
	RunID  string `json:"run_id"`
	More   bool   `json:"more"`
	Steps  []struct {
		Step string `json:"step"`
	} `json:"steps"`
}

func (j *job) id() agentrun.ID { return agentrun.ID{Tenant: j.Tenant, Run: j.RunID} }

// run publishes the job and, with --wait, follows it. It returns the exit code.
func (c *submitCommand) run(ctx context.Context, env app.Env) (int, error) {
	if err := c.check(); err != nil {
		return app.ExitFailed, &app.Usage{Command: "executor submit", Err: err}
	}
	data, err := c.read(env)
	if err != nil {
		return app.ExitFailed, err
	}
	j, err := parseJob(data)
	if err != nil {
		return app.ExitFailed, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, errTimedOut)
	defer cancel()
	nc, err := app.Dial(c.Connection, "agentrun submit")
	if err != nil {
		return app.ExitFailed, err
	}
	defer nc.Close()
	out := terminal.New(env.Stdout, env.Getenv)
	if !c.Wait {
		seq, err := publish(ctx, nc, c.Queue, j, data)
		if err != nil {
			return app.ExitFailed, err
		}
		if out.Terminal() {
			out.Line("published %s as message %d of queue %s", j.id(), seq, c.Queue)
		} else {
			out.Line(`{"tenant":%q,"run_id":%q,"queue":%q,"sequence":%d}`, j.Tenant, j.RunID, c.Queue, seq)
		}
		return app.ExitOK, nil
	}
	show := func(s *seen) {
		if out.Terminal() {
			out.Outcome(&s.Outcome)
			return
		}
		out.Line("%s", s.raw)
	}
	code, _, err := follow(ctx, nc, c.Queue, j, data, show, out.Status)
	switch {
	case errors.Is(err, errTimedOut), err != nil && errors.Is(context.Cause(ctx), errTimedOut):
		return exitTimedOut, fmt.Errorf("no end of %s within %s (--timeout); it goes on without this command", j.id(), c.Timeout)
	case err != nil && ctx.Err() != nil:
		return app.ExitFailed, fmt.Errorf("stopped waiting for %s; it goes on without this command", j.id())
	}
	return code, err
}

var errTimedOut = errors.New("timed out")

func (c *submitCommand) check() error {
	if err := c.Connection.Check(); err != nil {
		return err
	}
	if !bus.IsIdentifier(c.Queue) {
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

// parseJob checks what submit itself relies on.
func parseJob(data []byte) (*job, error) {
	var j job
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&j); err != nil {
		return nil, fmt.Errorf("the job is not the JSON of a job: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("the job is followed by more data; submit one job at a time")
	}
	switch {
	case j.Schema != "agentrun.job/v1":
		return nil, fmt.Errorf(`the job's schema is %q, must be "agentrun.job/v1"`, j.Schema)
	case !bus.IsIdentifier(j.Tenant):
		return nil, fmt.Errorf("the job's tenant %q is no identifier (letters, digits, _ and -, at most 64, the first a letter or digit)", j.Tenant)
	case !bus.IsIdentifier(j.RunID):
		return nil, fmt.Errorf("the job's run_id %q is no identifier (letters, digits, _ and -, at most 64, the first a letter or digit)", j.RunID)
	}
	return &j, nil
}

// publish puts the job on its subject and returns its sequence once the stream has it.
func publish(ctx context.Context, nc *nats.Conn, queue string, j *job, data []byte) (uint64, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, fmt.Errorf("publishing %s: %w", j.id(), err)
	}
	subject := bus.JobSubject(queue, j.id())
	ack, err := js.Publish(ctx, subject, data)
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		return 0, fmt.Errorf("no stream takes %s: start an executor or a reconciler on this NATS server first, they make the streams", subject)
	}
	if err != nil {
		return 0, fmt.Errorf("publishing %s: %w; submit it again, a job that arrives twice is done once", j.id(), err)
	}
	return ack.Sequence, nil
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
