package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// transact commits the requests in one transaction. After an error nothing of them is in the journal, with one
// exception: when only the last sync failed they are there, and may be gone after a crash of the machine.
func (j *Journal) transact(reqs []*request) (err error) {
	defer func() {
		if p := recover(); p != nil {
			// bbolt's locks and its picture of the file are in an unknown state: never touched again.
			err = damaged(j.path, fmt.Sprintf("while committing: %v", p))
			j.mu.Lock()
			j.broken = err
			for _, r := range j.queue {
				r.done <- err
			}
			j.queue, j.lazy = nil, nil
			j.mu.Unlock()
		}
	}()
	if j.suspect {
		if err := j.resync(); err != nil {
			return j.commitError(err)
		}
		j.suspect = false
	}
	tx, err := j.db.Begin(true)
	if err != nil {
		return j.commitError(err)
	}
	if err := j.apply(tx, reqs); err != nil {
		tx.Rollback()
		return j.commitError(err)
	}
	if err := tx.Commit(); err != nil {
		j.suspect = true
		return j.commitError(err)
	}
	j.sizeDirty = false
	if s, err := j.file.Stat(); err == nil && s.Size() != j.size {
		j.size, j.sizeDirty = s.Size(), true // the next commit remembers it
	}
	return nil
}

// commitError says what kind of failure it was. bbolt keeps only the text of some errors.
func (j *Journal) commitError(err error) error {
	if errors.Is(err, berrors.ErrDatabaseNotOpen) {
		return ErrClosed
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || strings.Contains(err.Error(), unix.ENOSPC.Error()) {
		return fmt.Errorf("%w: %s: %w", ErrFull, j.path, err)
	}
	return fmt.Errorf("journal: commit to %s: %w", j.path, err)
}

// resync puts on disk what bbolt believes to be there. A commit can fail after its meta page was written and before it
// was synced. bbolt then goes on from the new meta page, which only memory holds, and would overwrite pages that the
// one on disk still needs; and the kernel, having reported the failed sync once, would not write the page again. Writing
// the same bytes makes it.
func (j *Journal) resync() error {
	page := make([]byte, j.db.Info().PageSize)
	for at := int64(0); at < 2*int64(len(page)); at += int64(len(page)) {
		if _, err := io.ReadFull(io.NewSectionReader(j.file, at, int64(len(page))), page); err != nil {
			return err
		}
		if _, err := j.file.WriteAt(page, at); err != nil {
			return err
		}
	}
	return j.file.Sync()
}

// apply puts the requests into the transaction. It fails only if bbolt does.
func (j *Journal) apply(tx *bolt.Tx, reqs []*request) error {
	intents, effects := counted(tx, bucketIntents), counted(tx, bucketEffects)
	unsettled, meta := counted(tx, bucketUnsettled), counted(tx, bucketMeta)
	for _, r := range reqs {
		r.removed = 0
		for _, o := range r.ops {
			switch o.kind {
			case opIntent:
				intents.put(o.key, o.value)
				unsettled.put(o.key, seal(tagUnsettled, o.key, nil))
			case opEffect:
				effects.put(o.key, o.value)
			case opSettle:
				unsettled.remove(o.key)
			case opRemove:
				if !unsettled.has(o.key) { // asked again: it was read in another transaction
					intents.remove(o.key)
					effects.remove(o.key)
					r.removed++
				}
			case opMeta:
				meta.put(o.key, seal(tagMeta, o.key, append([]byte(nil), o.value...)))
			}
		}
	}
	if j.sizeDirty {
		meta.put(metaSize, seal(tagMeta, metaSize, binary.BigEndian.AppendUint64(nil, uint64(j.size))))
	}
	for _, b := range []*bucket{intents, effects, unsettled, meta} {
		if err := b.finish(); err != nil {
			return err
		}
	}
	return nil
}

// bucket counts its entries in its sequence. The first error stays.
type bucket struct {
	*bolt.Bucket
	count uint64
	err   error
}

func counted(tx *bolt.Tx, name []byte) *bucket {
	b := tx.Bucket(name)
	b.FillPercent = fillPercent
	return &bucket{Bucket: b, count: b.Sequence()}
}

func (b *bucket) has(key []byte) bool { return b.Get(key) != nil }

func (b *bucket) put(key, value []byte) {
	if b.err != nil {
		return
	}
	if !b.has(key) {
		b.count++
	}
	b.err = b.Put(key, value)
}

func (b *bucket) remove(key []byte) {
	if b.err != nil || !b.has(key) {
		return
	}
	b.count--
	b.err = b.Delete(key)
}

func (b *bucket) finish() error {
	if b.err != nil || b.count == b.Sequence() {
		return b.err
	}
	return b.SetSequence(b.count)
}
