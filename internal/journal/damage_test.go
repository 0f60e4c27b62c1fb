package journal_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/journal/journaltest"
)

// sample makes a closed journal with branch pages, inline buckets gone, free pages, a long value and some facts
// unsettled, and returns its file's content.
func sample(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal.db")
	j := journaltest.OpenAt(t, path, journal.Options{})
	for range 5 {
		var entries []engine.Entry
		for i := range 40 {
			d := newDispatch()
			entries = append(entries, intent(d, time.Now()), effect(d, time.Now()))
			if i%3 != 0 {
				entries = append(entries, settled(d))
			}
		}
		write(t, j, entries...)
	}
	long := intent(newDispatch(), time.Now())
	long.Intent.Args = []byte(`"` + strings.Repeat("x", 20_000) + `"`)
	write(t, j, long)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	journaltest.Verify(t, path)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// place puts a file where an executor expects its journal.
func place(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// refused checks that a file is refused by everything, with the file's name and the remedy, and left as it is.
func refused(t *testing.T, what string, content []byte) {
	t.Helper()
	path := place(t, content)
	j, err := journal.Open(path, journal.Options{})
	if err == nil {
		j.Close()
		t.Errorf("%s: the journal was opened", what)
		return
	}
	if !errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "executor journal check") {
		t.Errorf("%s: the refusal is %v", what, err)
	}
	if err := journal.List(path, func(engine.Fact) error { return nil }); !errors.Is(err, journal.ErrDamaged) {
		t.Errorf("%s: list gave %v", what, err)
	}
	if _, _, err := journal.Compact(path); !errors.Is(err, journal.ErrDamaged) {
		t.Errorf("%s: compact gave %v", what, err)
	}
	if r, err := journal.Check(path); err != nil || len(r.Problems) == 0 {
		t.Errorf("%s: check gave %+v, %v", what, r, err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, content) {
		t.Errorf("%s: the refused file was changed (%v)", what, err)
	}
}

// usedPages are the pages that hold something, as bbolt itself sees them.
func usedPages(t *testing.T, content []byte) (pages []int, pageSize int) {
	t.Helper()
	db, err := bolt.Open(place(t, content), 0o600, &bolt.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	pageSize = db.Info().PageSize
	err = db.View(func(tx *bolt.Tx) error {
		for id := 0; ; {
			p, err := tx.Page(id)
			if err != nil || p == nil {
				return err
			}
			if p.Type == "branch" || p.Type == "leaf" || p.Type == "meta" {
				pages = append(pages, id)
			}
			id += p.OverflowCount + 1
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages, pageSize
}

// Field case 27, first kind: a file that was cut off, at any length.
func TestTruncatedJournalIsRefused(t *testing.T) {
	b := sample(t)
	lengths := []int{0, 1, 15, 79, 80, 4095, 4096, 4097, 8191, 8192, 12288, len(b) / 4, len(b) / 3, len(b) / 2, len(b) - 4096, len(b) - 1}
	for range 20 {
		lengths = append(lengths, rand.IntN(len(b)))
	}
	for _, n := range lengths {
		refused(t, fmt.Sprintf("%d of %d bytes", n, len(b)), b[:n])
	}
}

// Field case 27: an empty file, a file of something else, and one that is gone.
func TestWhatIsNoJournalIsRefused(t *testing.T) {
	refused(t, "empty", nil)
	refused(t, "zeroes", make([]byte, 32<<10))
	refused(t, "text", bytes.Repeat([]byte("not a journal\n"), 5000))

	foreign := filepath.Join(t.TempDir(), "foreign.db")
	db, err := bolt.Open(foreign, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(foreign)
	if err != nil {
		t.Fatal(err)
	}
	refused(t, "another program's bbolt file", b)

	path := filepath.Join(t.TempDir(), "journal.db")
	j := journaltest.OpenAt(t, path, journal.Options{})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	aside := path + ".aside"
	if err := os.Rename(path, aside); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Open(path, journal.Options{}); !errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), "missing") {
		t.Errorf("a lost journal: %v", err)
	}
	if err := os.Rename(aside, path); err != nil {
		t.Fatal(err)
	}
}

// Field case 27: every page that holds something, zeroed, and replaced by what another page holds.
func TestZeroedPageIsRefused(t *testing.T) {
	b := sample(t)
	pages, size := usedPages(t, b)
	if len(pages) < 20 {
		t.Fatalf("the sample has only %d pages", len(pages))
	}
	for i, id := range pages {
		hurt := bytes.Clone(b)
		clear(hurt[id*size : (id+1)*size])
		refused(t, fmt.Sprintf("page %d zeroed", id), hurt)

		from := pages[(i+1)%len(pages)]
		hurt = bytes.Clone(b)
		copy(hurt[id*size:(id+1)*size], b[from*size:(from+1)*size])
		refused(t, fmt.Sprintf("page %d overwritten by page %d", id, from), hurt)
	}
}

// Field case 27: flipped bytes, anywhere in a page that holds something. The one place where a change may pass is a key
// in a branch, which is a signpost: if it still points the right way, the journal has lost nothing.
func TestFlippedBytesAreRefused(t *testing.T) {
	b := sample(t)
	pages, size := usedPages(t, b)
	sound := contents(t, place(t, b))
	passed := 0
	flip := func(id, at int) {
		hurt := bytes.Clone(b)
		hurt[id*size+at] ^= byte(1 + rand.IntN(255))
		what := fmt.Sprintf("page %d, byte %d flipped", id, at)
		path := place(t, hurt)
		if j, err := journal.Open(path, journal.Options{}); err != nil {
			refused(t, what, hurt)
			return
		} else if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if passed++; hurt[id*size+8] != 1 {
			t.Errorf("%s: the journal was opened, and the page is no branch", what)
		}
		if got := contents(t, path); got != sound {
			t.Errorf("%s: the journal was opened and has other facts", what)
		}
	}
	for _, id := range pages {
		for range 4 {
			flip(id, rand.IntN(200))
		}
		flip(id, rand.IntN(size))
	}
	for at := range 80 {
		flip(0, at)
		flip(1, at)
	}
	// The root is one page among many, and its values are numbers without a checksum of their own: every byte of it,
	// under -short every seventh.
	for _, id := range pages {
		if page := b[id*size : (id+1)*size]; bytes.Contains(page, []byte("unsettled")) {
			step := 1
			if testing.Short() {
				step = 7
			}
			for at := 0; at < len(bytes.TrimRight(page, "\x00"))+8; at += step {
				flip(id, at)
			}
		}
	}
	if passed > 20 {
		t.Errorf("%d changes passed", passed)
	}
}

// contents is everything that a journal knows, as text.
func contents(t *testing.T, path string) string {
	t.Helper()
	var b strings.Builder
	err := journal.List(path, func(f engine.Fact) error {
		fmt.Fprintf(&b, "%+v %+v %v\n", f.Intent, f.Effect, f.Settled)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
