package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
)

// Report is what Check found.
type Report struct {
	ID        string // the journal's random id
	Starts    uint64 // how often it was opened by an executor
	Intents   uint64
	Effects   uint64
	Unsettled uint64
	FileBytes int64
	UsedBytes int64      // of pages that hold something; Compact gives the rest back
	Problems  []string   // empty: the journal is sound; at most 20
	Known     port.Known // the store of run records that it has agreed on
}

// Check verifies everything in the journal at path, which no executor may have open, and changes nothing. Damage is in
// the report, not an error; errors are ErrLocked, ErrNoLocks, ErrNewer and the system's.
func Check(path string) (Report, error) {
	f, err := openLocked(path, os.O_RDONLY, unix.LOCK_SH, false, Options{}.withDefaults())
	if err != nil {
		return Report{}, err
	}
	defer f.Close()
	found, err := verify(f)
	if err != nil {
		return Report{}, fmt.Errorf("journal: check %s: %w", path, err)
	}
	if found.newer != "" {
		return Report{}, found.damage(path)
	}
	var known port.Known
	if len(found.problems) == 0 {
		if known, err = checkInside(path, f, found); err != nil {
			return Report{}, err
		}
	}
	return Report{
		ID: found.id, Starts: found.starts,
		Intents: found.entries[string(bucketIntents)], Effects: found.entries[string(bucketEffects)],
		Unsettled: found.entries[string(bucketUnsettled)],
		FileBytes: found.fileSize, UsedBytes: int64(found.used) * int64(found.pageSize), Problems: found.problems, Known: known,
	}, nil
}

// checkInside asks bbolt's own check, and whether the buckets agree with each other.
func checkInside(path string, f *os.File, found *findings) (known port.Known, err error) {
	db, err := openReadOnly(path, f)
	if err != nil {
		return known, err
	}
	defer db.Close()
	err = guard(path, func() error {
		return db.View(func(tx *bolt.Tx) error {
			for err := range tx.Check() {
				found.problem("%v", err)
			}
			v := viewsOf(tx)
			var err error
			if known, err = knownOf(path, v); err != nil {
				return err
			}
			return v.unsettled.ForEach(func(k, _ []byte) error {
				if v.intents.Get(k) == nil {
					d, _ := dispatchOf(k)
					found.problem("the intent of unsettled dispatch %s is missing", d)
				}
				return nil
			})
		})
	})
	return known, err
}

// List calls fn for every fact of the journal at path, oldest first, until fn returns an error, which it returns. No
// executor may have the journal open; a damaged one is refused.
func List(path string, fn func(engine.Fact) error) error {
	f, err := openLocked(path, os.O_RDONLY, unix.LOCK_SH, false, Options{}.withDefaults())
	if err != nil {
		return err
	}
	defer f.Close()
	found, err := verify(f)
	if err != nil {
		return fmt.Errorf("journal: list %s: %w", path, err)
	}
	if err := found.damage(path); err != nil {
		return err
	}
	db, err := openReadOnly(path, f)
	if err != nil {
		return err
	}
	defer db.Close()
	return facts(path, db, fn)
}

func openReadOnly(path string, f *os.File) (db *bolt.DB, err error) {
	err = guard(path, func() error {
		db, err = bolt.Open(path, 0, &bolt.Options{
			ReadOnly: true, NoStatistics: true,
			OpenFile: func(string, int, os.FileMode) (*os.File, error) { return f, nil },
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("journal: open %s: %w", path, err)
	}
	return db, nil
}

// Compact writes the journal at path anew, without the pages that are free, and puts the new file in its place when it
// is whole, verified and on disk. It returns the sizes in bytes. No executor may have the journal open; a damaged one
// is refused.
func Compact(path string) (before, after int64, err error) {
	f, err := openLocked(path, os.O_RDWR, unix.LOCK_EX, false, Options{}.withDefaults())
	if err != nil {
		return 0, 0, err
	}
	defer f.Close() // after the new file has its name: until then nobody else may write to the old one
	found, err := verify(f)
	if err != nil {
		return 0, 0, fmt.Errorf("journal: compact %s: %w", path, err)
	}
	if err := found.damage(path); err != nil {
		return 0, 0, err
	}
	removeLeftovers(path)
	temp, err := tempName(path)
	if err != nil {
		return 0, 0, err
	}
	defer os.Remove(temp)
	src, err := openBolt(path, f)
	if err != nil {
		return 0, 0, err
	}
	defer src.Close()
	if after, err = compactInto(temp, src, found); err != nil {
		return 0, 0, fmt.Errorf("journal: compact %s: %w", path, err)
	}
	if err := os.Rename(temp, path); err != nil {
		return 0, 0, fmt.Errorf("journal: compact: %w", err)
	}
	return found.fileSize, after, syncDir(path)
}

// compactInto copies src into the empty file at temp, and verifies that the copy has all of it.
func compactInto(temp string, src *bolt.DB, found *findings) (size int64, err error) {
	dst, err := bolt.Open(temp, 0o600, &bolt.Options{NoFreelistSync: true, FreelistType: bolt.FreelistMapType})
	if err != nil {
		return 0, err
	}
	err = guard(temp, func() error { return bolt.Compact(dst, src, 1<<20) })
	if err == nil {
		// The new file is shorter than the old one remembers to have been.
		err = dst.Update(func(tx *bolt.Tx) error {
			b := counted(tx, bucketMeta)
			b.put(metaSize, seal(tagMeta, metaSize, binary.BigEndian.AppendUint64(nil, 0)))
			return b.finish()
		})
	}
	if err = errors.Join(err, dst.Close()); err != nil {
		return 0, err
	}
	f, err := os.Open(temp)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	copied, err := verify(f)
	if err != nil {
		return 0, err
	}
	if err := copied.damage(temp); err != nil {
		return 0, err
	}
	for name, n := range found.entries {
		if m := copied.entries[name]; m < n {
			return 0, fmt.Errorf("the copy has %d entries in %s, and the journal %d", m, name, n)
		}
	}
	return copied.fileSize, f.Sync()
}
