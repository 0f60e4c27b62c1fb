package operator

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Bounds of a page.
const (
	pageOtherwise = 100
	pageMost      = 1000
	lookMost      = 10_000 // records that one page looks at
)

// await returns once the index has seen what was stored before the call, so that a list shows it.
func (o *Operator) await(ctx context.Context, tenant string) error {
	if tenant == port.AllTenants {
		tenant = ""
	}
	last, err := o.Streams.LastLetter(ctx, tenant)
	if err != nil {
		return err
	}
	o.Index.wait(ctx, last, 0)
	return nil
}

func (o *Operator) listLetters(ctx context.Context, tenant string, q *LettersRequest) (any, error) {
	limit, err := within(q.Limit, pageOtherwise, lookMost)
	if err != nil {
		return nil, err
	}
	after, err := parsePlace(q.After)
	if err != nil {
		return nil, err
	}
	if err := o.await(ctx, tenant); err != nil {
		return nil, err
	}
	now := o.Records.Due()
	page := LetterPage{OK: true, DeadLetters: []json.RawMessage{}}
	size := 0
	x := o.Index
	x.mu.Lock()
	defer x.mu.Unlock()
	last, more := x.letters.each(tenant, &q.Filter, after, lookMost, func(l *letter) bool {
		if len(page.DeadLetters) >= min(limit, pageMost) || size > 0 && size+len(l.summary) > replyMax {
			return false
		}
		size += len(l.summary)
		page.DeadLetters = append(page.DeadLetters, l.shown(now))
		return true
	})
	page.Total = x.letters.total(tenant, &q.Filter)
	if more {
		page.After = last.String()
	}
	return page, nil
}

// shown is the letter's summary with the claim that runs.
func (l *letter) shown(now envelope.Time) json.RawMessage {
	if l.claim == nil || l.claim.Until <= now {
		return l.summary
	}
	claim, err := strictjson.Marshal(l.claim)
	if err != nil {
		return l.summary
	}
	out := make([]byte, 0, len(l.summary)+len(claim)+10)
	out = append(out, l.summary[:len(l.summary)-1]...)
	out = append(out, `,"claim":`...)
	out = append(out, claim...)
	return append(out, '}')
}

// String is the opaque after of a page.
func (p place) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(int64(p.at), 10) + " " + p.id.Tenant + " " + p.id.Run))
}

func parsePlace(s string) (place, error) {
	if s == "" {
		return place{}, nil
	}
	bad := badRequest("after is not what a page gave")
	text, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return place{}, bad
	}
	part := strings.Split(string(text), " ")
	if len(part) != 3 {
		return place{}, bad
	}
	at, err := strconv.ParseInt(part[0], 10, 64)
	if err != nil {
		return place{}, bad
	}
	return place{at: envelope.Time(at), id: run.ID{Tenant: part[1], Run: part[2]}}, nil
}

func (o *Operator) getLetter(ctx context.Context, tenant string, q *RunRequest) (any, error) {
	id, err := subject(tenant, q.RunID)
	if err != nil {
		return nil, err
	}
	h, err := o.load(ctx, id)
	if err != nil {
		return nil, err
	}
	if h.Run.Letter == nil || !h.Run.Letter.Open {
		return nil, refuse(run.NotFound, "run %s has no open dead letter", id.Run)
	}
	data, err := o.Records.Letter(h.Run)
	if err != nil {
		return nil, err
	}
	return LetterReply{OK: true, DeadLetter: data}, nil
}

// claimMost bounds a claim: whoever needs longer claims again.
const claimMost = 7 * 24 * time.Hour

// claim hands out the oldest letter that nobody has. The record decides: who loses the race for one goes on to the next.
func (o *Operator) claim(ctx context.Context, tenant string, q *ClaimRequest) (any, error) {
	if err := person(q.By); err != nil {
		return nil, err
	}
	seconds := 300.0
	if q.ForSeconds != nil {
		seconds = *q.ForSeconds
	}
	if !(seconds > 0 && seconds <= claimMost.Seconds()) {
		return nil, badRequest("for_seconds must be more than 0 and at most %.0f", claimMost.Seconds())
	}
	if err := o.await(ctx, tenant); err != nil {
		return nil, err
	}
	filter := &Filter{Owner: q.Owner}
	after := place{}
	for {
		l, next := o.candidate(tenant, filter, after)
		if l == nil {
			if next == after {
				return LetterReply{OK: true, DeadLetter: json.RawMessage("null")}, nil
			}
			after = next
			continue
		}
		h, err := o.tryClaim(ctx, l, filter, q.By, time.Duration(seconds*float64(time.Second)))
		o.release(l)
		var refused *engine.Refusal
		if errors.As(err, &refused) {
			after = l.place()
			continue
		}
		if err != nil {
			return nil, err
		}
		data, err := o.Records.Letter(h.Run)
		if err != nil {
			return nil, err
		}
		return LetterReply{OK: true, DeadLetter: data}, nil
	}
}

// candidate is the oldest letter after a place that nobody has claimed and that no other call of this process is trying.
// nil with next beyond after: look again from there.
func (o *Operator) candidate(tenant string, f *Filter, after place) (found *letter, next place) {
	now := o.Records.Now()
	x := o.Index
	x.mu.Lock()
	defer x.mu.Unlock()
	last, more := x.letters.each(tenant, f, after, lookMost, func(l *letter) bool {
		if l.busy || l.claim != nil && l.claim.Until > now {
			return true
		}
		found = l
		return false
	})
	if found != nil {
		found.busy = true
	} else if !more {
		last = after
	}
	return found, last
}

func (o *Operator) release(l *letter) {
	x := o.Index
	x.mu.Lock()
	defer x.mu.Unlock()
	l.busy = false
	if now := x.letters.byID[l.id]; now != nil {
		now.busy = false
	}
}

// tryClaim claims one letter. A refusal means that it is not to be had, and the index knows why.
func (o *Operator) tryClaim(ctx context.Context, l *letter, f *Filter, by string, length time.Duration) (*record.Handle, error) {
	h, err := o.change(ctx, l.id, func(h *record.Handle) (bool, error) {
		now := o.Records.Now()
		if refused := elsewhere(h.Run, f); refused != nil {
			return false, refused
		}
		if r := h.Run.Letter; r != nil && r.Open && r.Claim != nil && r.Claim.Until > now {
			o.Index.saved(h) // whoever has it is not asked about again
			return false, refuse(run.Claimed, "the dead letter is claimed by %s until %s", r.Claim.By, r.Claim.Until)
		}
		if refused := h.Run.ClaimLetter(by, now.Add(length), now); refused != nil {
			return false, refused
		}
		return true, nil
	})
	var refused *engine.Refusal
	if errors.As(err, &refused) && refused.Code == run.NotFound {
		o.Index.dropped(l.id)
	}
	if err != nil {
		return nil, err
	}
	o.follow(ctx, h, "")
	return h, nil
}
