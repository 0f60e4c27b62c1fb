package worker

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// standing is a Ready that knows by whom each condition stands.
type standing struct {
	mu sync.Mutex
	by map[string]map[string]bool
}

func (s *standing) BlockFor(name, who, _ string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by[name] == nil {
		s.by[name] = map[string]bool{}
	}
	s.by[name][who] = true
}

func (s *standing) ClearFor(name, who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.by[name], who)
}

func (s *standing) stands(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.by[name])
}

// refusing is a world whose store refuses what concerns some runs.
type refusing struct {
	*world
	mu      sync.Mutex
	records map[run.ID]bool // new records: the stream is full
	results map[run.ID]bool // outcomes
}

func (r *refusing) Save(ctx context.Context, id run.ID, data []byte, h port.Header, expect uint64) (uint64, error) {
	r.mu.Lock()
	full := r.records[id]
	r.mu.Unlock()
	if full {
		return 0, port.ErrFull
	}
	return r.world.Save(ctx, id, data, h, expect)
}

func (r *refusing) Append(ctx context.Context, server string, out []port.Outgoing) ([]uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range out {
		if r.results[o.Run()] {
			return nil, errors.New("no room")
		}
	}
	return r.world.Append(ctx, server, out)
}

func (r *refusing) room() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records, r.results = nil, nil
}

// Two runs cannot write, and a third can: the process stays unready until the last of the two could, and is ready then.
func TestOneRunsSuccessClearsNoOthersTrouble(t *testing.T) {
	a, b := run.ID{Tenant: "t", Run: "a"}, run.ID{Tenant: "t", Run: "b"}
	for _, name := range []string{"publish", "records"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ready := &world{effect: envelope.Read}, &standing{by: map[string]map[string]bool{}}
				wk := w.worker(t)
				no := &refusing{world: w}
				if both := map[run.ID]bool{a: true, b: true}; name == "publish" {
					no.results = both
				} else {
					no.records = both
				}
				wk.Records = &record.Records{Store: no, Clock: quiet{}, Retention: time.Hour}
				wk.Ready = ready
				give := func(id run.ID, seq uint64) <-chan string {
					d, how := delivery(strings.Replace(jobOf("tool"), `"run_id":"r"`, `"run_id":"`+id.Run+`"`, 1))
					d.ID, d.Seq, d.Subject = id, seq, "agentrun.jobs.default.t."+id.Run
					wk.Deliver(d)
					return how
				}
				first, second := give(a, 1), give(b, 2)
				time.Sleep(time.Second) // of the bubble
				if n := ready.stands(name); n != 2 {
					t.Fatalf("it stands for %d runs, and two cannot write", n)
				}
				if got := <-give(run.ID{Tenant: "t", Run: "c"}, 3); got != "acknowledged" {
					t.Errorf("the third: %s", got)
				}
				if n := ready.stands(name); n != 2 {
					t.Errorf("after a third run's success it stands for %d runs, and two cannot write", n)
				}
				no.room()
				if got := <-first + ", " + <-second; got != "acknowledged, acknowledged" {
					t.Errorf("once there is room: %s", got)
				}
				synctest.Wait()
				if n := ready.stands(name); n != 0 {
					t.Errorf("everything is written, and it stands for %d runs", n)
				}
			})
		})
	}
}
