// Package fleet is how the executors that live know of one another: what each has, and who shares a rate.
package fleet

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

	"github.com/agentrun/executor/pkg/run"
)

// Conn is how processes of a fleet reach one another: hint subjects of core NATS, which nobody stores.
type Conn interface {
	// Tell and Hint reach all who listen on the hint; OnTold and OnHint listen until stop is called.
	Tell(hint string, data []byte) error
	OnTold(hint string, fn func(data []byte)) (stop func(), err error)
	Hint(hint string, id run.ID) error
	OnHint(hint string, fn func(id run.ID)) (stop func(), err error)
}

// Executors tell one another which tools they have, so that a step whose tool this one does not know is left for one that
// does: while a config is changed executor by executor, or where they have different tools on purpose. Each says it when
// it starts, when its config changes, when it hears of one it did not know, and every rosterEvery, in case a message was
// lost; and that it goes, when it drains. Reconcilers and doctors, who have no tools, ask and listen.
const (
	Hint        = "_tools" // on which they do
	rosterEvery = 20 * time.Second
	// rosterGone is after how long one that is not heard any more takes no queue's jobs, as far as others can tell.
	rosterGone = 3 * rosterEvery
)

// Offer is what an executor has.
type Offer struct {
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

// Roster is what the other executors have. Safe for concurrent use.
type Roster struct {
	own   func() Offer
	tell  func(data []byte) error
	grace func() time.Duration
	now   func() time.Time

	mu     sync.Mutex
	others map[string]heard
	left   bool
}

type heard struct {
	Offer
	at  time.Time
	had map[string]time.Time // when it last said that it has a tool
}

// NewRoster makes a roster of one that has what own says. tell reaches the others; what one had counts for the grace longer.
func NewRoster(own func() Offer, tell func([]byte) error, grace func() time.Duration) *Roster {
	return &Roster{own: own, tell: tell, grace: grace, now: time.Now, others: map[string]heard{}}
}

// Has says whether another executor that takes the queue has the tool, or had it within the grace.
func (r *Roster) Has(queue, tool string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.others {
		if at, had := o.had[tool]; had && r.now().Sub(at) <= r.grace()+2*rosterEvery && slices.Contains(o.Queues, queue) {
			return true
		}
	}
	return false
}

// Living are the executors that were heard of lately, by id.
func (r *Roster) Living() []Offer {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Offer
	for _, o := range r.others {
		if !o.Gone && r.now().Sub(o.at) <= rosterGone {
			out = append(out, o.Offer)
		}
	}
	slices.SortFunc(out, func(a, b Offer) int { return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Name, b.Name)) })
	return out
}

// Announce tells the others what this one has.
func (r *Roster) Announce() error {
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

// Leave tells the others that this one pulls nothing any more.
func (r *Roster) Leave() {
	r.mu.Lock()
	r.left = true
	r.mu.Unlock()
	_ = r.Announce() // without it they miss this one after rosterGone
}

// heard takes what an executor says, and reports whether it is something new. One that was not known is answered, so that
// a new one knows all within one exchange.
func (r *Roster) heard(data []byte) (news bool) {
	var o Offer
	if json.Unmarshal(data, &o) != nil || o.Name == "" || o.Name == r.own().Name {
		return false
	}
	if o.Asks {
		_ = r.Announce()
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
		_ = r.Announce()
	}
	return !known || !reflect.DeepEqual(before.Offer, o)
}

// Gather listens to the others until ctx ends.
func (r *Roster) Gather(ctx context.Context, conn Conn, log *slog.Logger) {
	stop, err := conn.OnTold(Hint, func(data []byte) { r.heard(data) })
	if err == nil {
		err = r.Announce()
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
				_ = r.Announce()
			}
		}
	}()
}
