package app

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/pkg/connector"
)

// Checking is what executor check looks at.
type Checking struct {
	Config string
	MCP    bool              // also ask the MCP servers which tools they offer
	Tools  []*connector.Tool // of the program itself
}

// Check reads the config file as a process does at its start, compiles every tool and prints them as a table to w, with
// the warnings. What is wrong with the content comes as Faults, with the warnings in front. Without MCP it stays off the
// network, and tools that are to be taken over are only named by their patterns.
func Check(ctx context.Context, w io.Writer, c Checking, lookup func(string) (string, bool)) error {
	kinds := newKinds(c.Tools...)
	defer kinds.close()
	imports := importNone
	if c.MCP {
		imports = importSeen
	}
	box, warnings, err := kinds.load(ctx, c.Config, lookup, imports)
	if err != nil {
		faults, ok := err.(Faults)
		if !ok {
			return err
		}
		lines := make(Faults, 0, len(warnings)+len(faults))
		for _, warning := range warnings {
			lines = append(lines, warning.String())
		}
		return append(lines, faults...)
	}
	box.File.Warnings = warnings
	if err := config.Describe(w, box.File); err != nil {
		return err
	}
	if err := describeOwn(w, c.Tools); err != nil || !c.MCP {
		return err
	}
	return kinds.describeServers(ctx, w, box)
}

// describeOwn prints the tools that are no part of the config.
func describeOwn(w io.Writer, tools []*connector.Tool) error {
	if len(tools) == 0 {
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "\nTOOL OF THIS PROGRAM\tEFFECT\tTIMEOUT\tVERIFY")
	for _, t := range tools {
		verify := "no"
		if t.Looker != nil {
			verify = "yes"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", t.Name, t.Effect, t.Timeout, verify)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("print the tools: %w", err)
	}
	return nil
}
