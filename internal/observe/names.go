package observe

import (
	"strings"
	"sync"
)

// Labels come from config files and jobs, and every new value costs memory for as long as the process lives: beyond
// labelCap values of a kind, or longer than labelBytesMax, a value is shown as "other".
const (
	labelCap      = 200
	labelBytesMax = 128
	other         = "other"
)

// names are the label values of one kind that have been seen. Safe for concurrent use.
type names struct {
	mu   sync.RWMutex
	seen map[string]bool
}

func newNames(known ...string) *names {
	n := &names{seen: make(map[string]bool)}
	for _, name := range known {
		n.label(name)
	}
	return n
}

// label returns the name itself while there is room, else "other". The empty name is always itself.
func (n *names) label(name string) string {
	if name == "" {
		return ""
	}
	if n.known(name) {
		return name
	}
	if len(name) > labelBytesMax || strings.ToValidUTF8(name, "") != name {
		return other
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.seen[name] {
		return name
	}
	if len(n.seen) >= labelCap {
		return other
	}
	// The name may be a slice of a whole job: keep a copy of its own.
	name = strings.Clone(name)
	n.seen[name] = true
	return name
}

// known reports whether the name has been seen and is shown as itself.
func (n *names) known(name string) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.seen[name]
}
