package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/terminal"
	"github.com/agentrun/executor/pkg/connector"
)

// journalCommand looks into an executor's journal. The executor must not be running: a journal has one owner.
type journalCommand struct {
	Ls      journalLs      `cmd:"" help:"List the dispatches that the journal knows, oldest first; no args and no results."`
	Check   journalCheck   `cmd:"" help:"Verify the whole file."`
	Compact journalCompact `cmd:"" help:"Rewrite the file without its free pages."`
	Restore journalRestore `cmd:"" help:"Bring what the journal knows into a NATS store that has lost it."`
	Lost    journalLost    `cmd:"" help:"Say that the journal of an executor is lost, so that the fleet does not wait for it after the store has lost records."`
}

type journalFile struct {
	Data string `name:"data" required:"" placeholder:"DIR" help:"Directory of the journal, as given to executor serve."`
}

func (f journalFile) path() string { return app.JournalPath(f.Data) }

type journalLs struct {
	journalFile `embed:""`
	Unsettled   bool `name:"unsettled" help:"Only dispatches of which the end is not settled."`
	JSON        bool `name:"json" help:"One JSON object per line."`
}

type journalCheck struct {
	journalFile `embed:""`
}

type journalRestore struct {
	app.ExecutorConfig `embed:""`
}

func (c *journalRestore) run(ctx context.Context, env app.Env, tools []*connector.Tool) error {
	if err := c.Complete(); err != nil {
		return &app.Usage{Command: name + " journal restore", Err: err}
	}
	c.Log, c.Lookup, c.Tools = env.Stderr, env.Lookup, tools
	if err := app.RestoreJournal(ctx, c.ExecutorConfig); err != nil {
		return err
	}
	fmt.Fprintln(env.Stdout, "restored: every run that this journal knows is in the store, its effects are ok, its open intents are unknown")
	return nil
}

// journalLost needs no journal: it is about one that is not there any more.
type journalLost struct {
	app.Connection `embed:""`
	Journal        string `arg:"" name:"id" help:"The journal's id, as /readyz and doctor name it."`
}

// lostWait is how long the server may take.
const lostWait = 10 * time.Second

func (c *journalLost) run(ctx context.Context, env app.Env) error {
	if err := c.Check(); err != nil {
		return &app.Usage{Command: name + " journal lost", Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, lostWait)
	defer cancel()
	if err := app.LostJournal(ctx, c.Connection, c.Journal); err != nil {
		return err
	}
	fmt.Fprintln(env.Stdout, "nobody waits for journal "+c.Journal+"; the writes that only it knew may be sent again")
	return nil
}

type journalCompact struct {
	journalFile `embed:""`
}

// errUnsound is why journal check exits 1.
var errUnsound = errors.New("the journal is damaged; keep the file, and see the problems above")

func (c *journalCommand) run(ctx context.Context, verb string, env app.Env, tools []*connector.Tool) error {
	switch verb {
	case "ls":
		return c.Ls.run(env)
	case "check":
		return c.Check.run(env)
	case "restore":
		return c.Restore.run(ctx, env, tools)
	case "lost", "lost <id>":
		return c.Lost.run(ctx, env)
	}
	return c.Compact.run(env)
}

// dispatch is one line of journal ls. Args and results stay in the journal.
type dispatch struct {
	Dispatch engine.DispatchID `json:"dispatch"`
	At       string            `json:"at"`
	Ref      string            `json:"operation_ref"`
	Tool     string            `json:"tool"`
	Attempt  int               `json:"attempt"`
	End      string            `json:"end"`
	Settled  bool              `json:"settled"`
}

// endOf says what came back for a dispatch, as far as the journal knows.
func endOf(f engine.Fact) string {
	switch {
	case f.Effect == nil:
		return "no reply known"
	case f.Effect.Reply.OK:
		return strings.TrimSpace("ok " + f.Effect.Reply.EvidenceRef)
	case f.Effect.Reply.NotSent:
		return "not sent"
	}
	return string(f.Effect.Reply.Row.Code)
}

func (c *journalLs) run(env app.Env) error {
	out := bufio.NewWriter(env.Stdout)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	enc := json.NewEncoder(out)
	if !c.JSON {
		fmt.Fprintln(table, "AT\tOPERATION\tTOOL\tATTEMPT\tEND\tSETTLED\tDISPATCH")
	}
	err := journal.List(c.path(), func(f engine.Fact) error {
		if c.Unsettled && f.Settled {
			return nil
		}
		i := f.Intent
		d := dispatch{
			Dispatch: i.Dispatch, At: i.At.String(), Ref: i.Tenant + "/" + i.RunID + "/" + i.Step, Tool: i.Tool,
			Attempt: i.Attempt, End: terminal.Clean(endOf(f)), Settled: f.Settled,
		}
		if c.JSON {
			return enc.Encode(d)
		}
		_, err := fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%v\t%s\n", d.At, d.Ref, d.Tool, d.Attempt, d.End, d.Settled, d.Dispatch)
		return err
	})
	return errors.Join(err, table.Flush(), out.Flush())
}

func (c *journalCheck) run(env app.Env) error {
	r, err := journal.Check(c.path())
	if err != nil {
		return err
	}
	for _, problem := range r.Problems {
		fmt.Fprintln(env.Stdout, problem)
	}
	fmt.Fprintf(env.Stdout, "journal %s: %d intents, %d effects, %d unsettled; opened %d times; %d bytes, %d of them in use\n",
		r.ID, r.Intents, r.Effects, r.Unsettled, r.Starts, r.FileBytes, r.UsedBytes)
	if len(r.Problems) > 0 {
		return fmt.Errorf("%s: %w", c.path(), errUnsound)
	}
	return nil
}

func (c *journalCompact) run(env app.Env) error {
	before, after, err := journal.Compact(c.path())
	if err != nil {
		return err
	}
	fmt.Fprintf(env.Stdout, "%s: %d bytes before, %d after\n", c.path(), before, after)
	return nil
}
