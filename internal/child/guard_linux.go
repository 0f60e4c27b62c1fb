package child

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// A guard is a second process of this same executable, between this process and a program, so that the program's whole tree
// can be ended whatever it does and whatever becomes of this process:
//
//   - It is the reaper of the tree (PR_SET_CHILD_SUBREAPER): what loses its parent there becomes its child, also what has
//     made a session or a group of its own. It kills its children until it has none.
//   - It holds the reading end of a pipe, the leash, whose other end this process has and nobody else. Its end is the word to
//     kill; the kernel says it for a process that was killed.
//   - The program has the guard's death as its own (PR_SET_PDEATHSIG). A guard takes no signal but SIGKILL to heart.
//   - The program is in a control group of its own where that can be had: see group.
//
// What is left where it cannot: somebody who kills guard and executor in the same moment saves what the program has put into
// the background.
//
// A guard is told by its argv[0], before main and before the packages that come after this one are initialised; this package
// needs the standard library only, so that these are nearly all.
const guardName = "agentrun-guard"

// What guard and parent say to each other.
const (
	guardBegin   = 'b' // to the guard, once: start the program
	guardReady   = 'r'
	guardFailed  = 'f' // nothing ran
	guardStarted = 's' // then the process id, four bytes
	guardEnded   = 'e' // then the exit code, one byte: nothing of the program is left
)

// A guard's files beside the standard ones.
const (
	leashFile = 3
	saysFile  = 4
)

func init() {
	if len(os.Args) < 4 {
		return
	}
	var o order
	switch os.Args[0] {
	case guardName:
		o.decode(os.Args[1])
		guard(&o, os.Args[2], os.Args[3:])
	case enterName:
		o.decode(os.Args[1])
		enter(&o, os.Args[2], os.Args[3:])
	default:
		return
	}
	leave(0)
}

// leave ends the process, now: a build with the race detector would linger.
func leave(code int) { _, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, uintptr(code), 0, 0) }

// Of prctl(2), which package syscall does not have.
const (
	prSetName           = 15
	prSetChildSubreaper = 36
	prCapAmbient        = 47
	prCapAmbientClear   = 4
)

func guard(o *order, path string, argv []string) {
	runtime.LockOSThread() // the program dies with this thread
	closeOnExec()
	// Caught and left alone, so that they end no guard: a supervisor that stops a service sends them to all of its processes.
	// The program itself starts with all of them as they usually are.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	if _, _, failed := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); failed != 0 {
		return
	}
	// A service manager may have given this process the right to do something that no tool was given. Older kernels have no
	// such set.
	_, _, _ = syscall.RawSyscall6(syscall.SYS_PRCTL, prCapAmbient, prCapAmbientClear, 0, 0, 0, 0)
	syscall.Umask(o.Umask)
	var files limit
	files.usual()
	_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: files.Cur, Max: files.Max})
	say(guardReady)
	var word [1]byte
	if n, _ := read(leashFile, word[:]); n != 1 || word[0] != guardBegin {
		return
	}
	g := groupOf(os.Getpid())
	program, failed := o.start(path, argv, g.open())
	if program == 0 {
		g.remove()
		say(guardFailed, failed.part, byte(failed.errno))
		return
	}
	say(binary.LittleEndian.AppendUint32([]byte{guardStarted}, uint32(program))...)
	// The pipes are the program's alone: whoever waits for their end waits for it.
	_, _, _ = os.Stdin.Close(), os.Stdout.Close(), os.Stderr.Close()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = read(leashFile, word[:])
	}()
	code := tend(program, g, children, over)
	g.remove()
	say(guardEnded, byte(code))
}

// closeOnExec sees to it that a program gets the standard files only: this process's own parent may have left others open.
func closeOnExec() {
	names, _ := os.ReadDir("/proc/self/fd")
	for _, name := range names {
		if fd, err := strconv.Atoi(name.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}

// tend waits until the program has ended, or the leash has, and then until nothing of the program is left. It returns the
// program's exit code.
func tend(program int, g group, children <-chan os.Signal, over <-chan struct{}) (code int) {
	const most = 500 * time.Millisecond
	again := time.Millisecond
	for killing := false; ; {
		for {
			var s syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &s, syscall.WNOHANG, nil)
			if err == syscall.EINTR {
				continue
			}
			if err != nil {
				return code // there is nobody left
			}
			if pid == 0 {
				break
			}
			if pid == program {
				code, killing = exitCode(s), true
			}
		}
		var tick <-chan time.Time
		if killing {
			g.kill()
			killChildren()
			tick = time.After(again) // what they had started is ours now
			again = min(2*again, most)
		}
		select {
		case <-children:
		case <-over:
			killing, over = true, nil
		case <-tick:
		}
	}
}

// exitCode is what a shell would say: the status, or 128 and the number of the signal that ended the program.
func exitCode(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}

// killChildren kills this process's children. Nobody but the caller waits for them, so that no other process can have got
// one of their ids.
func killChildren() {
	self := []byte(strconv.Itoa(os.Getpid()))
	dir, err := os.Open("/proc")
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if fields := statOf(name); len(fields) > 1 && bytes.Equal(fields[1], self) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// say tells the parent. A parent that is gone hears nothing, and its leash has ended.
func say(b ...byte) { _, _ = syscall.Write(saysFile, b) }

func read(fd int, b []byte) (n int, err error) {
	for {
		if n, err = syscall.Read(fd, b); err != syscall.EINTR {
			return n, err
		}
	}
}
