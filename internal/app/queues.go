package app

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/fleet"
	"github.com/agentrun/executor/internal/observe"
	"github.com/agentrun/executor/internal/operator"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/streams"
)

const (
	// depthsEvery is how old the counts of waiting jobs in /metrics may be.
	depthsEvery   = 5 * time.Second
	depthsTimeout = 5 * time.Second
	depthsPause   = 250 * time.Millisecond // while a whole fleet comes or goes
	depthsAgain   = time.Minute            // where they could not be read: a user may lack the right, which the server logs each time
)

// queues is what operator calls and metrics say of the queues of jobs.
type queues struct {
	conn   *streams.Conn
	fleet  *fleet.Onlooker
	answer func(ctx context.Context, subject string) // a job that can be in no queue
}

var _ operator.Queues = queues{}

func (q queues) Pulled(queue string) (pulled, known bool) {
	_, known = q.fleet.Hears()
	return fleet.Pulling(q.fleet.Living(), queue) > 0, known
}

func (q queues) List(ctx context.Context) (list []operator.Queue, unnamed int64, err error) {
	d, err := q.conn.Depths(ctx, rand.Float64)
	if err != nil {
		return nil, 0, err
	}
	return q.list(d), d.Unnamed, nil
}

func (q queues) list(d streams.Depths) (list []operator.Queue) {
	executors := q.fleet.Living()
	for _, e := range executors {
		for _, name := range e.Queues {
			d.Queues[name] += 0 // also where nothing has made its consumer yet
		}
	}
	for name, n := range d.Queues {
		takers := fleet.Pulling(executors, name)
		list = append(list, operator.Queue{Queue: name, Waiting: n, Executors: takers, Pulled: takers > 0})
	}
	slices.SortFunc(list, func(a, b operator.Queue) int { return strings.Compare(a.Queue, b.Queue) })
	return list
}

// watchQueues follows executors and queues until ctx ends. answer is told the subjects of jobs that can be in no queue.
func (p *process) watchQueues(ctx context.Context, conn *streams.Conn, answer func(context.Context, string)) (queues, error) {
	q := queues{conn, fleet.NewOnlooker(func(data []byte) error { return conn.Tell(fleet.Hint, data) }), answer}
	stop, err := conn.OnTold(fleet.Hint, q.fleet.Told)
	if stop == nil {
		return queues{}, err
	}
	p.beside.Go(func() {
		defer stop()
		q.fleet.Follow(ctx, conn.NATS(), p.log)
	})
	p.beside.Go(func() { q.watch(ctx, p) })
	return q, nil
}

// watch shows the queues in the metrics, and says once of each that has jobs and nobody who takes them, until ctx ends.
func (q queues) watch(ctx context.Context, p *process) {
	said := map[string]bool{}
	for tick := time.NewTicker(depthsEvery); ; {
		if q.once(ctx, p, said) {
			tick.Reset(depthsEvery)
		} else {
			tick.Reset(depthsAgain)
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		case <-q.fleet.News:
			pause.For(ctx, depthsPause)
		}
	}
}

// saidMost is how many queues the log names: their names are the publishers' to choose.
const saidMost = 20

// once looks at the queues; it reports whether they could be read.
func (q queues) once(ctx context.Context, p *process, said map[string]bool) bool {
	if !q.conn.Connected() {
		return true
	}
	limited, cancel := context.WithTimeout(ctx, depthsTimeout)
	defer cancel()
	p.observer.Configs(fleet.ConfigsByQueue(q.fleet.Living()))
	d, err := q.conn.Depths(limited, rand.Float64)
	if err != nil {
		if ctx.Err() == nil {
			p.log.Warn("how many jobs wait in which queue cannot be read", "error", err)
		}
		return false
	}
	for _, subject := range d.Unaddressed {
		q.answer(limited, subject)
	}
	list := q.list(d)
	_, known := q.fleet.Hears()
	shown, more := make([]observe.Queue, len(list)), 0
	for i, x := range list {
		shown[i] = observe.Queue{Name: x.Queue, Waiting: x.Waiting, Pulled: x.Pulled || !known}
		stuck := !shown[i].Pulled && x.Waiting > 0
		switch {
		case !stuck:
			delete(said, x.Queue)
		case said[x.Queue]:
		case len(said) < saidMost:
			said[x.Queue] = true
			p.log.Warn("a queue has jobs that no executor takes", "queue", x.Queue, "jobs", x.Waiting)
		default:
			more++
		}
	}
	if more > 0 && !said[""] {
		said[""] = true // no queue's name: said once, whatever else comes
		p.log.Warn("more queues have jobs that no executor takes; reconciler queues list names them", "queues", more)
	}
	p.observer.Queues(shown, d.Unnamed)
	return true
}
