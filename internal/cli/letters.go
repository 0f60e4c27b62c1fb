package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/operator"
	"github.com/agentrun/executor/internal/terminal"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	agentrun "github.com/agentrun/executor/pkg/run"
)

type deadlettersCommand struct {
	List    lettersList    `cmd:"" help:"List the open dead letters, oldest first."`
	Show    letterShow     `cmd:"" help:"Print the story of a run and what may be done about its letter."`
	Claim   letterClaim    `cmd:"" help:"Take the oldest letter that nobody has."`
	Replay  letterReplay   `cmd:"" help:"Go on after the last proven step: one run, or all that flags choose."`
	Resolve letterResolve  `cmd:"" help:"Say what became of a write."`
	Approve letterApproval `cmd:"" help:"Allow exactly the args that were refused."`
	Discard letterDiscard  `cmd:"" help:"Settle a letter and leave the run as it ended: one run, or all that flags choose."`
	Assign  letterAssign   `cmd:"" help:"Hand a letter to another owner, who is told: one run, or all that flags choose."`
}

// choosing are the flags that choose letters.
type choosing struct {
	Owner      string        `name:"owner" placeholder:"NAME" help:"Only this owner's."`
	ReasonCode string        `name:"reason-code" placeholder:"CODE" help:"Only those with this reason."`
	Tool       string        `name:"tool" placeholder:"NAME" help:"Only those of this tool."`
	OlderThan  time.Duration `name:"older-than" placeholder:"D" help:"Only those that are open for longer."`
	Limit      int           `name:"limit" placeholder:"N" help:"At most so many."`
}

func (c *choosing) filter(now time.Time) operator.Filter {
	f := operator.Filter{Owner: c.Owner, ReasonCode: c.ReasonCode, Tool: c.Tool}
	if c.OlderThan > 0 {
		f.Before = envelope.TimeOf(now.Add(-c.OlderThan))
	}
	return f
}

type lettersList struct {
	asking   `embed:""`
	choosing `embed:""`
	Watch    bool `name:"watch" short:"w" help:"Show the list again when it changes, until a stop signal."`
}

func (c *lettersList) run(ctx context.Context, d *desk) error {
	return d.show(ctx, c.Watch, func(ctx context.Context) ([]json.RawMessage, func() error, error) {
		list, total, err := c.pages(ctx, d)
		return list, func() error { return c.print(d, list, total) }, err
	})
}

// pages reads page by page up to --limit, by default all.
func (c *lettersList) pages(ctx context.Context, d *desk) (list []json.RawMessage, total int, err error) {
	request := operator.LettersRequest{Filter: c.filter(time.Now())}
	for {
		limit := 1000
		if c.Limit > 0 {
			limit = min(limit, c.Limit-len(list))
		}
		request.Limit = &limit
		var page operator.LetterPage
		raw, err := d.call(ctx, "deadletters.list", c.everyone(), request, &page)
		if err != nil {
			return nil, 0, d.failed(c.JSON, raw, err)
		}
		list = append(list, page.DeadLetters...)
		if request.After = page.After; page.After == "" || c.Limit > 0 && len(list) >= c.Limit {
			return list, page.Total, nil
		}
	}
}

func (c *lettersList) print(d *desk, list []json.RawMessage, total int) error {
	if c.JSON {
		return d.list("deadletters", list, total)
	}
	letters := make([]deadletter.Summary, len(list))
	for i, data := range list {
		if err := json.Unmarshal(data, &letters[i]); err != nil {
			return fmt.Errorf("a letter in the answer: %w", err)
		}
	}
	switch {
	case len(letters) == 0:
		d.out.Line("no open dead letters")
	default:
		d.out.Letters(letters, time.Now(), d.width)
		if total > len(letters) {
			d.out.Line("%d of %d", len(letters), total)
		}
	}
	return nil
}

type letterShow struct {
	asking `embed:""`
	one    `embed:""`
}

func (c *letterShow) run(ctx context.Context, d *desk) error {
	return story(ctx, d, &c.asking, c.Run, true)
}

type letterClaim struct {
	asking `embed:""`
	By     string        `name:"by" placeholder:"NAME" help:"Who takes it (default: $USER)."`
	Owner  string        `name:"owner" placeholder:"NAME" help:"Only this owner's."`
	For    time.Duration `name:"for" default:"5m" placeholder:"D" help:"For how long."`
}

