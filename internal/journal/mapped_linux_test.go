package journal_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/journal/journaltest"
)

// What the journal maps of its file does not stay in the process's memory (with large results it would be the whole file),
// and is as readable as before.
func TestMappedPagesAreForgotten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	j := journaltest.OpenAt(t, path, journal.Options{})
	const writes, each = 100, 1 << 20
	large := json.RawMessage(`"` + strings.Repeat("x", each) + `"`)
	read := func(d engine.DispatchID) {
		t.Helper()
		f, ok, err := j.Get(d)
		if err != nil || !ok || f.Effect == nil || !bytes.Equal(f.Effect.Reply.Result, large) {
			t.Fatalf("%s: %v, %v", d, ok, err)
		}
	}
	dispatches := make([]engine.DispatchID, writes)
	for i := range dispatches {
		d := newDispatch()
		e := effect(d, time.Now())
		e.Effect.Reply.Result = large
		write(t, j, intent(d, time.Now()))
		write(t, j, e)
		read(d) // maps its pages
		dispatches[i] = d
	}
	if kb := resident(t, path); kb > writes*each/1024/2 {
		t.Errorf("%d KB of a journal of %d KB are resident", kb, fileSize(t, path)/1024)
	}
	for _, d := range dispatches {
		read(d)
	}
}

// resident is how much of a mapped file is in this process's memory, in KB: Rss of proc_pid_smaps(5).
func resident(t *testing.T, path string) (kb int) {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ours := false
	for s := bufio.NewScanner(f); s.Scan(); {
		n := 0
		if strings.HasSuffix(s.Text(), path) {
			ours = true
		} else if _, err := fmt.Sscanf(s.Text(), "Rss: %d kB", &n); err == nil && ours {
			kb, ours = kb+n, false
		}
	}
	return kb
}
