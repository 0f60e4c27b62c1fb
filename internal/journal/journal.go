// Package journal is what one executor knows for certain: which writes it means to send and what came back, on disk
// before anything depends on it. It is one bbolt file with one owner. What it promises:
//
//   - Write returns nil only when its entries are on disk; all that waits goes into one transaction.
//   - A file that lost anything is refused, never read around and never replaced by a fresh one: a journal that forgets
//     is worse than an executor that does not start.
//   - A full disk is an error of the writes that meet it; the journal goes on by itself when there is space again.
package journal

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/agentrun/executor/internal/port"
)

// Conditions that a caller branches on.
var (
	// ErrLocked: another process, or another Journal of this one, has the file open.
	ErrLocked = errors.New("journal is in use")
	// ErrNoLocks: the file system has no locks, so nothing would keep a second process out.
	ErrNoLocks = errors.New("journal needs a file system with locks")
	// ErrDamaged: the file lost something or was changed by something else. The message says what and what to do.
	ErrDamaged = errors.New("journal is damaged")
	// ErrNewer: a newer version wrote the file, in a form that this one does not know. The message says what to do.
	ErrNewer = errors.New("journal is of a newer version")
	// ErrFull: the disk had no space for the commit. Nothing of the failed write is in the journal.
	ErrFull = errors.New("journal's disk is full")
	// ErrClosed: the journal was closed.
	ErrClosed = errors.New("journal is closed")
)

// Options say how a journal is opened. The zero value is good.
type Options struct {
	// LockTimeout is how long Open waits for another owner to go (a restart may overlap its predecessor by a moment).
	// Default 1s.
	LockTimeout time.Duration
	// Retention is how long a settled fact is kept, from its intent or its effect, whichever is later. Default 168h.
	Retention time.Duration
	// Now is the clock that Sweep compares entries' times with. Default time.Now.
	Now func() time.Time
	// OnCommit is told how long each successful commit took and how many entries it had. It is called by the goroutine
	// that commits and must return at once.
	OnCommit func(d time.Duration, entries int)

	flock func(fd, how int) error // in place of the system call: tests stand in for a file system without locks
}

// Validate names the first option that is out of bounds.
func (o Options) Validate() error {
	switch {
	case o.LockTimeout < 0:
		return fmt.Errorf("journal: LockTimeout is %s and must not be negative", o.LockTimeout)
	case o.Retention < 0:
		return fmt.Errorf("journal: Retention is %s and must not be negative", o.Retention)
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.LockTimeout == 0 {
		o.LockTimeout = time.Second
	}
	if o.Retention == 0 {
		o.Retention = 168 * time.Hour
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.flock == nil {
		o.flock = unix.Flock
	}
	return o
}

// Journal is an open journal. All methods are safe for concurrent use.
type Journal struct {
	opts   Options
	path   string
	holder string
	file   *os.File // bbolt's own handle: it holds the lock, and repairs the meta pages after a failed commit
	db     *bolt.DB

	committer
}

// Open opens the journal at path, or makes it if there never was one there; the directory is made too. It reads the whole
// file and verifies it (about a second per gigabyte), and counts this start durably before it returns.
//
// Errors: ErrLocked, ErrNoLocks, ErrNewer and ErrDamaged, each with the file's name and what to do, else the system's.
func Open(path string, o Options) (*Journal, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	f, err := openLocked(path, os.O_RDWR, unix.LOCK_EX, true, o)
	if err != nil {
		return nil, err
	}
	j, err := openVerified(path, f, o)
	if err != nil {
		f.Close() // bbolt may have closed it already; the lock goes either way
		return nil, err
	}
	return j, nil
}

func openVerified(path string, f *os.File, o Options) (*Journal, error) {
	found, err := verify(f)
	if err != nil {
		return nil, fmt.Errorf("journal: %s: %w", path, err)
	}
	if err := found.damage(path); err != nil {
		return nil, err
	}
	// From here on nobody makes the file anew: bring back a marker that a crash between the two kept from being made,
	// and clear away what crashed attempts left.
	if err := ensureMarker(path); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	removeLeftovers(path)

	db, err := openBolt(path, f)
	if err != nil {
		return nil, err
	}
	j := &Journal{opts: o, path: path, file: f, db: db}
	j.committer.init()
	j.size, j.sizeDirty = found.fileSize, found.fileSize != found.sizeRemembered
	start := found.starts + 1
	j.holder = fmt.Sprintf("%s.%d", found.id, start)
	err = j.checkUnsettled()
	if err == nil {
		var known port.Known
		known, err = j.Known()
		j.seen = known.Seen
	}
	if err != nil {
		db.Close()
		return nil, err
	}
	err = j.transact([]*request{{ops: []op{{kind: opMeta, key: metaStarts, value: binary.BigEndian.AppendUint64(nil, start)}}}})
	if err != nil {
		j.release()
		return nil, err
	}
	go j.run()
	return j, nil
}

// openBolt opens a verified file through the handle that holds the lock. bbolt locks the same handle again, which
// changes nothing.
func openBolt(path string, f *os.File) (db *bolt.DB, err error) {
	err = guard(path, func() error {
		db, err = bolt.Open(path, 0o600, &bolt.Options{
			Timeout: time.Second,
			// The freelist is not written: after a large sweep it would be rewritten by every commit. It is found again
			// at the start, by reading what verify has just read.
			NoFreelistSync: true,
			FreelistType:   bolt.FreelistMapType,
			NoStatistics:   true,
			OpenFile:       func(string, int, os.FileMode) (*os.File, error) { return f, nil },
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("journal: open %s: %w", path, err)
	}
	return db, nil
}

// Holder names this start of this journal's owner: "<random id made with the file>.<start number>". It is the lease
// holder's name; no two starts share one.
func (j *Journal) Holder() string { return j.holder }

// Path is the journal's file.
func (j *Journal) Path() string { return j.path }

// Close commits what waits and gives the file up. Calls that come later get ErrClosed; a second Close does nothing.
func (j *Journal) Close() error {
	if !j.shut() {
		return nil
	}
	<-j.stopped
	return j.release()
}

func (j *Journal) release() error {
	if j.broken != nil {
		// A panic may have left bbolt's own locks held: only the file is given up. Its lock has to be taken off, because
		// the memory that stays mapped would keep it.
		if err := errors.Join(unix.Flock(int(j.file.Fd()), unix.LOCK_UN), j.file.Close()); err != nil {
			return fmt.Errorf("journal: close %s: %w", j.path, err)
		}
		return nil
	}
	if err := j.db.Close(); err != nil {
		return fmt.Errorf("journal: close %s: %w", j.path, err)
	}
	return nil
}

// FreeSpace is the fraction of the journal's disk that is free for this process, 0 to 1.
func (j *Journal) FreeSpace() (float64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(j.path), &s); err != nil {
		return 0, fmt.Errorf("journal: free space of %s: %w", filepath.Dir(j.path), err)
	}
	if s.Blocks == 0 {
		return 1, nil // a file system that does not count
	}
	return float64(s.Bavail) / float64(s.Blocks), nil
}

func newID() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
