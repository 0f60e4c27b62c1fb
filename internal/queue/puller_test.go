package queue_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/queue"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/streams/streamstest"
	"github.com/agentrun/executor/internal/topology"
)

func startPuller(t testing.TB, c *streams.Conn, deliver func(port.Delivery)) *queue.Puller {
	t.Helper()
	p, err := queue.New(c.Conn, []string{"default"}, queue.Turns{}, deliver)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

func TestPullerTakesNoMoreThanItHasSlotsFor(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default"}})
	nc := server.Conn()
	for i := range 10 {
		streamstest.PublishJob(t, nc, topology.JobSubject("default", streamstest.RunID(i)), "{}")
	}
	got := make(chan port.Delivery, 100)
	p := startPuller(t, c, func(d port.Delivery) { got <- d })
	p.Want(3)
	for range 3 {
		d := streamstest.Receive(t, "a job", got)
		if !d.Valid || d.Wake || d.Queue != "default" || d.Seq == 0 || d.Time == 0 || string(d.Data) != "{}" {
			t.Fatalf("delivery: %+v", d)
		}
		if err := d.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	// All slots are taken. Wakes and jobs that arrive on requests still out are given back, and handed over only when they come
	// again: the one wake, and none of the jobs.
	if _, err := c.Wake(streamstest.Deadline(t), "default", streamstest.RunID(77)); err != nil {
		t.Fatal(err)
	}
	if err := c.NATS().Flush(); err != nil {
		t.Fatal(err)
	}
	if len(got) > 1 {
		t.Fatalf("%d deliveries without a slot", len(got))
	}
	p.Want(8)
	wakes := map[bool]int{}
	for range 8 {
		d := streamstest.Receive(t, "the rest", got)
		wakes[d.Wake]++
		if err := d.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	if wakes[false] != 7 || wakes[true] != 1 {
		t.Fatalf("of wakes: %v", wakes)
	}
}

func TestPullerDeliversSubjectsThatAreNoIdentifiers(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default"}})
	nc := server.Conn()
	hostile := []string{
		"agentrun.jobs.default.*.run", "agentrun.jobs.default.>", "agentrun.jobs.default.acme.a.b",
		"agentrun.jobs.default.acme", "agentrun.jobs.default._fleet.reconciler", "agentrun.jobs.default.ac=me.r",
	}
	for _, subject := range hostile {
		streamstest.PublishJob(t, nc, subject, "x")
	}
	got := make(chan port.Delivery, 100)
	p := startPuller(t, c, func(d port.Delivery) { got <- d })
	p.Want(10)
	seen := map[string]bool{}
	for range hostile {
		d := streamstest.Receive(t, "a hostile job", got)
		if d.Valid {
			t.Errorf("%s is taken for valid", d.Subject)
		}
		seen[d.Subject] = true
		if err := d.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	for _, subject := range hostile {
		if !seen[subject] {
			t.Errorf("%s was not delivered", subject)
		}
	}
}

func TestPullerSurvivesRestartsAndDeletions(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default"}})
	nc := server.Conn()
	got := make(chan port.Delivery, 100)
	var p *queue.Puller
	p = startPuller(t, c, func(d port.Delivery) {
		got <- d
		if err := d.Ack(); err != nil {
			t.Errorf("ack: %v", err)
		}
		p.Want(1)
	})
	p.Want(4)
	n := 0
	next := func(what string) {
		t.Helper()
		n++
		bustest.Eventually(t, "published "+what, func() bool {
			reply, err := nc.Request(topology.JobSubject("default", streamstest.RunID(n)), []byte("{}"), time.Second)
			return err == nil && !strings.Contains(string(reply.Data), "error")
		})
		for {
			if d := streamstest.Receive(t, what, got); d.ID == streamstest.RunID(n) {
				return
			}
		}
	}
	next("first")
	server.Stop()
	server.StartAgain()
	next("after a restart")
	for what, subject := range map[string]string{
		"after its consumer was deleted": "$JS.API.CONSUMER.DELETE.AGENTRUN_JOBS.executor-default",
		"after its stream was deleted":   "$JS.API.STREAM.DELETE.AGENTRUN_JOBS",
	} {
		if _, err := nc.Request(subject, nil, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		next(what)
	}
	server.Stop()
	server.Wipe()
	server.StartAgain()
	next("after the store was wiped")
}

func TestPullerDrainsAFullQueueOnce(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default", "other"}})
	jobs := 20_000
	if testing.Short() {
		jobs = 2_000
	}
	publisher := server.Conn()
	for i := range jobs {
		queue := "default"
		if i%10 == 0 {
			queue = "other"
		}
		if err := publisher.Publish(topology.JobSubject(queue, streamstest.RunID(i)), []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	if err := publisher.Flush(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	seen := make(map[string]int, jobs)
	all := make(chan struct{})
	work := make(chan port.Delivery, 64)
	p, err := queue.New(c.Conn, []string{"default", "other"}, queue.Turns{}, func(d port.Delivery) { work <- d })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(); close(work) })
	start := time.Now()
	for range 64 {
		go func() {
			for d := range work {
				mu.Lock()
				seen[d.ID.Run]++
				if len(seen) == jobs && seen[d.ID.Run] == 1 {
					close(all)
				}
				mu.Unlock()
				_ = d.Ack()
				p.Want(1)
			}
		}()
	}
	p.Want(64)
	streamstest.Receive(t, "every job", all)
	t.Logf("%d jobs in %s", jobs, time.Since(start))
	mu.Lock()
	defer mu.Unlock()
	for id, n := range seen {
		if n != 1 {
			t.Fatalf("%s was delivered %d times", id, n)
		}
	}
}

func TestFindJob(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default"}})
	nc := server.Conn()
	for i := range 3 {
		streamstest.PublishJob(t, nc, topology.JobSubject("other", streamstest.RunID(i)), fmt.Sprint(i))
	}
	job, err := c.FindJob(streamstest.Deadline(t), streamstest.RunID(2))
	if err != nil || job.Queue != "other" || string(job.Data) != "2" || job.Seq == 0 {
		t.Fatalf("found %+v %v", job, err)
	}
	if _, err := c.FindJob(streamstest.Deadline(t), streamstest.RunID(3)); !errors.Is(err, port.ErrNotFound) {
		t.Fatalf("found another: %v", err)
	}
}

// A backlog of jobs does not keep a wake from the only slot, nor the other way round.
func TestPullerDividesOneSlotAmongFullQueues(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default"}})
	nc := server.Conn()
	const each = 20
	for i := range each {
		streamstest.PublishJob(t, nc, topology.JobSubject("default", streamstest.RunID(i)), "{}")
		if _, err := c.Wake(streamstest.Deadline(t), "default", streamstest.RunID(i)); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan port.Delivery, 10)
	p := startPuller(t, c, func(d port.Delivery) { got <- d })
	wakes := map[bool]int{}
	for range each {
		p.Want(1)
		d := streamstest.Receive(t, "a delivery", got)
		wakes[d.Wake]++
		if err := d.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	if wakes[false] < each/4 || wakes[true] < each/4 {
		t.Fatalf("of %d deliveries, by whether it is a wake: %v", each, wakes)
	}
}

func TestPausedPullerStillTakesWakes(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default"}})
	got := make(chan port.Delivery, 10)
	p := startPuller(t, c, func(d port.Delivery) {
		got <- d
		if err := d.Ack(); err != nil {
			t.Errorf("ack: %v", err)
		}
	})
	p.Pause(true)
	p.Want(4)
	nc := server.Conn()
	streamstest.PublishJob(t, nc, topology.JobSubject("default", streamstest.RunID(1)), "{}")
	for i := range 2 {
		if _, err := c.Wake(streamstest.Deadline(t), "default", streamstest.RunID(10+i)); err != nil {
			t.Fatal(err)
		}
		if d := streamstest.Receive(t, "a wake", got); !d.Wake {
			t.Fatalf("a paused puller took %s", d.Subject)
		}
	}
	p.Pause(false)
	if d := streamstest.Receive(t, "the job", got); d.Wake || d.ID != streamstest.RunID(1) {
		t.Fatalf("%+v", d)
	}
}

func TestReleasedDeliveryComesAgain(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default"}})
	streamstest.PublishJob(t, server.Conn(), topology.JobSubject("default", streamstest.RunID(1)), "{}")
	got := make(chan port.Delivery, 10)
	p := startPuller(t, c, func(d port.Delivery) { got <- d })
	p.Want(1)
	first := streamstest.Receive(t, "the job", got)
	if err := first.InProgress(); err != nil {
		t.Fatal(err)
	}
	if err := first.Release(10 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	p.Want(1)
	again := streamstest.Receive(t, "the job again", got)
	if again.Seq != first.Seq || again.Time != first.Time || !again.Redelivered {
		t.Fatalf("%+v after %+v", again, first)
	}
	if err := again.Ack(); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "the queue is empty", func() bool { return streamstest.State(t, server, topology.JobsStream).Msgs == 0 })
}

func TestStopLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{Queues: []string{"default"}})
	got := make(chan port.Delivery, 10)
	p, err := queue.New(c.Conn, []string{"default"}, queue.Turns{}, func(d port.Delivery) { got <- d })
	if err != nil {
		t.Fatal(err)
	}
	p.Want(5)
	streamstest.PublishJob(t, server.Conn(), topology.JobSubject("default", streamstest.RunID(1)), "{}")
	first := streamstest.Receive(t, "a job", got)
	p.Stop()
	p.Stop() // twice is once
	streamstest.PublishJob(t, server.Conn(), topology.JobSubject("default", streamstest.RunID(2)), "{}")
	if err := first.Ack(); err != nil {
		t.Fatal(err)
	}
	// Another executor gets the second at once, not after the ack wait.
	other := startPuller(t, c, func(d port.Delivery) { got <- d })
	other.Want(1)
	if d := streamstest.Receive(t, "the second job", got); d.ID != streamstest.RunID(2) || d.Redelivered {
		t.Fatalf("%+v", d)
	}
}
