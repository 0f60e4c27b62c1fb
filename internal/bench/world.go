package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/topology"
)

// world is a NATS server with executors and reconcilers, each a process of its own, talking TCP; and this process's
// connection, which publishes and looks.
type world struct {
	dir       string
	url       string
	start     func() (*process, error) // the server
	config    string
	processes []*process // the server first
	executors []*process
	nc        *nats.Conn
	js        jetstream.JetStream
	published int
}

// worldConfig is for the tools of roles.go. A run may wait for two days.
const worldConfig = worldDefaults + "tools: {}\n"

const worldDefaults = `defaults:
  owner: bench
  workflow: bench
  actor: "agent:bench"
  budget: {max_elapsed: 48h}
  retry: {max_retry_after: 48h, initial_delay: 50ms}
`

// buildCommands compiles the real commands and the real NATS server into dir.
func buildCommands(dir string) error {
	for name, pkg := range map[string]string{
		"executor": module + "/cmd/executor", "reconciler": module + "/cmd/reconciler", "nats-server": "github.com/nats-io/nats-server/v2",
	} {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, name), pkg).CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", name, err, out)
		}
	}
	return nil
}

const module = "github.com/agentrun/executor"

// newWorld starts a NATS server on a fresh store, with its default settings, and makes the streams. bin has the commands.
// Close it.
func newWorld(bin string, serverFlags ...string) (w *world, err error) {
	w = &world{}
	if w.dir, err = os.MkdirTemp("", "agentrun-bench-"); err != nil {
		return nil, err
	}
	if err := w.open(bin, serverFlags); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) open(bin string, serverFlags []string) error {
	addr, err := freeAddr()
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	w.url, w.config = "nats://"+addr, filepath.Join(w.dir, "config.yaml")
	if err := os.WriteFile(w.config, []byte(worldConfig), 0o600); err != nil {
		return err
	}
	args := append([]string{"-a", host, "-p", port, "-js", "-sd", filepath.Join(w.dir, "nats")}, serverFlags...)
	w.start = func() (*process, error) {
		return startProcess(w.dir, "nats-server", "", nil, filepath.Join(bin, "nats-server"), args...)
	}
	server, err := w.start()
	if err != nil {
		return err
	}
	w.processes = append(w.processes, server)
	conn, err := streams.Connect(streams.Options{Options: bus.Options{URL: w.url, Name: "bench", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}})
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := conn.Setup(ctx, streams.Config{Queues: []string{queue}, AckWait: 2 * lease}); err != nil {
		return err
	}
	if w.nc, err = nats.Connect(w.url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond)); err != nil {
		return err
	}
	w.js, err = jetstream.New(w.nc, jetstream.WithPublishAsyncMaxPending(4000))
	return err
}

func (w *world) close() error {
	if w.nc != nil {
		w.nc.Close()
	}
	for i := len(w.processes) - 1; i >= 0; i-- {
		w.processes[i].end(syscall.SIGKILL)
	}
	return os.RemoveAll(w.dir)
}

func (w *world) add(name, http string, env []string, path string, args ...string) (*process, error) {
	p, err := startProcess(w.dir, name, http, env, path, args...)
	if err == nil {
		w.processes = append(w.processes, p)
	}
	return p, err
}

// remove forgets a process that has been ended.
func (w *world) remove(p *process) {
	for i, x := range w.processes {
		if x == p {
			w.processes = append(w.processes[:i], w.processes[i+1:]...)
			return
		}
	}
}

// serve starts an executor or a reconciler. path is the program; role is its first argument, if it has several roles.
func (w *world) serve(name string, env []string, path string, role []string, flags ...string) (*process, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	args := append(role, "serve", "--nats", w.url, "--config", w.config, "--id", name, "--http", addr, "--lease", lease.String())
	return w.add(name, addr, env, path, append(args, flags...)...)
}

