package bustest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/sys/unix"
)

// Disk is a file system of its own that a test can fill.
type Disk struct {
	Dir string

	tb testing.TB
}

// SmallDisk mounts a disk of 32 MB for the test, and skips it, saying so, where that cannot be had. Whatever uses the disk
// must be started after it, so that it ends before.
func SmallDisk(tb testing.TB) *Disk {
	tb.Helper()
	dir := tb.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=32m"); err != nil {
		tb.Skipf("a full disk cannot be tested: mounting a tmpfs needs root: %v", err)
	}
	d := &Disk{Dir: dir, tb: tb}
	tb.Cleanup(func() {
		d.Clear()
		if err := unix.Unmount(dir, 0); err != nil {
			tb.Errorf("unmount %s: %v", dir, err)
		}
	})
	return d
}

// On puts a server's store on the disk.
func (d *Disk) On() Option {
	return func(o *server.Options) { o.StoreDir = filepath.Join(d.Dir, "nats") }
}

// Fill leaves no room: not for one block more.
func (d *Disk) Fill() {
	d.tb.Helper()
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.tb.Fatal(err)
	}
	for block := make([]byte, 64<<10); len(block) > 0; {
		if _, err = f.Write(block); err != nil {
			block = block[:len(block)/2]
		}
	}
	if err := f.Close(); err != nil {
		d.tb.Fatal(err)
	}
}

// Clear makes room again.
func (d *Disk) Clear() { _ = os.Remove(d.ballast()) }

func (d *Disk) ballast() string { return filepath.Join(d.Dir, "ballast") }
