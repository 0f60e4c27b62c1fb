package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Report is what a whole audit came to.
type Report struct {
	Records, Letters, Outcomes int
	Found                      []Finding
	// Waiting is how many ends wait for room for their letter: the letters are at their limit, and nothing is broken.
	Waiting int
}

// published is what the results of a run say about their numbers.
type published struct {
	first    uint64 // of the run whose messages these are
	from, to int
	gap      int // the first number that is missing in between, or comes twice; 0: none
}

// audit is one pass over everything.
type audit struct {
	source port.Scan
	store  port.Store
	now    envelope.Time
	report Report

	letters map[run.ID][]port.Letter
	results map[run.ID]map[envelope.Scope]*published
	oldest  time.Time // outcome that is still there
	suspect map[run.ID][]Finding
	found   map[run.ID]bool // letters whose record was seen
	waiting map[run.ID]bool // ends whose letter finds no room
	full    bool            // the letters are at their limit
}

// How often what is suspected is looked at again, and after which pause: it may rest on something that is on its way.
const (
	lookTries = 20
	lookPause = 250 * time.Millisecond
)

// All checks all records, letters and outcomes. The fleet goes on meanwhile: what looks broken is looked at again until it
// is whole, or has not changed for five seconds.
func All(ctx context.Context, source port.Scan, store port.Store, now envelope.Time) (*Report, error) {
	a := &audit{
		source: source, store: store, now: now, letters: map[run.ID][]port.Letter{}, results: map[run.ID]map[envelope.Scope]*published{},
		suspect: map[run.ID][]Finding{}, found: map[run.ID]bool{}, waiting: map[run.ID]bool{},
	}
	if err := source.ScanOutcomes(ctx, a.outcome); err != nil {
		return nil, fmt.Errorf("audit: reading the outcomes: %w", err)
	}
	err := source.ScanLetters(ctx, func(l port.Letter) {
		l.Data = shortened(l.Data)
		a.letters[l.ID] = append(a.letters[l.ID], l)
		a.report.Letters++
	})
	if err != nil {
		return nil, fmt.Errorf("audit: reading the letters: %w", err)
	}
	if a.full, err = source.LettersFull(ctx); err != nil {
		return nil, fmt.Errorf("audit: reading how many letters there may be: %w", err)
	}
	if err := source.ScanRuns(ctx, 0, a.record); err != nil {
		return nil, fmt.Errorf("audit: reading the records: %w", err)
	}
	for id := range a.letters {
		if !a.found[id] {
			a.suspect[id] = append(a.suspect[id], Finding{id, engine.RuleNothingVanishes, "there is a letter without a record"})
		}
	}
	if err := a.confirm(ctx); err != nil {
		return nil, err
	}
	a.report.Waiting = len(a.waiting)
	slices.SortFunc(a.report.Found, func(x, y Finding) int { return strings.Compare(x.String(), y.String()) })
	return &a.report, nil
}

// shortened keeps of a letter what is checked.
func shortened(data []byte) []byte {
	var l deadletter.Letter
	if json.Unmarshal(data, &l) != nil {
		return nil
	}
	out, err := strictjson.Marshal(deadletter.Summary{ID: l.ID, Owner: l.Owner, Tenant: l.Tenant, RunID: l.RunID})
	if err != nil {
		return nil
	}
	return out
}

func (a *audit) outcome(o port.Outcome) {
	a.report.Outcomes++
	if a.oldest.IsZero() || o.Time.Before(a.oldest) {
		a.oldest = o.Time
	}
	scopes := a.results[o.ID]
	if scopes == nil {
		scopes = map[envelope.Scope]*published{}
		a.results[o.ID] = scopes
	}
	p := scopes[o.Scope]
	switch {
	case p == nil || p.first != o.First:
		scopes[o.Scope] = &published{first: o.First, from: o.N, to: o.N}
	case o.N != p.to+1 && p.gap == 0:
		p.gap = p.to + 1
		p.to = max(p.to, o.N)
	default:
		p.to = o.N
	}
}

func (a *audit) record(id run.ID, seq uint64, data []byte) {
	a.report.Records++
	a.found[id] = len(a.letters[id]) > 0
	if !a.found[id] {
		delete(a.found, id)
	}
	if found := a.check(id, seq, data, a.letters[id], a.results[id]); len(found) > 0 {
		a.suspect[id] = found
	} else {
		delete(a.results, id)
	}
}

// check holds one record against its letters and outcomes.
func (a *audit) check(id run.ID, seq uint64, data []byte, letters []port.Letter, results map[envelope.Scope]*published) []Finding {
	r, found := Record(id, data, a.now)
	if r == nil {
		return found
	}
	if r.First == 0 {
		r.First = seq
	}
	bad := func(rule, format string, args ...any) {
		found = append(found, Finding{id, rule, fmt.Sprintf(format, args...)})
	}
	// Its letter comes first, and what it owes beside it after that.
	if delete(a.waiting, id); a.full && len(letters) == 0 && r.OwesLetter() {
		a.waiting[id] = true
	} else {
		checkLetters(r, letters, bad)
	}
	if !Unaddressed(r) {
		a.checkOutcomes(r, results, bad)
	}
	return found
}

