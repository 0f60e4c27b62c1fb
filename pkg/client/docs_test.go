package client_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The code in docs/client.md is the examples', line by line, which the compiler and the tests hold.
func TestDocsShowTheExamples(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "client.md"))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	examples := map[string]bool{}
	for line := range strings.Lines(string(source)) {
		examples[strings.TrimSpace(line)] = true
	}
	lines, code := 0, false
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "```"):
			code = line == "```go"
		case code:
			lines++
			if !examples[line] {
				t.Errorf("docs/client.md has a line of Go that is in no example: %s", line)
			}
		}
	}
	if lines < 20 {
		t.Errorf("docs/client.md has only %d lines of Go", lines)
	}
}
