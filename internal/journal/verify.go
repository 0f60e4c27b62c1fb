package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// bbolt trusts its file: a damaged page makes it panic, sometimes in a goroutine of its own, and a file that is too short
// makes the mapped memory fault; both end the process without a word about the journal. And it falls back to the meta
// page before the last one if the last is broken, which forgets the last commit. So the file is verified first, by
// reading it: every page that can be reached, every checksum, every count. What is left to bbolt is known to be sound.
//
// The page format is bbolt's file format version 2, in the byte order of the machine.

const (
	pageHead   = 16
	elemBytes  = 16 // of an element's head, in a branch and in a leaf
	metaBytes  = 64
	boltMagic  = 0xED0CDAED
	boltFormat = 2
	noFreelist = ^uint64(0)

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagMeta     = 0x04
	flagFreelist = 0x10
	flagBucket   = 0x01 // of a leaf's element

	depthMost    = 64
	problemsMost = 20
)

var native = binary.NativeEndian

// findings is what verify read.
type findings struct {
	problems       []string
	newer          string // what a newer version wrote and this one does not know; then the problems mean nothing
	id             string
	starts         uint64
	fileSize       int64
	sizeRemembered int64 // the file was at least this long once
	pageSize       int
	pages, used    uint64
	entries        map[string]uint64 // by bucket
}

// damage is ErrNewer, or the first problem as an error; nil if there is neither.
func (f *findings) damage(path string) error {
	if f.newer != "" {
		return fmt.Errorf("%w: %s: %s; "+remedyNewer, ErrNewer, path, f.newer)
	}
	if len(f.problems) == 0 {
		return nil
	}
	what := f.problems[0]
	if n := len(f.problems) - 1; n > 0 {
		what = fmt.Sprintf("%s, and %d more", what, n)
	}
	return damaged(path, what)
}

func (f *findings) problem(format string, args ...any) {
	if len(f.problems) < problemsMost {
		f.problems = append(f.problems, fmt.Sprintf(format, args...))
	}
}

// verify reads the whole file. Its error is one of reading, and means nothing for the file's content.
func verify(file *os.File) (*findings, error) {
	s, err := file.Stat()
	if err != nil {
		return nil, err
	}
	f := &findings{fileSize: s.Size(), entries: map[string]uint64{}}
	if f.fileSize == 0 {
		f.problem("the file is empty, and a journal never is")
		return f, nil
	}
	w := &walker{findings: f, file: file, meta: map[string][]byte{}}
	root, ok, err := w.metas()
	if err != nil || !ok {
		return f, err
	}
	if err := w.buckets(root); err != nil {
		return f, err
	}
	if len(f.problems) == 0 {
		w.identity()
	}
	return f, nil
}

type walker struct {
	*findings
	file *os.File
	seen []uint64          // one bit for each page
	meta map[string][]byte // the bucket journal, opened
}

type metaPage struct {
	pageSize                   uint32
	root, sequence             uint64
	freelist, highWater, txnID uint64
}

// metas reads the two pages that a commit writes in turn. Both must be good: a sector is written whole or not at all, so
// even a crash leaves no broken one.
func (w *walker) metas() (root uint64, ok bool, err error) {
	first, err := w.metaAt(0, 0)
	if err != nil || len(w.problems) > 0 {
		return 0, false, err
	}
	if p := first.pageSize; p < 1024 || p > 64<<10 || p&(p-1) != 0 {
		w.problem("the first page gives a page size of %d", p)
		return 0, false, nil
	}
	w.pageSize = int(first.pageSize)
	if first, err = w.metaAt(0, 0); err != nil || len(w.problems) > 0 {
		return 0, false, err
	}
	second, err := w.metaAt(1, int64(w.pageSize))
	if err != nil || len(w.problems) > 0 {
		return 0, false, err
	}
	last, before := first, second
	if second.txnID > first.txnID {
		last, before = second, first
	}
	w.pages = last.highWater
	switch {
	case last.txnID != before.txnID+1 || last.pageSize != before.pageSize:
		w.problem("the two meta pages do not follow one another (transactions %d and %d)", before.txnID, last.txnID)
	case last.highWater < 4 || last.highWater > uint64(w.fileSize)/uint64(w.pageSize):
		w.problem("the file has %d bytes and its %d pages need %d: it was cut off",
			w.fileSize, last.highWater, last.highWater*uint64(w.pageSize))
	case w.fileSize%int64(w.pageSize) != 0:
		w.problem("the file has %d bytes, which is no multiple of its page size %d: it was cut off", w.fileSize, w.pageSize)
	case last.root < 2 || last.root >= last.highWater:
		w.problem("the root page %d is outside the file", last.root)
	}
	if len(w.problems) > 0 {
		return 0, false, nil
	}
	w.seen = make([]uint64, last.highWater/64+1)
	w.mark(0, 0, "meta")
	w.mark(1, 0, "meta")
	if last.freelist != noFreelist {
		if err := w.freelist(last.freelist); err != nil {
			return 0, false, err
		}
	}
	return last.root, len(w.problems) == 0, nil
}

