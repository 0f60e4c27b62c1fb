package cli

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The demo shows each outcome and what the provider saw, proves that the credit was sent once, and leaves nothing behind.
func TestDemo(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	code, out, errs := command(t, nil, "", "demo")
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d\n%s\n%s", code, out, errs)
	}
	want := []string{
		"load_invoice retryable", "load_invoice retryable", "load_invoice ok", "apply_credit ok", "draft_reply retryable", "draft_reply ok", "run run_1042 ok",
		"GET /invoices/inv_7 429", "GET /invoices/inv_7 429", "GET /invoices/inv_7 200", "POST /credits 201", "POST /drafts 500", "POST /drafts 200",
	}
	var got []string
	line := regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d\.\d{3}  (\S+(?: \S+)?) +(\S+)`)
	for _, m := range line.FindAllStringSubmatch(out, -1) {
		got = append(got, m[1]+" "+m[2])
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got:\n%s\nwant:\n%s\noutput:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"), out)
	}
	if !strings.Contains(out, "sent once and given once: 5.00 EUR") || strings.Contains(out, "\x1b") {
		t.Errorf("output:\n%s", out)
	}
	left, err := filepath.Glob(filepath.Join(dir, "agentrun-demo-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
