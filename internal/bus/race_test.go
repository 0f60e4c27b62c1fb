package bus_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/streams/streamstest"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
)

func TestOneOfManyWritersWins(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *streams.Conn) {
		ctx := streamstest.Deadline(t)
		for round := range 10 {
			var won, lost atomic.Int64
			var wg sync.WaitGroup
			for w := range 32 {
				wg.Go(func() {
					_, err := c.Save(ctx, streamstest.RunID(round), fmt.Appendf(nil, "writer %d", w), port.Header{State: "s"}, 0)
					switch {
					case err == nil:
						won.Add(1)
					case errors.Is(err, port.ErrConflict):
						lost.Add(1)
					default:
						t.Errorf("writer %d: %v", w, err)
					}
				})
			}
			wg.Wait()
			if won.Load() != 1 || lost.Load() != 31 {
				t.Fatalf("%d won, %d lost", won.Load(), lost.Load())
			}
		}
	})
}

// Appenders of the same outcomes (a redelivery and the reconciler, say) leave each once and in order.
func TestManyAppendersOfTheSameOutcomes(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *streams.Conn) {
		ctx := streamstest.Deadline(t)
		const outcomes, appenders = 8, 6
		var wg sync.WaitGroup
		var first atomic.Uint64 // sequence of the first outcome
		var stored atomic.Int64 // how many of the appenders were told that theirs is the one
		for range appenders {
			wg.Go(func() {
				for n := 1; n <= outcomes; n++ {
					out := port.Outgoing{Outcome: which(streamstest.RunID(1), envelope.StepScope, n), First: 5, Data: fmt.Appendf(nil, "%d", n)}
					msgs := []port.Outgoing{out}
					seqs, err := c.Append(ctx, c.Server(), msgs)
					if msgs[0].New {
						stored.Add(1)
					}
					switch {
					case err != nil:
						t.Errorf("outcome %d: %v", n, err)
					case n == 1 && seqs[0] != 0:
						first.Store(seqs[0])
					}
				}
			})
		}
		wg.Wait()
		if n := stored.Load(); n != outcomes {
			t.Errorf("%d appenders were told that their copy is stored, of %d outcomes", n, outcomes)
		}
		facts, err := c.LastOutcome(ctx, streamstest.RunID(1), envelope.StepScope)
		if err != nil || facts.N != outcomes || facts.Seq != first.Load()+outcomes-1 {
			t.Fatalf("last: %+v %v", facts, err)
		}
	})
}

func TestAppendWithLostAcknowledgements(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	proxy := bustest.StartProxy(t, server)
	c := streamstest.SetUp(t, proxy.URL, streams.Config{})
	drop, lost := losing(3, topology.ResultsStream)
	proxy.Drop(drop)
	seqs, err := c.Append(streamstest.Deadline(t), c.Server(), []port.Outgoing{
		{Outcome: which(streamstest.RunID(1), envelope.StepScope, 1), First: 5, Data: []byte("a")},
		{Outcome: which(streamstest.RunID(1), envelope.StepScope, 2), First: 5, Data: []byte("b")},
		{Outcome: which(streamstest.RunID(1), envelope.RunScope, 1), First: 5, Data: []byte("end")},
	})
	if err != nil || seqs[0] == 0 || seqs[1] != seqs[0]+1 || seqs[2] != seqs[0]+2 {
		t.Fatalf("%v %v", seqs, err)
	}
	streamstest.Receive(t, "the losses", lost)
	if got := streamstest.State(t, server, topology.ResultsStream).Msgs; got != 3 {
		t.Fatalf("%d messages", got)
	}
}

func TestWritesSurviveTheLossOfALeader(t *testing.T) {
	t.Parallel()
	cluster := bustest.StartCluster(t)
	c := streamstest.SetUp(t, cluster.URL, streams.Config{Replicas: 3, Queues: []string{"default"}})
	ctx := streamstest.Deadline(t)
	const writers, writes = 8, 60
	var wg sync.WaitGroup
	halfway := make(chan struct{}, writers)
	for w := range writers {
		wg.Go(func() {
			var seq, last uint64
			for n := 1; n <= writes; n++ {
				if n == writes/3 {
					halfway <- struct{}{}
				}
				var err error
				seq, err = c.Save(ctx, streamstest.RunID(w), fmt.Appendf(nil, "%d", n), port.Header{State: "s"}, seq)
				if err != nil {
					t.Errorf("writer %d, write %d: %v", w, n, err)
					return
				}
				seqs, err := c.Append(ctx, c.Server(), []port.Outgoing{{
					Outcome: which(streamstest.RunID(w), envelope.StepScope, n), First: 1, Last: last, PublishedBefore: n > 1, Data: []byte("x"),
				}})
				if err != nil {
					t.Errorf("writer %d, outcome %d: %v", w, n, err)
					return
				}
				last = seqs[0]
			}
		})
	}
	for range writers {
		streamstest.Receive(t, "a third of the writes", halfway)
	}
	leader := leaderOf(t, cluster, topology.RunsStream)
	leader.Stop()
	wg.Wait()
	leader.StartAgain()
	for w := range writers {
		if last, err := c.LastOutcome(ctx, streamstest.RunID(w), envelope.StepScope); err != nil || last.N != writes {
			t.Fatalf("outcomes of %d: %+v %v", w, last, err)
		}
	}
}

func leaderOf(t testing.TB, cluster *bustest.Cluster, stream string) *bustest.Server {
	t.Helper()
	for _, s := range cluster.Servers {
		if e := s.Embedded(); e != nil && e.JetStreamIsStreamLeader("$G", stream) {
			return s
		}
	}
	t.Fatalf("%s has no leader", stream)
	return nil
}
