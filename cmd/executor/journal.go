package main

import (
	"context"
	"fmt"

	"github.com/agentrun/executor/internal/app"
)

// journalCommand looks into an executor's journal. The executor must not be running: a journal has one owner.
type journalCommand struct {
	Ls      journalFile `cmd:"" help:"List the dispatches that the journal knows, unsettled ones first."`
	Check   journalFile `cmd:"" help:"Verify the whole file."`
	Compact journalFile `cmd:"" help:"Rewrite the file without its free pages."`
}

type journalFile struct {
	Data string `name:"data" required:"" placeholder:"DIR" help:"Directory of the journal, as given to executor serve."`
}

func (c *journalCommand) run(_ context.Context, verb string, _ app.Env) error {
	return fmt.Errorf("journal %s is not there yet", verb)
}
