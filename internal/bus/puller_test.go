package bus_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/port"
)

const waitLimit = time.Minute

// receive waits for one value.
func receive[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	timer := time.NewTimer(waitLimit)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		t.Fatalf("not within %s: %s", waitLimit, what)
		panic("unreachable")
	}
}

func publishJob(t testing.TB, nc *nats.Conn, subject, data string) {
	t.Helper()
	reply, err := nc.Request(subject, []byte(data), 5*time.Second)
	if err != nil || strings.Contains(string(reply.Data), "error") {
		t.Fatalf("publish %s: %v %s", subject, err, reply.Data)
	}
}

func startPuller(t testing.TB, c *bus.Conn, deliver func(port.Delivery)) *bus.Puller {
	t.Helper()
	p, err := c.NewPuller([]string{"default"}, bus.Turns{}, deliver)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

func TestPullerTakesNoMoreThanItHasSlotsFor(t *testing.T) {
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{Queues: []string{"default"}})
	nc := server.Conn()
	for i := range 10 {
		publishJob(t, nc, bus.JobSubject("default", runID(i)), "{}")
	}
	got := make(chan port.Delivery, 100)
	p := startPuller(t, c, func(d port.Delivery) { got <- d })
	p.Want(3)
	for range 3 {
		d := receive(t, "a job", got)
		if !d.Valid || d.Wake || d.Queue != "default" || d.Seq == 0 || d.Time == 0 || string(d.Data) != "{}" {
			t.Fatalf("delivery: %+v", d)
		}
		if err := d.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	// All slots are taken. Wakes and jobs that arrive on requests still out are given back, and handed over only when they come
	// again: the one wake, and none of the jobs.
	if _, err := c.Wake(deadline(t), "default", runID(77)); err != nil {
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
		d := receive(t, "the rest", got)
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
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{Queues: []string{"default"}})
	nc := server.Conn()
	hostile := []string{
		"agentrun.jobs.default.*.run", "agentrun.jobs.default.>", "agentrun.jobs.default.acme.a.b",
		"agentrun.jobs.default.acme", "agentrun.jobs.default._fleet.reconciler", "agentrun.jobs.default.ac=me.r",
	}
	for _, subject := range hostile {
		publishJob(t, nc, subject, "x")
	}
	got := make(chan port.Delivery, 100)
	p := startPuller(t, c, func(d port.Delivery) { got <- d })
	p.Want(10)
	seen := map[string]bool{}
	for range hostile {
		d := receive(t, "a hostile job", got)
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
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{Queues: []string{"default"}})
	nc := server.Conn()
	got := make(chan port.Delivery, 100)
	var p *bus.Puller
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
			reply, err := nc.Request(bus.JobSubject("default", runID(n)), []byte("{}"), time.Second)
			return err == nil && !strings.Contains(string(reply.Data), "error")
		})
		for {
			if d := receive(t, what, got); d.ID == runID(n) {
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
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{Queues: []string{"default", "other"}})
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
		if err := publisher.Publish(bus.JobSubject(queue, runID(i)), []byte("{}")); err != nil {
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
	p, err := c.NewPuller([]string{"default", "other"}, bus.Turns{}, func(d port.Delivery) { work <- d })
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
	receive(t, "every job", all)
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
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{Queues: []string{"default"}})
	nc := server.Conn()
	for i := range 3 {
		publishJob(t, nc, bus.JobSubject("other", runID(i)), fmt.Sprint(i))
	}
	job, err := c.FindJob(deadline(t), runID(2))
	if err != nil || job.Queue != "other" || string(job.Data) != "2" || job.Seq == 0 {
		t.Fatalf("found %+v %v", job, err)
	}
	if _, err := c.FindJob(deadline(t), runID(3)); !errors.Is(err, port.ErrNotFound) {
		t.Fatalf("found another: %v", err)
	}
}

// A backlog of jobs does not keep a wake from the only slot, nor the other way round.
func TestPullerDividesOneSlotAmongFullQueues(t *testing.T) {
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{Queues: []string{"default"}})
	nc := server.Conn()
	const each = 20
	for i := range each {
		publishJob(t, nc, bus.JobSubject("default", runID(i)), "{}")
		if _, err := c.Wake(deadline(t), "default", runID(i)); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan port.Delivery, 10)
	p := startPuller(t, c, func(d port.Delivery) { got <- d })
	wakes := map[bool]int{}
	for range each {
		p.Want(1)
		d := receive(t, "a delivery", got)
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
	server := bustest.Start(t)
	c := setUp(t, server.URL, bus.Config{Queues: []string{"default"}})
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
	publishJob(t, nc, bus.JobSubject("default", runID(1)), "{}")
	for i := range 2 {
		if _, err := c.Wake(deadline(t), "default", runID(10+i)); err != nil {
			t.Fatal(err)
		}
		if d := receive(t, "a wake", got); !d.Wake {
			t.Fatalf("a paused puller took %s", d.Subject)
		}
	}
	p.Pause(false)
	if d := receive(t, "the job", got); d.Wake || d.ID != runID(1) {
		t.Fatalf("%+v", d)
	}
}
