package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/internal/pause"
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
	away     map[string]error // servers that do not say
}

func newImporter(file *config.File, mcp *mcptool.Kind, mode importing) *importer {
	in := &importer{
		file: file, mcp: mcp, mode: mode,
		offers: map[string][]*mcptool.Offer{}, own: map[connector.MCPSpec]bool{}, taken: map[string]string{}, away: map[string]error{},
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
				in.away[m.Server] = err
				in.warn(m, "%v; its tools are not known here", err)
			}
			in.offers[m.Server] = list
		}
		matched := false
		for _, o := range in.offers[m.Server] {
			if !m.Matches(o.Name) {
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
	ref, name := connector.MCPSpec{Server: m.Server, Tool: o.Name}, m.Prefix+o.Name
	switch {
	case in.own[ref]:
		return nil
	case !run.ValidTool(name):
		in.warn(m, "a tool of %s is not taken over: its name is none that a job can use", m.Server)
		return nil
	case in.taken[name] != "":
		return Faults{fmt.Sprintf("%s: %s has a tool %s, and so has %s: give it an entry of its own under tools, or this import a prefix",
			m.Place, m.Server, name, in.taken[name])}
	}
	in.own[ref], in.taken[name] = true, m.Server
	effect := m.Effect
	if effect == envelope.Read && o.Changes() {
		// A hint may make a tool stricter, never looser.
		effect = envelope.Write
		in.warn(m, "%s of %s is taken over as a write: the server says that it is no read", o.Name, m.Server)
	}
	spec := importedSpec(m, name, ref)
	spec.Effect, spec.PoisonAfter = effect, in.file.Defaults.PoisonAfter
	spec.Listing = connector.Listing{
		Title: o.Title, Description: o.Description, Destructive: o.Destructive, Idempotent: o.Idempotent, OpenWorld: o.OpenWorld,
	}
	var unread [2]int
	spec.InputSchema, unread[0] = connector.ReadableSchema(o.InputSchema)
	spec.OutputSchema, unread[1] = connector.ReadableSchema(o.OutputSchema)
	switch n := unread[0] + unread[1]; {
	case n == 1:
		in.warn(m, "%s of %s: 1 pattern in its schemas cannot be read; no value is held against it", o.Name, m.Server)
	case n > 1:
		in.warn(m, "%s of %s: %d patterns in its schemas cannot be read; no value is held against them", o.Name, m.Server, n)
	}
	in.borrowed = append(in.borrowed, borrowed{m, spec})
	return nil
}

// importedSpec is what the config says of a tool that is taken over.
func importedSpec(m config.MCPImport, name string, ref connector.MCPSpec) connector.Spec {
	return connector.Spec{
		Name: name, Effect: m.Effect, Kind: connector.KindSpec{MCP: &ref}, Timeout: m.Timeout, Retry: m.Retry, SafeDetails: m.SafeDetails,
	}
}

// checkImports compiles what the config itself says of tools that are to be taken over, whatever their server has.
func checkImports(file *config.File, kinds []connector.Kind) (faults Faults) {
	for _, m := range file.MCPImports {
		_, err := connector.Compile(importedSpec(m, "imported", connector.MCPSpec{Server: m.Server, Tool: "imported"}), kinds...)
		var fault *connector.SpecError
		if errors.As(err, &fault) {
			path := ""
			for _, key := range fault.Path {
				path += fmt.Sprintf(".%v", key)
			}
			text := fmt.Sprintf("import of %s%s: %s", m.Match, path, fault.Message)
			for _, secret := range file.Secrets {
				text = strings.ReplaceAll(text, secret, "[redacted]")
			}
			faults = append(faults, m.Place.String()+": "+text)
		}
	}
	return faults
}

// unasked is a server that does not say which tools it has.
type unasked struct {
	server string
	*mcptool.Trouble
}

func (e *unasked) Error() string {
	return fmt.Sprintf("mcp_servers.%s does not say which tools it has: %s; start it, or correct its url or command", e.server, e.Cause)
}

// askServer asks for a server's tools. An error is an *unasked.
func askServer(ctx context.Context, mcp *mcptool.Kind, name string, mode importing) ([]*mcptool.Offer, error) {
	ctx, cancel := context.WithTimeout(ctx, importTimeout)
	defer cancel()
	out := &unasked{name, &mcptool.Trouble{Cause: "it has not answered in time"}}
	for {
		list, err := mcp.List(ctx, name)
		if err == nil {
			return list, nil
		}
		errors.As(err, &out.Trouble)
		if mode == importWait && pause.For(ctx, importPause) {
			continue
		}
		return nil, out
	}
}
