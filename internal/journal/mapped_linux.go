package journal

import "golang.org/x/sys/unix"

// forgetMapped takes the file's pages out of this process's memory. bbolt reads through a map of the file, and what it has
// touched once counts as this process's until the kernel needs it: with large results the whole journal. The pages stay in
// the kernel's cache, and one that is read again comes back from there.
//
// A read transaction keeps bbolt from mapping anew meanwhile. The map is of a file and shared, so nothing is lost:
// madvise(2), MADV_DONTNEED. It is done by number, as bbolt gives the address.
func (j *Journal) forgetMapped() error {
	tx, err := j.db.Begin(false)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, _, errno := unix.Syscall(unix.SYS_MADVISE, j.db.Info().Data, uintptr(tx.Size()), unix.MADV_DONTNEED); errno != 0 {
		return errno
	}
	return nil
}
