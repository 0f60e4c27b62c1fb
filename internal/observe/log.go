package observe

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// withheld are the attribute keys that may hold args, results or text from upstream. They are written at debug only
// (contract §4: none of it enters a log line at info or above).
var withheld = map[string]bool{
	"args": true, "result": true, "body": true, "reply": true, "payload": true, "headers": true, "upstream": true,
}

const logTime = "2006-01-02T15:04:05.000Z"

// NewLogger returns a logger that writes one line per record to w: format is text or json, level is debug, info, warn or
// error. Times are UTC with milliseconds. Attributes named args, result, body, reply, payload, headers or upstream are
// left out at info and above, also inside groups. The logger is safe for concurrent use, whatever w is.
func NewLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	switch level {
	case "debug":
		l = slog.LevelDebug
	case "info":
		l = slog.LevelInfo
	case "warn":
		l = slog.LevelWarn
	case "error":
		l = slog.LevelError
	default:
		return nil, fmt.Errorf("the log level %q is none of debug, info, warn, error", level)
	}
	opts := &slog.HandlerOptions{Level: l, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.String(a.Key, a.Value.Time().UTC().Format(logTime))
		}
		if a.Value.Kind() == slog.KindDuration {
			return slog.String(a.Key, a.Value.Duration().Round(time.Microsecond).String())
		}
		return a
	}}
	w = &oneByOne{w: w}
	switch format {
	case "text":
		return slog.New(discreet{open: slog.NewTextHandler(w, opts), closed: slog.NewTextHandler(w, opts)}), nil
	case "json":
		return slog.New(discreet{open: slog.NewJSONHandler(w, opts), closed: slog.NewJSONHandler(w, opts)}), nil
	}
	return nil, fmt.Errorf("the log format %q is none of text, json", format)
}

// discreet keeps two handlers, because attributes added by With are formatted before the record's level is known: open
// has every attribute and serves debug records, closed lacks the withheld ones and serves all others.
type discreet struct{ open, closed slog.Handler }

func (d discreet) Enabled(ctx context.Context, l slog.Level) bool { return d.open.Enabled(ctx, l) }

func (d discreet) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo {
		return d.open.Handle(ctx, r)
	}
	kept := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if a, ok := harmless(a); ok {
			kept.AddAttrs(a)
		}
		return true
	})
	return d.closed.Handle(ctx, kept)
}

func (d discreet) WithAttrs(attrs []slog.Attr) slog.Handler {
	kept := make([]slog.Attr, 0, len(attrs))
	for _, a := range attrs {
		if a, ok := harmless(a); ok {
			kept = append(kept, a)
		}
	}
	return discreet{open: d.open.WithAttrs(attrs), closed: d.closed.WithAttrs(kept)}
}

func (d discreet) WithGroup(name string) slog.Handler {
	return discreet{open: d.open.WithGroup(name), closed: d.closed.WithGroup(name)}
}

// harmless returns the attribute without its withheld parts, or false if nothing is left.
func harmless(a slog.Attr) (slog.Attr, bool) {
	if withheld[strings.ToLower(a.Key)] {
		return slog.Attr{}, false
	}
	v := a.Value.Resolve()
	if v.Kind() != slog.KindGroup {
		return slog.Attr{Key: a.Key, Value: v}, true
	}
	var kept []slog.Attr
	for _, g := range v.Group() {
		if g, ok := harmless(g); ok {
			kept = append(kept, g)
		}
	}
	return slog.Attr{Key: a.Key, Value: slog.GroupValue(kept...)}, len(kept) > 0
}

// oneByOne keeps the lines of two handlers apart: each handler writes a line in one Write.
type oneByOne struct {
	mu sync.Mutex
	w  io.Writer
}

func (o *oneByOne) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.w.Write(line)
}
