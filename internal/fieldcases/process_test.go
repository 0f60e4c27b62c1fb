package fieldcases

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/app"
)

// A test that kills or pauses a process starts this test's own binary again: it then is an executor or a reconciler and
// nothing else, put together exactly as the commands do.
const roleVariable = "FIELDCASES_ROLE"

// casesAtOnce is how many cases run side by side, at least.
const casesAtOnce = 8

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		flag.Parse()
		// The cases wait for leases and windows most of the time, and not for a processor.
		if n, err := strconv.Atoi(flag.Lookup("test.parallel").Value.String()); err == nil && n < casesAtOnce {
			if err := flag.Set("test.parallel", strconv.Itoa(casesAtOnce)); err != nil {
				panic(err)
			}
		}
		os.Exit(m.Run())
	}
	if off := os.Getenv(clockVariable); off != "" {
		d, err := time.ParseDuration(off)
		if err == nil {
			err = shiftClock(d)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "clock:", err)
			os.Exit(1)
		}
		if role == "clock" {
			os.Exit(0)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := serve(ctx, role, os.Args[1:], app.Seams{
		Log: os.Stderr, OnReady: func(addr string) { fmt.Println("ready", addr) },
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve runs one process until ctx ends.
func serve(ctx context.Context, role string, args []string, seams app.Seams) error {
	if role == "reconciler" {
		var c app.ReconcilerConfig
		if err := app.Defaults(&c, args); err != nil {
			return err
		}
		c.Seams = seams
		return app.Reconciler(ctx, c)
	}
	var c app.ExecutorConfig
	if err := app.Defaults(&c, args); err != nil {
		return err
	}
	c.Seams = seams
	return app.Executor(ctx, c)
}

// log is a process's log, which is read while it is written.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// readyLog is the log of a command: its line "ready" says where its endpoints are.
type readyLog struct {
	log   *log
	line  []byte
	ready chan<- string
}

func (r *readyLog) Write(p []byte) (int, error) {
	for _, b := range p {
		if b != '\n' {
			r.line = append(r.line, b)
			continue
		}
		if _, addr, ok := strings.Cut(string(r.line), " http="); ok && strings.Contains(string(r.line), " msg=ready ") {
			select {
			case r.ready <- strings.TrimSpace(addr):
			default:
			}
		}
		r.line = r.line[:0]
	}
	return r.log.Write(p)
}

// process is an executor or a reconciler: inside the test, or one of its own that can be killed and paused.
type process struct {
	t      *testing.T
	role   string
	binary string // a command of some build; "": this test's own binary
	args   []string
	own    bool
	env    []string
	log    *log
	http   string // address of its endpoints
	cancel context.CancelFunc
	ended  chan error
	cmd    *exec.Cmd
}

const startLimit = 60 * time.Second

// start starts the process, for the first time or again, and waits until it is ready.
func (p *process) start() *process {
	p.t.Helper()
	ready := p.launch()
	select {
	case p.http = <-ready:
	case err := <-p.ended:
		p.ended <- err
		p.t.Fatalf("%s ended while it started: %v\n%s", p.role, err, p.log)
	case <-time.After(startLimit):
		p.t.Fatalf("%s was not ready within %s:\n%s", p.role, startLimit, p.log)
	}
	return p
}

// launch starts the process and does not wait.
func (p *process) launch() (ready <-chan string) {
	p.t.Helper()
	p.ended = make(chan error, 1)
	if p.own {
		return p.spawn()
	}
	ch := make(chan string, 1)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	seams := app.Seams{Log: p.log, OnReady: func(addr string) { ch <- addr }, Lookup: p.lookup}
	go func() { p.ended <- serve(ctx, p.role, p.args, seams) }()
	return ch
}

func (p *process) lookup(name string) (string, bool) {
	for _, e := range p.env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v, true
		}
	}
	return os.LookupEnv(name)
}

// forks starts children from one thread that lives as long as the test: a child is killed by the kernel when the thread
// that started it is gone, so that none outlives the test, whatever becomes of it.
var forks = sync.OnceValue(func() chan func() {
	ch := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range ch {
			f()
		}
	}()
	return ch
})

func (p *process) spawn() <-chan string {
	p.t.Helper()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(self, p.args...)
	cmd.Env = append(append(os.Environ(), roleVariable+"="+p.role), p.env...)
	ready := make(chan string, 1)
	cmd.Stderr = p.log
	if p.binary != "" {
		cmd = exec.Command(p.binary, append([]string{"serve"}, p.args...)...)
		cmd.Env = append(os.Environ(), p.env...)
		cmd.Stderr = &readyLog{log: p.log, ready: ready}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	started := make(chan error, 1)
	forks() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		p.t.Fatalf("starting %s: %v", p.role, err)
	}
	p.cmd = cmd
	ended := p.ended
	go func() {
		said, _ := io.ReadAll(io.LimitReader(out, 6)) // "ready "
		if string(said) == "ready " {
			var addr string
			if _, err := fmt.Fscanln(out, &addr); err == nil {
				ready <- addr
			}
		}
		_, _ = io.Copy(io.Discard, out)
		ended <- cmd.Wait()
	}()
	return ready
}

// stop ends the process as a signal does, after its drain, and waits.
func (p *process) stop() {
	p.t.Helper()
	if p.own {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	} else {
		p.cancel()
	}
	select {
	case err := <-p.ended:
		p.ended <- err
		if err != nil {
			p.t.Errorf("%s did not end cleanly: %v\n%s", p.role, err, p.log)
		}
	case <-time.After(startLimit):
		p.t.Fatalf("%s did not end within %s:\n%s", p.role, startLimit, p.log)
	}
}

// kill is kill -9, and waits until the process is gone.
func (p *process) kill() {
	p.t.Helper()
	_ = p.cmd.Process.Kill()
	p.gone()
}

// gone waits for the process's end, whatever it was.
func (p *process) gone() {
	p.t.Helper()
	select {
	case err := <-p.ended:
		p.ended <- err
	case <-time.After(startLimit):
		p.t.Fatalf("%s is not gone within %s", p.role, startLimit)
	}
}

func (p *process) pause()  { _ = p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) resume() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// end is for the test's cleanup: whatever state the process is in.
func (p *process) end() {
	if p.own {
		_ = p.cmd.Process.Kill()
	} else {
		p.cancel()
	}
	select {
	case err := <-p.ended:
		p.ended <- err
	case <-time.After(startLimit):
		p.t.Errorf("%s does not end:\n%s", p.role, p.log)
	}
}
