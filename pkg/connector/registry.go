package connector

import (
	"fmt"
	"maps"
	"slices"

	"github.com/agentrun/executor/pkg/run"
)

// Registry finds tools by name. It does not change once made, and is safe for concurrent use. It is the core's run.Tools.
type Registry struct{ tools map[string]*Tool }

// NewRegistry takes these tools; two of one name are an error.
func NewRegistry(tools ...*Tool) (*Registry, error) {
	r := &Registry{tools: make(map[string]*Tool, len(tools))}
	for _, t := range tools {
		if r.tools[t.Name] != nil {
			return nil, fmt.Errorf("connector: two tools are named %s", t.Name)
		}
		r.tools[t.Name] = t
	}
	return r, nil
}

// Get returns the whole tool.
func (r *Registry) Get(name string) (*Tool, bool) {
	t, ok := r.tools[name]
	return t, ok
}

// Tool implements run.Tools.
func (r *Registry) Tool(name string) (*run.Tool, bool) {
	t, ok := r.tools[name]
	if !ok {
		return nil, false
	}
	return &t.Tool, true
}

// Names lists the tools by name.
func (r *Registry) Names() []string { return slices.Sorted(maps.Keys(r.tools)) }
