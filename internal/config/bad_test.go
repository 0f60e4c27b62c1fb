package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// badFiles are files with one mistake, or several, and the first line that must be printed.
var badFiles = []struct{ name, text, first string }{
	// What is no config at all.
	{"empty", "", "1:1: " + emptyFile},
	{"only a comment", "# nothing\n", "1:1: " + emptyFile},
	{"text", "just text\n", "1:1: the file must be a mapping with the keys defaults, tools, mcp_servers, tenants, not text"},
	{"list", "- a\n", "1:1: the file must be a mapping with the keys defaults, tools, mcp_servers, tenants, not a list"},
}

func TestBadFiles(t *testing.T) {
	env := environment(map[string]string{"SECRET": "hunter2-hunter2", "LINES": "hunter2\nhunter2", "EMPTY": "", "BRACES": "hunter2{x}"})
	for _, c := range badFiles {
		t.Run(c.name, func(t *testing.T) {
			_, warnings, err := Parse("bad.yaml", []byte(c.text), env)
			var all Errors
			if !errors.As(err, &all) {
				t.Fatalf("error is %v", err)
			}
			first, _, _ := strings.Cut(err.Error(), "\n")
			if want := "bad.yaml:" + c.first; first != want {
				t.Errorf("\n got %s\nwant %s", first, want)
			}
			if shown := fmt.Sprint(err, warnings); strings.Contains(shown, "hunter2") {
				t.Errorf("the environment shows: %s", shown)
			}
		})
	}
}
