package operator

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// letter is an open letter in the index.
type letter struct {
	id                  run.ID
	owner, reason, tool string
	letterID            string
	episode             int
	seq                 uint64 // of its message
	at                  envelope.Time
	assigned            envelope.Time // to this owner; 0: it is the first one
	summary             []byte        // JSON without the claim
	claim               *deadletter.Claim
	claimSeq            uint64 // revision of the record that this claim is of, where this process wrote it; 0: the message's
	replayable          bool
	unowned             bool
	stand               stand
	gone                bool
	busy                bool // a claim is being tried by this process
}

// stand is what a record's header says about its letter.
type stand struct {
	seq     uint64
	episode int
	open    string // owner of the open letter
	ended   bool
}

// over: the record does not have this letter open any more. A header that is older than the letter says nothing. Whose an open
// letter is the messages say: they are not in one order with the headers.
func (s stand) over(l *letter) bool {
	return s.episode > l.episode || s.episode == l.episode && s.ended && s.open == ""
}

// place is where a letter stands in a list: oldest first.
type place struct {
	at envelope.Time
	id run.ID
}

func (l *letter) place() place { return place{l.at, l.id} }

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.at, q.at), strings.Compare(p.id.Tenant, q.id.Tenant), strings.Compare(p.id.Run, q.id.Run))
}

// tally is a change of the number of open letters.
type tally struct {
	owner, reason string
	by            int
}

// kind is what the filters look at.
type kind struct{ tenant, owner, reason, tool string }

func (l *letter) kind() kind { return kind{l.id.Tenant, l.owner, l.reason, l.tool} }

func (f *Filter) admits(k kind) bool {
	return (f.Owner == "" || f.Owner == k.owner) && (f.ReasonCode == "" || f.ReasonCode == k.reason) && (f.Tool == "" || f.Tool == k.tool)
}

func (f *Filter) matches(l *letter) bool {
	return f.admits(l.kind()) && (f.Before == 0 || l.at < f.Before)
}

// letters are the open letters, by run, in order, and counted by kind.
type letters struct {
	byID    map[run.ID]*letter
	tenants map[string]*ordered // All has every tenant's
	kinds   map[kind]int
	unowned int
}

func (s *letters) reset() {
	s.byID, s.tenants, s.kinds, s.unowned = map[run.ID]*letter{}, map[string]*ordered{}, map[kind]int{}, 0
}

// ordered is a list of letters in order; those that are gone are swept out when they are the larger part.
type ordered struct {
	list []*letter
	gone int
}

func (o *ordered) from(p place) int {
	i, _ := slices.BinarySearchFunc(o.list, p, func(l *letter, p place) int { return l.place().compare(p) })
	return i
}

func (o *ordered) insert(l *letter) {
	if n := len(o.list); n == 0 || o.list[n-1].place().compare(l.place()) <= 0 {
		o.list = append(o.list, l)
		return
	}
	o.list = slices.Insert(o.list, o.from(l.place()), l)
}

func (o *ordered) lost() {
	if o.gone++; o.gone > 64 && o.gone > len(o.list)/2 {
		o.list = slices.DeleteFunc(o.list, func(l *letter) bool { return l.gone })
		o.gone = 0
	}
}

func (s *letters) orders(tenant string) [2]*ordered {
	var out [2]*ordered
	for i, t := range []string{tenant, port.AllTenants} {
		if s.tenants[t] == nil {
			s.tenants[t] = &ordered{}
		}
		out[i] = s.tenants[t]
	}
	return out
}

// put takes a letter's message in.
func (s *letters) put(l *letter) (changes []tally) {
	old := s.byID[l.id]
	if old != nil && (l.seq < old.seq || l.episode < old.episode) {
		return nil
	}
	if l.stand.over(l) {
		return nil
	}
	if old != nil && old.letterID == l.letterID && old.owner != l.owner && l.assigned < old.assigned {
		return nil // written for a former owner by one who did not know yet
	}
	if old != nil {
		if old.letterID == l.letterID && old.owner == l.owner {
			// The same letter with another claim or more evidence keeps its place.
			if old.claimSeq > 0 && old.claim != nil && (l.claim == nil || l.claim.Until < old.claim.Until) {
				l.claim, l.claimSeq = old.claim, old.claimSeq // the message is older than what this process wrote
			}
			l.busy = old.busy
		}
		changes = s.remove(old)
	}
	s.byID[l.id] = l
	for _, o := range s.orders(l.id.Tenant) {
		o.insert(l)
	}
	s.kinds[l.kind()]++
	if l.unowned {
		s.unowned++
	}
	return append(changes, tally{l.owner, l.reason, 1})
}

// header takes a record's header in.
func (s *letters) header(id run.ID, now stand) []tally {
	l := s.byID[id]
	if l == nil || now.seq < l.stand.seq {
		return nil
	}
	l.stand = now
	if now.over(l) {
		return s.remove(l)
	}
	return nil
}

func (s *letters) remove(l *letter) []tally {
	if l.gone {
		return nil
	}
	l.gone = true
	delete(s.byID, l.id)
	for _, t := range []string{l.id.Tenant, port.AllTenants} {
		o := s.tenants[t]
		o.lost()
		if len(o.list) == 0 {
			delete(s.tenants, t)
		}
	}
	if s.kinds[l.kind()]--; s.kinds[l.kind()] == 0 {
		delete(s.kinds, l.kind())
	}
	if l.unowned {
		s.unowned--
	}
	return []tally{{l.owner, l.reason, -1}}
}

// total counts what a filter matches.
func (s *letters) total(tenant string, f *Filter) (n int) {
	if f.Before == 0 {
		for k, count := range s.kinds {
			if (tenant == port.AllTenants || k.tenant == tenant) && f.admits(k) {
				n += count
			}
		}
		return n
	}
	o := s.tenants[tenant]
	if o == nil {
		return 0
	}
	for _, l := range o.list {
		if l.at >= f.Before {
			break
		}
		if !l.gone && f.matches(l) {
			n++
		}
	}
	return n
}

// each calls fn with the letters of a tenant that match, oldest first, from after a place on, until fn returns false. It
// looks at no more than lookMax and returns the place of the last one looked at, and whether there may be more.
func (s *letters) each(tenant string, f *Filter, after place, most int, fn func(*letter) bool) (last place, more bool) {
	o := s.tenants[tenant]
	if o == nil {
		return after, false
	}
	looked := 0
	last = after
	for i := o.from(after); i < len(o.list); i++ {
		l := o.list[i]
		if l.place() == after {
			continue
		}
		if looked++; looked > most {
			return last, true
		}
		if !l.gone && f.matches(l) && !fn(l) {
			return last, true
		}
		last = l.place()
	}
	return last, false
}

func episodeOf(letterID string) int {
	n, err := strconv.Atoi(letterID[strings.LastIndexByte(letterID, '/')+1:])
	if err != nil {
		return 0
	}
	return n
}
