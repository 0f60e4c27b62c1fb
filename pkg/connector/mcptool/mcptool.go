package mcptool

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/agentrun/executor/internal/child"
	"github.com/agentrun/executor/pkg/connector"
)

// Kind makes MCP tools. It talks to no server before the first call, or the first List.
type Kind struct {
	servers  map[string]*server
	desk     *desk
	patience patience
	listens  bool
}

// New returns the kind for these servers, by name. It reads their TLS files, and nothing else.
func New(servers map[string]connector.MCPServerSpec) *Kind { return newKind(servers, patient, false) }

// NewListening returns a kind that also listens to the standard error of the servers that it starts, for Trouble: for a
// person who looks for what is wrong, never for a process whose words are kept.
func NewListening() *Kind { return newKind(nil, patient, true) }

func newKind(servers map[string]connector.MCPServerSpec, p patience, listens bool) *Kind {
	k := &Kind{servers: make(map[string]*server, len(servers)), desk: &desk{}, patience: p, listens: listens}
	for name, spec := range servers {
		k.servers[name] = k.newServer(name, spec)
	}
	return k
}

// Watch has w told of what these servers do, and those of all kinds that Next makes; also of what they have done already.
// Call it once.
func (k *Kind) Watch(w Watch) { k.desk.listen(&w) }

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
	case k.servers[s.Server].fault != nil:
		return nil, &connector.SpecError{Path: []any{"server"}, Message: "cannot be used: " + k.servers[s.Server].wrong()}
	case s.Tool == "":
		return nil, &connector.SpecError{Path: []any{"tool"}, Message: "is required: the tool's name on that server"}
	}
	setting := child.Setting(k.servers[s.Server].spec.ProcessSpec)
	if err := setting.Check(); err != nil {
		return nil, &connector.SpecError{Path: []any{"server"}, Message: s.Server + ": " + err.Error()}
	}
	return &tool{server: k.servers[s.Server], name: s.Tool, effect: p.Effect, hasOutput: p.HasOutput || p.Lookup}, nil
}

// wrong names what is wrong with the server's TLS files.
func (s *server) wrong() string {
	words := make([]string, len(s.fault.Path))
	for i, key := range s.fault.Path {
		words[i] = fmt.Sprint(key)
	}
	return fmt.Sprintf("its %s %s", strings.Join(words, "."), s.fault.Message)
}

// List asks a server which tools it offers, in its order. An error is a *Trouble, if it is not that of ctx.
func (k *Kind) List(ctx context.Context, name string) ([]*Offer, error) {
	s := k.servers[name]
	if s == nil {
		return nil, &Trouble{Cause: "mcp_servers has none of this name"}
	}
	if s.fault != nil {
		return nil, &Trouble{Cause: s.wrong()}
	}
	session, err := s.acquire(ctx)
	switch {
	case errors.Is(err, errClosed):
		return nil, &Trouble{Cause: "its session ended as soon as it had begun"}
	case err != nil:
		return nil, err
	}
	defer session.release()
	offers, err := session.list(withDispatch(ctx, nil))
	if err != nil && ctx.Err() == nil {
		return nil, session.listTrouble(err)
	}
	return offers, err
}

// Seen is what has been seen of a server beside what it was asked for.
type Seen struct {
	Discover string // what came of server/discover, if it does not know it
	Strays   int    // lines of its standard output that were no JSON-RPC
}

// Seen returns what has been seen of a server so far.
func (k *Kind) Seen(name string) Seen {
	s := k.servers[name]
	if s == nil {
		return Seen{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return Seen{Discover: s.found, Strays: s.strays}
}

// Next is the kind for another version of the config. A server whose description is the same, and whose TLS files hold the
// same, is shared, session and all. Of the two kinds one is left behind, by Leave.
func (k *Kind) Next(servers map[string]connector.MCPServerSpec) *Kind {
	next := newKind(nil, k.patience, k.listens)
	next.desk = k.desk
	for name, spec := range servers {
		s := next.newServer(name, spec)
		if old := k.servers[name]; old != nil && old.fault == nil && old.files == s.files && reflect.DeepEqual(old.spec, spec) {
			s = old
		}
		next.servers[name] = s
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
