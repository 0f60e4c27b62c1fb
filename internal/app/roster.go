package app

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/agentrun/executor/internal/bus"
)

// Executors tell one another which tools they have, so that a step whose tool this one does not know is left for one that
// does: while a config is changed executor by executor, or where they have different tools on purpose. Each says it when
// it starts, when its config changes, when it hears of one it did not know, and every rosterEvery, in case a message was lost.
const (
	rosterHint  = "_tools"
	rosterEvery = 20 * time.Second
)

// offer is what an executor has.
type offer struct {
	Name   string   `json:"name"`
	Queues []string `json:"queues"`
	Tools  []string `json:"tools"`
}

// roster is what the other executors have. Safe for concurrent use.
type roster struct {
	own   func() offer
	tell  func(data []byte) error
	grace func() time.Duration
	now   func() time.Time

	mu     sync.Mutex
	others map[string]heard
}

type heard struct {
	offer
	at time.Time
}

func newRoster(own func() offer, tell func([]byte) error, grace func() time.Duration) *roster {
	return &roster{own: own, tell: tell, grace: grace, now: time.Now, others: map[string]heard{}}
}

// has says whether another executor that takes the queue has the tool, or had it within the grace.
func (r *roster) has(queue, tool string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, o := range r.others {
		if r.now().Sub(o.at) > r.grace()+2*rosterEvery {
			delete(r.others, name)
			continue
		}
		if _, found := slices.BinarySearch(o.Tools, tool); found && slices.Contains(o.Queues, queue) {
			return true
		}
	}
	return false
}

// announce tells the others what this one has.
func (r *roster) announce() error {
	data, err := json.Marshal(r.own())
	if err != nil {
		return err
	}
	return r.tell(data)
}

// heard takes what an executor says. One that was not known is answered, so that a new one knows all within one exchange.
func (r *roster) heard(data []byte) {
	var o offer
	if json.Unmarshal(data, &o) != nil || o.Name == "" || o.Name == r.own().Name {
		return
	}
	slices.Sort(o.Tools)
	r.mu.Lock()
	_, known := r.others[o.Name]
	r.others[o.Name] = heard{o, r.now()}
	r.mu.Unlock()
	if !known {
		_ = r.announce()
	}
}

// gather listens to the others until ctx ends.
func (r *roster) gather(ctx context.Context, conn *bus.Conn, log *slog.Logger) {
	stop, err := conn.OnTold(rosterHint, r.heard)
	if err == nil {
		err = r.announce()
	}
	if err != nil {
		log.Error("what tools other executors have is not known; a tool that this one does not know ends its run", "error", err)
	}
	if stop == nil {
		return
	}
	go func() {
		defer stop()
		for tick := time.NewTicker(rosterEvery); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				_ = r.announce()
			}
		}
	}()
}
