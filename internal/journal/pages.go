package journal

import "bytes"

// mark notes that pages are used; each may be only once.
func (w *walker) mark(id, overflow uint64, what string) bool {
	for p := id; p <= id+overflow; p++ {
		if w.seen[p/64]&(1<<(p%64)) != 0 {
			w.problem("page %d is used twice (%s)", p, what)
			return false
		}
		w.seen[p/64] |= 1 << (p % 64)
	}
	w.used += overflow + 1
	return true
}

// page reads a page with what overflows it; nil if it is damaged.
func (w *walker) page(id uint64, what string) ([]byte, error) {
	if id < 2 || id >= w.pages {
		w.problem("%s: page %d is outside the file", what, id)
		return nil, nil
	}
	b := make([]byte, w.pageSize)
	at := int64(id) * int64(w.pageSize)
	if _, err := w.file.ReadAt(b, at); err != nil {
		return nil, err
	}
	overflow := uint64(native.Uint32(b[12:]))
	if got := native.Uint64(b); got != id {
		w.problem("%s: page %d calls itself %d: it was overwritten or never written", what, id, got)
		return nil, nil
	}
	if id+overflow >= w.pages {
		w.problem("%s: page %d runs over the end of the file", what, id)
		return nil, nil
	}
	if !w.mark(id, overflow, what) {
		return nil, nil
	}
	if overflow > 0 {
		b = make([]byte, int(overflow+1)*w.pageSize)
		if _, err := w.file.ReadAt(b, at); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// bounds are the keys between which a page's keys lie: from the first, before the second; nil is no bound.
type bounds struct{ from, before []byte }

func (b bounds) hold(key []byte) bool {
	return (b.from == nil || bytes.Compare(key, b.from) >= 0) && (b.before == nil || bytes.Compare(key, b.before) < 0)
}

type element struct {
	flags      uint32
	child      uint64
	key, value []byte
}

// elements reads a page's content. bbolt packs it without a gap, so a number that changed shows as one. id is 0 for a page
// that lies in the root: it has nothing behind its content, not even zeroes.
func (w *walker) elements(b []byte, id uint64, what string, in bounds) (elems []element, leaf, ok bool) {
	flags, count := native.Uint16(b[8:]), int(native.Uint16(b[10:]))
	if leaf = flags == flagLeaf; !leaf && flags != flagBranch || !leaf && count == 0 {
		w.problem("%s: page %d has type %#x", what, id, flags)
		return nil, false, false
	}
	next := pageHead + count*elemBytes
	if next > len(b) {
		w.problem("%s: page %d has %d elements and no room for them", what, id, count)
		return nil, false, false
	}
	elems = make([]element, count)
	for i := range elems {
		at := pageHead + i*elemBytes
		h, e := b[at:at+elemBytes], &elems[i]
		var pos, keyLen, valueLen uint32
		if leaf {
			e.flags, pos, keyLen, valueLen = native.Uint32(h), native.Uint32(h[4:]), native.Uint32(h[8:]), native.Uint32(h[12:])
		} else {
			pos, keyLen, e.child = native.Uint32(h), native.Uint32(h[4:]), native.Uint64(h[8:])
		}
		if uint64(at)+uint64(pos) != uint64(next) || keyLen == 0 || uint64(next)+uint64(keyLen)+uint64(valueLen) > uint64(len(b)) {
			w.problem("%s: element %d of page %d is not where it should be", what, i, id)
			return nil, false, false
		}
		e.key = b[next : next+int(keyLen)]
		e.value = b[next+int(keyLen) : next+int(keyLen)+int(valueLen)]
		next += int(keyLen) + int(valueLen)
		if !in.hold(e.key) || i > 0 && bytes.Compare(elems[i-1].key, e.key) >= 0 {
			w.problem("%s: key %d of page %d is out of order", what, i, id)
			return nil, false, false
		}
	}
	if id != 0 && next <= len(b)-w.pageSize {
		w.problem("%s: page %d is longer than its content", what, id)
		return nil, false, false
	}
	if !blank(b[next:]) || id == 0 && next < len(b) {
		// Nothing is lost yet, but something writes to this file that should not, or the disk fails.
		w.problem("%s: page %d has something behind its content", what, id)
		return nil, false, false
	}
	return elems, leaf, true
}

// blank reports whether there are only zeroes: bbolt writes whole pages, and clears what it does not use.
func blank(b []byte) bool {
	for len(b) >= 8 {
		if native.Uint64(b) != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// tree calls fn for each element of the leaves below a page, in order. It goes on after damage, to tell all of it.
func (w *walker) tree(id uint64, what string, in bounds, depth int, fn func(element) error) error {
	if depth > depthMost {
		w.problem("%s: page %d is too deep", what, id)
		return nil
	}
	b, err := w.page(id, what)
	if err != nil || b == nil {
		return err
	}
	elems, leaf, ok := w.elements(b, id, what, in)
	if !ok {
		return nil
	}
	for i, e := range elems {
		if leaf {
			err = fn(e)
		} else {
			below := bounds{e.key, in.before}
			if i+1 < len(elems) {
				below.before = elems[i+1].key
			}
			err = w.tree(e.child, what, below, depth+1, fn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
