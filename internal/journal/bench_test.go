package journal_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/journal"
)

// BenchmarkJob is what one write costs the journal: an intent, an effect, a mark that it is settled.
// BenchmarkBatch is the same through bbolt's own db.Batch with JSON values, to show what the group commit is worth.
// records/commit is how many records share one fsync'd transaction.
func BenchmarkJob(b *testing.B) {
	for _, writers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			var commits, records atomic.Int64
			j, err := journal.Open(filepath.Join(b.TempDir(), "journal.db"), journal.Options{OnCommit: func(_ time.Duration, n int) {
				commits.Add(1)
				records.Add(int64(n))
			}})
			if err != nil {
				b.Fatal(err)
			}
			each(b, writers, func() error {
				d, now := newDispatch(), time.Now()
				if err := j.Write(context.Background(), intent(d, now)); err != nil {
					return err
				}
				if err := j.Write(context.Background(), effect(d, now)); err != nil {
					return err
				}
				j.Later(settled(d))
				return nil
			})
			if err := j.Close(); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(records.Load())/float64(commits.Load()), "records/commit")
		})
	}
}

func BenchmarkBatch(b *testing.B) {
	for _, writers := range []int{64, 256} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			db, err := bolt.Open(filepath.Join(b.TempDir(), "journal.db"), 0o600, nil)
			if err != nil {
				b.Fatal(err)
			}
			name := [][]byte{[]byte("intents"), []byte("effects"), []byte("unsettled")}
			err = db.Update(func(tx *bolt.Tx) error {
				for _, n := range name {
					if _, err := tx.CreateBucket(n); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
			var records atomic.Int64
			put := func(d engine.DispatchID, to int, v any) error {
				value, err := json.Marshal(v)
				if err != nil {
					return err
				}
				records.Add(1)
				return db.Batch(func(tx *bolt.Tx) error {
					if to == 0 {
						if err := tx.Bucket(name[2]).Put([]byte(d), nil); err != nil {
							return err
						}
					}
					return tx.Bucket(name[to]).Put([]byte(d), value)
				})
			}
			before := lastTransaction(b, db)
			each(b, writers, func() error {
				d, now := newDispatch(), time.Now()
				if err := put(d, 0, intent(d, now).Intent); err != nil {
					return err
				}
				if err := put(d, 1, effect(d, now).Effect); err != nil {
					return err
				}
				records.Add(1)
				return db.Batch(func(tx *bolt.Tx) error { return tx.Bucket(name[2]).Delete([]byte(d)) })
			})
			b.ReportMetric(float64(records.Load())/float64(lastTransaction(b, db)-before), "records/commit")
			if err := db.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func lastTransaction(b *testing.B, db *bolt.DB) (id int) {
	b.Helper()
	if err := db.View(func(tx *bolt.Tx) error { id = tx.ID(); return nil }); err != nil {
		b.Fatal(err)
	}
	return id
}

// each does b.N jobs with so many goroutines.
func each(b *testing.B, writers int, job func() error) {
	b.Helper()
	b.ReportAllocs()
	b.ResetTimer()
	left := atomic.Int64{}
	left.Store(int64(b.N))
	done := make(chan error, writers)
	for range writers {
		go func() {
			for left.Add(-1) >= 0 {
				if err := job(); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range writers {
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
	b.StopTimer()
}

func BenchmarkEncode(b *testing.B) {
	e := intent(newDispatch(), time.Now())
	b.Run("json", func(b *testing.B) {
		for b.Loop() {
			if _, err := json.Marshal(e.Intent); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("journal", func(b *testing.B) {
		for b.Loop() {
			journal.EncodeForBenchmark(e)
		}
	})
}

// BenchmarkOpen is a start on a journal of 100,000 settled jobs.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "journal.db")
	j, err := journal.Open(path, journal.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for range 100 {
		var entries []engine.Entry
		for range 1000 {
			d := newDispatch()
			entries = append(entries, intent(d, time.Now()), effect(d, time.Now()), settled(d))
		}
		write(b, j, entries...)
	}
	if err := j.Close(); err != nil {
		b.Fatal(err)
	}
	r, err := journal.Check(path)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(r.UsedBytes)
	for b.Loop() {
		j, err := journal.Open(path, journal.Options{})
		if err != nil {
			b.Fatal(err)
		}
		if err := j.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
