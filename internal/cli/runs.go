package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentrun/executor/internal/operator"
	agentrun "github.com/agentrun/executor/pkg/run"
)

type runsCommand struct {
	List    runsList   `cmd:"" help:"List runs by their last change, oldest first."`
	Show    runShow    `cmd:"" help:"Print the story of a run."`
	Cancel  runCancel  `cmd:"" help:"Stop a run: nothing new starts, what is in flight ends by its own evidence."`
	Discard runDiscard `cmd:"" help:"End a run whose stored record breaks a rule and is left alone; it is kept as it was found."`
}

type runsList struct {
	asking   `embed:""`
	State    string `name:"state" placeholder:"STATE" help:"Only runs in this state: open, ready, running, waiting, unknown, cancelling, ok, fatal, needs_human, cancelled."`
	Workflow string `name:"workflow" placeholder:"NAME" help:"Only runs of this workflow."`
	Limit    int    `name:"limit" default:"1000" placeholder:"N" help:"At most so many."`
	Watch    bool   `name:"watch" short:"w" help:"Show the list again when it changes, until a stop signal."`
}

func (c *runsList) run(ctx context.Context, d *desk) error {
	return d.show(ctx, c.Watch, func(ctx context.Context) ([]json.RawMessage, func() error, error) {
		list, more, err := c.pages(ctx, d)
		return list, func() error { return c.print(d, list, more) }, err
	})
}

func (c *runsList) pages(ctx context.Context, d *desk) (list []json.RawMessage, more bool, err error) {
	request := operator.RunsRequest{State: c.State, Workflow: c.Workflow}
	limit := max(c.Limit, 1)
	for {
		request.Limit = new(min(1000, limit-len(list)))
		var page operator.RunPage
		raw, err := d.call(ctx, "runs.list", c.everyone(), request, &page)
		if err != nil {
			return nil, false, d.failed(c.JSON, raw, err)
		}
		list = append(list, page.Runs...)
		if request.After = page.After; page.After == "" || len(list) >= limit {
			return list, page.After != "", nil
		}
	}
}

func (c *runsList) print(d *desk, list []json.RawMessage, more bool) error {
	if c.JSON {
		return d.list("runs", list, len(list))
	}
	runs := make([]agentrun.View, len(list))
	for i, data := range list {
		if err := json.Unmarshal(data, &runs[i]); err != nil {
			return fmt.Errorf("a run in the answer: %w", err)
		}
	}
	if len(runs) == 0 {
		d.out.Line("no runs")
		return nil
	}
	d.out.Runs(runs, time.Now(), d.width)
	if more {
		d.out.Line("there are more (--limit)")
	}
	return nil
}

type runShow struct {
	asking  `embed:""`
	one     `embed:""`
	Payload bool `name:"payload" help:"Show args and results too; NATS must let you publish on agentrun.op.runs.payload.TENANT."`
	Watch   bool `name:"watch" short:"w" help:"Show the run again when it changes, until it has ended or a stop signal."`
}

func (c *runShow) run(ctx context.Context, d *desk) error {
	if !c.Watch {
		return c.once(ctx, d)
	}
	tenant, runID, err := c.about(d.command, c.Run)
	if err != nil {
		return err
	}
	shown := ""
	return d.watch(ctx, func(ctx context.Context) (over bool, err error) {
		var reply operator.RunReply
		raw, err := d.call(ctx, "runs.get", tenant, operator.RunRequest{RunID: runID}, &reply)
		if err != nil {
			return false, d.failed(c.JSON, raw, err)
		}
		// Elapsed time goes on by itself; on a terminal it is shown, elsewhere it is no change.
		reply.Run.Spent, reply.Run.Lease = nil, nil
		text, err := json.Marshal(reply.Run)
		if err != nil {
			return false, err
		}
		if over = reply.Run.Outcome != ""; d.out.Terminal() || shown != string(text) {
			err = c.once(ctx, d)
		}
		shown = string(text)
		return over, err
	})
}

// once prints the run as it is now.
func (c *runShow) once(ctx context.Context, d *desk) error {
	if !c.Payload {
		return story(ctx, d, &c.asking, c.Run, false)
	}
	tenant, runID, err := c.about(d.command, c.Run)
	if err != nil {
		return err
	}
	var payload operator.PayloadReply
	raw, err := d.call(ctx, "runs.payload", tenant, operator.RunRequest{RunID: runID}, &payload)
	if err != nil {
		return d.failed(c.JSON, raw, err)
	}
	if err := story(ctx, d, &c.asking, c.Run, false); err != nil {
		return err
	}
	if c.JSON {
		d.json(raw) // a second line
		return nil
	}
	d.out.Payloads(payload.Steps, d.width)
	return nil
}

// story prints a run, and its letter if one is open. With --json it is the reply of one call: the letter's or the run's.
func story(ctx context.Context, d *desk, a *asking, name string, letterFirst bool) error {
	tenant, runID, err := a.about(d.command, name)
	if err != nil {
		return err
	}
	request := operator.RunRequest{RunID: runID}
	var letter operator.LetterShape
	raw, err := d.call(ctx, "deadletters.get", tenant, request, &letter)
	var no *refused
	if err != nil && (letterFirst && a.JSON || !errors.As(err, &no)) {
		return d.failed(a.JSON, raw, err)
	}
	if a.JSON && letterFirst {
		d.json(raw)
		return nil
	}
	var reply operator.RunReply
	raw, err = d.call(ctx, "runs.get", tenant, request, &reply)
	if err != nil {
		return d.failed(a.JSON, raw, err)
	}
	if a.JSON {
		d.json(raw)
		return nil
	}
	d.out.Story(reply.Run, letter.DeadLetter, time.Now(), d.width)
	if letter.DeadLetter == nil && letterFirst {
		d.out.Line("no open dead letter")
	}
	return nil
}

type runCancel struct {
	acting `embed:""`
	one    `embed:""`
}

func (c *runCancel) run(ctx context.Context, d *desk) error {
	return c.end(ctx, d, &c.acting, "cancel")
}

type runDiscard struct {
	acting `embed:""`
	one    `embed:""`
}

func (c *runDiscard) run(ctx context.Context, d *desk) error {
	return c.end(ctx, d, &c.acting, "discard")
}

// end makes a call that ends a run.
func (o *one) end(ctx context.Context, d *desk, c *acting, verb string) error {
	if err := c.person(d.env, d.command); err != nil {
		return err
	}
	tenant, runID, err := c.about(d.command, o.Run)
	if err != nil {
		return err
	}
	if err := d.confirm(c.Yes, verb+" %s/%s", tenant, runID); err != nil {
		return err
	}
	request := operator.CancelRequest{RunID: runID, By: c.By, Reason: c.Reason}
	var reply operator.StateReply
	raw, err := d.call(ctx, "runs."+verb, tenant, request, &reply)
	switch {
	case err != nil:
		return d.failed(c.JSON, raw, err)
	case c.JSON:
		d.json(raw)
	default:
		d.out.Line("%s/%s is %s", tenant, runID, reply.State)
	}
	return nil
}
