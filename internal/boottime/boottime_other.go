//go:build !linux

package boottime

import "time"

var start = time.Now().Round(0)

// Now is the wall clock's time since the process started: without CLOCK_BOOTTIME, the only clock that counts suspension.
func Now() time.Duration { return time.Now().Round(0).Sub(start) }
