package mcptool

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"github.com/agentrun/executor/internal/child"
	"github.com/agentrun/executor/pkg/connector"
)

// Kind makes MCP tools. It talks to no server before the first call, or the first List.
type Kind struct{ servers map[string]*server }

// New returns the kind for these servers, by name.
func New(servers map[string]connector.MCPServerSpec) *Kind {
	k := &Kind{servers: make(map[string]*server, len(servers))}
	for name, spec := range servers {
		k.servers[name] = newServer(spec)
	}
	return k
}

// Close ends every session and every server that was started.
func (k *Kind) Close() {
	var all sync.WaitGroup
	for _, s := range k.servers {
		all.Go(s.close)
	}
	all.Wait()
}

// Name implements connector.Kind.
func (*Kind) Name() string { return connector.KindMCP }

// Prepare implements connector.Kind.
func (k *Kind) Prepare(p connector.Preparation) (connector.Transport, error) {
	s := p.Spec.MCP
	switch {
	case k.servers[s.Server] == nil:
		return nil, &connector.SpecError{Path: []any{"server"}, Message: "mcp_servers has none of this name"}
	case s.Tool == "":
		return nil, &connector.SpecError{Path: []any{"tool"}, Message: "is required: the tool's name on that server"}
	}
	setting := child.Setting(k.servers[s.Server].spec.ProcessSpec)
	if err := setting.Check(); err != nil {
		return nil, &connector.SpecError{Path: []any{"server"}, Message: s.Server + ": " + err.Error()}
	}
	return &tool{server: k.servers[s.Server], name: s.Tool, effect: p.Effect, hasOutput: p.HasOutput || p.Lookup}, nil
}

// List asks a server which tools it offers, in its order. The errors may hold the server's text.
func (k *Kind) List(ctx context.Context, name string) ([]*Offer, error) {
	s := k.servers[name]
	if s == nil {
		return nil, fmt.Errorf("mcp: no server is named %s", name)
	}
	session, err := s.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("mcp: server %s: %w", name, err)
	}
	defer session.release()
	offers, err := session.list(withDispatch(ctx, nil))
	if err != nil {
		return nil, fmt.Errorf("mcp: server %s: %w", name, err)
	}
	return offers, nil
}

// Next is the kind for another version of the config. A server whose description is the same is shared, session and all.
// Of the two kinds one is left behind, by Leave.
func (k *Kind) Next(servers map[string]connector.MCPServerSpec) *Kind {
	next := &Kind{servers: make(map[string]*server, len(servers))}
	for name, spec := range servers {
		if old := k.servers[name]; old != nil && reflect.DeepEqual(old.spec, spec) {
			next.servers[name] = old
			continue
		}
		next.servers[name] = newServer(spec)
	}
	return next
}

// Leave ends what this kind does not share with the other: no call begins there any more, those in flight end by
// themselves.
func (k *Kind) Leave(other *Kind) {
	for name, s := range k.servers {
		if other.servers[name] != s {
			s.leave()
		}
	}
}
