package app

import (
	"os"
	"runtime/debug"
)

// embeddedGC is the garbage collector's target of a process with a server in it, in percent of what is in use. Go's own,
// 100, lets the process grow to twice the server's block caches and subject trees; half of that costs about 5 % more CPU.
const embeddedGC = 50

// SpareMemory makes the collector run more often, unless GOGC says what is wanted: docs/performance.md has the figures.
func SpareMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(embeddedGC)
	}
}
