package generation

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/agentrun/executor/internal/pause"
)

// An older copy of the store shows a loss only to those who have seen what came after it. So the processes tell one another
// how far they have seen the store, and after a start, and on each server that they had not worked with before, none of
// them takes work until every executor that was alive has said so too.
const (
	beatEvery   = time.Second
	askEvery    = beatEvery / 2
	answerPause = 10 * time.Millisecond // in which the answers to several come together
	// missedMost is how many of its own words a process hears between two of another's before it takes that one for gone.
	missedMost = 5
	// Silence is for how long others are waited for.
	Silence = 5 * time.Second
)

// Word is what processes tell one another about the store. Words may be lost.
type Word struct {
	Process string   `json:"process"`           // drawn at random
	Member  *Member  `json:"member,omitempty"`  // of an executor
	Store   string   `json:"store,omitempty"`   // the store and generation that it has agreed on; empty while it has not
	Seen    uint64   `json:"seen,omitempty"`    // the highest sequence of that store which it has seen or heard of
	Asks    string   `json:"asks,omitempty"`    // it waits for words that answer this
	Answers []string `json:"answers,omitempty"` // this word was made after these were heard
	Gone    bool     `json:"gone,omitempty"`    // its last word
}

// company is what a keeper knows of the others. Keeper.mu guards it.
type company struct {
	process string
	say     chan struct{}
	peers   map[string]*peer // executors by journal, gone ones too: a new generation waits for what their journals know
	server  string           // the one that the others were asked about last
	asks    string           // they are being waited for; empty: they are not
	since   time.Time        // since when
	heard   uint64           // the highest sequence that others have seen of the present generation
	heardAt time.Time
	owed    []string             // who is to be answered
	paid    map[string]time.Time // when who was
}

// peer is another executor, as the journal remembers it.
type peer struct {
	Member
	Alive bool `json:"alive,omitempty"`

	missed   int
	answered bool
}

func newCompany(remembered []byte) company {
	c := company{process: uuid.NewString(), say: make(chan struct{}, 1), peers: map[string]*peer{}, paid: map[string]time.Time{}}
	var peers []*peer
	if json.Unmarshal(remembered, &peers) == nil { // what cannot be read is learned again
		for _, p := range peers {
			c.peers[p.Journal] = p
		}
	}
	return c
}

// Together says whether the others have been heard on this server, or were silent for too long. It does not wait.
func (k *Keeper) Together(server string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Tell != nil && server != "" && server != k.server {
		k.server, k.asks, k.since = server, uuid.NewString(), time.Now()
		for _, p := range k.peers {
			p.answered = false
		}
		k.gathered()
		k.speakSoon()
	}
	return k.asks == ""
}

func (k *Keeper) speakSoon() {
	select {
	case k.say <- struct{}{}:
	default:
	}
}

// gathered ends the waiting if everybody has answered and the store shows all that anybody has seen; k.mu is held.
func (k *Keeper) gathered() {
	if k.asks == "" || len(k.silent()) > 0 {
		return
	}
	if k.heard > k.look.Last {
		k.Store.Check()
		return
	}
	k.asks = ""
}

func (k *Keeper) silent() (out []*peer) {
	for _, p := range k.peers {
		if p.Alive && !p.answered {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *peer) int { return cmp.Compare(a.Journal, b.Journal) })
	return out
}

// Told takes in a word. It does not wait.
func (k *Keeper) Told(data []byte) {
	var w Word
	if json.Unmarshal(data, &w) != nil || w.Process == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if w.Process == k.process {
		k.echoed()
		return
	}
	same := w.Store != "" && w.Store == k.storeNow()
	switch {
	case same && w.Seen > k.heard:
		k.heard, k.heardAt = w.Seen, time.Now()
	case !same && w.Store != "" && k.asks != "":
		k.Store.Check()
	}
	if w.Member != nil && w.Member.Journal != "" && w.Member.Journal != k.Config.Member.Journal {
		p := k.meet(*w.Member, !w.Gone)
		p.missed = 0
		p.answered = p.answered || same && k.asks != "" && slices.Contains(w.Answers, k.asks)
	}
	if w.Asks != "" && time.Since(k.paid[w.Asks]) > askEvery/2 && !slices.Contains(k.owed, w.Asks) {
		k.owed = append(k.owed, w.Asks)
		k.speakSoon()
	}
	k.gathered()
}

