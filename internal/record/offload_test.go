package record_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/run"
)

// bucket is an object store that fails.
type bucket struct {
	port.Store
	err  error
	puts int
	good int // succeeds from this one on; 0: never
}

func (b *bucket) PutObject(context.Context, string, []byte) error {
	if b.puts++; b.good > 0 && b.puts >= b.good {
		return nil
	}
	return b.err
}

// A refusal is taken as one, at once. What may pass is tried again with growing pauses, and each failure is told, until
// the lease ends.
func TestOffload(t *testing.T) {
	large := make([]byte, record.InlineResult+1)
	offload := func(ctx context.Context, b *bucket, told *int) error {
		rs := &record.Records{Store: b}
		_, err := rs.Offload(ctx, run.ID{Tenant: "t", Run: "r"}, "s", "d", large, func(error) { *told++ })
		return err
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		told := 0
		denied := &bucket{err: fmt.Errorf("%w: not permitted", port.ErrRefused)}
		if err := offload(ctx, denied, &told); !errors.Is(err, port.ErrRefused) || denied.puts != 1 || told != 0 {
			t.Errorf("a refusal: %v after %d attempts, told %d times", err, denied.puts, told)
		}
		passing := &bucket{err: errors.New("no responders"), good: 4}
		if err := offload(ctx, passing, &told); err != nil || told != 3 {
			t.Errorf("what passes: %v, told %d times", err, told)
		}
		away := &bucket{err: errors.New("no responders")}
		if err := offload(ctx, away, &told); err == nil || ctx.Err() == nil || away.puts > 25 {
			t.Errorf("what does not pass: %v after %d attempts in 30s", err, away.puts)
		}
	})
}
