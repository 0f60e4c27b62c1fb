package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/agentrun/executor/internal/pause"
)

// Role is what a process of the fleet does.
type Role string

// The roles of processes.
const (
	Executor   Role = "executor"
	Reconciler Role = "reconciler"
	Server     Role = "nats-server"
	Gateway    Role = "gateway"
)

// Process is one member of the fleet: it is started again, with the same arguments, whenever it has ended.
type Process struct {
	Name string // unique, also the name of its log
	Role Role
	Data string // the executor's journal directory

	path   string
	args   []string
	log    string
	faults *Chronicle

	mu      sync.Mutex
	cmd     *exec.Cmd
	since   time.Time
	starts  int
	paused  bool
	ordered bool          // its end was asked for
	again   time.Duration // how long after an ordered end it is started again
	between func() error  // what happens to its files before it is started again; nil: nothing
	own     int           // ends that nobody asked for
	lost    time.Time     // when its journal was lost; read by who makes it so
}

// forks starts children from one thread that never ends: a child is killed by the kernel when the thread that started it
// is gone, so that no process outlives this one, whatever becomes of it.
var forks = make(chan func())

func init() {
	go func() {
		runtime.LockOSThread()
		for f := range forks {
			f()
		}
	}()
}

func fork(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	forks <- func() { started <- cmd.Start() }
	return <-started
}

// Supervise keeps the process running until ctx ends, then kills it.
func (p *Process) Supervise(ctx context.Context) error {
	for ctx.Err() == nil {
		cmd, err := p.start()
		if err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-ended:
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			<-ended
			return nil
		}
		if !pause.For(ctx, p.ended(cmd.ProcessState)) {
			return nil
		}
	}
	return nil
}

func (p *Process) start() (*exec.Cmd, error) {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", p.Name, err)
	}
	defer log.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.starts++
	cmd := exec.Command(p.path, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	// The provider learns from this which start of which process sent a request.
	cmd.Env = append(os.Environ(), "CRASH_WORKER="+p.Name+"."+strconv.Itoa(p.starts))
	if err := fork(cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", p.Name, err)
	}
	p.cmd, p.since, p.paused, p.ordered = cmd, time.Now(), false, false
	return cmd, nil
}

// ended notes an end and says after how long the process starts again.
func (p *Process) ended(state *os.ProcessState) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd = nil
	if !p.ordered {
		p.own++
		p.faults.Note(Fault{Kind: OwnEnd, Process: p.worker(), At: time.Now(), Until: time.Now(), Detail: state.String() + lastWords(p.log)})
		return 100 * time.Millisecond
	}
	if between := p.between; between != nil {
		p.between = nil
		if err := between(); err != nil {
			p.faults.Note(Fault{Kind: OwnEnd, Process: p.worker(), At: time.Now(), Until: time.Now(), Detail: err.Error()})
		}
	}
	return p.again
}

// lastWords is the last line of a log.
func lastWords(log string) string {
	data, err := os.ReadFile(log)
	if err != nil {
		return ""
	}
	data = bytes.TrimSpace(data)
	line := string(data[bytes.LastIndexByte(data, '\n')+1:])
	return ": " + line[:min(len(line), 500)]
}

func (p *Process) worker() string { return p.Name + "." + strconv.Itoa(p.starts) }

// Up says whether the process runs and is not paused, and since when.
func (p *Process) Up() (age time.Duration, up bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.ordered || p.paused {
		return 0, false
	}
	return time.Since(p.since), true
}

// signal sends a signal that ends the process, now or after its drain. It is false if the process is not running.
func (p *Process) signal(s syscall.Signal, again time.Duration, between func() error) (worker string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.ordered || p.cmd.Process.Signal(s) != nil {
		return "", false
	}
	p.ordered, p.again, p.between = true, again, between
	return p.worker(), true
}

// Kill ends the process by SIGKILL; it is started again after the given time. between is called before, when it has ended;
// it may be nil.
func (p *Process) Kill(again time.Duration, between func() error) (worker string, ok bool) {
	return p.signal(syscall.SIGKILL, again, between)
}

// Terminate asks the process to drain.
func (p *Process) Terminate(again time.Duration) (worker string, ok bool) {
	return p.signal(syscall.SIGTERM, again, nil)
}

// Pause stops the process for a time, as a machine that is suspended does. It returns at once; done is called when the
// process goes on, or has been killed meanwhile.
func (p *Process) Pause(ctx context.Context, length time.Duration, done func()) (worker string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	cmd := p.cmd
	if cmd == nil || p.ordered || p.paused || cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return "", false
	}
	p.paused = true
	go func() {
		pause.For(ctx, length)
		p.mu.Lock()
		if p.cmd == cmd {
			_ = cmd.Process.Signal(syscall.SIGCONT)
			p.paused = false
		}
		p.mu.Unlock()
		done()
	}()
	return p.worker(), true
}

// current names the process and its present start, as the provider hears it.
func (p *Process) current() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.worker()
}
