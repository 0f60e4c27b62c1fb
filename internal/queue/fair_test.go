package queue_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/fair"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/queue"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/streams/streamstest"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/run"
)

// taken is what a puller delivered, in order.
type taken struct {
	mu  sync.Mutex
	all []port.Delivery
}

func (x *taken) add(d port.Delivery) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all = append(x.all, d)
}

func (x *taken) of(tenant string) (out []port.Delivery) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, d := range x.all {
		if d.ID.Tenant == tenant {
			out = append(out, d)
		}
	}
	return out
}

// A job that was picked when the process died is not picked again: it comes in its order, as a first delivery does.
func TestWhatWasPickedAtADeathComesInItsOrder(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default"}})
	path := filepath.Join(t.TempDir(), "claims")
	const jobs = 40
	for i := range jobs {
		streamstest.PublishJob(t, server.Conn(), topology.JobSubject("default", run.ID{Tenant: "acme", Run: fmt.Sprint("r", i)}), "{}")
	}
	streamstest.PublishJob(t, server.Conn(), topology.JobSubject("default", run.ID{Tenant: "globex", Run: "deadly"}), "{}")

	life := func(until func(x *taken) bool) *taken {
		picks, err := queue.OpenPicks(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = picks.Close() }()
		x := &taken{}
		free := make(chan struct{}, 1000)
		shares := fair.New(nil)
		p, err := queue.New(c.Conn, []string{"default"}, queue.Turns{Shares: shares, Picks: picks}, func(d port.Delivery) {
			shares.Start(d.ID.Tenant)
			defer shares.End(d.ID.Tenant)
			x.add(d)
			if d.ID.Run != "deadly" { // who reads it dies, and answers nothing
				if err := d.Ack(); err != nil {
					t.Error(err)
				}
				free <- struct{}{}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Stop()
		p.Want(1)
		bustest.Eventually(t, "this life has seen what it should", func() bool {
			select {
			case <-free:
				if until(x) {
					return true
				}
				p.Want(1)
			default:
			}
			return until(x)
		})
		return x
	}
	first := life(func(x *taken) bool { return len(x.of("globex")) == 1 })
	if n := len(first.of("acme")); n > jobs/2 {
		t.Fatalf("the other tenant's job came as number %d: it was not picked", n)
	}
	second := life(func(x *taken) bool { return len(x.of("globex")) == 1 })
	if n := len(first.of("acme")) + len(second.of("acme")); n != jobs {
		t.Errorf("the deadly one came after %d of %d: not in its order", n, jobs)
	}
	// Once it has been delivered in its order it need not be remembered, and the file stays small.
	streamstest.PublishJob(t, server.Conn(), topology.JobSubject("default", run.ID{Tenant: "acme", Run: "later"}), "{}")
	streamstest.PublishJob(t, server.Conn(), topology.JobSubject("default", run.ID{Tenant: "acme", Run: "last"}), "{}")
	life(func(x *taken) bool {
		data, err := os.ReadFile(path)
		return err == nil && len(bytes.Trim(data, "\x00")) == 0 && len(data) < 256
	})
}
