package main

import (
	"context"
	"math/rand/v2"
	"os"
	"time"

	"github.com/agentrun/executor/internal/pause"
)

// inject does what the seed says, until so many processes have died.
type injector struct {
	fleet    *Fleet
	random   *rand.Rand
	interval time.Duration // mean time between faults
	killed   func(worker string, at time.Time)
	progress func(deaths int)
	restore  *restore // nil: no copy of the store is put back
}

var faultWeights = []struct {
	kind   Kind
	weight int
}{
	{KillExecutor, 54},
	{LoseJournal, 2},
	{KillReconciler, 8},
	{KillNATS, 2},
	{KillGateway, 8},
	{Drain, 6},
	{PauseExecutor, 12},
	{PauseReconciler, 4},
	{PauseNATS, 2},
	{Deafen, 8},
}

func (in *injector) run(ctx context.Context, deaths int) error {
	begun, took, put := in.fleet.Faults.Deaths(), false, in.restore == nil
	for in.fleet.Faults.Deaths() < deaths || !put {
		wait := time.Duration((0.3 + 1.4*in.random.Float64()) * float64(in.interval))
		if !pause.For(ctx, wait) {
			return ctx.Err()
		}
		select {
		case err := <-in.fleet.fail:
			return err
		default:
		}
		in.one(ctx)
		// The copy is taken and put back where a third and two thirds of the round's deaths have happened.
		part := 3 * (in.fleet.Faults.Deaths() - begun)
		switch {
		case put:
		case took:
			if part >= 2*(deaths-begun) || in.fleet.Faults.Deaths() == deaths {
				put = in.restore.putBack(ctx, in.between(0, in.fleet.Lease))
			}
		case part >= deaths-begun && in.restore.over():
			if err := in.restore.take(ctx); err != nil {
				return err
			}
			took = !in.restore.taken.IsZero()
		}
		if in.progress != nil {
			in.progress(in.fleet.Faults.Deaths())
		}
	}
	return nil
}

func (in *injector) pick() Kind {
	sum := 0
	for _, w := range faultWeights {
		sum += w.weight
	}
	n := in.random.IntN(sum)
	for _, w := range faultWeights {
		if n -= w.weight; n < 0 {
			return w.kind
		}
	}
	return KillExecutor
}

// between is a length of time from the seed.
func (in *injector) between(low, high time.Duration) time.Duration {
	return low + time.Duration(in.random.Float64()*float64(high-low))
}

// one does one fault to a process that is up; the seed's choice is the same whatever the processes are doing.
func (in *injector) one(ctx context.Context) {
	f, lease := in.fleet, in.fleet.Lease
	kind := in.pick()
	if in.restore.forbids(kind) {
		kind = KillExecutor
	}
	executor := in.choose(f.Executors)
	reconciler := in.choose(f.Reconcilers)
	if kind == KillGateway && len(f.Gateways) == 0 {
		kind = KillExecutor
	}
	again := time.Duration(0)
	if in.random.Float64() < 0.6 {
		again = in.between(0, 2*lease)
	}
	long := in.between(lease*11/10, lease*5/2)
	short := in.between(lease/5, lease*3/2)
	switch kind {
	case KillExecutor, LoseJournal:
		in.kill(executor, kind, again)
	case KillReconciler:
		in.kill(reconciler, kind, again/2)
	case KillGateway:
		in.kill(in.choose(f.Gateways), kind, again/2)
	case KillNATS:
		in.kill(f.NATS, kind, short)
	case Drain:
		if executor != nil {
			if worker, ok := executor.Terminate(again / 4); ok {
				f.Faults.Note(Fault{Kind: kind, Process: worker, At: time.Now()})
			}
		}
	case PauseExecutor:
		in.pause(ctx, executor, kind, long)
	case PauseReconciler:
		in.pause(ctx, reconciler, kind, 2*long)
	case PauseNATS:
		in.pause(ctx, f.NATS, kind, short)
	case Deafen:
		p := executor
		if in.random.Float64() < 0.2 {
			p = reconciler
		}
		if p != nil {
			f.Faults.Note(Fault{Kind: kind, Process: p.Name, At: time.Now(), Until: time.Now().Add(short / 2)})
			f.Links[p.Name].Deafen(short / 2)
		}
	}
}

func (in *injector) kill(p *Process, kind Kind, again time.Duration) {
	if p == nil {
		return
	}
	at := time.Now()
	var between func() error
	if kind == LoseJournal {
		p.lost = at
		between = func() error { return os.RemoveAll(p.Data) }
	}
	if worker, ok := p.Kill(again, between); ok {
		in.fleet.Faults.Note(Fault{Kind: kind, Process: worker, At: at})
		if in.killed != nil && kind == KillExecutor {
			in.killed(worker, at)
		}
	}
}

func (in *injector) pause(ctx context.Context, p *Process, kind Kind, length time.Duration) {
	if p == nil {
		return
	}
	n := make(chan int, 1)
	at := time.Now()
	worker, ok := p.Pause(ctx, length, func() { in.fleet.Faults.Ends(<-n) })
	if ok {
		n <- in.fleet.Faults.Note(Fault{Kind: kind, Process: worker, At: at})
	}
}

// choose takes one of the processes that are up.
func (in *injector) choose(from []*Process) *Process {
	start := in.random.IntN(len(from))
	for i := range from {
		if p := from[(start+i)%len(from)]; p != nil {
			if _, up := p.Up(); up {
				return p
			}
		}
	}
	return nil
}
