package app

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/envelope"
)

// describeServers asks every MCP server of the config for its tools and prints them, with what their annotations say and
// which tools of ours they are.
func (k *kinds) describeServers(ctx context.Context, w io.Writer, box *Toolbox) error {
	k.mu.Lock()
	mcp := k.mcp
	k.mu.Unlock()
	failed := false
	for _, server := range slices.Sorted(maps.Keys(box.File.MCPServers)) {
		fmt.Fprintf(w, "\nMCP server %s\n", server)
		offers, err := askServer(ctx, mcp, server, importSeen)
		if err != nil {
			fmt.Fprintf(w, "  %v\n", err)
			failed = true
			continue
		}
		if err := describeOffers(w, box, server, offers); err != nil {
			return fmt.Errorf("print the tools: %w", err)
		}
	}
	if failed {
		return fmt.Errorf("not every MCP server answers")
	}
	return nil
}

func describeOffers(w io.Writer, box *Toolbox, server string, offers []*mcptool.Offer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "  OFFERS\tTHE SERVER SAYS\tSCHEMAS\tHERE")
	for _, o := range offers {
		fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\n", shown(o.Name), hints(o), schemasOf(o), here(box, server, o))
	}
	return tw.Flush()
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
