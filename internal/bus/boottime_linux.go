package bus

import (
	"time"

	"golang.org/x/sys/unix"
)

// boottime is a monotonic clock that goes on while the machine sleeps, which Go's does not.
func boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("bus: CLOCK_BOOTTIME: " + err.Error())
	}
	return time.Duration(ts.Nano())
}
