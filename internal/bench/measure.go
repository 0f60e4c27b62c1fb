package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

type setup struct {
	kind        string // agentrun or floor
	sync        string // default or always: of the NATS server
	concurrency int
	backlog     int
	latency     bool
	profile     string
}

// bench is one embedded server with streams, a journal, and a connection for the worker and for the publisher.
type bench struct {
	setup
	dir       string
	server    *natsserver.Server
	conn      *streams.Conn
	publisher *nats.Conn
	js        jetstream.JetStream
	journal   *journal.Journal
	commits   atomic.Int64
	entries   atomic.Int64
	committed atomic.Int64 // nanoseconds spent in commits
}

const (
	lease     = 30 * time.Second
	retention = 168 * time.Hour
	tenant    = "bench"
	queue     = "default"
)

func measure(s setup) (sample Sample, err error) {
	b := &bench{setup: s}
	if b.dir, err = os.MkdirTemp("", "agentrun-bench-"); err != nil {
		return Sample{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if err := b.open(); err != nil {
		return Sample{}, err
	}
	defer b.close()
	if s.latency {
		return b.oneAtATime()
	}
	return b.drain()
}

func (b *bench) open() error {
	var err error
	app.SpareMemory()
	b.server, err = natsserver.NewServer(&natsserver.Options{
		ServerName: "bench", DontListen: true, JetStream: true, StoreDir: filepath.Join(b.dir, "nats"), NoSigs: true, NoLog: true,
		SyncAlways: b.sync == "always",
	})
	if err != nil {
		return err
	}
	b.server.Start()
	if !b.server.ReadyForConnections(10 * time.Second) {
		return errors.New("the embedded server did not start")
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	if b.conn, err = streams.Connect(streams.Options{Options: bus.Options{Name: "bench", InProcess: b.server, Logger: quiet}}); err != nil {
		return err
	}
	ctx := context.Background()
	if err := b.conn.Setup(ctx, streams.Config{Queues: []string{queue}, AckWait: 2 * lease}); err != nil {
		return err
	}
	if b.publisher, err = nats.Connect("", nats.InProcessServer(b.server)); err != nil {
		return err
	}
	if b.js, err = jetstream.New(b.publisher, jetstream.WithPublishAsyncMaxPending(4000)); err != nil {
		return err
	}
	b.journal, err = journal.Open(filepath.Join(b.dir, "journal.db"), journal.Options{OnCommit: func(took time.Duration, n int) {
		b.commits.Add(1)
		b.committed.Add(int64(took))
		b.entries.Add(int64(n))
	}})
	return err
}

func (b *bench) close() {
	if b.journal != nil {
		_ = b.journal.Close()
	}
	if b.publisher != nil {
		b.publisher.Close()
	}
	if b.conn != nil {
		b.conn.Close()
	}
	if b.server != nil {
		b.server.Shutdown()
		b.server.WaitForShutdown()
	}
}

func id(i int) run.ID { return run.ID{Tenant: tenant, Run: "run_" + strconv.Itoa(i)} }

func job(i int) []byte {
	return fmt.Appendf(nil, `{"schema":"agentrun.job/v1","tenant":"%s","run_id":"run_%d","workflow":"bench","owner":"bench","actor":"agent:bench",`+
		`"steps":[{"step":"apply_credit","tool":"noop","args":{"invoice_id":"inv_%d","amount_minor":500}}]}`, tenant, i, i)
}

// fill publishes the backlog.
func (b *bench) fill() error {
	ctx := context.Background()
	for i := range b.backlog {
		for {
			_, err := b.js.PublishMsgAsync(&nats.Msg{Subject: topology.JobSubject(queue, id(i)), Data: job(i)})
			if err == nil {
				break
			}
			if !errors.Is(err, jetstream.ErrTooManyStalledMsgs) {
				return err
			}
		}
	}
	select {
	case <-b.js.PublishAsyncComplete():
		return nil
	case <-time.After(2 * time.Minute):
		return errors.New("the backlog was not acknowledged")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drain measures how fast a backlog is worked off: until every job is acknowledged, which is after its last outcome.
func (b *bench) drain() (Sample, error) {
	if err := b.fill(); err != nil {
		return Sample{}, err
	}
	filled := peakRSS()
	forgetPeak()
	before := cpu()
	writes := b.writes()
	stop, err := b.startProfile()
	if err != nil {
		return Sample{}, err
	}
	began := time.Now()
	w := b.start()
	for b.left() > 0 {
		time.Sleep(5 * time.Millisecond)
	}
	took := time.Since(began)
	stop()
	s := Sample{
		JobsPerSecond: float64(b.backlog) / took.Seconds(), CPUMicros: float64((cpu() - before).Microseconds()) / float64(b.backlog),
		RSSMegabytes: peakRSS(), FillMegabytes: filled, WritesPerJob: float64(b.writes()-writes) / float64(b.backlog),
	}
	if c := b.commits.Load(); c > 0 {
		s.RecordsPerSync = float64(b.entries.Load()) / float64(c)
		s.CommitMicros = float64(b.committed.Load()) / float64(c) / 1000
	}
	if err := b.heapProfile(); err != nil {
		return s, err
	}
	w.stop()
	if n := b.stream(topology.ResultsStream).State.Msgs; n != uint64(2*b.backlog) {
		return s, fmt.Errorf("%d outcomes of %d jobs, wanted two each", n, b.backlog)
	}
	return s, nil
}

// oneAtATime measures publish to terminal outcome, as a publisher that waits sees it.
func (b *bench) oneAtATime() (Sample, error) {
	const warm, n = 200, 2000
	sub, err := b.publisher.SubscribeSync(topology.ResultSubject(run.ID{Tenant: tenant, Run: "*"}, envelope.RunScope))
	if err != nil {
		return Sample{}, err
	}
	w := b.start()
	defer w.stop()
	took := make([]time.Duration, 0, n)
	for i := range warm + n {
		began := time.Now()
		if err := b.publisher.Publish(topology.JobSubject(queue, id(i)), job(i)); err != nil {
			return Sample{}, err
		}
		if _, err := sub.NextMsg(10 * time.Second); err != nil {
			return Sample{}, fmt.Errorf("job %d: %w", i, err)
		}
		if i >= warm {
			took = append(took, time.Since(began))
		}
	}
	slices.Sort(took)
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	return Sample{P50Micros: micros(took[n/2]), P99Micros: micros(took[n*99/100]), RSSMegabytes: peakRSS()}, nil
}

func (b *bench) stream(name string) *jetstream.StreamInfo {
	s, err := b.js.Stream(context.Background(), name)
	if err != nil {
		return &jetstream.StreamInfo{}
	}
	return s.CachedInfo()
}

func (b *bench) left() uint64 {
	s, err := b.js.Stream(context.Background(), topology.JobsStream)
	if err != nil {
		return 1
	}
	return s.CachedInfo().State.Msgs
}

// writes counts the acknowledged JetStream writes so far, jobs left out.
func (b *bench) writes() uint64 {
	return b.stream(topology.RunsStream).State.LastSeq + b.stream(topology.ResultsStream).State.LastSeq + b.stream(topology.WakesStream).State.LastSeq +
		b.stream(topology.LettersStream).State.LastSeq
}

func (b *bench) startProfile() (func(), error) {
	if b.profile == "" {
		return func() {}, nil
	}
	f, err := os.Create(b.profile)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}

// heapProfile writes what is in use when the backlog is done, beside the CPU profile.
func (b *bench) heapProfile() error {
	if b.profile == "" {
		return nil
	}
	f, err := os.Create(b.profile + ".heap")
	if err != nil {
		return err
	}
	runtime.GC()
	return errors.Join(pprof.WriteHeapProfile(f), f.Close())
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// forgetPeak gives what the publisher left behind back and lets the kernel count the largest resident set anew: what
// counts is the executor and its server, not who filled the queue.
func forgetPeak() {
	debug.FreeOSMemory()
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
}

// peakRSS is the process's largest resident set so far, in MB.
func peakRSS() float64 { return statusMegabytes("/proc/self/status", "VmHWM") }

// statusMegabytes reads an entry of a /proc/PID/status that is in kB; 0 if it is not there.
func statusMegabytes(file, entry string) float64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == entry+":" {
			kb, _ := strconv.ParseFloat(f[1], 64)
			return kb / 1024
		}
	}
	return 0
}
