package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/generation"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/topology"
)

// An older copy of NATS's store is put back in each round: taken while the server stands still, as a snapshot of a disk is,
// and in its place when the server is killed a while and many faults later. Deaths, pauses and lost replies go on before, in
// and after the fleet's restoring, and so does publishing. Once the fleet has settled the publishers publish again what they
// have no end of, as they are told to. Three things are left out, because nobody could know then what was done
// (docs/operations.md says so):
//
//   - Between the two no journal is lost: only that journal and the lost part of the store knew.
//   - When the copy is made, each executor has its record in the store: the copy must know whom to wait for.
//   - When it is put back, each executor has written its record since: one that was away all the time would not see that the
//     store has gone back, and might go on before those that do.
type restore struct {
	in      *injector
	pub     *Publisher
	results *Results
	taken   time.Time // when the copy was made; zero: there is none
	before  string    // the generation that was there then
	last    uint64    // of the store's sequences, none later is in the copy
	settled chan struct{}
}

const (
	copyAge      = 3 * time.Second // the least age of a copy that is put back
	restoreLimit = time.Minute     // for the fleet to settle with it
)

func (r *restore) dir() string { return filepath.Join(r.in.fleet.Dir, "nats") }

func (r *restore) copied() string { return filepath.Join(r.in.fleet.Dir, "nats-copy") }

// forbids says whether a fault is not to be mixed with what goes on.
func (r *restore) forbids(k Kind) bool { return r != nil && !r.taken.IsZero() && k == LoseJournal }

// take copies the store, if the server is up and no copy is waiting.
func (r *restore) take(ctx context.Context) error {
	if !r.taken.IsZero() {
		return nil
	}
	before, missing, ok := r.generation(ctx)
	if !ok || missing > 0 || !r.all(ctx, func(p *Process, m member) bool { return m.written.After(p.lost) }) {
		return nil
	}
	if done, err := r.copy(); err != nil || !done {
		return err
	}
	for r.last = 0; r.last == 0; {
		if s, err := r.in.fleet.js.Stream(ctx, topology.RunsStream); err == nil {
			r.last = s.CachedInfo().State.LastSeq
		} else if !pause.For(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
	r.before = before
	return nil
}

func (r *restore) copy() (done bool, err error) {
	n := r.in.fleet.NATS
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil || n.ordered || n.paused || n.cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return false, nil
	}
	defer func() { _ = n.cmd.Process.Signal(syscall.SIGCONT) }()
	for !stopped(n.cmd.Process.Pid) { // a signal takes a moment to reach every thread
		time.Sleep(time.Millisecond)
	}
	if err := os.RemoveAll(r.copied()); err != nil {
		return false, err
	}
	at := time.Now()
	if err := os.CopyFS(r.copied(), os.DirFS(r.dir())); err != nil {
		return false, err
	}
	r.taken = at
	return true, nil
}

// stopped says whether no thread of a process runs. A copy of a server that goes on is of one moment for each file, and what
// the streams say of one another does not hold in it.
func stopped(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		return true // it is gone
	}
	for _, name := range threads {
		stat, err := os.ReadFile(name)
		state := bytes.TrimSpace(stat[bytes.LastIndexByte(stat, ')')+1:])
		if err == nil && !bytes.HasPrefix(state, []byte("T")) && !bytes.HasPrefix(state, []byte("Z")) {
			return false
		}
	}
	return true
}

// member is an executor's own record in the store.
type member struct {
	seq     uint64
	written time.Time
}

// all says whether each executor has a record in the store, and fits.
func (r *restore) all(ctx context.Context, fits func(*Process, member) bool) bool {
	octx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s, err := stored(octx, r.in.fleet.js, topology.RunsStream)
	if err != nil {
		return false
	}
	latest := map[string]member{} // by directory
	for next := uint64(1); ; {
		m, err := s.GetMsg(octx, next, jetstream.WithGetMsgSubject(topology.FleetSubject("*")))
		if noMessage(err) {
			break
		}
		if err != nil {
			return false
		}
		var who generation.Member
		if json.Unmarshal(m.Data, &who) == nil && who.Schema == generation.MemberSchema {
			latest[who.Dir] = member{m.Sequence, m.Time}
		}
		next = m.Sequence + 1
	}
	for _, p := range r.in.fleet.Executors {
		if m, there := latest[p.Data]; !there || !fits(p, m) {
			return false
		}
	}
	return true
}

// putBack kills the server and starts it again on the copy. It is false if that cannot be done now.
func (r *restore) putBack(ctx context.Context, again time.Duration) bool {
	if r.taken.IsZero() || time.Since(r.taken) < copyAge || r.settled != nil {
		return false
	}
	// What an executor has written it remembers on disk soon after.
	const soon = 500 * time.Millisecond
	if !r.all(ctx, func(_ *Process, m member) bool { return m.seq > r.last && time.Since(m.written) > soon }) {
		return false
	}
	taken, at := r.taken, time.Now()
	settled := make(chan struct{})
	_, ok := r.in.fleet.NATS.Kill(again, func() error {
		if err := os.RemoveAll(r.dir()); err != nil {
			return err
		}
		if err := os.Rename(r.copied(), r.dir()); err != nil {
			return err
		}
		r.results.Restart(func() { r.pub.Reopen(taken) })
		go func() {
			defer close(settled)
			if r.waitSettled(ctx) {
				r.pub.Again(ctx)
			}
		}()
		return nil
	})
	if ok {
		r.settled = settled
		r.in.fleet.Faults.Note(Fault{Kind: RestoreNATS, Process: r.in.fleet.NATS.Name, At: at, Detail: "copy of " + taken.UTC().Format("15:04:05.000")})
	}
	return ok
}

// over says whether the fleet has agreed on the copy, or there is none; then another may be taken.
func (r *restore) over() bool {
	if r.settled == nil {
		return r.taken.IsZero()
	}
	select {
	case <-r.settled:
		r.settled, r.taken = nil, time.Time{}
		return true
	default:
		return false
	}
}

func (r *restore) waitSettled(ctx context.Context) bool {
	for start := time.Now(); time.Since(start) < restoreLimit; {
		if now, missing, ok := r.generation(ctx); ok && now != r.before && missing == 0 {
			return true
		}
		if !pause.For(ctx, 50*time.Millisecond) {
			return false
		}
	}
	return true // what is lost then is a finding
}

// generation reads the store's own record: which generation it is in, and how many journals are waited for.
func (r *restore) generation(ctx context.Context) (name string, missing int, ok bool) {
	octx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s, err := stored(octx, r.in.fleet.js, topology.RunsStream)
	if err != nil {
		return "", 0, false
	}
	m, err := s.GetLastMsgForSubject(octx, topology.FleetSubject(generation.StateName))
	if noMessage(err) {
		return "", 0, true // the first generation has no record
	}
	if err != nil {
		return "", 0, false
	}
	var state generation.State
	if json.Unmarshal(m.Data, &state) != nil {
		return "", 0, false
	}
	return state.Generation, len(state.Missing()), true
}