func (w *walker) metaAt(id uint64, at int64) (m metaPage, err error) {
	b := make([]byte, max(w.pageSize, pageHead+metaBytes)) // the first page says how long a page is
	if _, err := w.file.ReadAt(b, at); errors.Is(err, io.EOF) {
		w.problem("the file ends before meta page %d", id)
		return m, nil
	} else if err != nil {
		return m, err
	}
	body := b[pageHead:]
	h := fnv.New64a()
	h.Write(body[:56])
	switch {
	case native.Uint32(body) != boltMagic:
		w.problem("meta page %d does not begin as one: this is no journal, or it was overwritten", id)
	case native.Uint32(body[4:]) != boltFormat:
		w.problem("meta page %d has file format %d", id, native.Uint32(body[4:]))
	case native.Uint64(body[56:]) != h.Sum64():
		w.problem("meta page %d does not match its checksum", id)
	case native.Uint64(b) != id || native.Uint16(b[8:]) != flagMeta || !blank(b[10:pageHead]):
		w.problem("meta page %d has a wrong head", id)
	case !blank(b[pageHead+metaBytes:]):
		w.problem("meta page %d has something behind its content", id)
	}
	return metaPage{
		pageSize: native.Uint32(body[8:]), root: native.Uint64(body[16:]), sequence: native.Uint64(body[24:]),
		freelist: native.Uint64(body[32:]), highWater: native.Uint64(body[40:]), txnID: native.Uint64(body[48:]),
	}, nil
}

// freelist checks a freelist that another version, or bbolt's own tools, may have written.
func (w *walker) freelist(id uint64) error {
	b, err := w.page(id, "freelist")
	if err != nil || b == nil {
		return err
	}
	if native.Uint16(b[8:]) != flagFreelist {
		w.problem("page %d is not the freelist that it should be", id)
		return nil
	}
	n, ids := uint64(native.Uint16(b[10:])), b[pageHead:]
	if n == 0xffff {
		n, ids = native.Uint64(ids), ids[8:]
	}
	if n > uint64(len(ids)/8) {
		w.problem("the freelist on page %d has %d entries and no room for them", id, n)
		return nil
	}
	for ; n > 0; n, ids = n-1, ids[8:] {
		if free := native.Uint64(ids); free < 2 || free >= w.pages {
			w.problem("the freelist on page %d names page %d, which is outside the file", id, free)
		} else if !w.mark(free, 0, "free") {
			return nil
		}
	}
	return nil
}

// buckets walks the root's tree and each bucket's.
func (w *walker) buckets(root uint64) error {
	return w.tree(root, "root", bounds{}, 0, func(e element) error {
		name := string(e.key)
		tag, known := tagOf(name)
		if !known || e.flags != flagBucket || len(e.value) < 16 {
			w.problem("the root has an entry %q that is no bucket of a journal", e.key)
			return nil
		}
		var n uint64
		each := func(e element) error {
			n++
			w.entry(name, tag, e)
			return nil
		}
		before := len(w.problems)
		if page := native.Uint64(e.value); page != 0 {
			if len(e.value) != 16 {
				w.problem("bucket %s has %d bytes behind its head", name, len(e.value)-16)
			}
			if err := w.tree(page, name, bounds{}, 0, each); err != nil {
				return err
			}
		} else if inline := e.value[16:]; len(inline) < pageHead || !blank(inline[:8]) || !blank(inline[12:pageHead]) {
			w.problem("bucket %s, which lies in the root, has a wrong head", name)
		} else if elems, leaf, ok := w.elements(inline, 0, name, bounds{}); ok {
			if !leaf {
				w.problem("bucket %s lies in the root and is no leaf", name)
			}
			for _, e := range elems {
				_ = each(e)
			}
		}
		if count := native.Uint64(e.value[8:]); count != n && len(w.problems) == before {
			w.problem("bucket %s has %d entries and should have %d", name, n, count)
		}
		w.entries[name] = n
		return nil
	})
}

func (w *walker) entry(name string, tag byte, e element) {
	if e.flags != 0 {
		w.problem("bucket %s: entry %x has flags %#x", name, e.key, e.flags)
		return
	}
	payload, ok := open(tag, e.key, e.value)
	if !ok {
		w.problem("bucket %s: entry %x does not match its checksum", name, e.key)
		return
	}
	switch tag {
	case tagMeta:
		w.meta[string(e.key)] = bytes.Clone(payload)
		if bytes.Equal(e.key, metaFormat) && len(payload) == 1 && payload[0] > format {
			w.newer = fmt.Sprintf("it has format %d, and this build knows %d", payload[0], format)
		}
		return
	case tagUnsettled:
		if len(payload) > 0 {
			w.problem("bucket %s: entry %x has a value", name, e.key)
		}
	}
	d, err := dispatchOf(e.key)
	switch {
	case err != nil:
	case tag == tagIntent:
		_, err = decodeIntent(d, payload)
	case tag == tagEffect:
		_, err = decodeEffect(d, payload)
	}
	if errors.Is(err, errVersion) && w.newer == "" {
		w.newer = err.Error()
	}
	if err != nil {
		w.problem("bucket %s: %v", name, err)
	}
}

// identity reads what the journal says of itself.
func (w *walker) identity() {
	for _, name := range [][]byte{bucketIntents, bucketEffects, bucketUnsettled, bucketMeta} {
		if _, ok := w.entries[string(name)]; !ok {
			w.problem("bucket %s is missing: this is no journal", name)
			return
		}
	}
	f, id, starts := w.meta[string(metaFormat)], w.meta[string(metaID)], w.meta[string(metaStarts)]
	if len(f) != 1 || len(id) == 0 || len(starts) != 8 {
		w.problem("the journal does not say which one it is")
		return
	}
	if f[0] != format {
		w.problem("the journal has format %d, and this program knows %d", f[0], format)
		return
	}
	w.id, w.starts = string(id), binary.BigEndian.Uint64(starts)
	if size := w.meta[string(metaSize)]; len(size) == 8 {
		w.sizeRemembered = int64(binary.BigEndian.Uint64(size))
	}
	if w.fileSize < w.sizeRemembered {
		w.problem("the file has %d bytes and once had %d: it was cut off", w.fileSize, w.sizeRemembered)
	}
}
