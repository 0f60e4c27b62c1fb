package app

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/boottime"
	"github.com/agentrun/executor/internal/child"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/fleet"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/observe"
	"github.com/agentrun/executor/internal/queue"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/worker"
)

// Executor runs executor serve until ctx ends, then drains. It returns nil after a clean drain; any error means that the
// process could not start, or that it had to stop because another one works on a copy of its journal.
func Executor(ctx context.Context, c ExecutorConfig) error {
	kinds := newKinds(c.Tools...)
	defer kinds.close()
	kinds.again, kinds.data = importMust, c.ConfigData
	box, warnings, err := kinds.load(ctx, c.Config, c.lookup(), importWait)
	if err != nil {
		return err
	}
	p, err := newProcess(observe.Executor, &c.Process, box)
	if err != nil {
		return err
	}
	kinds.watch(p)
	p.warn(warnings)
	// The journal comes before anything that two processes could share: a second one on it is refused at once.
	j, err := journal.Open(JournalPath(c.Data), journal.Options{Retention: c.RunRetention, OnCommit: observeJournal(p.observer)})
	if err != nil {
		return err
	}
	defer p.end("the journal", j.Close)
	if err := p.listen(&c.Process); err != nil {
		return err
	}
	defer p.close()
	ctx, twin := context.WithCancelCause(ctx)
	quit := func() {
		twin(nil)
		p.beside.Wait()
	}
	defer quit() // and before what these need is closed
	if c.EmbeddedNATS {
		embedded, err := embed(&c)
		if err != nil {
			return err
		}
		defer embedded.Close()
		defer quit()
		c.NATS = embedded.URL() // its real port, if --nats asked for a free one
		p.log.Info("embedded NATS listens", "url", c.NATS)
		if c.OnNATS != nil {
			c.OnNATS(c.NATS)
		}
		p.beside.Go(func() { embedded.Mend(ctx, p.log, mendEvery) })
	}
	known, err := j.Known()
	if err != nil {
		return err
	}
	conn, err := connect(&c.Process, p, "executor", known.Seen, journalID(j))
	if err != nil {
		return err
	}
	defer conn.Close()
	defer quit()
	if err := p.setup(ctx, conn, c.NATS, wanted(&c.Process, c.Queues...)); err != nil {
		return stopped(ctx, err)
	}
	twins, err := alone(ctx, conn, j, c.ID, p.log, twin)
	if err != nil {
		return stopped(ctx, err)
	}
	p.onStarted = twins.works
	kinds.use(conn.NATS())
	tools := newLive(box)
	defer p.traced(ctx, "agentrun-executor", &c.Process, tools)()
	store := &keptStore{conn: conn}
	w := newWorker(&c, p, conn, j, tools, store)
	if store.Keeper, err = p.keeper(&c.Process, conn, j, w.Restore); err != nil {
		return err
	}
	p.beside.Go(func() { store.Run(ctx) })
	silence, err := talk(ctx, conn, store.Keeper)
	if err != nil {
		return err
	}
	defer silence()
	name := uuid.NewString()
	own := func() fleet.Offer {
		d := tools.digests()
		return fleet.Offer{
			Name: name, ID: c.ID, Version: strings.TrimSpace(Version("")), Config: d.File, Parts: d.Parts,
			Queues: c.Queues, Tools: tools.box().Registry.Names(),
		}
	}
	others := fleet.NewRoster(own, func(data []byte) error { return conn.Tell(fleet.Hint, data) }, tools.unknownToolGrace)
	w.Elsewhere = others.Has
	others.Gather(ctx, conn, p.log)
	p.onDraining = others.Leave
	sharing := fleet.Greet(ctx, conn, name, p.log, w.Sharing, w.Refresh)
	tools.executors = sharing.Executors
	p.observer.Config(tools.digests().File)
	p.beside.Go(func() {
		tools.follow(ctx, &c.Process, p, func() {
			w.Refresh()
			p.observer.Config(tools.digests().File)
			_ = others.Announce() // and again soon, should it be lost
		}, kinds)
	})
	return p.work(ctx, &c, conn, j, w, store, sharing)
}

// newWorker puts the worker together.
func newWorker(c *ExecutorConfig, p *process, conn *streams.Conn, j *journal.Journal, tools *live, store worker.Store) *worker.Worker {
	return worker.New(worker.Config{
		ID: c.ID, Holder: j.Holder(), Lease: c.Lease, Concurrency: c.Concurrency, DrainTimeout: c.DrainTimeout,
		PoisonAfter: tools.box().File.Defaults.PoisonAfter, Defaults: tools.defaults, Shares: tools.share,
		Boot: boottime.Now, Random: rand.Float64, UnknownToolGrace: tools.unknownToolGrace,
		Records: newRecords(conn, p, &c.Process, tools), Journal: j, Tools: tools, Hints: conn, Store: store,
		Observe: p.observer, Ready: p.ready, Log: p.log,
	})
}

