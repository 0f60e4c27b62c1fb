package config

import (
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const canary = "CANARY-of-the-environment"

// FuzzParse holds what must be true of every file: no panic, every complaint has a place in the file, no complaint shows
// what the environment holds, and every key that was read stands where the tree says.
func FuzzParse(f *testing.F) {
	sample, err := os.ReadFile("testdata/sample.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sample)
	for _, c := range badFiles {
		f.Add([]byte(c.text))
	}
	env := func(name string) (string, bool) { return canary + "\n{x}" + name, name != "UNSET" }
	f.Fuzz(func(t *testing.T, data []byte) {
		if strings.Contains(string(data), canary) {
			return
		}
		d := &decoder{name: "f.yaml", env: env, secrets: map[string]bool{}}
		file := d.file(data)
		lines := strings.Count(string(data), "\n") + 1
		check := func(p Place, message string) {
			if p.File != "f.yaml" || p.Line < 1 || p.Line > lines || p.Column < 1 || p.Column > len(data)+2 {
				t.Errorf("%s is no place in the file (%d lines)", p, lines)
			}
			if strings.Contains(message, canary) {
				t.Errorf("%s: the environment shows: %s", p, message)
			}
			if strings.ContainsAny(message, "\n\x1b") || message == "" {
				t.Errorf("%s: unprintable message %q", p, message)
			}
		}
		for _, e := range d.errs {
			check(e.Place, e.Message)
		}
		for _, w := range d.warnings {
			check(w.Place, w.Message)
		}
		if file.doc.root == nil {
			if len(d.errs) == 0 {
				t.Error("nothing was read and nothing is wrong")
			}
			return
		}
		file.doc.root.each(func(n *node) {
			// Text of several words may stand on several lines, and the parser then names one of them.
			oneWord := n.kind == yaml.ScalarNode && n.style == 0 && !strings.ContainsAny(n.text, " \n")
			if s := file.doc.sourceAt(n.line, n.col); oneWord && !n.broken && n.resolve() != nullScalar && !strings.HasPrefix(s, n.text) {
				t.Errorf("%q is not at %d:%d, there is %q", n.text, n.line, n.col, s)
			}
			for _, p := range n.pairs {
				s := file.doc.sourceAt(p.line, p.col)
				if !strings.HasPrefix(s, firstWord(p.key)) && !strings.HasPrefix(s, `"`) && !strings.HasPrefix(s, "'") {
					t.Errorf("key %q is not at %d:%d, there is %q", p.key, p.line, p.col, s)
				}
			}
		})
		if len(d.errs) == 0 {
			var b strings.Builder
			if err := Describe(&b, file); err != nil || strings.Contains(b.String(), canary) {
				t.Errorf("describe: %v\n%s", err, b.String())
			}
		}
	})
}

func firstWord(s string) string {
	if i := strings.IndexAny(s, " \n"); i >= 0 {
		return s[:i]
	}
	return s
}
