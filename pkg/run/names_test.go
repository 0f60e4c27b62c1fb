package run_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/agentrun/executor/pkg/run"
)

// The names of contract §1, held against its own expressions: every byte alone, second and last, and the lengths around
// the limits.
func TestNames(t *testing.T) {
	id := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}\z`)
	tool := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./-]{0,127}\z`)
	names := []string{"", "a\n", "é", "a é"}
	for b := range 256 {
		c := string([]byte{byte(b)})
		names = append(names, c, "a"+c, "ab"+c+"d")
	}
	for _, n := range []int{63, 64, 65, 127, 128, 129} {
		names = append(names, strings.Repeat("a", n))
	}
	for _, s := range names {
		if got, want := run.ValidID(s), id.MatchString(s); got != want {
			t.Errorf("identifier %q: %v, want %v", s, got, want)
		}
		if got, want := run.ValidTool(s), tool.MatchString(s); got != want {
			t.Errorf("tool %q: %v, want %v", s, got, want)
		}
	}
}
