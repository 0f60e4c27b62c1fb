package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/run"
)

const (
	// listedJobs is up to how many jobs in the stream their subjects are listed, to find the queues without a consumer: a
	// listing costs the server some 25 ms for so many, and ten times that is a second of its time.
	listedJobs = 10_000
	// drawnJobs is how many jobs are looked at, anywhere in the stream, where there are more.
	drawnJobs = 32
	// queuesMost bounds how many queues without a consumer are named: publishers choose the names.
	queuesMost = 1000
)

// Depths is how many jobs lie in each queue, those in an executor's hands included.
type Depths struct {
	// Queues has every queue with a consumer, also an empty one, and those without of which jobs were found.
	Queues map[string]int64
	// Unnamed counts the jobs that are in no queue of Queues. While few jobs of a queue without a consumer lie among very
	// many others they may be here for some looks.
	Unnamed int64
	// Unaddressed are subjects of jobs that can be in no queue, since what stands for its name is no identifier: some of
	// them, where there are many.
	Unaddressed []string
}

// unaddressedMost bounds Unaddressed: what is answered goes, and then come others.
const unaddressedMost = 64

func (d *Depths) unaddressed(subject string) {
	if len(d.Unaddressed) < unaddressedMost && !slices.Contains(d.Unaddressed, subject) {
		d.Unaddressed = append(d.Unaddressed, subject)
	}
}

// holds notes how many jobs one of the queues of Setup has.
func (c *Conn) holds(queue string, info *jetstream.ConsumerInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := maps.Clone(c.status.Queues) // a Status that was given out keeps its own
	if next == nil {
		next = map[string]int64{}
	}
	next[queue] = int64(info.NumPending) + int64(info.NumAckPending)
	c.status.Queues = next
}

// Depths counts the jobs by queue. draw returns numbers in [0, 1): where a long stream is looked into. The cost does not grow
// with the number of jobs; the counts are of one moment only while nothing comes or goes.
func (c *Conn) Depths(ctx context.Context, draw func() float64) (Depths, error) {
	d, err := c.depths(ctx, draw)
	if err != nil {
		return Depths{}, fmt.Errorf("streams: depths of the queues: %w", err)
	}
	return d, nil
}

func (c *Conn) depths(ctx context.Context, draw func() float64) (Depths, error) {
	before, err := c.Facts(ctx, topology.JobsStream)
	if err != nil {
		return Depths{}, err
	}
	d := Depths{}
	if d.Queues, err = c.consumed(ctx); err != nil {
		return Depths{}, err
	}
	after, err := c.Facts(ctx, topology.JobsStream)
	if err != nil {
		return Depths{}, err
	}
	// What comes and goes between the three answers must not look like jobs that nobody has.
	rest := min(before.State.Messages, after.State.Messages)
	for _, n := range d.Queues {
		rest -= n
	}
	switch {
	case rest <= 0:
	case after.State.Messages <= listedJobs:
		err = c.listStrays(ctx, &d)
	default:
		err = c.drawStrays(ctx, &d, rest, after, draw)
	}
	return d, err
}

// consumed is what the consumers say of their queues.
func (c *Conn) consumed(ctx context.Context) (map[string]int64, error) {
	out := map[string]int64{}
	ask := struct {
		Offset int `json:"offset"`
	}{}
	for {
		var page struct {
			Total     int            `json:"total"`
			Consumers []consumerFact `json:"consumers"`
		}
		if err := c.Ask(ctx, "CONSUMER.LIST."+topology.JobsStream, ask, &page); err != nil {
			return nil, fmt.Errorf("consumers of %s: %w", topology.JobsStream, err)
		}
		for _, f := range page.Consumers {
			queue, ours := strings.CutPrefix(f.Name, topology.ConsumerName(""))
			if ours && f.Config.Filter == topology.InQueue(topology.Jobs, queue) {
				out[queue] = f.Pending + f.Unacknowledged
			}
		}
		if ask.Offset += len(page.Consumers); len(page.Consumers) == 0 || ask.Offset >= page.Total {
			return out, nil
		}
	}
}

type consumerFact struct {
	Name   string `json:"name"`
	Config struct {
		Filter string `json:"filter_subject"`
	} `json:"config"`
	Pending        int64 `json:"num_pending"`
	Unacknowledged int64 `json:"num_ack_pending"`
}