// RestoreJournal brings what an executor's journal knows into the store of run records, whether or not the store seems to
// be the one it knew, and settles what is unsettled: what executor serve does by itself at its start, by hand. The
// executor must not be running.
func RestoreJournal(ctx context.Context, c ExecutorConfig) error {
	kinds := newKinds(c.Tools...)
	defer kinds.close()
	kinds.data = c.ConfigData
	box, _, err := kinds.load(ctx, c.Config, c.lookup(), importSeen)
	if err != nil {
		return err
	}
	p, err := newProcess(observe.Executor, &c.Process, box)
	if err != nil {
		return err
	}
	kinds.watch(p)
	j, err := journal.Open(JournalPath(c.Data), journal.Options{Retention: c.RunRetention})
	if err != nil {
		return err
	}
	defer p.end("the journal", j.Close)
	known, err := j.Known()
	if err != nil {
		return err
	}
	o := busOptions(&c.Process, p, "executor journal restore", known.Seen, journalID(j))
	return once(ctx, o, executorRights, func(ctx context.Context, conn *streams.Conn) error {
		making, cancel := context.WithTimeout(ctx, onceAway)
		defer cancel()
		if err := conn.Setup(making, wanted(&c.Process, c.Queues...)); errors.Is(err, nats.ErrNoResponders) {
			return fmt.Errorf("%w (has this user's account JetStream?)", err)
		} else if err != nil {
			return err
		}
		w := newWorker(&c, p, conn, j, newLive(box), NewStore(conn))
		keeper, err := p.keeper(&c.Process, conn, j, w.Restore)
		if err != nil {
			return err
		}
		if err := keeper.RestoreNow(ctx); err != nil {
			return err
		}
		return w.Settle(ctx)
	})
}

// work settles the journal, pulls until ctx ends and drains.
func (p *process) work(ctx context.Context, c *ExecutorConfig, conn *streams.Conn, j *journal.Journal, w *worker.Worker, store *keptStore, sharing *fleet.Count) error {
	if n := child.KillLeftovers(); n > 0 {
		p.log.Warn("programs that tools had started outlived an executor, and are ended", "groups", n)
	}
	if err := w.Settle(ctx); err != nil {
		return stopped(ctx, fmt.Errorf("settling the journal: %w", err))
	}
	stopHints, err := conn.OnHint(j.Holder(), w.Hinted)
	if err != nil {
		return err
	}
	defer stopHints()
	picks, err := queue.OpenPicks(filepath.Join(c.Data, "claims"))
	if err != nil {
		return err
	}
	defer func() { _ = picks.Close() }()
	turns := queue.Turns{Shares: w.Shares(), Executors: sharing.All, Picks: picks, Unused: w.Unused}
	puller, err := queue.New(conn.Conn, c.Queues, turns, w.Deliver)
	if err != nil {
		return err
	}
	var beside sync.WaitGroup
	beside.Go(func() { p.watchRoom(ctx, p.roomOf(conn, j), puller.Pause) })
	beside.Go(func() { p.sweep(ctx, j) })
	defer beside.Wait()
	w.Start(puller)
	p.started(&c.Process)
	<-ctx.Done()
	if err := context.Cause(ctx); errors.Is(err, errTwin) {
		p.onDraining()
		p.ready.Block("journal", err.Error())
		w.Stop() // at once, as a crash would: the other one takes each lease of this journal for its own
		puller.Stop()
		return err
	}
	p.draining()
	p.log.Info("draining", "runs", w.Busy(), "timeout", c.DrainTimeout)
	w.Drain(context.WithoutCancel(ctx), puller)
	store.Leave(context.WithoutCancel(ctx))
	p.log.Info("drained")
	return nil
}

// embed starts the NATS server of --embedded-nats.
func embed(c *ExecutorConfig) (*Embedded, error) {
	addr, err := EmbeddedAddr(c.NATS)
	if err != nil {
		return nil, err
	}
	return StartEmbedded(addr, filepath.Join(c.Data, "nats"), c.JSDomain)
}

// stopped turns an error that only says that the process was asked to stop while it started into a clean end.
func stopped(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errTwin) {
		return cause
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// defaults are what the config gives to jobs that do not say otherwise.
func (b *Toolbox) defaults() engine.Defaults {
	d := b.File.Defaults
	return engine.Defaults{Owner: d.Owner, Workflow: d.Workflow, Actor: d.Actor, Budget: d.Budget, MaxBudget: d.MaxBudget}
}
