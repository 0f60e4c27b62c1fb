package fleet

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/topology"
)

// onlookerPatience is how long executors have to answer whoever asks for all.
const onlookerPatience = 2 * time.Second

// Onlooker knows the executors of the fleet and is none. What it hears of its own question tells that it hears at all: a
// user that may not listen gets no answer that says so. Safe for concurrent use.
type Onlooker struct {
	*Roster
	say  func(data []byte) error
	News chan struct{} // has a value when somebody has said something other than before

	mu     sync.Mutex
	asked  string    // the name in the latest question
	echoed time.Time // when that came back; zero: not yet
}

// NewOnlooker makes an onlooker; tell reaches all on Hint. Give what comes there to Told.
func NewOnlooker(tell func(data []byte) error) *Onlooker {
	o := &Onlooker{say: tell, News: make(chan struct{}, 1)}
	silent := func([]byte) error { return nil } // it answers nobody
	o.Roster = NewRoster(func() Offer { return Offer{} }, silent, func() time.Duration { return 0 })
	return o
}

// Ask asks all executors what they have. Until it is answered nothing is known.
func (o *Onlooker) Ask() {
	o.mu.Lock()
	o.asked, o.echoed = uuid.NewString(), time.Time{}
	data, err := json.Marshal(Offer{Name: o.asked, Asks: true})
	o.mu.Unlock()
	if err == nil {
		_ = o.say(data) // asked again where it gets lost
	}
}

// Told takes what came on Hint.
func (o *Onlooker) Told(data []byte) {
	var said Offer
	if json.Unmarshal(data, &said) != nil || !said.Asks {
		if o.Roster.heard(data) {
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
func (o *Onlooker) stir() {
	select {
	case o.News <- struct{}{}:
	default:
	}
}

// Hears reports whether the latest question has come back, and all whether every executor had the time to answer it.
func (o *Onlooker) Hears() (heard, all bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.echoed.IsZero(), !o.echoed.IsZero() && o.now().Sub(o.echoed) >= onlookerPatience
}

// Follow listens and asks anew whenever there is a new connection, and again while nothing is heard, until ctx ends.
func (o *Onlooker) Follow(ctx context.Context, nc *nats.Conn, log *slog.Logger) {
	connected := nc.StatusChanged(nats.CONNECTED)
	defer nc.RemoveStatusListener(connected)
	told := false
	o.Ask()
	for tick := time.NewTicker(rosterEvery); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-connected:
			o.Ask()
			o.stir()
		case <-tick.C:
			if heard, _ := o.Hears(); heard || !nc.IsConnected() {
				continue
			}
			if !told {
				told = true
				log.Warn("which executors there are is not known: this NATS user must publish and subscribe to " + topology.HintSubject(Hint))
			}
			o.Ask()
		}
	}
}

// Pulling is how many of the executors take a queue's jobs.
func Pulling(executors []Offer, queue string) (n int) {
	for _, e := range executors {
		if slices.Contains(e.Queues, queue) {
			n++
		}
	}
	return n
}
