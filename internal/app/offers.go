package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/internal/terminal"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/envelope"
)

// describeServers asks every MCP server of the config for its tools and prints them, with what their annotations say and
// which tools of ours they are.
func (k *kinds) describeServers(ctx context.Context, w io.Writer, box *Toolbox) error {
	k.mu.Lock()
	mcp, away := k.mcp, k.away
	k.mu.Unlock()
	failed := false
	for _, server := range slices.Sorted(maps.Keys(box.File.MCPServers)) {
		fmt.Fprintf(w, "\nMCP server %s\n", server)
		err := away[server]
		var offers []*mcptool.Offer
		if err == nil {
			offers, err = askServer(ctx, mcp, server, importSeen)
		}
		if err != nil {
			describeTrouble(w, err)
			failed = true
		} else if err := describeOffers(w, box, server, offers); err != nil {
			return fmt.Errorf("print the tools: %w", err)
		}
		for _, lack := range lacking(box.File, server, offers) {
			if err == nil {
				fmt.Fprintf(w, "  wrong: %s (%s)\n", lack.what, lack.at)
				failed = true
			}
		}
		for _, odd := range oddities(mcp.Seen(server)) {
			fmt.Fprintf(w, "  warning: %s\n", odd)
		}
	}
	if failed {
		return fmt.Errorf("not every MCP server answers and has what the config names")
	}
	return nil
}

// describeTrouble prints why a server does not say which tools it has, and its own last words: a person reads them, at a
// terminal.
func describeTrouble(w io.Writer, err error) {
	fmt.Fprintf(w, "  %v\n", err)
	var trouble *unasked
	if !errors.As(err, &trouble) || len(trouble.Stderr) == 0 {
		return
	}
	fmt.Fprintln(w, "  the last lines of its standard error:")
	for _, line := range trouble.Stderr {
		fmt.Fprintf(w, "    | %s\n", escaped(line))
	}
}

// lack is something that the config names and a server does not have.
type lack struct {
	what string
	at   config.Place
}

// lacking are the tools that the config names and their server does not have, with the place of each.
func lacking(file *config.File, server string, offers []*mcptool.Offer) (out []lack) {
	var has []string
	for _, o := range offers {
		has = append(has, o.Name)
	}
	look := func(kind connector.KindSpec, who string, path ...any) {
		m := kind.MCP
		if m == nil || m.Server != server || slices.Contains(has, m.Tool) {
			return
		}
		text := fmt.Sprintf("it has no tool %s, which %s calls", m.Tool, who)
		if meant := config.Nearest(m.Tool, has); meant != "" {
			text += ": did you mean " + shown(meant) + "?"
		}
		out = append(out, lack{text, file.Warn("", "tools", append(path, "mcp", "tool")...).Place})
	}
	for i := range file.Tools {
		t := &file.Tools[i]
		look(t.Kind, t.Name, t.Name)
		if t.Verify != nil {
			look(t.Verify.Kind, "the lookup of "+t.Name, t.Name, "verify")
		}
	}
	return out
}

// oddities is what is worth knowing of a server that works.
func oddities(seen mcptool.Seen) (out []string) {
	if seen.Strays > 0 {
		out = append(out, terminal.Count(seen.Strays, "line of its standard output is no JSON-RPC and was skipped", "lines of its standard output are no JSON-RPC and were skipped")+
			": nothing but messages belongs there")
	}
	if seen.Discover != "" && !strings.HasPrefix(seen.Discover, "error ") && !strings.HasPrefix(seen.Discover, "status ") {
		out = append(out, fmt.Sprintf("it does not know server/discover (%s): the start of every process asks it once, in vain", seen.Discover))
	}
	return out
}

func describeOffers(w io.Writer, box *Toolbox, server string, offers []*mcptool.Offer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "  OFFERS\tTHE SERVER SAYS\tSCHEMAS\tHERE")
	for _, o := range offers {
		fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\n", shown(o.Name), hints(o), schemasOf(o), here(box, server, o))
	}
	return tw.Flush()
}

// escaped is a line of a program's text as a terminal may show it: what could move the cursor or hide text is written out.
func escaped(s string) string {
	const most = 300 // bytes
	var b strings.Builder
	for len(s) > 0 && b.Len() < most {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
		s = s[n:]
	}
	if len(s) > 0 {
		b.WriteString("…")
	}
	return b.String()
}

// shown is a server's text as a terminal may show it: one line of bounded length, no control characters.
func shown(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	if r := []rune(s); len(r) > 80 {
		return string(r[:79]) + "…"
	}
	return s
}

func hints(o *mcptool.Offer) string {
	switch {
	case o.ReadOnly != nil && *o.ReadOnly:
		return "read only"
	case o.Destructive != nil && *o.Destructive:
		return "destructive"
	case o.ReadOnly != nil:
		return "changes things"
	}
	return "nothing"
}

func schemasOf(o *mcptool.Offer) string {
	var out []string
	if o.InputSchema != nil {
		out = append(out, "input")
	}
	if o.OutputSchema != nil {
		out = append(out, "output")
	}
	return strings.Join(out, ", ")
}

// here names the tool of the config, or of an import, that an offer is called by.
func here(box *Toolbox, server string, o *mcptool.Offer) string {
	for i := range box.File.Tools {
		s := &box.File.Tools[i]
		if s.Kind.MCP == nil || *s.Kind.MCP != (connector.MCPSpec{Server: server, Tool: o.Name}) {
			continue
		}
		if s.Effect == envelope.Read && o.Changes() {
			return s.Name + ", a read: every call will be refused, the server says that it is none"
		}
		return fmt.Sprintf("%s, a %s", s.Name, s.Effect)
	}
	for _, m := range box.File.MCPImports {
		if m.Server != server || !m.Matches(o.Name) {
			continue
		}
		if t, ok := box.Registry.Get(m.Prefix + o.Name); ok {
			if m.Prefix != "" {
				return fmt.Sprintf("%s, imported, a %s", t.Name, t.Effect)
			}
			return fmt.Sprintf("imported, a %s", t.Effect)
		}
	}
	return ""
}
