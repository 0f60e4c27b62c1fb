package main

import (
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
)

const (
	restarts   = 3
	dueSeconds = 3 // after how long the run that is to be woken is due
)

// restartPart ends a reconciler over many records and starts it again, until it is ready and has woken a run that fell due
// while it was away. It measures what a remembered run, a waiting run and a letter cost as well, since the store is there.
func (b *parts) restartPart() (err error) {
	w, err := newWorld(b.bin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	e, err := w.executor("executor", fleetConcurrency)
	if err != nil {
		return err
	}
	if err := e.ready(time.Minute); err != nil {
		return err
	}
	r, err := w.reconciler("reconciler")
	if err != nil {
		return err
	}
	waiting, letters := b.records/10, b.records/20
	ended := b.records - waiting - letters
	b.say("restart: %d records: %d ended ok, %d ended with an open letter, %d waiting for a retry that is due tomorrow\n", b.records, ended, letters, waiting)
	empty := w.server().memory("VmRSS")
	if err := b.fillStore(w, r, e, ended, waiting, letters); err != nil {
		return err
	}
	time.Sleep(settleAfter) // the block caches of the server are gone, and the reconciler has looked at each
	b.figure("store_server_rss_mb", w.server().memory("VmRSS"), fmt.Sprintf("MB RSS of the NATS server with %d records (%.0f before)", b.records, empty), "")
	b.figure("store_reconciler_rss_mb", r.memory("VmRSS"), "MB RSS of the reconciler that has seen them come", "")
	for _, x := range []struct {
		name   string
		signal syscall.Signal
		aim    string
	}{{"stopped", syscall.SIGTERM, "< 10"}, {"killed", syscall.SIGKILL, "< 10"}} {
		var readied, woken, used float64
		for range restarts {
			var a, c, u float64
			if r, a, c, u, err = w.restart(r, x.signal); err != nil {
				return err
			}
			readied, woken, used = max(readied, a), max(woken, c), max(used, u)
		}
		b.figure("restart_"+x.name+"_ready_s", readied, fmt.Sprintf("s until /readyz is 200, the longest of %d, %s", restarts, x.name), x.aim)
		b.figure("restart_"+x.name+"_woken_s", woken, "s until a run that fell due is done", x.aim)
		b.figure("restart_"+x.name+"_cpu_s", used, "CPU seconds of the reconciler until then", "")
	}
	b.figure("restart_reconciler_rss_mb", r.memory("VmRSS"), fmt.Sprintf("MB RSS of the reconciler over %d records, just ready", b.records), "")
	b.figure("restart_reconciler_peak_mb", r.memory("VmHWM"), "MB RSS peak until then", "")
	used, err := r.cpu()
	if err != nil {
		return err
	}
	time.Sleep(settleAfter)
	now, err := r.cpu()
	if err != nil {
		return err
	}
	b.figure("restart_looks_cpu_s", (now - used).Seconds(), "CPU seconds of the reconciler in the minute after", "")
	b.figure("restart_reconciler_settled_mb", r.memory("VmRSS"), "MB RSS of the reconciler after that minute", "")
	return b.restartServer(w)
}

// restartServer starts the NATS server anew on its store: then it holds what it needs for what it remembers, and nothing
// of what it needed to store it.
func (b *parts) restartServer(w *world) error {
	began := time.Now()
	if err := w.restartServer(); err != nil {
		return err
	}
	b.figure("store_server_restart_s", time.Since(began).Seconds(), fmt.Sprintf("s until a stopped NATS server answers again over %d records", b.records), "")
	b.figure("store_server_restarted_rss_mb", w.server().memory("VmRSS"), "MB RSS of it then", "")
	disk, err := w.disk("nats")
	b.figure("store_disk_bytes", disk*1e6/float64(b.records), "bytes of the server's disk per run", "")
	return err
}

// fillStore makes the records through a real executor, one kind after the other, and says what each kind takes.
func (b *parts) fillStore(w *world, r, e *process, ended, waiting, letters int) error {
	for _, x := range []struct {
		name, tool, args string
		n                int
	}{
		{"ok", "noop", noopArgs, ended}, {"waiting", "later", `{"seconds":` + aDay + `}`, waiting}, {"letter", "refused", noopArgs, letters},
	} {
		before, err := w.sizes()
		if err != nil {
			return err
		}
		journal, err := w.disk(e.name)
		if err != nil {
			return err
		}
		if err := w.publish(x.n, x.tool, x.args); err != nil {
			return err
		}
		if err := w.wait(0); err != nil {
			return err
		}
		after, err := w.sizes()
		if err != nil {
			return err
		}
		grown, err := w.disk(e.name)
		if err != nil {
			return err
		}
		n := float64(x.n)
		b.figure("store_"+x.name+"_bytes", float64(after.bytes-before.bytes)/n, "bytes in the streams per run, "+x.name, "")
		b.figure("store_"+x.name+"_messages", float64(after.messages-before.messages)/n, "messages in the streams per run, "+x.name, "")
		b.figure("journal_"+x.name+"_bytes", (grown-journal)*1e6/n, "bytes of the executor's journal per run, "+x.name, "")
	}
	return nil
}

// size is what the streams that remember hold.
type size struct{ messages, bytes uint64 }

func (w *world) sizes() (s size, err error) {
	for _, name := range []string{topology.RunsStream, topology.ResultsStream, topology.LettersStream} {
		var state jetstream.StreamState
		if state, err = w.state(name); err != nil {
			return s, err
		}
		s.messages += state.Msgs
		s.bytes += state.Bytes
	}
	return s, nil
}

// restart ends the reconciler, lets a run fall due, and starts another one.
func (w *world) restart(r *process, how syscall.Signal) (next *process, readied, woken, used float64, err error) {
	due := w.published + 1
	if err := w.publish(1, "later", `{"seconds":`+strconv.Itoa(dueSeconds)+`}`); err != nil {
		return r, 0, 0, 0, err
	}
	if err := w.wait(0); err != nil {
		return r, 0, 0, 0, err
	}
	sub, err := w.nc.SubscribeSync(topology.ResultSubject(id(due), envelope.RunScope))
	if err != nil {
		return r, 0, 0, 0, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	r.end(how)
	w.remove(r)
	time.Sleep((dueSeconds + 1) * time.Second)
	began := time.Now()
	if next, err = w.reconciler("reconciler"); err != nil {
		return next, 0, 0, 0, err
	}
	readied = time.Since(began).Seconds()
	if _, err = sub.NextMsg(time.Minute); err != nil {
		return next, readied, 0, 0, fmt.Errorf("the run that fell due was not woken: %w", err)
	}
	woken = time.Since(began).Seconds()
	cpu, err := next.cpu()
	return next, readied, woken, cpu.Seconds(), err
}
