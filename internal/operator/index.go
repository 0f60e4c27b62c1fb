package operator

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/run"
)

// Counter is told how many letters are open.
type Counter interface {
	LettersOpen(owner, reason string, change int)
	ForgetLetters()
}

// Index knows every run and every open letter from the headers of the records and the letters' messages, so that a list
// costs nothing but its page. It is fed by watches and holds nothing that they do not bring again. Since a watch does not
// see removals, a letter counts as open until its record's header says otherwise. Safe for concurrent use.
type Index struct {
	counter Counter
	now     func() time.Time

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced with each change
	current  [2]bool       // runs, letters
	seenRun  uint64
	seenMail uint64
	remade   int // how often the stream of the letters was made anew

	runs    runs
	letters letters
}

// NewIndex makes an empty index. now is the clock by which records expire.
func NewIndex(c Counter, now func() time.Time) *Index {
	x := &Index{counter: c, now: now, changed: make(chan struct{})}
	x.runs.reset()
	x.letters.reset()
	return x
}

func (x *Index) signal() {
	close(x.changed)
	x.changed = make(chan struct{})
}

// Ready reports whether everything that was in the streams has been seen.
func (x *Index) Ready() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.current[0] && x.current[1]
}

// Run takes a record's header in.
func (x *Index) Run(c port.Change) {
	x.mu.Lock()
	defer x.mu.Unlock()
	defer x.signal()
	switch c.Report {
	case port.Current:
		x.current[0] = true
		return
	case port.Reset:
		x.runs.reset()
		x.seenRun, x.current[0] = 0, false
		return
	}
	x.seenRun = max(x.seenRun, c.Seq)
	if c.Header.Episode == 0 {
		return // the reconcilers' own record
	}
	x.runs.put(c)
	x.count(x.letters.header(c.ID, stand{seq: c.Seq, episode: c.Header.Episode, open: c.Header.Letter, ended: run.Ended(c.Header.State)}))
}

// Letter takes a letter's message in.
func (x *Index) Letter(c port.Letter) {
	var l *letter
	if c.Report == port.Stored {
		l = newLetter(c)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	defer x.signal()
	switch c.Report {
	case port.Current:
		x.current[1] = true
		return
	case port.Reset:
		x.letters.reset()
		x.seenMail, x.current[1] = 0, false
		x.remade++
		x.counter.ForgetLetters()
		return
	}
	x.seenMail = max(x.seenMail, c.Seq)
	if l == nil {
		return
	}
	if r := x.runs.byID[c.ID]; r != nil {
		l.stand = stand{seq: r.seq, episode: r.episode, open: r.letter, ended: run.Ended(r.state)}
	}
	x.count(x.letters.put(l))
}

// saved takes in at once what this process has written, so that its own next list shows it.
func (x *Index) saved(h *record.Handle) {
	r := h.Run
	s := stand{seq: h.Seq, episode: r.Episode, ended: r.End != nil}
	if r.Letter != nil && r.Letter.Open {
		s.open = r.Letter.Owner
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.count(x.letters.header(h.ID, s))
	if l := x.letters.byID[h.ID]; l != nil && s.open != "" && l.episode == r.Episode && l.claimSeq < h.Seq {
		l.claim, l.claimSeq = claimOf(r), h.Seq
	}
}

// dropped forgets a letter that turned out not to be there.
func (x *Index) dropped(id run.ID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.letters.byID[id]; l != nil {
		x.count(x.letters.remove(l))
	}
}

func claimOf(r *engine.Run) *deadletter.Claim {
	if r.Letter == nil || r.Letter.Claim == nil {
		return nil
	}
	return &deadletter.Claim{By: r.Letter.Claim.By, Until: r.Letter.Claim.Until}
}

func (x *Index) count(changes []tally) {
	for _, c := range changes {
		x.counter.LettersOpen(c.owner, c.reason, c.by)
	}
}

// waitLimit is how long a list waits for what is already stored; what cannot be had by then is left out.
const waitLimit = time.Second

// wait returns once letters up to mail and records up to runs have been seen, or after waitLimit.
func (x *Index) wait(ctx context.Context, mail, runs uint64) {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	for {
		x.mu.Lock()
		seen, changed := x.seenMail >= mail && x.seenRun >= runs, x.changed
		x.mu.Unlock()
		if seen {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Unowned is how many open letters name no owner: none, unless something is broken.
func (x *Index) Unowned() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.letters.unowned
}

// HasLetter reports whether the message of this letter was seen and not been settled since.
func (x *Index) HasLetter(id run.ID, episode int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.letters.byID[id]
	return l != nil && l.episode >= episode
}

// Keep forgets every letter whose message is not among these, seen up to sequence upTo when they were listed: a removal by
// hand is not seen otherwise. It returns the runs whose header has a letter open that has no message.
func (x *Index) Keep(there map[run.ID]bool, upTo uint64) (missing []run.ID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, l := range x.letters.byID {
		if !there[id] && l.seq <= upTo {
			x.count(x.letters.remove(l))
		}
	}
	for id, r := range x.runs.byID {
		if r.letter != "" && !there[id] && run.Ended(r.state) {
			missing = append(missing, id)
		}
	}
	return missing
}

// Remade is how often the stream of the letters was made anew.
func (x *Index) Remade() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.remade
}

// Seen is the highest sequence of a letter that was seen.
func (x *Index) Seen() uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.seenMail
}

// newLetter reduces a letter's message to what a list shows; nil if it cannot be read.
func newLetter(c port.Letter) *letter {
	var whole deadletter.Letter
	if json.Unmarshal(c.Data, &whole) != nil {
		return nil
	}
	short := engine.Summarize(&whole)
	short.Claim = nil
	summary, err := strictjson.Marshal(short)
	if err != nil {
		return nil
	}
	return &letter{
		id: c.ID, owner: c.Owner, seq: c.Seq, letterID: whole.ID, episode: episodeOf(whole.ID), summary: summary, claim: whole.Claim,
		unowned: whole.Owner == "", reason: whole.ReasonCode, tool: whole.Tool, at: whole.CreatedAt, assigned: whole.AssignedAt,
		replayable: slices.Contains(whole.AllowedActions, deadletter.Replay),
	}
}
