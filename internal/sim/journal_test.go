package sim

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/worker"
)

// disk is an executor's journal as it survives its process: in memory, or a real bbolt file.
type disk interface {
	// open starts a life of the journal; every life has a holder of its own.
	open() (worker.Journal, string)
	// close ends it, as the death of the process does.
	close()
	// intended reports whether the intent of a dispatch is durable.
	intended(d engine.DispatchID) bool
	// known are all facts; no call of another process may run meanwhile.
	known() []engine.Fact
	// wipe loses everything, and the journal's name with it.
	wipe()
}

// memory is a journal's contents without a file.
type memory struct {
	w      *world
	name   string
	wipes  int
	starts int
	order  []engine.DispatchID
	facts  map[engine.DispatchID]*engine.Fact
	store  time.Time
}

func newMemory(w *world, name string) *memory {
	return &memory{w: w, name: name, facts: map[engine.DispatchID]*engine.Fact{}}
}

func (m *memory) open() (worker.Journal, string) {
	m.starts++
	return m, m.name + itoa(uint64(m.wipes)) + "." + itoa(uint64(m.starts))
}

func (m *memory) close() {}

func (m *memory) wipe() {
	m.wipes++
	m.order, m.facts, m.store = nil, map[engine.DispatchID]*engine.Fact{}, time.Time{}
}

func (m *memory) intended(d engine.DispatchID) bool {
	f := m.facts[d]
	return f != nil && f.Intent.Step != ""
}

func (m *memory) known() []engine.Fact {
	var out []engine.Fact
	for _, d := range m.order {
		out = append(out, *m.facts[d])
	}
	return out
}

func (m *memory) Write(_ context.Context, entries ...engine.Entry) error {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	for _, e := range entries {
		switch {
		case e.Intent != nil:
			m.fact(e.Intent.Dispatch).Intent = *e.Intent
			m.fact(e.Intent.Dispatch).Settled = false
		case e.Effect != nil:
			effect := *e.Effect
			m.fact(effect.Dispatch).Effect = &effect
		default:
			if f := m.facts[e.Settled]; f != nil {
				f.Settled = true
			}
		}
	}
	return nil
}

func (m *memory) fact(d engine.DispatchID) *engine.Fact {
	f := m.facts[d]
	if f == nil {
		f = &engine.Fact{Intent: engine.Intent{Dispatch: d}, Settled: true}
		m.facts[d] = f
		m.order = append(m.order, d)
	}
	return f
}

func (m *memory) Later(entries ...engine.Entry) { _ = m.Write(context.Background(), entries...) }

func (m *memory) Unsettled() ([]engine.Fact, error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	var out []engine.Fact
	for _, d := range m.order {
		if f := m.facts[d]; !f.Settled {
			out = append(out, *f)
		}
	}
	return out, nil
}

func (m *memory) Facts(fn func(engine.Fact) error) error {
	m.w.mu.Lock()
	var all []engine.Fact
	for _, d := range m.order {
		all = append(all, *m.facts[d])
	}
	m.w.mu.Unlock()
	for _, f := range all {
		if err := fn(f); err != nil {
			return err
		}
	}
	return nil
}

// Saw is what a store that goes back is recognised by; this one never does.
func (m *memory) Saw(uint64) {}

// boltFile is a real journal.
type boltFile struct {
	t    testing.TB
	path string
	j    *journal.Journal
}

func newBoltFile(t testing.TB, dir string) *boltFile {
	return &boltFile{t: t, path: filepath.Join(dir, "journal.db")}
}

func (b *boltFile) open() (worker.Journal, string) {
	j, err := journal.Open(b.path, journal.Options{})
	if err != nil {
		b.t.Fatalf("open journal: %v", err)
	}
	b.j = j
	return j, j.Holder()
}

func (b *boltFile) close() {
	if b.j != nil {
		if err := b.j.Close(); err != nil {
			b.t.Errorf("close journal: %v", err)
		}
		b.j = nil
	}
}

func (b *boltFile) wipe() { panic("sim: a real journal is not wiped") }

func (b *boltFile) known() []engine.Fact {
	var out []engine.Fact
	if b.j == nil {
		return nil
	}
	if err := b.j.Facts(func(f engine.Fact) error {
		out = append(out, f)
		return nil
	}); err != nil {
		b.t.Errorf("read journal: %v", err)
	}
	return out
}

func (b *boltFile) intended(d engine.DispatchID) bool {
	f, ok, err := b.j.Get(d)
	return err == nil && ok && f.Intent.Step != ""
}

// journalLink is one life's way to its journal.
type journalLink struct {
	p    *proc
	j    worker.Journal
	lazy bool // Later is lost with the process, as it may be
}

func (l journalLink) Write(ctx context.Context, entries ...engine.Entry) error {
	return l.p.do(ctx, "journal.write", what(entries), local, func() error { return l.j.Write(ctx, entries...) })
}

// what names the kinds of the entries: the trace shows them.
func what(entries []engine.Entry) string {
	out := ""
	for _, e := range entries {
		switch {
		case e.Intent != nil:
			out += "i"
		case e.Effect != nil:
			out += "e"
		default:
			out += "s"
		}
	}
	return out
}

func (l journalLink) Later(entries ...engine.Entry) {
	if l.p.isDead() {
		return
	}
	if !l.lazy {
		l.j.Later(entries...)
		return
	}
	time.AfterFunc(100*time.Millisecond, func() {
		if !l.p.isDead() {
			l.j.Later(entries...)
		}
	})
}

func (l journalLink) Unsettled() (facts []engine.Fact, err error) {
	err = l.p.do(l.p.ctx, "journal.unsettled", "", reads, func() (err error) {
		facts, err = l.j.Unsettled()
		return err
	})
	return facts, err
}

func (l journalLink) Facts(fn func(engine.Fact) error) error { return l.j.Facts(fn) }
func (l journalLink) Saw(revision uint64)                    { l.j.Saw(revision) }
