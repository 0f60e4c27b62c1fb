package child

import (
	"os"
	"os/signal"
	"syscall"
)

// Init is for the first process of a container, which the kernel makes the parent of every process that loses its own: one
// that never asks for their ends keeps them all as zombies. If this is such a process it starts itself a second time, hands
// on every signal, and waits for all that end until the second has; then it returns its exit code and true. Asking for
// others' ends in the working process itself would take those away that somebody else there waits for. It is false in any
// other process, and where the second cannot be started: then this one must do the work.
func Init() (code int, was bool) {
	if os.Getpid() != 1 {
		return 0, false
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals)
	second, err := startSecond()
	if err != nil {
		signal.Reset()
		return 0, false
	}
	for s := range signals {
		switch s {
		case syscall.SIGCHLD:
			if code, ended := reap(second); ended {
				return code, true
			}
		case syscall.SIGURG, syscall.SIGPIPE, syscall.SIGTTIN, syscall.SIGTTOU: // the Go runtime's, or about this process
		default:
			if n, ok := s.(syscall.Signal); ok {
				_ = syscall.Kill(second, n)
			}
		}
	}
	return 0, false
}

// startSecond starts this executable again in a group of its own, so that a terminal's signals come once: in the foreground,
// or where there is no terminal just so.
func startSecond() (pid int, err error) {
	for _, foreground := range []bool{true, false} {
		var p *os.Process
		p, err = os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
			Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Setpgid: !foreground, Foreground: foreground},
		})
		if err == nil {
			return p.Pid, nil
		}
	}
	return 0, err
}

// reap asks for the ends of all that have ended; ended says that one of them was the second process.
func reap(second int) (code int, ended bool) {
	for {
		var s syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &s, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil || pid <= 0:
			return code, ended
		case pid == second:
			code, ended = exitCode(s), true
		}
	}
}
