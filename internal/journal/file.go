package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

const (
	lockRetry = 20 * time.Millisecond
	remedy    = "the executor does not start on it, because a journal that forgets could let a write be repeated. " +
		"Keep the file, look at it with `executor journal check`, and move it and %s away to start with an empty " +
		"journal: the writes that were in flight are then looked up, not sent again"
)

// remedyNewer is what to do about a journal that is well, and too new.
const remedyNewer = "the executor does not start on it, because it could miss what was done. The journal is not damaged: " +
	"start the version that wrote it, or a later one; to go back to this one, let that version drain first and give this " +
	"one another --data directory"

// markerOf is the file that says that there is a journal: when it is there and the journal is not, the journal was lost.
func markerOf(path string) string { return path + ".exists" }

func damaged(path, what string) error {
	return fmt.Errorf("%w: %s: %s; "+remedy, ErrDamaged, path, what, markerOf(path))
}

// openLocked opens the file at path and locks it; with mayCreate it makes it first if there never was one.
func openLocked(path string, flag, how int, mayCreate bool, o Options) (*os.File, error) {
	deadline := time.Now().Add(o.LockTimeout)
	for {
		f, err := os.OpenFile(path, flag, 0)
		if errors.Is(err, fs.ErrNotExist) && mayCreate {
			if err := create(path); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("journal: %w", err)
		}
		if err := lock(path, f, how, deadline, o); err != nil {
			f.Close()
			return nil, err
		}
		// Compact may have put another file in its place while this one waited for the lock.
		there, err := os.Stat(path)
		mine, errMine := f.Stat()
		if err == nil && errMine == nil && os.SameFile(there, mine) {
			return f, nil
		}
		f.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("journal: %w", err)
		}
	}
}

func lock(path string, f *os.File, how int, deadline time.Time, o Options) error {
	for {
		err := o.flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			if time.Now().After(deadline) {
				return fmt.Errorf("%w: another process has %s open; give each executor a --data directory of its own", ErrLocked, path)
			}
			time.Sleep(lockRetry)
		case errors.Is(err, unix.ENOLCK), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
			return fmt.Errorf("%w: %s cannot be locked (%w), so a second executor on it would not be noticed; "+
				"put --data on a local disk", ErrNoLocks, path, err)
		default:
			return fmt.Errorf("journal: lock %s: %w", path, err)
		}
	}
}

// create makes a journal with nothing in it. It appears under its name whole or not at all, so that an empty or short
// file can only be a damaged one; of two processes that create at once one wins, and both then open the winner's file.
func create(path string) error {
	if _, err := os.Lstat(markerOf(path)); err == nil {
		if _, err := os.Lstat(path); err == nil {
			return nil // made by another process since this one looked
		}
		return damaged(path, "the file is missing, and "+markerOf(path)+" says that there was one")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("journal: %w", err)
	}
	temp, err := tempName(path)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	if err := fill(temp, newID()); err != nil {
		return fmt.Errorf("journal: create %s: %w", path, err)
	}
	err = os.Link(temp, path)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		// Another process was first; it also may have cleared our file away.
		return nil
	}
	if err != nil {
		return fmt.Errorf("journal: create: %w", err)
	}
	return syncDir(path)
}

func tempName(path string) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(path), tempPattern(path))
	if err != nil {
		return "", fmt.Errorf("journal: %w", err)
	}
	return f.Name(), f.Close()
}

func tempPattern(path string) string { return "." + filepath.Base(path) + ".*.new" }

// removeLeftovers clears away what crashed attempts to create or compact left. The caller holds the journal's lock.
func removeLeftovers(path string) {
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), tempPattern(path)))
	if err != nil {
		return // a path with special characters: a few kilobytes stay
	}
	for _, name := range left {
		os.Remove(name)
	}
}

// fill makes an empty journal in an empty file, synced.
func fill(path, id string) error {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, NoFreelistSync: true, FreelistType: bolt.FreelistMapType})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{bucketIntents, bucketEffects, bucketUnsettled, bucketMeta} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		b := counted(tx, bucketMeta)
		b.put(metaFormat, seal(tagMeta, metaFormat, []byte{format}))
		b.put(metaID, seal(tagMeta, metaID, []byte(id)))
		b.put(metaStarts, seal(tagMeta, metaStarts, binary.BigEndian.AppendUint64(nil, 0)))
		return b.finish()
	})
	return errors.Join(err, db.Close())
}

func ensureMarker(path string) error {
	f, err := os.OpenFile(markerOf(path), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s is the journal of an executor. Without it, that executor does not know which writes it sent.\n", filepath.Base(path))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return syncDir(path)
}

// syncDir makes the names in the journal's directory durable.
func syncDir(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("journal: sync %s: %w", filepath.Dir(path), err)
	}
	return nil
}
