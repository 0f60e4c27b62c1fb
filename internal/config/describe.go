package config

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/agentrun/executor/pkg/connector"
)

// Describe prints the tools as a table, and the warnings: what executor check shows. Targets are as written, with
// ${NAME} in place of what the environment holds.
func Describe(w io.Writer, f *File) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "TOOL\tEFFECT\tKIND\tTARGET\tTIMEOUT\tSAFETY\tAPPROVAL\tATTEMPTS")
	for i := range f.Tools {
		s := &f.Tools[i]
		approval := "no"
		if s.RequiresApproval {
			approval = "required"
		}
		n := f.doc.root.pair("tools").value.pair(s.Name).value
		kind, where := target(n, s)
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", s.Name, s.Effect, kind, where, short(s.Timeout), safety(s),
			approval, s.Retry.MaxAttempts)
	}
	for i := range f.MCPImports {
		m := &f.MCPImports[i]
		from, gone := "imported from "+m.Server, takenAway(f, m)
		if slices.Contains(gone, m.Match) {
			continue
		}
		if len(gone) > 0 {
			from += ", without " + strings.Join(gone, ", ")
		}
		fmt.Fprintf(tw, "%s\t%s\tmcp\t%s\t%s\t%s\tno\t%d\n", m.Prefix+m.Match, m.Effect, printable(from), short(m.Timeout),
			safety(&connector.Spec{Effect: m.Effect}), m.Retry.MaxAttempts)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("print the tools: %w", err)
	}
	for _, warning := range f.Warnings {
		if _, err := fmt.Fprintln(w, warning); err != nil {
			return fmt.Errorf("print the warnings: %w", err)
		}
	}
	return nil
}

// takenAway are the tools of the import that have an entry under tools: they are not imported.
func takenAway(f *File, m *MCPImport) (names []string) {
	for i := range f.Tools {
		if t := f.Tools[i].Kind.MCP; t != nil && t.Server == m.Server && m.Matches(t.Tool) && !slices.Contains(names, t.Tool) {
			names = append(names, t.Tool)
		}
	}
	return names
}

// Matches reports whether a tool of the server is meant.
func (m *MCPImport) Matches(tool string) bool {
	if beginning, open := strings.CutSuffix(m.Match, "*"); open {
		return strings.HasPrefix(tool, beginning)
	}
	return m.Match == tool
}

// target names the connector and where it goes.
func target(tool *node, s *connector.Spec) (kind, where string) {
	for _, kind := range kinds {
		p := tool.pair(kind)
		if p == nil {
			continue
		}
		given := func(key string) string {
			if q := p.value.pair(key); q != nil {
				return q.value.text
			}
			return ""
		}
		switch kind {
		case "http":
			where = s.Kind.HTTP.Method + " " + given("url")
		case "nats":
			where = given("subject")
		case "mcp":
			where = given("server") + "/" + given("tool")
		case "command":
			var words []string
			for _, item := range p.value.pair("argv").value.items {
				words = append(words, word(item.text))
			}
			where = strings.Join(words, " ")
		}
		return kind, printable(where)
	}
	return "", ""
}

// word is an argument as a person reads it.
func word(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '"' || r == 0x7f }) {
		return fmt.Sprintf("%q", s)
	}
	return s
}

// safety says what settles an unknown write of the tool.
func safety(s *connector.Spec) string {
	switch v := s.Verify; {
	case s.Effect == "read":
		return "repeated"
	case v != nil && v.Always:
		return "verify always" + window(v)
	case v != nil:
		return "verify" + window(v)
	case s.IdempotentFor > 0:
		return "idempotent for " + short(s.IdempotentFor)
	}
	return "a person"
}

func window(v *connector.VerifySpec) string {
	if !v.HasWindow {
		return ""
	}
	return ", window " + short(v.ConsistencyWindow)
}