// storeNow names the store that this process has agreed on, unless it has found a loss; k.mu is held.
func (k *Keeper) storeNow() string {
	if k.cause != "" || k.known.Created.IsZero() {
		return ""
	}
	return token(k.known.Created, k.known.Generation)
}

// echoed: this process has heard itself, so it would have heard the others; k.mu is held.
func (k *Keeper) echoed() {
	changed := false
	for _, p := range k.peers {
		if p.missed++; p.missed > missedMost && p.Alive && k.asks == "" {
			p.Alive, changed = false, true
		}
	}
	if changed {
		k.remember()
	}
}

// meet notes another executor; k.mu is held.
func (k *Keeper) meet(m Member, alive bool) *peer {
	p := k.peers[m.Journal]
	if p == nil {
		p = &peer{Alive: !alive}
		k.peers[m.Journal] = p
		for journal, other := range k.peers { // not there any more
			if journal != m.Journal && other.Host == m.Host && other.Dir == m.Dir {
				delete(k.peers, journal)
			}
		}
	}
	changed := p.Alive != alive
	p.Member, p.Alive = m, alive
	if changed {
		k.remember()
		k.speakSoon() // so that it knows of this one too
	}
	return p
}

// remember keeps the others beside the journal; k.mu is held.
func (k *Keeper) remember() {
	if k.Journal == nil {
		return
	}
	if data, err := json.Marshal(k.others()); err == nil {
		k.Journal.Meet(data)
	}
}

// others are the executors whose journals may know something that the store does not; k.mu is held.
func (k *Keeper) others() (out []*peer) {
	now := k.Now()
	for journal, p := range k.peers {
		if !p.Alive && p.At.Add(k.Retention) < now {
			delete(k.peers, journal)
			continue
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *peer) int { return cmp.Compare(a.Journal, b.Journal) })
	return out
}

// add adds the executors that are known and not among the members of the store, because it does not know them yet.
func (k *Keeper) add(members []Member) []Member {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.others() {
		if !slices.ContainsFunc(members, func(m Member) bool { return m.Journal == p.Journal }) {
			members = append(members, p.Member)
		}
	}
	return members
}

// Talk tells the others until ctx ends.
func (k *Keeper) Talk(ctx context.Context) {
	for timer := time.NewTimer(0); ; {
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-k.say:
			pause.For(ctx, answerPause)
		}
		timer.Reset(k.speak(false))
	}
}

// Depart is the last word of an executor that ends in order: the others do not wait for it.
func (k *Keeper) Depart() {
	if k.Tell != nil {
		k.speak(true)
	}
}

// speak says where this process is, and returns after how long to say it again.
func (k *Keeper) speak(gone bool) time.Duration {
	k.mu.Lock()
	if k.asks != "" && time.Since(k.since) >= Silence {
		k.alone()
	}
	w := Word{Process: k.process, Store: k.storeNow(), Seen: max(k.Seen(), k.heard), Asks: k.asks, Answers: k.owed, Gone: gone}
	if k.Journal != nil {
		m := k.me()
		w.Member = &m
		if k.agreed && w.Store != "" {
			k.Journal.Saw(w.Seen)
		}
	}
	now := time.Now()
	for nonce, at := range k.paid {
		if now.Sub(at) > Silence {
			delete(k.paid, nonce)
		}
	}
	for _, nonce := range k.owed {
		k.paid[nonce] = now
	}
	k.owed = nil
	wait := beatEvery
	if k.asks != "" {
		wait = askEvery
	}
	k.mu.Unlock()
	if data, err := json.Marshal(w); err == nil {
		k.Tell(data)
	}
	return wait
}

// alone ends the waiting for those who say nothing; k.mu is held.
func (k *Keeper) alone() {
	var names []string
	for _, p := range k.silent() {
		p.Alive = false
		names = append(names, p.String())
	}
	if names != nil {
		k.Log.Warn("work goes on without executors that were alive and say nothing; should the store have gone back since, what only they have done may be done again", "executors", strings.Join(names, ", "))
		k.remember()
	}
	k.asks = ""
}
