// Package boottime is a monotonic clock that goes on while the machine sleeps, which Go's does not: a lease is held on it.
package boottime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now is the time since boot, suspension included.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("boottime: CLOCK_BOOTTIME: " + err.Error())
	}
	return time.Duration(ts.Nano())
}
