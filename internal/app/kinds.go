package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/commandtool"
	"github.com/agentrun/executor/pkg/connector/httptool"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/connector/natstool"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// importTimeout is how long the start waits for one server to say which tools it has.
const importTimeout = time.Minute

// kinds makes the tools of a process, of every kind. It lives as long as the process; a reload goes through it.
type kinds struct {
	http  *httptool.Kind
	nats  *natstool.Kind
	extra []*connector.Tool // of the program itself

	mu  sync.Mutex
	mcp *mcptool.Kind // of the config as it stands
}

// newKinds makes no connection. extra are the tools that the program adds to the config's. Close it.
func newKinds(extra ...*connector.Tool) *kinds {
	return &kinds{http: httptool.New(), nats: natstool.New(), mcp: mcptool.New(nil), extra: extra}
}

func (k *kinds) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mcp.Close()
	k.nats.Close()
	k.http.Close()
}

// use gives the NATS tools the process's own connection.
func (k *kinds) use(conn natstool.Conn) { k.nats.Use(conn) }

// importing says what becomes of the tools that are to be taken over from MCP servers.
type importing int

const (
	importNone  importing     = iota // no server is asked: the config alone is checked
	importAll                        // a server that does not say is an error
	importSeen                       // a server that does not say is a warning
	importPause = time.Second        // between two tries
)

