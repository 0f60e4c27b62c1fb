package child

import (
	"maps"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unsafe"
)

// resources are the limits that can be set, by the names of getrlimit(2).
var resources = func() map[string]int {
	r := map[string]int{
		"as": syscall.RLIMIT_AS, "core": syscall.RLIMIT_CORE, "cpu": syscall.RLIMIT_CPU, "data": syscall.RLIMIT_DATA,
		"fsize": syscall.RLIMIT_FSIZE, "nofile": syscall.RLIMIT_NOFILE, "stack": syscall.RLIMIT_STACK,
		"nproc": 6, "memlock": 8, // asm-generic/resource.h; package syscall does not have them
	}
	if strings.HasPrefix(runtime.GOARCH, "mips") {
		r["nproc"], r["memlock"] = 8, 9
	}
	return r
}()

// limit is one resource's limit, as the kernel takes it.
type limit struct {
	Resource int
	Cur, Max uint64
}

// limits are what to set for the program, in the order of their names.
func (s *Setting) limits() (out []limit) {
	for _, name := range slices.Sorted(maps.Keys(s.Limits)) {
		out = append(out, limit{resources[name], s.Limits[name], s.Limits[name]})
	}
	return out
}

// softFiles is how many files a program may have open where nothing is named: as nearly everywhere, and not what this
// process, being a Go program, has raised it to. A program that wants more raises it itself, up to the hard limit.
const softFiles = 1024

// usual makes the limit that: without more than the hard limit allows.
func (l *limit) usual() {
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) == nil {
		l.Cur, l.Max = min(softFiles, files.Max), files.Max
	}
}

// set sets a limit of this process.
func (l *limit) set() syscall.Errno {
	new := [2]uint64{l.Cur, l.Max}
	_, _, code := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, uintptr(l.Resource), uintptr(unsafe.Pointer(&new)), 0, 0, 0)
	return code
}
