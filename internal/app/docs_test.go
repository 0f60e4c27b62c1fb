package app

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// blocks are the fenced blocks of a language in a document.
func blocks(doc, language string) (out []string) {
	for _, part := range strings.Split(doc, "\n```"+language+"\n")[1:] {
		block, _, _ := strings.Cut(part, "\n```")
		out = append(out, block+"\n")
	}
	return out
}

// whole makes a config file of an example that may be a part of one.
func whole(block string) string {
	first := strings.TrimSpace(block)
	switch {
	case strings.HasPrefix(first, "errors:"):
		return "tools:\n  x:\n    effect: write\n    http: {url: \"http://127.0.0.1/\"}\n" + block
	case strings.HasPrefix(first, "defaults:") || strings.HasPrefix(first, "tools:"), strings.HasPrefix(first, "mcp_servers:"):
		return block
	}
	return "mcp_servers: {billing: {command: [billing-mcp]}}\ntools:\n  x:\n    effect: write\n    " + strings.ReplaceAll(strings.TrimSpace(block), "\n", "\n    ") + "\n"
}

// fileReference is a secret that lies where the reader's would.
var fileReference = regexp.MustCompile(`\$\{file:[^}]+\}`)

func TestTheExamplesInTheDocs(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", "tools.md"))
	if err != nil {
		t.Fatal(err)
	}
	examples := blocks(string(data), "yaml")
	if len(examples) < 8 {
		t.Fatalf("only %d examples were found", len(examples))
	}
	for i, block := range examples {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tools.yaml")
			secret := filepath.Join(filepath.Dir(path), "secret")
			if err := os.WriteFile(secret, []byte("12345678"), 0o600); err != nil {
				t.Fatal(err)
			}
			text := fileReference.ReplaceAllLiteralString(whole(block), "${file:"+secret+"}")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, warnings, err := testKinds(t).load(t.Context(), path, func(string) (string, bool) { return "12345678", true }, importNone)
			if err != nil || (len(warnings) > 0 && strings.Contains(block, "tools:")) {
				t.Errorf("%v %v\n%s", err, warnings, block)
			}
		})
	}
	program, err := os.ReadFile(filepath.Join("..", "..", "examples", "customexecutor", "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(program), "\n"); n >= 40 {
		t.Errorf("the custom executor has %d lines", n)
	}
	typed, err := os.ReadFile(filepath.Join("..", "..", "pkg", "connector", "example_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	program = append(program, typed...)
	for _, block := range blocks(string(data), "go") {
		if indented := "\t" + strings.ReplaceAll(strings.TrimSpace(block), "\n", "\n\t"); !strings.Contains(string(program), indented) {
			t.Errorf("the example in Go is not the program's:\n%s", block)
		}
	}
}