// load reads the config file and compiles its tools; nothing changes unless all of it is good. What is wrong with the
// content comes as Faults.
func (k *kinds) load(ctx context.Context, path string, lookup func(string) (string, bool), imports importing) (*Toolbox, []config.Warning, error) {
	file, warnings, err := config.Load(path, lookup)
	var wrong config.Errors
	if errors.As(err, &wrong) {
		return nil, warnings, Faults(strings.Split(wrong.Error(), "\n"))
	}
	if err != nil {
		return nil, warnings, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	next := k.mcp.Next(file.MCPServers)
	tools, more, err := k.compile(ctx, file, next, imports)
	warnings = append(warnings, more...)
	if err != nil {
		next.Leave(k.mcp)
		return nil, warnings, err
	}
	registry, err := connector.NewRegistry(append(tools, withDefaults(k.extra, file.Defaults)...)...)
	if err != nil {
		next.Leave(k.mcp)
		return nil, warnings, err
	}
	k.mcp.Leave(next)
	k.mcp = next
	return &Toolbox{File: file, Registry: registry}, warnings, nil
}

// withDefaults gives the program's tools the file's policies where they have none of their own.
func withDefaults(tools []*connector.Tool, d config.Defaults) []*connector.Tool {
	out := make([]*connector.Tool, len(tools))
	for i, t := range tools {
		own := *t
		if own.Retry == (run.Retry{}) {
			own.Retry = d.Retry
		}
		if own.PoisonAfter == 0 {
			own.PoisonAfter = d.PoisonAfter
		}
		out[i] = &own
	}
	return out
}

func (k *kinds) compile(ctx context.Context, file *config.File, mcp *mcptool.Kind, imports importing) (tools []*connector.Tool, warnings []config.Warning, err error) {
	all := []connector.Kind{k.http, k.nats, commandtool.New(), mcp}
	var faults Faults
	for _, spec := range file.Tools {
		tool, err := connector.Compile(spec, all...)
		var fault *connector.SpecError
		switch {
		case errors.As(err, &fault):
			faults = append(faults, file.Locate(spec.Name, fault))
		case err != nil:
			return nil, nil, fmt.Errorf("tool %s: %w", spec.Name, err)
		default:
			tools = append(tools, tool)
		}
	}
	if len(faults) > 0 {
		return nil, nil, faults
	}
	if imports == importNone || len(file.MCPImports) == 0 {
		return tools, nil, nil
	}
	specs, warnings, err := importTools(ctx, file, mcp, imports)
	if err != nil {
		return nil, warnings, err
	}
	for _, spec := range specs {
		tool, err := connector.Compile(spec, all...)
		if err != nil {
			// Only its schemas are not ours, and what they hold is the server's text.
			warnings = append(warnings, importWarning(file, "%s of %s is not taken over: its schemas are no JSON Schema", spec.Name, spec.Kind.MCP.Server))
			continue
		}
		tools = append(tools, tool)
	}
	return tools, warnings, nil
}

func importWarning(file *config.File, format string, args ...any) config.Warning {
	return config.Warning{Place: config.Place{File: file.Name, Line: 1, Column: 1}, Message: fmt.Sprintf(format, args...)}
}

// importTools asks the servers that the config takes tools over from, and describes those tools as the config would.
func importTools(ctx context.Context, file *config.File, mcp *mcptool.Kind, imports importing) (specs []connector.Spec, warnings []config.Warning, err error) {
	own := map[connector.MCPSpec]bool{} // by a tool of the config
	taken := map[string]string{}        // tool to whose it is
	for _, s := range file.Tools {
		taken[s.Name] = "the file"
		if s.Kind.MCP != nil {
			own[*s.Kind.MCP] = true
		}
	}
	offers := map[string][]*mcptool.Offer{}
	for _, m := range file.MCPImports {
		if _, asked := offers[m.Server]; !asked {
			list, err := askServer(ctx, mcp, m.Server, imports)
			if err != nil && imports == importAll {
				return nil, warnings, err
			}
			if err != nil {
				warnings = append(warnings, importWarning(file, "%v; its tools are not known here", err))
			}
			offers[m.Server] = list
		}
		matched := false
		for _, o := range offers[m.Server] {
			if !matches(m.Match, o.Name) {
				continue
			}
			matched = true
			ref := connector.MCPSpec{Server: m.Server, Tool: o.Name}
			switch {
			case own[ref]:
				continue // an entry in the file, or an earlier import, wins
			case !run.ValidTool(o.Name):
				warnings = append(warnings, importWarning(file, "a tool of %s is not taken over: its name is none that a job can use", m.Server))
				continue
			case taken[o.Name] != "":
				return nil, warnings, fmt.Errorf("import: %s has a tool %s, and so has %s: give it an entry of its own under tools", m.Server, o.Name, taken[o.Name])
			}
			own[ref], taken[o.Name] = true, m.Server
			spec := imported(file, m, o)
			if spec.Effect != m.Effect {
				warnings = append(warnings, importWarning(file, "%s of %s is taken over as a write: the server says that it is no read", o.Name, m.Server))
			}
			specs = append(specs, spec)
		}
		if !matched && offers[m.Server] != nil {
			warnings = append(warnings, importWarning(file, "%s has no tool %s", m.Server, m.Match))
		}
	}
	return specs, warnings, nil
}

// imported is the spec of a tool that is taken over: the server's schemas, the file's defaults, and the effect that the
// file says, unless the server says that it is no read.
func imported(file *config.File, m config.MCPImport, o *mcptool.Offer) connector.Spec {
	effect := m.Effect
	if effect == envelope.Read && o.Changes() {
		effect = envelope.Write
	}
	return connector.Spec{
		Name: o.Name, Effect: effect, Kind: connector.KindSpec{MCP: &connector.MCPSpec{Server: m.Server, Tool: o.Name}},
		InputSchema: o.InputSchema, OutputSchema: o.OutputSchema, Retry: file.Defaults.Retry, PoisonAfter: file.Defaults.PoisonAfter,
	}
}

func matches(pattern, name string) bool {
	if prefix, isPrefix := strings.CutSuffix(pattern, "*"); isPrefix {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// askServer asks for a server's tools, again and again until it says, if the process cannot do without. What it says in an
// error stays out of ours.
func askServer(ctx context.Context, mcp *mcptool.Kind, name string, imports importing) ([]*mcptool.Offer, error) {
	ctx, cancel := context.WithTimeout(ctx, importTimeout)
	defer cancel()
	for {
		list, err := mcp.List(ctx, name)
		if err == nil {
			return slices.Clip(list), nil
		}
		if imports == importAll {
			select {
			case <-time.After(importPause):
				continue
			case <-ctx.Done():
			}
		}
		return nil, fmt.Errorf("mcp_servers.%s does not say which tools it has: start it, or correct its url or command", name)
	}
}
