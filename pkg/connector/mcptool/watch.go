package mcptool

import (
	"log/slog"
	"sync"
)

// Watch is told what a person should know of the servers. None of it is a server's own text.
type Watch struct {
	Log *slog.Logger
	// Stray counts a line of a server's standard output that was skipped because it is no JSON-RPC. Called concurrently.
	Stray func(server string)
}

// desk keeps what is said until somebody listens: a process asks servers for their tools before it has a log.
type desk struct {
	mu     sync.Mutex
	watch  *Watch
	said   []func(*slog.Logger)
	strays []string
}

// The most that is kept for one who comes late.
const (
	saidMax   = 1000
	straysMax = 100_000
)

func (d *desk) listen(w *Watch) {
	d.mu.Lock()
	said, strays := d.said, d.strays
	d.watch, d.said, d.strays = w, nil, nil
	d.mu.Unlock()
	for _, say := range said {
		say(w.Log)
	}
	for _, server := range strays {
		w.Stray(server)
	}
}

func (d *desk) say(what func(*slog.Logger)) {
	d.mu.Lock()
	w := d.watch
	if w == nil && len(d.said) < saidMax {
		d.said = append(d.said, what)
	}
	d.mu.Unlock()
	if w != nil {
		what(w.Log)
	}
}

// stray counts a line; first says that it is the first of its process.
func (d *desk) stray(server string, first bool) {
	d.mu.Lock()
	w := d.watch
	if w == nil && len(d.strays) < straysMax {
		d.strays = append(d.strays, server)
	}
	d.mu.Unlock()
	if w != nil {
		w.Stray(server)
	}
	if first {
		d.say(func(l *slog.Logger) {
			l.Warn("an MCP server writes to its standard output what is no JSON-RPC: such lines are skipped, and not shown, because they may be a tool's text",
				"server", server)
		})
	}
}
