package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// everySchema visits each mapping of the document: all its schemas are among them.
func everySchema(n *yaml.Node, visit func(n *yaml.Node)) {
	if n.Kind == yaml.MappingNode {
		visit(n)
	}
	for _, c := range n.Content {
		everySchema(c, visit)
	}
}

// What the schema allows is read by the code and explained in the documentation: a key that was forgotten in one of them
// would be taken without a word, or never be found.
func TestEveryKeyIsReadAndDocumented(t *testing.T) {
	var code strings.Builder
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(text)
		}
	}
	doc, err := os.ReadFile("../../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	limits := child(child(child(words(), "$defs"), "limits"), "properties") // read by whatever name they have
	keys := map[string]bool{}
	everySchema(words(), func(n *yaml.Node) {
		properties := child(n, "properties")
		if properties == nil || properties.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i < len(properties.Content); i += 2 {
			key := properties.Content[i].Value
			keys[key] = true
			if properties != limits && !strings.Contains(code.String(), `"`+key+`"`) {
				t.Errorf("%s: no code reads it", key)
			}
			if !strings.Contains(string(doc), key) {
				t.Errorf("%s: not in docs/config.md", key)
			}
		}
	})
	if len(keys) < 90 {
		t.Errorf("only %d keys", len(keys))
	}
}

// The defaults that the schema shows are those that hold.
func TestDefaultsOfTheSchema(t *testing.T) {
	const text = `
defaults: {budget: {}, retry: {}}
mcp_servers: {s: {url: "https://h/", import: [{match: a}], oauth2: {token_url: "https://h/", client_id: c, client_secret: s}}}
tenants: {acme: {}}
tools:
  t: {effect: write, retry: {}, rate: {per_second: 5}, http: {url: "http://h/"}, verify: {committed: "true", http: {url: "http://h/{operation_ref}"}}}
`
	var given any
	if err := yaml.Unmarshal([]byte(text), &given); err != nil {
		t.Fatal(err)
	}
	filled, written := 0, any(nil)
	var fill func(v any, s *yaml.Node) any
	fill = func(v any, s *yaml.Node) any {
		for s != nil && child(s, "$ref") != nil {
			s = child(child(words(), "$defs"), strings.TrimPrefix(child(s, "$ref").Value, "#/$defs/"))
		}
		switch v := v.(type) {
		case []any:
			for i := range v {
				v[i] = fill(v[i], child(s, "items"))
			}
		case map[string]any:
			for key := range v {
				element := child(child(s, "properties"), key)
				if p := child(s, "patternProperties"); p != nil {
					element = p.Content[1]
				}
				v[key] = fill(v[key], element)
			}
			if properties := child(s, "properties"); properties != nil {
				for i := 0; i < len(properties.Content); i += 2 {
					key, standard := properties.Content[i].Value, child(properties.Content[i+1], "default")
					if _, there := v[key]; there || standard == nil {
						continue
					}
					if err := standard.Decode(&written); err != nil {
						t.Fatal(err)
					}
					v[key] = written
					filled++
				}
			}
		}
		return v
	}
	full, err := json.Marshal(fill(given, words()))
	if err != nil {
		t.Fatal(err)
	}
	a, b := mustParse(t, "a.yaml", text, nil), mustParse(t, "b.yaml", string(full), nil)
	a.MCPImports[0].Place, b.MCPImports[0].Place = Place{}, Place{}
	for name, pair := range map[string][2]any{
		"defaults": {a.Defaults, b.Defaults}, "tools": {a.Tools, b.Tools}, "servers": {a.MCPServers, b.MCPServers},
		"imports": {a.MCPImports, b.MCPImports}, "tenants": {a.Tenants, b.Tenants},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s:\nby default %+v\nwritten    %+v", name, pair[0], pair[1])
		}
	}
	if filled < 30 {
		t.Errorf("only %d defaults in\n%s", filled, full)
	}
}
