package journal

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
)

// A journal that a newer version wrote is no damaged one: it is refused as it is, and the message says what to do.
func TestJournalOfANewerVersion(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(tx *bolt.Tx) error
	}{
		{"a later format", func(tx *bolt.Tx) error {
			return tx.Bucket(bucketMeta).Put(metaFormat, seal(tagMeta, metaFormat, []byte{format + 1}))
		}},
		{"a later format with a bucket of its own", func(tx *bolt.Tx) error {
			if _, err := tx.CreateBucket([]byte("approvals")); err != nil {
				return err
			}
			return tx.Bucket(bucketMeta).Put(metaFormat, seal(tagMeta, metaFormat, []byte{format + 1}))
		}},
		{"an intent of a later version", func(tx *bolt.Tx) error {
			b := tx.Bucket(bucketIntents)
			k, v := b.Cursor().First()
			payload, _ := open(tagIntent, k, bytes.Clone(v))
			payload[0] = intentVersion + 1
			return b.Put(k, seal(tagIntent, k, append(payload, "more"...)))
		}},
		{"an effect of a later version", func(tx *bolt.Tx) error {
			b := tx.Bucket(bucketEffects)
			k, v := b.Cursor().First()
			payload, _ := open(tagEffect, k, bytes.Clone(v))
			payload[0] = effectVersion + 1
			return b.Put(k, seal(tagEffect, k, append(payload, "more"...)))
		}},
	} {
		path := filepath.Join(t.TempDir(), "journal.db")
		j, err := Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		at := envelope.TimeOf(time.Now())
		if err := errors.Join(
			j.Write(t.Context(), engine.Entry{Intent: &engine.Intent{Dispatch: "d1", Tenant: "acme", RunID: "r1", Step: "a", Tool: "pay", At: at}}),
			j.Write(t.Context(), engine.Entry{Effect: &engine.EffectFact{Dispatch: "d1", Reply: envelope.Reply{OK: true}, At: at}}, engine.Entry{Settled: "d1"}),
			j.Close(),
		); err != nil {
			t.Fatal(err)
		}
		db, err := bolt.Open(path, 0o600, &bolt.Options{NoFreelistSync: true, FreelistType: bolt.FreelistMapType})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(c.change), db.Close()); err != nil {
			t.Fatal(err)
		}
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path, Options{}); !errors.Is(err, ErrNewer) || errors.Is(err, ErrDamaged) ||
			!strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "start the version that wrote it") {
			t.Errorf("%s: the refusal is %v", c.what, err)
		}
		if _, err := Check(path); !errors.Is(err, ErrNewer) {
			t.Errorf("%s: check gave %v", c.what, err)
		}
		if err := List(path, func(engine.Fact) error { return nil }); !errors.Is(err, ErrNewer) {
			t.Errorf("%s: list gave %v", c.what, err)
		}
		if _, _, err := Compact(path); !errors.Is(err, ErrNewer) {
			t.Errorf("%s: compact gave %v", c.what, err)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s: the file was changed (%v)", c.what, err)
		}
	}
}