func checkLetters(r *engine.Run, letters []port.Letter, bad func(string, string, ...any)) {
	open := r.Letter != nil && r.Letter.Open
	seen := false
	for _, l := range letters {
		var s deadletter.Summary
		if len(l.Data) == 0 || json.Unmarshal(l.Data, &s) != nil {
			bad(engine.RuleNothingVanishes, "the letter of owner %s cannot be read", l.Owner)
			continue
		}
		switch {
		case s.Owner == "":
			bad(engine.RuleNothingVanishes, "letter %s has no owner", s.ID)
		case s.Owner != l.Owner:
			bad(engine.RuleNothingVanishes, "letter %s of %s lies at the subject of %s", s.ID, s.Owner, l.Owner)
		case !open || s.ID != r.Letter.ID || l.Owner != r.Letter.Owner:
			bad(engine.RuleNothingVanishes, "letter %s is in the stream, and the record does not have it open", s.ID)
		default:
			seen = true
		}
	}
	if open && !seen {
		bad(engine.RuleNothingVanishes, "letter %s is open and not in the stream", r.Letter.ID)
	}
}

// checkOutcomes holds the numbers of a run's outcomes against its record: from 1 without gaps, one end for each episode.
// The oldest outcomes may have expired.
func (a *audit) checkOutcomes(r *engine.Run, results map[envelope.Scope]*published, bad func(string, string, ...any)) {
	last := map[envelope.Scope]int{envelope.StepScope: r.StepN, envelope.RunScope: r.Episode - 1}
	if r.End != nil {
		last[envelope.RunScope] = r.Episode
	}
	if a.waiting[r.ID()] {
		for i := len(r.Owed) - 1; i >= 0; i-- {
			last[r.Owed[i].Scope] = r.Owed[i].N - 1
		}
	}
	whole := !a.oldest.IsZero() && r.CreatedAt.Time().After(a.oldest)
	for _, scope := range []envelope.Scope{envelope.StepScope, envelope.RunScope} {
		p, want := results[scope], last[scope]
		if p != nil && p.first != r.First {
			p = nil // an earlier run of the same name
		}
		switch {
		case p == nil && want > 0 && (whole || a.oldest.IsZero()):
			bad(engine.RuleOneEnd, "no outcome of scope %s is in the stream, there must be %d", scope, want)
		case p == nil:
		case p.gap > 0:
			bad(engine.RuleOneEnd, "outcome %s/%d is missing or comes twice", scope, p.gap)
		case p.from > 1 && whole:
			bad(engine.RuleOneEnd, "outcomes of scope %s begin with %d", scope, p.from)
		case p.to > want:
			bad(engine.RuleOneEnd, "outcome %s/%d is in the stream, the record knows of %d", scope, p.to, want)
		case p.to < want:
			bad(engine.RuleOneEnd, "outcome %s/%d is not in the stream", scope, want)
		}
	}
}

// confirm looks again at what seemed broken, until it is whole or stays as it is.
func (a *audit) confirm(ctx context.Context) error {
	for try := 0; len(a.suspect) > 0 && try < lookTries; try++ {
		if !pause.For(ctx, lookPause) {
			return ctx.Err()
		}
		full, err := a.source.LettersFull(ctx)
		if err != nil {
			return fmt.Errorf("audit: reading how many letters there may be: %w", err)
		}
		a.full = full
		for id := range a.suspect {
			found, err := a.again(ctx, id)
			if err != nil {
				return fmt.Errorf("audit: looking at %s again: %w", id, err)
			}
			if len(found) == 0 {
				delete(a.suspect, id)
			} else {
				a.suspect[id] = found
			}
		}
	}
	for _, found := range a.suspect {
		a.report.Found = append(a.report.Found, found...)
	}
	return nil
}

// again reads one run anew. What a pass has found about gaps in the numbers of its outcomes stays; the rest is asked anew.
func (a *audit) again(ctx context.Context, id run.ID) ([]Finding, error) {
	st, err := a.store.Load(ctx, id)
	gone := errors.Is(err, port.ErrNotFound)
	if err != nil && !gone {
		return nil, err
	}
	var letters []port.Letter
	owners := map[string]bool{}
	for _, l := range a.letters[id] {
		owners[l.Owner] = true
	}
	var r *engine.Run
	if !gone {
		if r, err = engine.DecodeAsIs(st.Data); err == nil && r.Letter != nil {
			owners[r.Letter.Owner] = true
		}
	}
	for owner := range owners {
		l, err := a.store.GetLetter(ctx, id, owner)
		if err != nil && !errors.Is(err, port.ErrNotFound) {
			return nil, err
		}
		if err == nil {
			l.Data = shortened(l.Data)
			letters = append(letters, l)
		}
	}
	if gone {
		if len(letters) == 0 {
			return nil, nil
		}
		return a.suspect[id], nil
	}
	results := map[envelope.Scope]*published{}
	for _, scope := range []envelope.Scope{envelope.StepScope, envelope.RunScope} {
		last, err := a.store.LastOutcome(ctx, id, scope)
		if err == nil {
			p := &published{first: last.First, from: 1, to: last.N}
			if was := a.results[id][scope]; was != nil && was.first == p.first {
				p.from, p.gap = was.from, was.gap
			}
			results[scope] = p
		} else if !errors.Is(err, port.ErrNotFound) {
			return nil, err
		}
	}
	return a.check(id, st.Seq, st.Data, letters, results), nil
}
