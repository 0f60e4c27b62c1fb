//go:build !linux

package bus

import "time"

var processStart = time.Now()

// boottime falls back to Go's monotonic clock, which may stop while the machine sleeps.
func boottime() time.Duration { return time.Since(processStart) }
