package app

import (
	"context"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/observe"
	"github.com/agentrun/executor/internal/operator"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/topology"
)

const (
	// onlookerPatience is how long executors have to answer whoever asks for all.
	onlookerPatience = 2 * time.Second
	// depthsEvery is how old the counts of waiting jobs in /metrics may be.
	depthsEvery   = 5 * time.Second
	depthsTimeout = 5 * time.Second
	depthsPause   = 250 * time.Millisecond // while a whole fleet comes or goes
	depthsAgain   = time.Minute            // where they could not be read: a user may lack the right, which the server logs each time
)

// onlooker knows the executors of the fleet and is none. What it hears of its own question tells that it hears at all: a
// user that may not listen gets no answer that says so. Safe for concurrent use.
type onlooker struct {
	*roster
	say  func(data []byte) error
	news chan struct{} // has a value when somebody has said something other than before

	mu     sync.Mutex
	asked  string    // the name in the latest question
	echoed time.Time // when that came back; zero: not yet
}

func newOnlooker(tell func(data []byte) error) *onlooker {
	o := &onlooker{say: tell, news: make(chan struct{}, 1)}
	silent := func([]byte) error { return nil } // it answers nobody
	o.roster = newRoster(func() offer { return offer{} }, silent, func() time.Duration { return 0 })
	return o
}

// ask asks all executors what they have. Until it is answered nothing is known.
func (o *onlooker) ask() {
	o.mu.Lock()
	o.asked, o.echoed = uuid.NewString(), time.Time{}
	data, err := json.Marshal(offer{Name: o.asked, Asks: true})
	o.mu.Unlock()
	if err == nil {
		_ = o.say(data) // asked again where it gets lost
	}
}

func (o *onlooker) told(data []byte) {
	var said offer
	if json.Unmarshal(data, &said) != nil || !said.Asks {
		if o.roster.heard(data) {
			o.stir()
		}
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if said.Name == o.asked && o.echoed.IsZero() {
		o.echoed = o.now()
	}
}

// stir has the queues looked at soon.
func (o *onlooker) stir() {
	select {
	case o.news <- struct{}{}:
	default:
	}
}

// hears reports whether the latest question has come back, and all whether every executor had the time to answer it.
func (o *onlooker) hears() (heard, all bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.echoed.IsZero(), !o.echoed.IsZero() && o.now().Sub(o.echoed) >= onlookerPatience
}

// follow listens and asks anew whenever there is a new connection, and again while nothing is heard, until ctx ends.
func (o *onlooker) follow(ctx context.Context, nc *nats.Conn, log *slog.Logger) {
	connected := nc.StatusChanged(nats.CONNECTED)
	defer nc.RemoveStatusListener(connected)
	told := false
	o.ask()
	for tick := time.NewTicker(rosterEvery); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-connected:
			o.ask()
			o.stir()
		case <-tick.C:
			if heard, _ := o.hears(); heard || !nc.IsConnected() {
				continue
			}
			if !told {
				told = true
				log.Warn("which executors there are is not known: this NATS user must publish and subscribe to " + topology.HintSubject(rosterHint))
			}
			o.ask()
		}
	}
}

// pulling is how many of the executors take a queue's jobs.
func pulling(executors []offer, queue string) (n int) {
	for _, e := range executors {
		if slices.Contains(e.Queues, queue) {
			n++
		}
	}
	return n
}

// queues is what operator calls and metrics say of the queues of jobs.
type queues struct {
	conn   *streams.Conn
	fleet  *onlooker
	answer func(ctx context.Context, subject string) // a job that can be in no queue
}

var _ operator.Queues = queues{}

func (q queues) Pulled(queue string) (pulled, known bool) {
	_, known = q.fleet.hears()
	return pulling(q.fleet.living(), queue) > 0, known
}

func (q queues) List(ctx context.Context) (list []operator.Queue, unnamed int64, err error) {
	d, err := q.conn.Depths(ctx, rand.Float64)
	if err != nil {
		return nil, 0, err
	}
	return q.list(d), d.Unnamed, nil
}

func (q queues) list(d streams.Depths) (list []operator.Queue) {
	executors := q.fleet.living()
	for _, e := range executors {
		for _, name := range e.Queues {
			d.Queues[name] += 0 // also where nothing has made its consumer yet
		}
	}
	for name, n := range d.Queues {
		takers := pulling(executors, name)
		list = append(list, operator.Queue{Queue: name, Waiting: n, Executors: takers, Pulled: takers > 0})
	}
	slices.SortFunc(list, func(a, b operator.Queue) int { return strings.Compare(a.Queue, b.Queue) })
	return list
}

// watchQueues follows executors and queues until ctx ends. answer is told the subjects of jobs that can be in no queue.
func (p *process) watchQueues(ctx context.Context, conn *streams.Conn, answer func(context.Context, string)) (queues, error) {
	q := queues{conn, newOnlooker(func(data []byte) error { return conn.Tell(rosterHint, data) }), answer}
	stop, err := conn.OnTold(rosterHint, q.fleet.told)
	if stop == nil {
		return queues{}, err
	}
	p.beside.Go(func() {
		defer stop()
		q.fleet.follow(ctx, conn.NATS(), p.log)
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
		case <-q.fleet.news:
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
	p.observer.Configs(configsByQueue(q.fleet.living()))
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
	_, known := q.fleet.hears()
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
