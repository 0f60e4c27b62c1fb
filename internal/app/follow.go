package app

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/agentrun/executor/internal/config"
)

const (
	// watchEvery is how often the files that the config names are looked at. Their content is compared: a Kubernetes
	// volume swaps a symbolic link above them, others write in place or rename, and what tells of changes in a directory
	// tells of each in another way, or not at all.
	watchEvery = 2 * time.Second
	// takeAgain is after how many looks something that could not be taken over is tried again unchanged: an MCP server
	// whose tools are imported may have been away.
	takeAgain = 15
)

// follower takes the config in anew.
type follower struct {
	live     *live
	process  *Process
	kinds    *kinds
	log      *slog.Logger
	done     func()        // called after each change
	reloaded func(ok bool) // told of each attempt
	look     <-chan time.Time

	settling map[string]config.Digest // what the files held at the last look, if that is not what is in force
	refused  map[string]config.Digest // what they held when they could not be taken over
	since    int                      // looks since then
	said     string                   // what was wrong then
}

// follow takes the whole config in anew whenever Reload says so, and the files that it names whenever they hold something
// else, until ctx ends. Everything is validated first: what is bad changes nothing. done is called after each change.
func (t *live) follow(ctx context.Context, c *Process, p *process, done func(), kinds *kinds) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	f := &follower{live: t, process: c, kinds: kinds, log: p.log, done: done, reloaded: p.observer.ConfigReloaded, look: tick.C}
	f.run(ctx)
}

func (f *follower) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case _, more := <-f.process.Reload:
			if !more {
				return
			}
			file, warnings, err := f.kinds.read(f.process.Config, f.process.lookup())
			f.said = "" // who asks gets an answer
			f.take(ctx, "asked to", file, warnings, err)
		case <-f.look:
			f.watch(ctx)
		}
	}
}

// watch looks at the files. What they hold is taken once it has stayed the same from one look to the next, so that nothing
// is taken that is just being written, and once it is what was read then.
func (f *follower) watch(ctx context.Context) {
	old := f.live.box().File
	now := config.HeldNow(old.Files)
	switch {
	case maps.Equal(now, old.Files):
		if f.refused != nil {
			f.refused, f.said = nil, ""
			f.reloaded(true) // they are back to what is in force
		}
		f.settling = nil
		return
	case !maps.Equal(now, f.settling):
		f.settling = now
		return
	case maps.Equal(now, f.refused):
		if f.since++; f.since < takeAgain {
			return
		}
	}
	file, warnings, err := old.Again(f.process.lookup())
	if err == nil && !maps.Equal(file.Files, now) {
		return // changed again just now
	}
	f.refused, f.since = now, 0
	var changed []string
	for path, sum := range now {
		if old.Files[path] != sum {
			changed = append(changed, path)
		}
	}
	slices.Sort(changed)
	f.take(ctx, "changed on disk", file, warnings, err, "files", changed)
}

// take puts a config into force that has been read, if its tools can be made.
func (f *follower) take(ctx context.Context, why string, file *config.File, warnings []config.Warning, err error, also ...any) {
	box, warnings, err := f.kinds.take(ctx, file, warnings, err, f.kinds.again)
	f.reloaded(err == nil)
	if err != nil {
		if text := err.Error(); text != f.said {
			f.said = text // what is tried again and again is said once
			f.log.Error("the config is not reloaded; the old one stays", append([]any{"why", why, "error", err}, also...)...)
		}
		return
	}
	for _, w := range warnings {
		f.log.Warn("config", "warning", w.String())
	}
	f.settling, f.refused, f.said = nil, nil, ""
	f.live.put(box)
	f.done()
	f.log.Info("config reloaded", append([]any{"why", why, "tools", len(box.Registry.Names())}, also...)...)
}
