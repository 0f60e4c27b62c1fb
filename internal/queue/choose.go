package queue

import (
	"time"
)

// choose says how many of n slots to pull for, and takes messages whose turn it is for others; p.mu is held. It leaves
// slots unused only if everything that is known to wait is of tenants that have reached their cap, and then one every
// probeEvery is pulled for all the same.
func (p *Puller) choose(s *source, n int) (batch, picked int) {
	if s.pending > 0 && s.wary.After(s.looked) && time.Since(s.wary) < waryMost {
		return 0, 0 // the scout comes first
	}
	if s.ahead.plain() && !p.capped(s) {
		return n, 0
	}
	for batch+picked < n {
		tenant, ok := p.first(s)
		if !ok && len(s.ahead.lanes) == 0 {
			return n - picked, picked // nothing more is known: as they come
		}
		if !ok {
			// What was given back, or lost by an executor that died, is in no lane and may be of another tenant: now and then one
			// is pulled for it, at the price of one of a capped tenant that waits here without a slot.
			if now := time.Now(); batch+picked == 0 && now.Sub(s.probed) >= probeEvery {
				s.probed = now
				batch++
			}
			break
		}
		if head, ok := s.ahead.head(); ok && p.asGood(s, head, tenant) {
			s.ahead.take(head.tenant)
			p.turns.Shares.Promise(head.tenant)
			s.promised = append(s.promised, head.tenant)
			batch++
			continue
		}
		seq := s.ahead.take(tenant)
		p.turns.Shares.Promise(tenant)
		p.free--
		picked++
		p.picks.Go(func() { p.pick(s, seq, tenant) })
	}
	return batch, picked
}

// first is the tenant of a source whose turn it is.
func (p *Puller) first(s *source) (tenant string, ok bool) {
	for {
		tenant, ok = p.turns.Shares.First(s.ahead.tenants())
		if !ok || s.ahead.has(tenant) {
			return tenant, ok
		}
	}
}

// capped reports whether a source's only tenant has a cap.
func (p *Puller) capped(s *source) bool {
	for tenant := range s.ahead.lanes {
		return p.turns.Shares.Capped(tenant)
	}
	return false
}

// asGood reports whether to pull, though it is tenant's turn: the message that a pull would bring is the next of its own
// tenant, which may as well be served now. A pull is preferred, since the server gives a message to one executor only, while
// two may pick the same.
func (p *Puller) asGood(s *source, head marked, tenant string) bool {
	return s.ahead.has(head.tenant) && s.ahead.peek(head.tenant).seq == head.seq &&
		(head.tenant == tenant || p.turns.Shares.Even(head.tenant, tenant))
}

// unpromise takes back n promises of a source.
func (p *Puller) unpromise(s *source, n int) {
	for ; n > 0 && len(s.promised) > 0; n-- {
		p.turns.Shares.Unpromise(s.promised[0])
		s.promised = s.promised[1:]
	}
}

// Waits is the tenant whose turn it is among those that are known to wait in the queues; ok is false if there is none.
func (p *Puller) Waits() (tenant string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sources {
		if p.paused && !s.wake {
			continue
		}
		if t, found := p.first(s); found && (!ok || p.turns.Shares.Before(t, tenant)) {
			tenant, ok = t, true
		}
	}
	return tenant, ok
}
