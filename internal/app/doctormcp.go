package app

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/internal/terminal"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/envelope"
)

// mcpServers asks every MCP server for its tools, all at once. One that is a program is started for it, and ended.
func (d *doctor) mcpServers(ctx context.Context, file *config.File) {
	listening := mcptool.NewListening()
	kind := listening.Next(file.MCPServers)
	defer kind.Close()
	type said struct {
		offers []*mcptool.Offer
		err    error
	}
	names := slices.Sorted(maps.Keys(file.MCPServers))
	answers := make([]said, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { answers[i].offers, answers[i].err = askServer(ctx, kind, name, importSeen) })
	}
	all.Wait()
	for i, name := range names {
		d.mcpServer(file, name, answers[i].offers, answers[i].err, kind.Seen(name))
	}
}

func (d *doctor) mcpServer(file *config.File, name string, offers []*mcptool.Offer, err error, seen mcptool.Seen) {
	check := "mcp " + name
	if err != nil {
		trouble, found := err.(*unasked), ""
		if n := len(trouble.Stderr); n > 0 {
			found = "; its standard error ends with: " + escaped(trouble.Stderr[n-1])
		}
		d.find(check, Ill, "start it, or correct its url or command; executor check --mcp tells more", "%s%s", trouble.Cause, found)
		return
	}
	var lacks []string
	for _, l := range lacking(file, name, offers) {
		lacks = append(lacks, l.what)
	}
	if lacks = append(lacks, refusing(file, name, offers)...); len(lacks) > 0 {
		d.find(check, Ill, "correct the tool's name or effect, or the server; executor check --mcp lists what it has", "%s", strings.Join(lacks, "; "))
		return
	}
	if odd := oddities(seen); len(odd) > 0 {
		d.find(check, Doubtful, "mend the server, if it is yours", "%s; %s", terminal.Count(len(offers), "tool", "tools"), strings.Join(odd, "; "))
		return
	}
	for _, m := range file.MCPImports {
		if m.Server == name && !slices.ContainsFunc(offers, func(o *mcptool.Offer) bool { return m.Matches(o.Name) }) {
			d.find(check, Doubtful, "correct the pattern of the import", "%s, and none is %s", terminal.Count(len(offers), "tool", "tools"), m.Match)
			return
		}
	}
	d.find(check, Well, "", "%s", terminal.Count(len(offers), "tool", "tools"))
}

// refusing are the tools that the config calls reads and their server does not.
func refusing(file *config.File, server string, offers []*mcptool.Offer) (out []string) {
	for _, o := range offers {
		for i := range file.Tools {
			t := &file.Tools[i]
			if m := t.Kind.MCP; m != nil && m.Server == server && m.Tool == o.Name && t.Effect == envelope.Read && o.Changes() {
				out = append(out, fmt.Sprintf("every call of %s will be refused: it is a read here, and the server says that %s is none", t.Name, m.Tool))
			}
		}
	}
	return out
}
