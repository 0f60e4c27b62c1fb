package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/agentrun/executor/internal/child"
	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/mcptool"
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
	kinds.mcp = mcptool.NewListening()
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
	box.File.Warnings = append(warnings, unstartable(box.File)...)
	if err := config.Describe(w, box.File); err != nil {
		return err
	}
	if err := describeOwn(w, c.Tools); err != nil || !c.MCP {
		return err
	}
	return kinds.describeServers(ctx, w, box)
}

// unstartable are warnings of programs that this machine, and this user, could not start: their calls are never sent. They
// are no errors, because the machine that checks may be another one.
func unstartable(f *config.File) (out []config.Warning) {
	try := func(argv []string, env map[string]string, spec connector.ProcessSpec, argvKey, first string, path ...any) {
		err := child.Try(child.Program{Argv: argv, Env: []map[string]string{env}, Setting: child.Setting(spec)})
		if err == nil {
			return
		}
		message := err.Error()
		var cause *child.NotStarted
		if errors.As(err, &cause) && cause.Key != "" {
			message = cause.Err.Error()
			if cause.Key == "argv" {
				path = append(path, argvKey)
			} else {
				for _, key := range strings.Split(cause.Key, ".") {
					path = append(path, key)
				}
			}
		}
		out = append(out, f.Warn("calls will not be sent from this machine: "+message, first, path...))
	}
	for i := range f.Tools {
		t := &f.Tools[i]
		if c := t.Kind.Command; c != nil {
			try(c.Argv, c.Env, c.ProcessSpec, "argv", "tools", t.Name, "command")
		}
		if v := t.Verify; v != nil && v.Kind.Command != nil {
			c := v.Kind.Command
			try(c.Argv, c.Env, c.ProcessSpec, "argv", "tools", t.Name, "verify", "command")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.MCPServers)) {
		if s := f.MCPServers[name]; len(s.Command) > 0 {
			try(s.Command, s.Env, s.ProcessSpec, "command", "mcp_servers", name)
		}
	}
	slices.SortStableFunc(out, func(a, b config.Warning) int { return cmp.Compare(a.Place.Line, b.Place.Line) })
	return out
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