// executor starts this program as an executor with the bench's tools, and does not wait for it.
func (w *world) executor(name string, concurrency int, env ...string) (*process, error) {
	p, err := w.serve(name, env, os.Args[0], []string{"executor"}, "--data", filepath.Join(w.dir, name), "--concurrency", strconv.Itoa(concurrency))
	w.executors = append(w.executors, p)
	return p, err
}

// reconciler starts this program as a reconciler with the bench's tools, and waits until it is ready.
func (w *world) reconciler(name string, env ...string) (*process, error) {
	p, err := w.serve(name, env, os.Args[0], []string{"reconciler"})
	if err != nil {
		return nil, err
	}
	return p, p.ready(time.Minute)
}

// restartServer stops the server in good order, starts it again on the same store, and waits until JetStream answers.
func (w *world) restartServer() (err error) {
	w.server().end(syscall.SIGTERM)
	server, err := w.start()
	if err != nil {
		w.processes = w.processes[1:]
		return err
	}
	w.processes[0] = server
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if _, err = w.state(topology.RunsStream); err == nil || time.Since(began) > time.Minute {
			return err
		}
	}
}

func (w *world) server() *process { return w.processes[0] }

// spent is processor time by the name of the process.
type spent map[string]time.Duration

// cpu is the processor time of each process of the world.
func (w *world) cpu() (spent, error) {
	out := spent{}
	for _, p := range w.processes {
		t, err := p.cpu()
		if err != nil {
			return nil, err
		}
		out[p.name] = t
	}
	return out, nil
}

// since is what was spent since an earlier look, in microseconds for each of n jobs: by all, and by each.
func (now spent) since(before spent, n float64) (all float64, each map[string]float64) {
	each = map[string]float64{}
	for name := range now {
		each[name] = float64((now[name] - before[name]).Microseconds()) / n
		all += each[name]
	}
	return all, each
}

// publish puts n jobs of one step into the queue and waits until they are stored.
func (w *world) publish(n int, tool, args string) error {
	for range n {
		w.published++
		msg := &nats.Msg{Subject: topology.JobSubject(queue, id(w.published)), Data: jobFor(w.published, tool, args)}
		for {
			_, err := w.js.PublishMsgAsync(msg)
			if err == nil {
				break
			}
			if !errors.Is(err, jetstream.ErrTooManyStalledMsgs) {
				return err
			}
		}
	}
	select {
	case <-w.js.PublishAsyncComplete():
		return nil
	case <-time.After(2 * time.Minute):
		return errors.New("the jobs were not acknowledged")
	}
}

func jobFor(i int, tool, args string) []byte {
	return fmt.Appendf(nil, `{"schema":"agentrun.job/v1","tenant":"%s","run_id":"run_%d","workflow":"bench","owner":"bench","actor":"agent:bench",`+
		`"steps":[{"step":"apply_credit","tool":"%s","args":%s}]}`, tenant, i, tool, args)
}

// noopArgs are as long as those of the single process.
const noopArgs = `{"invoice_id":"inv_10000","amount_minor":500}`

func (w *world) state(name string) (jetstream.StreamState, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s, err := w.js.Stream(ctx, name)
	if err != nil {
		return jetstream.StreamState{}, err
	}
	return s.CachedInfo().State, nil
}

// wait returns once no more than left jobs wait or are being worked on.
func (w *world) wait(left uint64) error {
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		s, err := w.state(topology.JobsStream)
		if err == nil && s.Msgs <= left {
			return nil
		}
		if time.Since(began) > 10*time.Minute {
			return fmt.Errorf("%d jobs are left after ten minutes (%w)", s.Msgs, err)
		}
	}
}

// disk is the size of what lies below a directory of the world, in MB, by blocks in use.
func (w *world) disk(sub string) (float64, error) {
	var blocks int64
	err := filepath.WalkDir(filepath.Join(w.dir, sub), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			blocks += s.Blocks
		}
		return nil
	})
	return float64(blocks) * 512 / 1e6, err
}
