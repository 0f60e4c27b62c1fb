package config

import (
	"fmt"
	"io"
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
	for _, m := range f.MCPImports {
		fmt.Fprintf(tw, "%s\t%s\tmcp\timported from %s\t%s\t%s\tno\t%d\n", m.Match, m.Effect, m.Server, short(defaultTimeout),
			safety(&connector.Spec{Effect: m.Effect}), f.Defaults.Retry.MaxAttempts)
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
