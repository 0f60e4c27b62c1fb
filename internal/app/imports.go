package app

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

const (
	// importTimeout is how long one server has to say which tools it has.
	importTimeout = time.Minute
	importPause   = time.Second // between two tries
)

// importing says what becomes of the tools that are to be taken over from MCP servers.
type importing int

const (
	importNone importing = iota // no server is asked: the config alone is checked
	importWait                  // a server is asked until it says; that it does not is an error
	importMust                  // a server is asked once; that it does not say is an error
	importSeen                  // that it does not say is a warning
)

// borrowed is a tool that is taken over, and by which line of the config.
type borrowed struct {
	by   config.MCPImport
	spec connector.Spec
}

// importer takes tools over from the MCP servers of a config.
type importer struct {
	file     *config.File
	mcp      *mcptool.Kind
	mode     importing
	offers   map[string][]*mcptool.Offer // by server
	own      map[connector.MCPSpec]bool  // that have an entry in the file, or are taken over already
	taken    map[string]string           // names, and whose they are
	borrowed []borrowed
	warnings []config.Warning
}

func newImporter(file *config.File, mcp *mcptool.Kind, mode importing) *importer {
	in := &importer{
		file: file, mcp: mcp, mode: mode,
		offers: map[string][]*mcptool.Offer{}, own: map[connector.MCPSpec]bool{}, taken: map[string]string{},
	}
	for _, s := range file.Tools {
		in.taken[s.Name] = "the file"
		if s.Kind.MCP != nil {
			in.own[*s.Kind.MCP] = true
		}
	}
	return in
}

func (in *importer) warn(at config.MCPImport, format string, args ...any) {
	in.warnings = append(in.warnings, config.Warning{Place: at.Place, Message: fmt.Sprintf(format, args...)})
}

// take asks the servers and describes their tools as the config would. What is wrong comes as Faults.
func (in *importer) take(ctx context.Context) error {
	for _, m := range in.file.MCPImports {
		if _, asked := in.offers[m.Server]; !asked {
			list, err := askServer(ctx, in.mcp, m.Server, in.mode)
			switch {
			case err != nil && in.mode != importSeen:
				return Faults{fmt.Sprintf("%s: %v", m.Place, err)}
			case err != nil:
				in.warn(m, "%v; its tools are not known here", err)
			}
			in.offers[m.Server] = list
		}
		matched := false
		for _, o := range in.offers[m.Server] {
			if !matches(m.Match, o.Name) {
				continue
			}
			matched = true
			if err := in.borrow(m, o); err != nil {
				return err
			}
		}
		if !matched && in.offers[m.Server] != nil {
			in.warn(m, "%s has no tool %s", m.Server, m.Match)
		}
	}
	return nil
}

// borrow takes one tool over, unless it has an entry in the file or is taken over already.
func (in *importer) borrow(m config.MCPImport, o *mcptool.Offer) error {
	ref := connector.MCPSpec{Server: m.Server, Tool: o.Name}
	switch {
	case in.own[ref]:
		return nil
	case !run.ValidTool(o.Name):
		in.warn(m, "a tool of %s is not taken over: its name is none that a job can use", m.Server)
		return nil
	case in.taken[o.Name] != "":
		return Faults{fmt.Sprintf("%s: %s has a tool %s, and so has %s: give it an entry of its own under tools", m.Place, m.Server, o.Name, in.taken[o.Name])}
	}
	in.own[ref], in.taken[o.Name] = true, m.Server
	effect := m.Effect
	if effect == envelope.Read && o.Changes() {
		// A hint may make a tool stricter, never looser.
		effect = envelope.Write
		in.warn(m, "%s of %s is taken over as a write: the server says that it is no read", o.Name, m.Server)
	}
	d := in.file.Defaults
	in.borrowed = append(in.borrowed, borrowed{m, connector.Spec{
		Name: o.Name, Effect: effect, Kind: connector.KindSpec{MCP: &ref}, InputSchema: o.InputSchema, OutputSchema: o.OutputSchema,
		Retry: d.Retry, PoisonAfter: d.PoisonAfter,
	}})
	return nil
}

func matches(pattern, name string) bool {
	if prefix, isPrefix := strings.CutSuffix(pattern, "*"); isPrefix {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// askServer asks for a server's tools. What it says in an error stays out of ours.
func askServer(ctx context.Context, mcp *mcptool.Kind, name string, mode importing) ([]*mcptool.Offer, error) {
	ctx, cancel := context.WithTimeout(ctx, importTimeout)
	defer cancel()
	for {
		list, err := mcp.List(ctx, name)
		if err == nil {
			return list, nil
		}
		if mode == importWait {
			select {
			case <-time.After(importPause):
				continue
			case <-ctx.Done():
			}
		}
		return nil, fmt.Errorf("mcp_servers.%s does not say which tools it has: start it, or correct its url or command", name)
	}
}
