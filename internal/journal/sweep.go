package journal

import (
	"context"
	"fmt"

	"github.com/agentrun/executor/pkg/envelope"
)

// sweepFacts is how many facts one transaction of Sweep removes: a millisecond or two of work beside a sync.
const sweepFacts = 256

// Sweep removes the settled facts that are older than the retention and reports how many it removed. It looks for them
// in short read transactions, and the removals join the commits of the writers, which so wait no longer than for each
// other. The freed pages are used again: the file does not shrink, and grows no further.
func (j *Journal) Sweep(ctx context.Context) (removed int, err error) {
	cutoff := envelope.TimeOf(j.opts.Now().Add(-j.opts.Retention))
	var after []byte
	for {
		if err := ctx.Err(); err != nil {
			return removed, fmt.Errorf("journal: sweep: %w", err)
		}
		r := &request{}
		more := false
		err := j.view(func(v views) error {
			r.ops, after, more = settledBefore(v, cutoff, after)
			return nil
		})
		if err != nil {
			return removed, err
		}
		if len(r.ops) > 0 {
			r.bytes = 64 * len(r.ops)
			select {
			case err := <-j.enqueue(r):
				if err != nil {
					return removed, err
				}
				removed += r.removed
			case <-ctx.Done():
				return removed, fmt.Errorf("journal: sweep: %w", ctx.Err())
			}
		}
		if !more {
			return removed, nil
		}
	}
}

// settledBefore looks at the keys that follow after, and gives a removal for each settled fact that is older than
// cutoff; more says whether to go on behind the key that it returns.
func settledBefore(v views, cutoff envelope.Time, after []byte) (ops []op, last []byte, more bool) {
	m := merge(v, after)
	last = after
	for k, n := m.key(), 0; k != nil; k, n = m.next(), n+1 {
		if n == 4*sweepFacts || len(ops) == sweepFacts {
			return ops, last, true
		}
		intent, effect := timeOf(v.intents.Get(k)), timeOf(v.effects.Get(k))
		if intent > cutoff && timeOrdered(k) {
			// The keys from here on are younger still. What comes behind them is in no order.
			k = skipOrdered(m)
			if k == nil {
				return ops, last, false
			}
			intent, effect = timeOf(v.intents.Get(k)), timeOf(v.effects.Get(k))
		}
		last = append([]byte(nil), k...)
		if intent <= cutoff && effect <= cutoff && v.unsettled.Get(k) == nil {
			ops = append(ops, op{kind: opRemove, key: last})
		}
	}
	return ops, last, false
}

// skipOrdered moves to the first key that is no UUIDv7.
func skipOrdered(m *merged) []byte {
	m.ki, _ = m.ci.Seek([]byte{otherID})
	m.ke, _ = m.ce.Seek([]byte{otherID})
	return m.key()
}
