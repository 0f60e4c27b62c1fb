// Package journaltest opens journals for tests and checks, when the test ends, that they kept their promises.
package journaltest

import (
	"path/filepath"
	"testing"

	"github.com/agentrun/executor/internal/journal"
)

// Open opens a journal in a directory of its own. When the test ends it is closed and verified: the structure, every
// checksum, the counts, and an intent for every unsettled dispatch.
func Open(t testing.TB) *journal.Journal {
	return OpenAt(t, filepath.Join(t.TempDir(), "journal.db"), journal.Options{})
}

// OpenAt is Open for a path and options of the caller's: a second start of a journal, for example. The journal may be
// closed before the test ends.
func OpenAt(t testing.TB, path string, o journal.Options) *journal.Journal {
	t.Helper()
	j, err := journal.Open(path, o)
	if err != nil {
		t.Fatalf("open journal: %v", err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Errorf("close journal: %v", err)
		}
		Verify(t, path)
	})
	return j
}

// Verify checks a journal that nobody has open.
func Verify(t testing.TB, path string) journal.Report {
	t.Helper()
	r, err := journal.Check(path)
	if err != nil {
		t.Errorf("check journal: %v", err)
	}
	for _, p := range r.Problems {
		t.Errorf("journal %s: %s", path, p)
	}
	return r
}
