package worker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// failing is a store that does not answer: it cannot be read, it cannot be written, or it writes and the answer is lost.
type failing struct {
	port.Store
	load, save, answer bool
}

var errGone = errors.New("no answer")

func (f *failing) Load(ctx context.Context, id run.ID) (port.Record, error) {
	if f.load {
		return port.Record{}, errGone
	}
	return f.Store.Load(ctx, id)
}

func (f *failing) Save(ctx context.Context, id run.ID, data []byte, h port.Header, expect uint64) (uint64, error) {
	if f.save {
		return 0, errGone
	}
	seq, err := f.Store.Save(ctx, id, data, h, expect)
	if f.answer {
		return 0, errGone
	}
	return seq, err
}

// A job that comes again and again because the store is away has killed nobody: the worker that gave it back lives, and the
// run is not a poison job. A worker that was started anew cannot know that, and counts.
func TestAStoreThatIsAwayMakesNoPoison(t *testing.T) {
	for name, how := range map[string]failing{"not read": {load: true}, "not written": {save: true}, "no answer to the write": {answer: true}} {
		for _, anew := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					stored := map[run.ID]port.Record{}
					var f failing
					start := func() *bench {
						b := newBench(t, 0, 0)
						b.replies, b.stored = nil, stored
						f = failing{Store: benchStore{b: b}, load: how.load, save: how.save, answer: how.answer}
						b.Records = &record.Records{Store: &f, Clock: b, Retention: time.Hour}
						return b
					}
					b := start()
					for i := range 5 {
						if anew {
							b = start()
						}
						b.deliverAgain(i > 0)
						time.Sleep(2 * time.Minute) // it is given up
						synctest.Wait()
					}
					f.load, f.save, f.answer = false, false, false
					b.deliverAgain(true)
					b.mu.Lock()
					r, err := engine.Decode(b.stored[waker].Data)
					b.mu.Unlock()
					if err != nil {
						t.Fatal(err)
					}
					ok := r.End != nil && r.End.Outcome == envelope.OK
					if poison := anew && how.answer; ok == poison {
						t.Errorf("in new processes: %t: %d losses, end %+v", anew, r.Losses, r.End)
					}
					if !anew && r.Losses > 1 {
						t.Errorf("%d losses, and nobody died", r.Losses)
					}
				})
			})
		}
	}
}

func (f *failing) PutLetter(context.Context, run.ID, string, []byte, string, uint64) (uint64, error) {
	return 1, nil
}

func (f *failing) PutAlert(context.Context, string, string, string, []byte, string) error { return nil }
