package bus_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/streams/streamstest"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
)

type counter struct{ n atomic.Int64 }

func (c *counter) next() int { return int(c.n.Add(1)) }

// BenchmarkSave is one record write at a time from each of many goroutines, as an executor does it.
func BenchmarkSave(b *testing.B) {
	c := streamstest.SetUp(b, bustest.Start(b).URL, streams.Config{})
	ctx, body, h := context.Background(), make([]byte, 1024), port.Header{State: "running", Lease: "h/i/1", Workflow: "w"}
	var n counter
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		id, seq := streamstest.RunID(n.next()), uint64(0)
		for pb.Next() {
			var err error
			if seq, err = c.Save(ctx, id, body, h, seq); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkSaveOverPublishMsgAsync is the same write over nats.go's own asynchronous publish: what the mux is compared
// with.
func BenchmarkSaveOverPublishMsgAsync(b *testing.B) {
	c := streamstest.SetUp(b, bustest.Start(b).URL, streams.Config{})
	js, err := jetstream.New(c.NATS())
	if err != nil {
		b.Fatal(err)
	}
	body := make([]byte, 1024)
	var n counter
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		subject, seq := topology.RunSubject(streamstest.RunID(n.next())), uint64(0)
		for pb.Next() {
			h := nats.Header{"Agentrun-State": {"running"}, "Agentrun-Lease": {"h/i/1"}, "Agentrun-Workflow": {"w"}}
			f, err := js.PublishMsgAsync(&nats.Msg{Subject: subject, Data: body, Header: h},
				jetstream.WithExpectLastSequencePerSubject(seq))
			if err != nil {
				b.Error(err)
				return
			}
			select {
			case ack := <-f.Ok():
				seq = ack.Sequence
			case err := <-f.Err():
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkAppend publishes a step's and the run's outcome together.
func BenchmarkAppend(b *testing.B) {
	c := streamstest.SetUp(b, bustest.Start(b).URL, streams.Config{})
	ctx, body := context.Background(), make([]byte, 700)
	var n counter
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			id := streamstest.RunID(n.next())
			_, err := c.Append(ctx, c.Server(), []port.Outgoing{
				{Outcome: which(id, envelope.StepScope, 1), First: 1, Data: body},
				{Outcome: which(id, envelope.RunScope, 1), First: 1, Data: body},
			})
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	c := streamstest.SetUp(b, bustest.Start(b).URL, streams.Config{})
	ctx := context.Background()
	if _, err := c.Save(ctx, streamstest.RunID(1), fmt.Append(nil, make([]byte, 700)), port.Header{State: "s"}, 0); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Load(ctx, streamstest.RunID(1)); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
