package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/streams/streamstest"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
)

// losing drops the first n publish acknowledgements of a stream, and closes lost after the last.
func losing(n int64, stream string) (drop func(string, []byte) bool, lost chan struct{}) {
	var count atomic.Int64
	lost = make(chan struct{})
	ack := fmt.Appendf(nil, `{"stream":%q`, stream)
	return func(_ string, payload []byte) bool {
		if !bytes.HasPrefix(payload, ack) {
			return false
		}
		k := count.Add(1)
		if k == n {
			close(lost)
		}
		return k <= n
	}, lost
}

func TestSaveWithLostAcknowledgements(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	proxy := bustest.StartProxy(t, server)
	c := streamstest.SetUp(t, proxy.URL, streams.Config{})
	direct := streamstest.Dial(t, server.URL)
	ctx, h := streamstest.Deadline(t), port.Header{State: "ready"}

	drop, lost := losing(1, topology.RunsStream)
	proxy.Drop(drop)
	seq, err := c.Save(ctx, streamstest.RunID(1), []byte("mine"), h, 0)
	if err != nil {
		t.Fatal(err)
	}
	if rec, err := c.Load(ctx, streamstest.RunID(1)); err != nil || rec.Seq != seq {
		t.Fatalf("stored at %d, told %d: %v", rec.Seq, seq, err)
	}
	streamstest.Receive(t, "the loss", lost)

	// Lost, and overwritten by another before it could be sent again: a conflict, the caller decides anew.
	drop, lost = losing(1, topology.RunsStream)
	proxy.Drop(drop)
	result := make(chan error, 1)
	go func() {
		_, err := c.Save(ctx, streamstest.RunID(1), []byte("mine again"), h, seq)
		result <- err
	}()
	streamstest.Receive(t, "the loss", lost)
	if _, err := direct.Save(ctx, streamstest.RunID(1), []byte("another's"), h, seq+1); err != nil {
		t.Fatal(err)
	}
	if err := streamstest.Receive(t, "the answer", result); !errors.Is(err, port.ErrConflict) {
		t.Fatalf("overwritten: %v", err)
	}
}

func TestSaveAgainstAHungServer(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	proxy := bustest.StartProxy(t, server)
	c := streamstest.SetUp(t, proxy.URL, streams.Config{})
	h := port.Header{State: "ready"}

	proxy.Hold()
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Save(short, streamstest.RunID(1), []byte("mine"), h, 0)
	if !errors.Is(err, bus.ErrUnsettled) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("hung: %v", err)
	}
	proxy.Resume()
	// It landed after all; the same bytes at the same revision find themselves.
	seq, err := c.Save(streamstest.Deadline(t), streamstest.RunID(1), []byte("mine"), h, 0)
	if err != nil {
		t.Fatalf("again: %v", err)
	}
	if rec, err := c.Load(streamstest.Deadline(t), streamstest.RunID(1)); err != nil || rec.Seq != seq {
		t.Fatalf("stored at %d, said to be at %d: %v", rec.Seq, seq, err)
	}
}

func TestNothingIsUnsettledThatWasNeverSent(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{})
	server.Stop()
	bustest.Eventually(t, "the connection is seen to be gone", func() bool { return !c.Connected() })
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Save(short, streamstest.RunID(1), []byte("mine"), port.Header{}, 0)
	if err == nil || errors.Is(err, bus.ErrUnsettled) {
		t.Fatalf("never sent: %v", err)
	}
	if c.Healthy() == nil {
		t.Fatal("healthy without a server")
	}
}

