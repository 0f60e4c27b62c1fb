package operator

import (
	"slices"
	"sort"
	"time"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/run"
)

// known is a run in the index. Its strings are shared: a million runs cost about 200 bytes each.
type known struct {
	id       run.ID
	seq      uint64
	state    string
	workflow string
	letter   string
	episode  int
	expires  int64 // Unix seconds; 0: never
	gone     bool
}

// runs are all runs that are remembered, by id and by their last change.
type runs struct {
	byID    map[run.ID]*known
	tenants map[string]*changes // All has every tenant's
	words   map[string]string   // state words, workflows, owners and tenants, each kept once
}

// changes is a list of runs by their last change; those that have changed since are swept out when they are the larger
// part.
type changes struct {
	list []*known
	gone int
}

func (s *runs) reset() {
	s.byID, s.tenants, s.words = map[run.ID]*known{}, map[string]*changes{}, map[string]string{}
}

func (s *runs) word(w string) string {
	if kept, ok := s.words[w]; ok {
		return kept
	}
	if len(s.words) > 100_000 {
		clear(s.words)
	}
	s.words[w] = w
	return w
}

// put takes a record's header in. Headers come in the order of their revisions.
func (s *runs) put(c port.Change) {
	id := c.ID
	if old := s.byID[id]; old != nil {
		if c.Seq <= old.seq {
			return
		}
		id = old.id
		s.drop(old)
	}
	id.Tenant = s.word(id.Tenant)
	k := &known{
		id: id, seq: c.Seq, state: s.word(c.Header.State), workflow: s.word(c.Header.Workflow), letter: s.word(c.Header.Letter),
		episode: c.Header.Episode,
	}
	if c.Header.TTL > 0 {
		k.expires = c.Time.Add(c.Header.TTL).Unix() + 2
	}
	s.byID[id] = k
	for _, t := range []string{id.Tenant, port.AllTenants} {
		if s.tenants[t] == nil {
			s.tenants[t] = &changes{}
		}
		s.tenants[t].list = append(s.tenants[t].list, k)
	}
}

func (s *runs) drop(k *known) {
	k.gone = true
	delete(s.byID, k.id)
	for _, t := range []string{k.id.Tenant, port.AllTenants} {
		c := s.tenants[t]
		if c.gone++; c.gone > 64 && c.gone > len(c.list)/2 {
			c.list = slices.DeleteFunc(c.list, func(k *known) bool { return k.gone })
			c.gone = 0
		}
		if len(c.list) == 0 {
			delete(s.tenants, t)
		}
	}
}

// expire forgets what the store has forgotten. Ends are stored in the order in which they expire, but for settled letters.
func (s *runs) expire(now time.Time) {
	for _, k := range s.byID {
		if k.expires != 0 && k.expires < now.Unix() {
			s.drop(k)
		}
	}
}

// each calls fn with the runs of a tenant, by their last change, after revision after, until fn returns false. It looks at
// no more than most and returns the revision of the last one looked at, and whether there may be more.
func (s *runs) each(tenant string, after uint64, most int, now time.Time, fn func(*known) bool) (last uint64, more bool) {
	c := s.tenants[tenant]
	if c == nil {
		return after, false
	}
	last = after
	looked := 0
	for _, k := range c.list[sort.Search(len(c.list), func(i int) bool { return c.list[i].seq > after }):] {
		if looked++; looked > most {
			return last, true
		}
		if !k.gone && (k.expires == 0 || k.expires >= now.Unix()) && !fn(k) {
			return last, true
		}
		last = k.seq
	}
	return last, false
}

// Expire forgets the runs that the store has forgotten.
func (x *Index) Expire() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.runs.expire(x.now())
}