// listStrays finds the queues without a consumer among all subjects of the stream.
func (c *Conn) listStrays(ctx context.Context, d *Depths) error {
	ask := struct {
		Filter string `json:"subjects_filter"`
	}{topology.Jobs + ">"}
	var info struct {
		State struct {
			Subjects map[string]int64 `json:"subjects"`
		} `json:"state"`
	}
	if err := c.Ask(ctx, "STREAM.INFO."+topology.JobsStream, ask, &info); err != nil {
		return fmt.Errorf("subjects of %s: %w", topology.JobsStream, err)
	}
	strays := map[string]int64{}
	for subject, n := range info.State.Subjects {
		queue, literal := strayQueue(subject)
		switch _, consumed := d.Queues[queue]; {
		case consumed && literal:
		case !literal:
			d.Unnamed += n
			d.unaddressed(subject)
		case strays[queue] == 0 && len(strays) == queuesMost:
			d.Unnamed += n
		default:
			strays[queue] += n
		}
	}
	maps.Copy(d.Queues, strays)
	return nil
}

// strayQueue is the queue that takes a job's subject; literal is false where none can.
func strayQueue(subject string) (queue string, literal bool) {
	queue, _, inside := strings.Cut(strings.TrimPrefix(subject, topology.Jobs), ".")
	return queue, inside && run.ValidID(queue)
}

// drawStrays finds queues without a consumer by looking at the first job and at some others anywhere. What nobody pulls stays,
// and what others pull goes, so that it comes to be the first by itself.
func (c *Conn) drawStrays(ctx context.Context, d *Depths, rest int64, f bus.Facts, draw func() float64) error {
	d.Unnamed = rest
	for i := range drawnJobs {
		seq := f.State.FirstSeq
		if i > 0 {
			seq += uint64(draw() * float64(f.State.LastSeq-f.State.FirstSeq))
		}
		subject, err := c.jobAt(ctx, seq)
		if err != nil {
			return err
		}
		queue, literal := strayQueue(subject)
		if !literal && subject != "" {
			d.unaddressed(subject)
		}
		if _, known := d.Queues[queue]; known || !literal {
			continue
		}
		n, err := c.lieIn(ctx, queue)
		if err != nil {
			return err
		}
		d.Queues[queue] = n
		if d.Unnamed = max(d.Unnamed-n, 0); d.Unnamed == 0 {
			return nil
		}
	}
	return nil
}

// JobOn is the first job on exactly this subject; port.ErrNotFound if there is none. A subject may hold what the server takes
// for a wildcard when it is asked for it: what lies on other subjects is passed over.
func (c *Conn) JobOn(ctx context.Context, subject string) (engine.Message, error) {
	m := &bus.Stored{}
	for m.Subject != subject {
		var err error
		if m, err = c.DirectGet(ctx, topology.JobsStream, m.Seq+1, subject); err != nil {
			return engine.Message{}, fmt.Errorf("streams: job on %s: %w", subject, err)
		}
	}
	return bus.MessageOf(topology.ParseQueueSubject(topology.Jobs, subject).Queue, m.Seq, m.Time, m.Header, m.Data), nil
}

// jobAt is the subject of the first job at a sequence or after it; "" if there is none.
func (c *Conn) jobAt(ctx context.Context, seq uint64) (subject string, err error) {
	m, err := c.DirectGet(ctx, topology.JobsStream, max(seq, 1), topology.Jobs+">")
	switch {
	case errors.Is(err, port.ErrNotFound):
		return "", nil
	case err != nil:
		return "", err
	}
	return m.Subject, nil
}

// lieIn is how many jobs a queue has, whether or not it has a consumer.
func (c *Conn) lieIn(ctx context.Context, queue string) (int64, error) {
	ask, err := json.Marshal(struct {
		Seq   uint64 `json:"seq"`
		Next  string `json:"next_by_subj"`
		Batch int    `json:"batch"` // only a batch is told how many there are
	}{1, topology.InQueue(topology.Jobs, queue), 1})
	if err != nil {
		return 0, err
	}
	m, err := c.Request(ctx, "DIRECT.GET."+topology.JobsStream, ask)
	switch {
	case err != nil:
		return 0, err
	case m.Header.Get("Status") == "404":
		return 0, nil
	}
	// The first job, or the word that the batch of one is over: both say how many come after it.
	left, err := strconv.ParseInt(m.Header.Get("Nats-Num-Pending"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("direct get of %s: %s %s", topology.JobsStream, m.Header.Get("Status"), m.Header.Get("Description"))
	}
	return left + 1, nil
}