func TestWritesSurviveARestartInTheMiddle(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	proxy := bustest.StartProxy(t, server)
	c := streamstest.SetUp(t, proxy.URL, streams.Config{})
	const writers, writes = 16, 60
	ctx := streamstest.Deadline(t)
	var wg sync.WaitGroup
	halfway := make(chan struct{}, writers)
	goOn := make(chan struct{})
	for w := range writers {
		wg.Go(func() {
			var seq, last uint64
			for n := 1; n <= writes; n++ {
				if n == writes/2 {
					halfway <- struct{}{}
				}
				var err error
				seq, err = c.Save(ctx, streamstest.RunID(w), fmt.Appendf(nil, "%d", n), port.Header{State: "s"}, seq)
				if err != nil {
					t.Errorf("writer %d, write %d: %v", w, n, err)
					return
				}
				out := port.Outgoing{
					Outcome: which(streamstest.RunID(w), envelope.StepScope, n), First: 1, Last: last, PublishedBefore: n > 1,
					Data: fmt.Appendf(nil, "%d", n),
				}
				msgs := []port.Outgoing{out}
				seqs, err := c.Append(ctx, c.Server(), msgs)
				for errors.Is(err, port.ErrConflict) { // started anew meanwhile
					seqs, err = c.Append(ctx, c.Server(), msgs)
				}
				if err != nil || seqs[0] == 0 || !msgs[0].New {
					t.Errorf("writer %d, outcome %d: %v, stored by it: %v", w, n, err, msgs[0].New)
					return
				}
				last = seqs[0]
			}
		})
	}
	go func() {
		for range writers {
			<-halfway
			proxy.Cut()
		}
		server.Stop()
		server.StartAgain()
		close(goOn)
	}()
	wg.Wait()
	streamstest.Receive(t, "the restart", goOn)
	for w := range writers {
		rec, err := c.Load(ctx, streamstest.RunID(w))
		if err != nil || string(rec.Data) != fmt.Sprint(writes) {
			t.Fatalf("record %d: %s %v", w, rec.Data, err)
		}
		last, err := c.LastOutcome(ctx, streamstest.RunID(w), envelope.StepScope)
		if err != nil || last.N != writes {
			t.Fatalf("outcomes of %d: %+v %v", w, last, err)
		}
	}
	// Each outcome is there once: the stream has as many as were published.
	info := streamstest.State(t, server, topology.ResultsStream)
	if info.Msgs != writers*writes {
		t.Fatalf("%d outcomes in the stream, %d published", info.Msgs, writers*writes)
	}
}

func TestStoreFullRefusesNewRunsAndFinishesOldOnes(t *testing.T) {
	t.Parallel()
	onBothWith(t, streams.Config{MaxRuns: 2, MaxLetters: 1, MaxJobs: 2, Queues: []string{"default"}}, func(t *testing.T, c *streams.Conn) {
		ctx, h := streamstest.Deadline(t), port.Header{State: "s"}
		var seqs [3]uint64
		for i := range 2 {
			var err error
			if seqs[i], err = c.Save(ctx, streamstest.RunID(i), []byte("1"), h, 0); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Save(ctx, streamstest.RunID(2), []byte("1"), h, 0); !errors.Is(err, port.ErrFull) {
			t.Fatalf("third run: %v", err)
		}
		if _, err := c.Save(ctx, streamstest.RunID(1), bytes.Repeat([]byte("2"), 10_000), h, seqs[1]); err != nil {
			t.Fatalf("growing update in a full store: %v", err)
		}
		seq, err := c.PutLetter(ctx, streamstest.RunID(1), "owner", []byte("{}"), "l", 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.PutLetter(ctx, streamstest.RunID(2), "owner", []byte("{}"), "l", 0); !errors.Is(err, port.ErrFull) {
			t.Fatalf("second letter: %v", err)
		}
		if _, err := c.PutLetter(ctx, streamstest.RunID(1), "owner", []byte("claimed"), "l", seq); err != nil {
			t.Fatalf("letter replaced in a full store: %v", err)
		}
		for i := range 3 {
			if _, err := c.Wake(ctx, "default", streamstest.RunID(1)); err != nil {
				t.Fatalf("wake %d: %v", i, err)
			}
		}
	})
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t, bustest.MaxPayload(64<<10))
	c := streamstest.SetUp(t, server.URL, streams.Config{})
	if c.MaxPayload() != 64<<10 {
		t.Fatalf("max payload %d", c.MaxPayload())
	}
	_, err := c.Save(streamstest.Deadline(t), streamstest.RunID(1), make([]byte, 70<<10), port.Header{}, 0)
	if !errors.Is(err, bus.ErrTooLarge) || !errors.Is(err, port.ErrRefused) {
		t.Fatalf("too large: %v", err)
	}
}
