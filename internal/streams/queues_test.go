package streams_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/streams/streamstest"
	"github.com/agentrun/executor/internal/topology"
)

// publishJobs puts n jobs into a queue.
func publishJobs(t *testing.T, js jetstream.JetStream, queue string, n int) {
	t.Helper()
	var last jetstream.PubAckFuture
	for i := range n {
		var err error
		if last, err = js.PublishMsgAsync(&nats.Msg{Subject: fmt.Sprintf("agentrun.jobs.%s.acme.r%d", queue, i)}, jetstream.WithStallWait(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	select {
	case <-last.Ok():
	case err := <-last.Err():
		t.Fatal(err)
	}
}

// Jobs are counted by queue, also those of queues that nobody has ever pulled, and so are those in an executor's hands.
func TestDepthsOfTheQueues(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default", "slow"}})
	js, err := jetstream.New(server.Conn())
	if err != nil {
		t.Fatal(err)
	}
	want := func(what string, queues map[string]int64, unnamed int64) {
		t.Helper()
		// The server counts what a consumer has before it a moment after it has acknowledged the message.
		bustest.Eventually(t, what, func() bool {
			d, err := c.Depths(streamstest.Deadline(t), func() float64 { return 0.5 })
			return err == nil && maps.Equal(d.Queues, queues) && d.Unnamed == unnamed
		})
	}
	want("empty", map[string]int64{"default": 0, "slow": 0}, 0)

	publishJobs(t, js, "default", 3)
	consumer, err := js.Consumer(streamstest.Deadline(t), topology.JobsStream, topology.ConsumerName("default"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := consumer.Next(); err != nil {
		t.Fatal(err)
	}
	want("one in hands", map[string]int64{"default": 3, "slow": 0}, 0)

	publishJobs(t, js, "defualt", 2)
	publishJobs(t, js, "_odd", 1) // in no executor's reach
	want("a queue that nobody pulls", map[string]int64{"default": 3, "slow": 0, "defualt": 2}, 1)
}

// In a stream too long for a list of its subjects, what nobody pulls is found once it is the first, and counted at once.
func TestDepthsOfALongStream(t *testing.T) {
	const long = 10_001
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default"}})
	js, err := jetstream.New(server.Conn(), jetstream.WithPublishAsyncMaxPending(1000))
	if err != nil {
		t.Fatal(err)
	}
	publishJobs(t, js, "default", long-1)
	publishJobs(t, js, "stray", 2)
	first := func() float64 { return 0 }
	// The server counts what a consumer has before it a moment after it has acknowledged the message.
	bustest.Eventually(t, "the two at the end are in no queue that is known", func() bool {
		d, err := c.Depths(streamstest.Deadline(t), first)
		return err == nil && d.Queues["default"] == long-1 && d.Unnamed == 2
	})
	d, err := c.Depths(streamstest.Deadline(t), func() float64 { return 0.99999 })
	if err != nil || d.Queues["stray"] != 2 || d.Unnamed != 0 {
		t.Errorf("drawn at the end: %v and %d without a name: %v", d.Queues, d.Unnamed, err)
	}
	s, err := js.Stream(streamstest.Deadline(t), topology.JobsStream)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(streamstest.Deadline(t), jetstream.WithPurgeSubject("agentrun.jobs.default.>")); err != nil {
		t.Fatal(err)
	}
	publishJobs(t, js, "default", long)
	bustest.Eventually(t, "what is at the head is counted", func() bool {
		d, err = c.Depths(streamstest.Deadline(t), first)
		return err == nil && d.Queues["stray"] == 2 && d.Queues["default"] == long && d.Unnamed == 0
	})
}
