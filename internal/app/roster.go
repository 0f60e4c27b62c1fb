package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/streams"
)

// Executors tell one another which tools they have, so that a step whose tool this one does not know is left for one that
// does: while a config is changed executor by executor, or where they have different tools on purpose. Each says it when
// it starts, when its config changes, when it hears of one it did not know, and every rosterEvery, in case a message was
// lost; and that it goes, when it drains. Reconcilers and doctors, who have no tools, ask and listen.
const (
	rosterHint  = "_tools"
	rosterEvery = 20 * time.Second
	// rosterGone is after how long one that is not heard any more takes no queue's jobs, as far as others can tell.
	rosterGone = 3 * rosterEvery
)

// offer is what an executor has.
type offer struct {
	Name    string `json:"name"` // of the process, drawn at random
	ID      string `json:"id,omitempty"`
	Version string `json:"version,omitempty"`
	// Config and Parts are the digests of its config file; Parts is left out where the message would be too large.
	Config string            `json:"config,omitempty"`
	Parts  map[string]string `json:"parts,omitempty"`
	Queues []string          `json:"queues"`
	Tools  []string          `json:"tools"`
	Gone   bool              `json:"gone,omitempty"` // it drains, and pulls nothing any more
	Asks   bool              `json:"asks,omitempty"` // no executor: it wants to hear of all, and is forgotten at once
}

// roster is what the other executors have. Safe for concurrent use.
type roster struct {
	own   func() offer
	tell  func(data []byte) error
	grace func() time.Duration
	now   func() time.Time

	mu     sync.Mutex
	others map[string]heard
	left   bool
}

type heard struct {
	offer
	at  time.Time
	had map[string]time.Time // when it last said that it has a tool
}

func newRoster(own func() offer, tell func([]byte) error, grace func() time.Duration) *roster {
	return &roster{own: own, tell: tell, grace: grace, now: time.Now, others: map[string]heard{}}
}

// has says whether another executor that takes the queue has the tool, or had it within the grace.
func (r *roster) has(queue, tool string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.others {
		if at, had := o.had[tool]; had && r.now().Sub(at) <= r.grace()+2*rosterEvery && slices.Contains(o.Queues, queue) {
			return true
		}
	}
	return false
}

// living are the executors that were heard of lately, by id.
func (r *roster) living() []offer {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []offer
	for _, o := range r.others {
		if !o.Gone && r.now().Sub(o.at) <= rosterGone {
			out = append(out, o.offer)
		}
	}
	slices.SortFunc(out, func(a, b offer) int { return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Name, b.Name)) })
	return out
}

// announce tells the others what this one has.
func (r *roster) announce() error {
	o := r.own()
	r.mu.Lock()
	o.Gone = r.left
	r.mu.Unlock()
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if err = r.tell(data); errors.Is(err, nats.ErrMaxPayload) && o.Parts != nil {
		o.Parts = nil
		if data, err = json.Marshal(o); err == nil {
			err = r.tell(data)
		}
	}
	return err
}

// leave tells the others that this one pulls nothing any more.
func (r *roster) leave() {
	r.mu.Lock()
	r.left = true
	r.mu.Unlock()
	_ = r.announce() // without it they miss this one after rosterGone
}

// heard takes what an executor says, and reports whether it is something new. One that was not known is answered, so that
// a new one knows all within one exchange.
func (r *roster) heard(data []byte) (news bool) {
	var o offer
	if json.Unmarshal(data, &o) != nil || o.Name == "" || o.Name == r.own().Name {
		return false
	}
	if o.Asks {
		_ = r.announce()
		return false
	}
	slices.Sort(o.Tools)
	r.mu.Lock()
	before, known := r.others[o.Name]
	had := map[string]time.Time{} // what a reload took from it may come back with the next
	for tool, at := range before.had {
		if r.now().Sub(at) <= r.grace()+rosterGone {
			had[tool] = at
		}
	}
	for _, tool := range o.Tools {
		had[tool] = r.now()
	}
	r.others[o.Name] = heard{o, r.now(), had}
	for name, h := range r.others {
		if r.now().Sub(h.at) > r.grace()+rosterGone {
			delete(r.others, name)
		}
	}
	r.mu.Unlock()
	if !known && !o.Gone {
		_ = r.announce()
	}
	return !known || !reflect.DeepEqual(before.offer, o)
}

// gather listens to the others until ctx ends.
func (r *roster) gather(ctx context.Context, conn *streams.Conn, log *slog.Logger) {
	stop, err := conn.OnTold(rosterHint, func(data []byte) { r.heard(data) })
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
