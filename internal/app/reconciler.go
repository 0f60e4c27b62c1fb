package app

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/agentrun/executor/internal/audit"
	"github.com/agentrun/executor/internal/boottime"
	"github.com/agentrun/executor/internal/observe"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/reconcile"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/topology"
)

// auditEvery is how old the audits in /metrics may be.
const auditEvery = time.Second

// Reconciler runs reconciler serve until ctx ends. It returns nil after a clean stop; any error means that the process
// could not start.
func Reconciler(ctx context.Context, c ReconcilerConfig) error {
	kinds := newKinds(c.Tools...)
	defer kinds.close()
	kinds.data = c.ConfigData
	box, warnings, err := kinds.load(ctx, c.Config, c.lookup(), importSeen)
	if err != nil {
		return err
	}
	p, err := newProcess(observe.Reconciler, &c.Process, box)
	if err != nil {
		return err
	}
	kinds.watch(p)
	p.warn(warnings)
	if err := p.listen(&c.Process); err != nil {
		return err
	}
	defer p.close()
	conn, err := connect(&c.Process, p, "reconciler", 0)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		p.beside.Wait()
	}()
	if err := p.setup(ctx, conn, c.NATS, wanted(&c.Process)); err != nil {
		return stopped(ctx, err)
	}
	keeper, err := p.keeper(&c.Process, conn, nil, nil)
	if err != nil {
		return err
	}
	p.beside.Go(func() { keeper.Run(ctx) })
	silence, err := talk(ctx, conn, keeper)
	if err != nil {
		return err
	}
	defer silence()
	kinds.use(conn.NATS())
	tools := newLive(box)
	defer p.traced(ctx, "agentrun-reconciler", &c.Process, tools)()
	p.observer.Config(tools.digests().File)
	p.beside.Go(func() {
		tools.follow(ctx, &c.Process, p, func() { p.observer.Config(tools.digests().File) }, kinds)
	})
	records, index := newRecords(conn, p, &c.Process, tools), newIndex(p, conn)
	rc := reconcile.New(reconcile.Config{
		ID: c.ID, Holder: uuid.NewString() + ".1", Lease: c.Lease, Workers: 64, Boot: boottime.Now, Random: rand.Float64,
		Records: records, Tools: tools, Watch: index.Feed(conn), Waker: conn, Fleet: conn, Store: keptStore{keeper, conn},
		Health: p.ready, Log: p.log,
	})
	var said sync.Once
	lines, err := p.watchQueues(ctx, conn, func(ctx context.Context, subject string) {
		if err := answerUnaddressed(ctx, conn, records, tools, subject); err != nil && ctx.Err() == nil {
			said.Do(func() {
				p.log.Warn("jobs on subjects that name no queue cannot be answered", "subject", subject, "error", err)
			})
		}
	})
	if err != nil {
		return err
	}
	conn.OnClockSet(func(by time.Duration) {
		if by < 0 {
			rc.ClockSet()
		}
	})
	return p.reconcile(ctx, &c, rc, audit.NewAuditor(conn, index, rc, p.log), func() (stop func(), err error) {
		return serveOperator(context.WithoutCancel(ctx), conn.NATS(), newOperator(conn, p, records, tools, index, lines), c.ID)
	})
}

// answerUnaddressed answers the first job on a subject that no executor can pull from, as executors answer one whose other
// tokens are no identifiers, and takes it out of the stream.
func answerUnaddressed(ctx context.Context, conn *streams.Conn, records *record.Records, tools *live, subject string) error {
	m, err := conn.JobOn(ctx, subject)
	if errors.Is(err, port.ErrNotFound) {
		return nil // another reconciler was faster
	}
	if err != nil {
		return err
	}
	if err := records.AnswerUnaddressed(ctx, subject, m, tools.defaults()); err != nil {
		return err
	}
	if err := conn.Remove(ctx, topology.JobsStream, m.Seq); !errors.Is(err, port.ErrNotFound) {
		return err
	}
	return nil
}

// reconcile runs the loop until ctx ends, and is ready once everything that was in the streams has been seen; then it
// offers the operator calls.
func (p *process) reconcile(ctx context.Context, c *ReconcilerConfig, rc *reconcile.Reconciler, a *audit.Auditor, offer func() (stop func(), err error)) error {
	ended := make(chan error, 1)
	go func() { ended <- rc.Run(ctx) }()
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		select {
		case err := <-ended:
			tick.Stop()
			return stopped(ctx, err)
		case <-tick.C:
		}
		if rc.Ready() {
			tick.Stop()
			break
		}
	}
	withdraw, err := offer()
	if err != nil {
		return err
	}
	defer withdraw()
	p.beside.Go(func() { a.Run(ctx) })
	p.started(&c.Process)
	for tick := time.NewTicker(auditEvery); ; {
		p.observer.Audited(observe.Audit(a.Now()))
		select {
		case <-tick.C:
			continue
		case err := <-ended:
			tick.Stop()
			p.ready.Draining()
			return stopped(ctx, err)
		}
	}
}