func (c *letterClaim) run(ctx context.Context, d *desk) error {
	if c.By == "" {
		c.By = d.env.Getenv("USER")
	}
	if c.By == "" {
		return &app.Usage{Command: d.command, Err: errors.New("--by: say who you are ($USER is not set)")}
	}
	request := operator.ClaimRequest{Owner: c.Owner, By: c.By, ForSeconds: new(c.For.Seconds())}
	var reply operator.LetterShape
	raw, err := d.call(ctx, "deadletters.claim", c.everyone(), request, &reply)
	if err != nil || c.JSON {
		if err == nil {
			d.json(raw)
		}
		return d.failed(c.JSON && err != nil, raw, err)
	}
	if reply.DeadLetter == nil {
		d.out.Line("no unclaimed dead letters")
		return nil
	}
	l := reply.DeadLetter
	d.out.Line("yours for %s: %s", c.For, l.ID)
	d.out.Line("")
	c.Tenant = l.Tenant
	return story(ctx, d, &c.asking, l.RunID, true)
}

// many is a change of one letter, or of all that flags choose.
type many struct {
	acting   `embed:""`
	choosing `embed:""`
	Run      string `arg:"" optional:"" name:"run" help:"The run: RUN_ID with --tenant, or TENANT/RUN_ID. Without it, flags choose."`
	All      bool   `name:"all" help:"All of the tenant's letters, where no other flag chooses."`
}

// change is the request of each call that changes one letter or many: replay has most, assign says to whom.
type change struct {
	operator.ReplayRequest
	To string `json:"to,omitempty"`
}

func (m *many) run(ctx context.Context, d *desk, verb string, ch change) error {
	if err := m.person(d.env, d.command); err != nil {
		return err
	}
	ch.By, ch.Reason = m.By, m.Reason
	if m.Run == "" {
		return m.bulk(ctx, d, verb, ch)
	}
	tenant, runID, err := m.about(d.command, m.Run)
	if err != nil {
		return err
	}
	if m.choosing != (choosing{}) || m.All {
		return &app.Usage{Command: d.command, Err: errors.New("name a run, or choose by flags, not both")}
	}
	if err := d.confirm(m.Yes, "%s the dead letter of %s/%s", verb, tenant, runID); err != nil {
		return err
	}
	ch.RunID, ch.Letter = runID, m.Letter
	return episode(ctx, d, &m.asking, verb, tenant, ch)
}

// episode makes a change of one letter and says which episode goes on.
func episode(ctx context.Context, d *desk, a *asking, verb, tenant string, request any) error {
	var reply client.Episode
	raw, err := d.call(ctx, "deadletters."+verb, tenant, request, &reply)
	switch {
	case err != nil:
		return d.failed(a.JSON, raw, err)
	case a.JSON:
		d.json(raw)
	case reply.Episode > 0:
		d.out.Line("%s/%s goes on in episode %d", tenant, reply.RunID, reply.Episode)
	default:
		d.out.Line("done")
	}
	return nil
}

func (m *many) bulk(ctx context.Context, d *desk, verb string, ch change) error {
	usage := func(text string) error { return &app.Usage{Command: d.command, Err: errors.New(text)} }
	chosen := m.choosing
	chosen.Limit = 0
	switch {
	case m.Tenant == "" || m.Tenant == client.AllTenants:
		return usage("--tenant: name the tenant whose letters are meant")
	case chosen == (choosing{}) && !m.All:
		return usage("name a run, choose letters by flags, or say --all")
	case m.Letter != "":
		return usage("--letter: goes with one run")
	}
	limit := cmp.Or(m.Limit, 100)
	ch.Filter, ch.Limit = new(m.filter(time.Now())), &limit
	if err := d.confirm(m.Yes, "%s up to %d dead letters of %s", verb, limit, m.Tenant); err != nil {
		return err
	}
	var reply client.BulkReply
	d.timeout = max(d.timeout, time.Minute)
	raw, err := d.call(ctx, "deadletters."+verb, m.Tenant, ch, &reply)
	if err != nil {
		return d.failed(m.JSON, raw, err)
	}
	failed := 0
	for _, r := range reply.Results {
		if !r.OK {
			failed++
		}
	}
	if m.JSON {
		d.json(raw)
	} else {
		for _, r := range reply.Results {
			if !r.OK {
				d.out.Line("%s/%s  %s", m.Tenant, r.RunID, r.Code)
			}
		}
		d.out.Line("%d done, %d refused, %d left", len(reply.Results)-failed, failed, reply.Left)
	}
	if failed > 0 {
		return errors.New(terminal.Count(failed, "letter was refused", "letters were refused"))
	}
	return nil
}

