package journal

import (
	"bytes"
	"errors"
	"fmt"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/agentrun/executor/internal/engine"
)

// chunkFacts is how many facts one read transaction gives: a long one would keep pages from being used again and make a
// commit that has to map more of the file wait.
const chunkFacts = 256

// guard runs fn and makes a panic of bbolt, or a fault in the mapped file, an ErrDamaged.
func guard(path string, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = damaged(path, fmt.Sprint(p))
		}
	}()
	return fn()
}

// views are the buckets as one transaction sees them.
type views struct {
	intents, effects, unsettled, meta *bolt.Bucket
}

func viewsOf(tx *bolt.Tx) views {
	return views{tx.Bucket(bucketIntents), tx.Bucket(bucketEffects), tx.Bucket(bucketUnsettled), tx.Bucket(bucketMeta)}
}

func (j *Journal) view(fn func(views) error) error { return view(j.path, j.db, fn) }

func view(path string, db *bolt.DB, fn func(views) error) error {
	err := guard(path, func() error {
		return db.View(func(tx *bolt.Tx) error { return fn(viewsOf(tx)) })
	})
	if errors.Is(err, berrors.ErrDatabaseNotOpen) {
		return ErrClosed
	}
	return err
}

// Unsettled gives the facts that no Settled was written for, oldest first: what a start has to look at.
func (j *Journal) Unsettled() ([]engine.Fact, error) {
	var facts []engine.Fact
	var after []byte
	for {
		n := 0
		err := j.view(func(v views) error {
			c := v.unsettled.Cursor()
			for k := seekAfter(c, after); k != nil && n < chunkFacts; k, _ = c.Next() {
				f, err := factAt(j.path, v, k)
				if err != nil {
					return err
				}
				facts = append(facts, f)
				after = append(after[:0], k...)
				n++
			}
			return nil
		})
		if err != nil || n < chunkFacts {
			return facts, err
		}
	}
}

// Facts calls fn for every fact, oldest first, until fn returns an error, which it returns. A fact that is written
// meanwhile may be seen or not. An effect whose intent is not known comes with an Intent that has only the dispatch.
func (j *Journal) Facts(fn func(engine.Fact) error) error { return facts(j.path, j.db, fn) }

func facts(path string, db *bolt.DB, fn func(engine.Fact) error) error {
	var after []byte
	for {
		chunk := make([]engine.Fact, 0, chunkFacts)
		err := view(path, db, func(v views) error {
			m := merge(v, after)
			for k := m.key(); k != nil && len(chunk) < chunkFacts; k = m.next() {
				f, err := factAt(path, v, k)
				if err != nil {
					return err
				}
				chunk = append(chunk, f)
				after = append(after[:0], k...)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, f := range chunk {
			if err := fn(f); err != nil {
				return err
			}
		}
		if len(chunk) < chunkFacts {
			return nil
		}
	}
}

// Get gives what is known of one dispatch; false if nothing is.
func (j *Journal) Get(d engine.DispatchID) (f engine.Fact, ok bool, err error) {
	key, err := keyOf(d)
	if err != nil {
		return engine.Fact{}, false, fmt.Errorf("journal: get: %w", err)
	}
	err = j.view(func(v views) error {
		if ok = v.intents.Get(key) != nil || v.effects.Get(key) != nil; !ok {
			return nil
		}
		f, err = factAt(j.path, v, key)
		return err
	})
	return f, ok && err == nil, err
}

// factAt puts together what the buckets have for a key. What it returns holds no memory of the transaction.
func factAt(path string, v views, key []byte) (engine.Fact, error) {
	d, err := dispatchOf(key)
	if err != nil {
		return engine.Fact{}, damaged(path, err.Error())
	}
	f := engine.Fact{Intent: engine.Intent{Dispatch: d}, Settled: v.unsettled.Get(key) == nil}
	if value := v.intents.Get(key); value != nil {
		payload, ok := open(tagIntent, key, value)
		if !ok {
			return engine.Fact{}, damaged(path, fmt.Sprintf("the intent of dispatch %s does not match its checksum", d))
		}
		if f.Intent, err = decodeIntent(d, payload); err != nil {
			return engine.Fact{}, damaged(path, err.Error())
		}
	} else if !f.Settled {
		return engine.Fact{}, damaged(path, fmt.Sprintf("the intent of unsettled dispatch %s is missing", d))
	}
	if value := v.effects.Get(key); value != nil {
		payload, ok := open(tagEffect, key, value)
		if !ok {
			return engine.Fact{}, damaged(path, fmt.Sprintf("the effect of dispatch %s does not match its checksum", d))
		}
		e, err := decodeEffect(d, payload)
		if err != nil {
			return engine.Fact{}, damaged(path, err.Error())
		}
		f.Effect = &e
	}
	return f, nil
}

// checkUnsettled reads what a start has to look at, so that damage shows now and not when the answer is needed.
func (j *Journal) checkUnsettled() error {
	_, err := j.Unsettled()
	return err
}

func seekAfter(c *bolt.Cursor, after []byte) []byte {
	if after == nil {
		k, _ := c.First()
		return k
	}
	k, _ := c.Seek(after)
	if bytes.Equal(k, after) {
		k, _ = c.Next()
	}
	return k
}

// merged walks the keys of intents and effects together, in order.
type merged struct {
	ci, ce *bolt.Cursor
	ki, ke []byte
}

func merge(v views, after []byte) *merged {
	m := &merged{ci: v.intents.Cursor(), ce: v.effects.Cursor()}
	m.ki, m.ke = seekAfter(m.ci, after), seekAfter(m.ce, after)
	return m
}

func (m *merged) key() []byte {
	if m.ki == nil || m.ke != nil && bytes.Compare(m.ke, m.ki) < 0 {
		return m.ke
	}
	return m.ki
}

func (m *merged) next() []byte {
	k := m.key()
	if bytes.Equal(k, m.ki) {
		m.ki, _ = m.ci.Next()
	}
	if bytes.Equal(k, m.ke) {
		m.ke, _ = m.ce.Next()
	}
	return m.key()
}
