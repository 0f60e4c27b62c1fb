package config

import (
	"maps"
	"testing"
)

// Two files that say the same have the same digests, however they are written; what differs is told by its part.
func TestDigests(t *testing.T) {
	of := func(text string, env map[string]string) Digests {
		t.Helper()
		f, _, err := Parse("c.yaml", []byte(text), func(name string) (string, bool) { v, ok := env[name]; return v, ok })
		if err != nil {
			t.Fatal(err)
		}
		return f.Digests()
	}
	const base = "defaults: {owner: o}\ntools:\n  pay: {effect: write, timeout: 5s, http: {method: POST, url: \"http://h/${X}\"}}\n  load: {effect: read, http: {method: GET, url: \"http://h/\"}}\n"
	first := of(base, map[string]string{"X": "one-secret"})
	for name, x := range map[string]struct {
		text  string
		env   string
		parts []string // that differ
	}{
		"the same with another environment": {base, "another-secret", nil},
		"written otherwise": {
			"# a comment\ntools:\n  load:\n    http:\n      url: 'http://h/'\n      method: GET\n    effect: read\n  pay:\n    effect: write\n    timeout: \"5s\"\n    http: {url: \"http://h/${X}\", method: POST}\ndefaults:\n  owner: \"o\"\n",
			"one-secret", nil,
		},
		"a tool changed":    {"defaults: {owner: o}\ntools:\n  pay: {effect: write, timeout: 6s, http: {method: POST, url: \"http://h/${X}\"}}\n  load: {effect: read, http: {method: GET, url: \"http://h/\"}}\n", "x", []string{"tools.pay"}},
		"a tool gone":       {"defaults: {owner: o}\ntools:\n  pay: {effect: write, timeout: 5s, http: {method: POST, url: \"http://h/${X}\"}}\n", "x", []string{"tools.load"}},
		"a section changed": {"defaults: {owner: p}\ntools:\n  pay: {effect: write, timeout: 5s, http: {method: POST, url: \"http://h/${X}\"}}\n  load: {effect: read, http: {method: GET, url: \"http://h/\"}}\n", "x", []string{"defaults"}},
		"a section added":   {base + "tenants: {acme: {weight: 2}}\n", "x", []string{"tenants"}},
	} {
		d := of(x.text, map[string]string{"X": x.env})
		if (d.File == first.File) != (len(x.parts) == 0) || len(d.File) != 12 {
			t.Errorf("%s: %s beside %s", name, d.File, first.File)
		}
		differ := map[string]bool{}
		for _, a := range []Digests{d, first} {
			for part := range a.Parts {
				if d.Parts[part] != first.Parts[part] {
					differ[part] = true
				}
			}
		}
		want := map[string]bool{}
		for _, p := range x.parts {
			want[p] = true
		}
		if !maps.Equal(differ, want) {
			t.Errorf("%s: %v differ", name, differ)
		}
	}
	if of("tools: {}", nil).File == of("{}", nil).File {
		t.Error("a file with tools: {} is another than an empty one")
	}
}