type letterReplay struct {
	many      `embed:""`
	Args      string `name:"args" placeholder:"JSON|@FILE" help:"Other args for the step that failed."`
	AddBudget string `name:"add-budget" placeholder:"JSON" help:"What to add to the run's budget, with the keys of a job's budget."`
}

func (c *letterReplay) run(ctx context.Context, d *desk) error {
	args, err := jsonValue(d.command, "--args", c.Args)
	if err != nil {
		return err
	}
	add, err := jsonValue(d.command, "--add-budget", c.AddBudget)
	if err != nil {
		return err
	}
	if err := app.KnownKeys(add, budget.Request{}, "--add-budget"); err != nil {
		return &app.Usage{Command: d.command, Err: err}
	}
	return c.many.run(ctx, d, "replay", change{ReplayRequest: operator.ReplayRequest{Args: args, AddBudget: add}})
}

type letterDiscard struct {
	many `embed:""`
}

func (c *letterDiscard) run(ctx context.Context, d *desk) error {
	return c.many.run(ctx, d, "discard", change{})
}

type letterAssign struct {
	many `embed:""`
	To   string `name:"to" required:"" placeholder:"OWNER" help:"The new owner."`
}

func (c *letterAssign) run(ctx context.Context, d *desk) error {
	if !agentrun.ValidID(c.To) {
		return &app.Usage{Command: d.command, Err: fmt.Errorf("--to: %q is no owner (letters, digits, _ and -, at most 64, the first a letter or digit)", c.To)}
	}
	return c.many.run(ctx, d, "assign", change{To: c.To})
}

// answering is a change of one letter that must have been read.
type answering struct {
	acting `embed:""`
	one    `embed:""`
	Step   string `name:"step" placeholder:"NAME" help:"Which step, where more than one is open."`
}

// run makes the call, which request makes of what all answers say; what names it to the person who is asked.
func (c *answering) run(ctx context.Context, d *desk, verb, what string, request func(operator.ApproveRequest) any) error {
	if err := c.person(d.env, d.command); err != nil {
		return err
	}
	tenant, runID, err := c.about(d.command, c.Run)
	if err != nil {
		return err
	}
	if c.Letter == "" && strings.Count(c.Run, "/") == 2 {
		c.Letter = c.Run // the run was named by its letter
	}
	if c.Letter == "" {
		return &app.Usage{Command: d.command, Err: fmt.Errorf("--letter: name the letter that you have read; reconciler deadletters show %s/%s prints its id", tenant, runID)}
	}
	if err := d.confirm(c.Yes, "%s letter %s", what, c.Letter); err != nil {
		return err
	}
	a := operator.ApproveRequest{RunID: runID, Letter: c.Letter, Step: c.Step, By: c.By, Reason: c.Reason}
	return episode(ctx, d, &c.asking, verb, tenant, request(a))
}

type letterResolve struct {
	answering   `embed:""`
	CommitState string `name:"commit-state" required:"" enum:"committed,not_committed" placeholder:"committed|not_committed" help:"What you have established."`
	Result      string `name:"result" placeholder:"JSON|@FILE" help:"The write's result, for later steps that need it."`
	EvidenceRef string `name:"evidence-ref" placeholder:"TEXT" help:"What proves it, e.g. the provider's id."`
}

func (c *letterResolve) run(ctx context.Context, d *desk) error {
	result, err := jsonValue(d.command, "--result", c.Result)
	if err != nil {
		return err
	}
	return c.answering.run(ctx, d, "resolve", "resolve "+c.CommitState, func(a operator.ApproveRequest) any {
		return operator.ResolveRequest{
			RunID: a.RunID, Letter: a.Letter, Step: a.Step, By: a.By, Reason: a.Reason,
			CommitState: envelope.CommitState(c.CommitState), Result: result, EvidenceRef: c.EvidenceRef,
		}
	})
}

type letterApproval struct {
	answering `embed:""`
}

func (c *letterApproval) run(ctx context.Context, d *desk) error {
	return c.answering.run(ctx, d, "approve", "approve", func(a operator.ApproveRequest) any { return a })
}
