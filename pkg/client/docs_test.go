package client_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/operator"
)

// The code in docs/client.md is the examples', line by line, which the compiler and the tests hold.
func TestDocsShowTheExamples(t *testing.T) {
	t.Parallel()
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

// Every operator call has a method here, and docs/client.md names it.
func TestEveryOperatorCallHasAMethod(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "client.md"))
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(text)
	}
	for _, c := range operator.Calls() {
		method := regexp.MustCompile(`func \(c \*Client\) ([A-Z]\w*)\([^\n]*\n(?:[^}\n][^\n]*\n|\n)*?[^\n]*"` + regexp.QuoteMeta(c.Name()) + `"`).FindStringSubmatch(source.String())
		if method == nil {
			t.Errorf("%s has no method", c.Name())
			continue
		}
		if !strings.Contains(string(page), "`"+method[1]+"`") {
			t.Errorf("docs/client.md does not name %s, which makes %s", method[1], c.Name())
		}
	}
}

// A publisher's build holds the packages of the contract, the NATS client and OpenTelemetry's API, and none of what a process
// that serves is made of.
func TestAPublishersBuildHoldsNoServer(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}} {{with .Module}}{{.Path}}{{end}}", ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	modules := map[string]bool{
		"github.com/agentrun/executor": true, "github.com/nats-io/nats.go": true, "github.com/nats-io/nkeys": true, "github.com/nats-io/nuid": true,
		"github.com/klauspost/compress": true, "github.com/cespare/xxhash/v2": true, "go.opentelemetry.io/otel": true, "go.opentelemetry.io/otel/trace": true,
		"golang.org/x/crypto": true, "golang.org/x/sys": true, "golang.org/x/text": true,
	}
	client := false
	for line := range strings.Lines(string(out)) {
		pkg, module, _ := strings.Cut(strings.TrimSpace(line), " ")
		if module != "" && !modules[module] {
			t.Errorf("a build of pkg/client holds %s, of %s", pkg, module)
		}
		client = client || strings.HasSuffix(pkg, "/pkg/client")
	}
	if !client {
		t.Errorf("go list says\n%s", out)
	}
}
