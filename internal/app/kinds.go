package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/commandtool"
	"github.com/agentrun/executor/pkg/connector/httptool"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/connector/natstool"
	"github.com/agentrun/executor/pkg/run"
)

// kinds makes the tools of a process, of every kind. It lives as long as the process; a reload goes through it.
type kinds struct {
	http  *httptool.Kind
	nats  *natstool.Kind
	extra []*connector.Tool // of the program itself
	again importing         // at a reload
	data  []byte            // the config itself, where there is no file

	mu   sync.Mutex
	mcp  *mcptool.Kind    // of the config as it stands
	away map[string]error // its servers that did not say which tools they have
}

// newKinds makes no connection. extra are the tools that the program adds to the config's. Close it.
func newKinds(extra ...*connector.Tool) *kinds {
	return &kinds{http: httptool.New(), nats: natstool.New(), mcp: mcptool.New(nil), extra: extra, again: importSeen}
}

func (k *kinds) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mcp.Close()
	k.nats.Close()
	k.http.Close()
}

// watch has the process told of its MCP servers, also of what they have done already.
func (k *kinds) watch(p *process) {
	k.mcp.Watch(mcptool.Watch{Log: p.log, Stray: p.observer.StrayLine})
}

// use gives the NATS tools the process's own connection.
func (k *kinds) use(conn natstool.Conn) { k.nats.Use(conn) }

// load reads the config file and compiles its tools; nothing changes unless all of it is good. What is wrong with the
// content comes as Faults.
func (k *kinds) load(ctx context.Context, path string, lookup func(string) (string, bool), imports importing) (*Toolbox, []config.Warning, error) {
	file, warnings, err := k.read(path, lookup)
	return k.take(ctx, file, warnings, err, imports)
}

// take compiles the tools of a config that has been read, with what its reading came to.
func (k *kinds) take(ctx context.Context, file *config.File, warnings []config.Warning, err error, imports importing) (*Toolbox, []config.Warning, error) {
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

func (k *kinds) read(path string, lookup func(string) (string, bool)) (*config.File, []config.Warning, error) {
	if k.data != nil {
		return config.LoadBytes("config", k.data, lookup)
	}
	return config.Load(path, lookup)
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
	if faults = append(faults, checkImports(file, all)...); len(faults) > 0 {
		return nil, nil, faults
	}
	if imports == importNone {
		return tools, nil, nil
	}
	in := newImporter(file, mcp, imports)
	k.away = in.away
	if err := in.take(ctx); err != nil {
		return nil, in.warnings, err
	}
	for _, b := range in.borrowed {
		tool, err := connector.Compile(b.spec, all...)
		if err != nil {
			// Only its schemas are not ours, and what they hold is the server's text.
			in.warn(b.by, "%s of %s is not taken over: its schemas are no JSON Schema", b.spec.Name, b.by.Server)
			continue
		}
		tools = append(tools, tool)
	}
	return tools, in.warnings, nil
}
