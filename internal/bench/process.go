package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is one process of a measured fleet. It ends with this one: see parts.
type process struct {
	name string
	cmd  *exec.Cmd
	http string // host:port of its endpoints; empty: it has none
	log  string
}

// startProcess runs a command until stop or kill, its output in a file of dir. Processes must be started from one thread
// that does not end before this process does: the kernel kills them when it is gone.
func startProcess(dir, name, http string, env []string, path string, args ...string) (*process, error) {
	p := &process{name: name, http: http, log: filepath.Join(dir, name+".log")}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", name, err)
	}
	defer log.Close()
	p.cmd = exec.Command(path, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return p, nil
}

// end sends a signal and waits until the process is gone; one that does not obey is killed.
func (p *process) end(s syscall.Signal) {
	_ = p.cmd.Process.Signal(s)
	timer := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	_ = p.cmd.Wait() // how it ended is of no interest: what it was measured for is over
}

// ready waits until /readyz answers 200.
func (p *process) ready(limit time.Duration) error {
	for began := time.Now(); time.Since(began) < limit; time.Sleep(5 * time.Millisecond) {
		resp, err := http.Get("http://" + p.http + "/readyz")
		if err != nil {
			continue
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return nil
		}
	}
	text, _ := os.ReadFile(p.log)
	return fmt.Errorf("%s was not ready within %s:\n%s", p.name, limit, text)
}

// scrape reads /metrics, as a Prometheus would.
func (p *process) scrape() error {
	resp, err := http.Get("http://" + p.http + "/metrics")
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// cpu is the processor time that the process has used so far, user and system, all threads: fields 14 and 15 of
// /proc/PID/stat, in ticks of 10 ms.
func (p *process) cpu() (time.Duration, error) {
	text, err := os.ReadFile(p.proc("stat"))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 13 {
		return 0, errors.New("no processor time in " + p.proc("stat"))
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, err
}

// memory reads an entry of /proc/PID/status in MB: VmRSS is what is resident, VmHWM the most that ever was.
func (p *process) memory(entry string) float64 { return statusMegabytes(p.proc("status"), entry) }

func (p *process) proc(file string) string {
	return filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), file)
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
