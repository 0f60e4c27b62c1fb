package child

import (
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"
)

// order is what a guard is told about its program, beside its file and its arguments.
type order struct {
	Try      bool // do everything but run it
	Cwd      string
	User     bool
	UID, GID uint32
	Umask    int
	Limits   []limit
}

func (o *order) encode() string {
	b, _ := json.Marshal(o)
	return string(b)
}

// decode reads what encode of this same program has written.
func (o *order) decode(s string) { _ = json.Unmarshal([]byte(s), o) }

// failure says why nothing ran. The zero value is no failure.
type failure struct {
	part  byte
	errno syscall.Errno
}

// The parts of a start that can fail.
const (
	partNone  = 0
	partArgv  = 'a'
	partCwd   = 'c'
	partUser  = 'u'
	partKill  = 'k' // it could be started, and not be ended
	partOther = 'o'
	partLimit = 128 // and the resource
)

var (
	errRights = errors.New("this process may not start a program as another user, and end it: it needs the capabilities CAP_SETUID, CAP_SETGID and CAP_KILL")
	errHigher = errors.New("higher than this process's own hard limit, or than the system allows")
)

// explain is the failure as an error; there is one for the zero value too, see Try.
func (f failure) explain() error {
	e := &NotStarted{Err: f.errno}
	switch {
	case f.part == partNone:
		e.Err = nil
	case f.part == partArgv:
		e.Key = "argv"
	case f.part == partCwd:
		e.Key = "cwd"
	case f.part == partKill, f.part == partUser && f.errno == syscall.EPERM:
		e.Key, e.Err = "user", errRights
	case f.part == partUser:
		e.Key = "user"
	case f.part >= partLimit:
		e.Key = "limits"
		for name, r := range resources {
			if r == int(f.part-partLimit) {
				e.Key = "limits." + name
			}
		}
		if f.errno == syscall.EPERM {
			e.Err = errHigher
		}
	}
	return e
}

// enterName is the argv[0] of the process that turns into the program, where more is to be set than a fork can set.
const enterName = "agentrun-enter"

// enterFile is where that process says that it is about to do so, and then why it could not. It closes with the step itself.
const (
	enterFile  = 3
	enterGoes  = 'g'
	enterFails = 'f' // then part and error number
)

// start starts the program, in a group if there is one. Without a process id nothing ran.
func (o *order) start(path string, argv []string, in *os.File) (program int, f failure) {
	sys := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if in != nil {
		defer in.Close()
		sys.UseCgroupFD, sys.CgroupFD = true, int(in.Fd())
	}
	attr := &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: sys}
	if !o.Try && !o.User && len(o.Limits) == 0 {
		if f := o.enterCwd(); f != (failure{}) {
			return 0, f
		}
		p, err := os.StartProcess(path, argv, attr)
		if err != nil {
			return 0, failure{partArgv, errno(err)}
		}
		return p.Pid, failure{}
	}
	said, says, err := os.Pipe()
	if err != nil {
		return 0, failure{partOther, errno(err)}
	}
	attr.Files = append(attr.Files, says)
	p, err := os.StartProcess(self, append([]string{enterName, o.encode(), path}, argv...), attr)
	_ = says.Close()
	if err != nil {
		return 0, failure{partOther, errno(err)}
	}
	var word [4]byte
	n := 0
	for n < len(word) {
		more, err := said.Read(word[n:])
		if err != nil {
			break
		}
		n += more
	}
	_ = said.Close()
	heard := string(word[:n])
	if heard == string(rune(enterGoes)) {
		return p.Pid, failure{}
	}
	f = failure{partOther, syscall.ECHILD}
	if i := strings.IndexByte(heard, enterFails); i >= 0 && len(heard) >= i+3 {
		f = failure{heard[i+1], syscall.Errno(heard[i+2])}
	}
	_ = p.Kill()
	_, _ = p.Wait()
	return 0, f
}

func (o *order) enterCwd() failure {
	if o.Cwd != "" {
		if err := syscall.Chdir(o.Cwd); err != nil {
			return failure{partCwd, errno(err)}
		}
	}
	return failure{}
}

func errno(err error) syscall.Errno {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return syscall.EINVAL
}

// enter turns this process into the program: with its limits, which only a process itself can set if it must not run a
// moment without them, as its user, in its directory. What needs memory comes first: a limit may leave none.
func enter(o *order, path string, argv []string) {
	runtime.LockOSThread()
	syscall.CloseOnExec(enterFile)
	parent := os.Getppid()
	file, err1 := syscall.BytePtrFromString(path)
	args, err2 := syscall.SlicePtrFromStrings(argv)
	env, err3 := syscall.SlicePtrFromStrings(os.Environ())
	if err := errors.Join(err1, err2, err3); err != nil {
		fails(partArgv, syscall.EINVAL)
	}
	files := limit{Resource: syscall.RLIMIT_NOFILE}
	files.usual()
	if code := files.set(); code != 0 {
		fails(partOther, code)
	}
	if o.User && !mayKill() {
		fails(partKill, 0)
	}
	for i := range o.Limits {
		if code := o.Limits[i].set(); code != 0 {
			fails(byte(partLimit+o.Limits[i].Resource), code)
		}
	}
	if o.User {
		become(int(o.UID), int(o.GID))
		// The kernel forgets this when the user changes. The guard may have died before it is said again.
		_, _, code := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0)
		if code != 0 || os.Getppid() != parent {
			fails(partOther, code)
		}
	}
	if f := o.enterCwd(); f.part != partNone {
		fails(f.part, f.errno)
	}
	if o.Try {
		if err := mayRun(path); err != nil {
			fails(partArgv, errno(err))
		}
		fails(partNone, 0)
	}
	tell(enterGoes)
	_, _, code := syscall.RawSyscall(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(file)), uintptr(unsafe.Pointer(&args[0])), uintptr(unsafe.Pointer(&env[0])))
	fails(partArgv, code)
}

// become changes the user, without any group but the one.
func become(uid, gid int) {
	if err := syscall.Setgroups(nil); err != nil {
		fails(partUser, errno(err))
	}
	if err := syscall.Setresgid(gid, gid, gid); err != nil {
		fails(partUser, errno(err))
	}
	if err := syscall.Setresuid(uid, uid, uid); err != nil {
		fails(partUser, errno(err))
	}
}

// mayRun says whether this process may execute a file.
func mayRun(path string) error {
	var s syscall.Stat_t
	if err := syscall.Stat(path, &s); err != nil {
		return err
	}
	if s.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return syscall.EACCES
	}
	return syscall.Access(path, 1)
}

// mayKill says whether this process has CAP_KILL, which its guard then has too.
func mayKill() bool {
	const version3, capKill = 0x20080522, 5
	header := struct {
		version uint32
		pid     int32
	}{version: version3}
	var data [2]struct{ effective, permitted, inheritable uint32 }
	_, _, code := syscall.RawSyscall(syscall.SYS_CAPGET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data)), 0)
	return code == 0 && data[0].effective&(1<<capKill) != 0
}

var enterWord [3]byte // not on a stack that would have to grow

func tell(b ...byte) {
	n := copy(enterWord[:], b)
	_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, enterFile, uintptr(unsafe.Pointer(&enterWord)), uintptr(n))
}

// fails says why the program does not run, and ends this process.
func fails(part byte, code syscall.Errno) {
	tell(enterFails, part, byte(code))
	leave(0)
}
