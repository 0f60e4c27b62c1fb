package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Of the retries: how many, how many begin in a second, and how many other jobs beside them.
const (
	retryRuns  = 2000
	retryRate  = 150
	otherRate  = 150
	retrySlots = 256 // of all executors together
)

// mixture is what the attempts take and for how long they ask to be left alone, in milliseconds; 0 is the backoff alone.
var mixture = []struct{ takes, after int }{
	{0, 0}, {0, 0}, {0, 200}, {0, 1000}, {20, 0}, {20, 0}, {20, 1500}, {200, 0}, {200, 300}, {1000, 0},
}

// retriesPart measures how late retries are sent: for one executor and for three, with the NATS server in the first
// executor's process and with one of its own. Every process is a real one; the fleet is busy, and has slots free.
func (b *parts) retriesPart() error {
	b.say("retries: %d of them, %d runs begin in a second and %d other jobs beside them, %d slots: from not_before to when the attempt is sent\n",
		retryRuns, retryRate, otherRate, retrySlots)
	for _, embedded := range []bool{true, false} {
		for _, executors := range []int{1, 3} {
			late, err := b.retriesOnce(executors, embedded)
			if err != nil {
				return err
			}
			name := fmt.Sprintf("retries_%d_%s", executors, map[bool]string{true: "embedded", false: "separate"}[embedded])
			slices.Sort(late)
			at := func(q float64) float64 { return late[min(int(q*float64(len(late))), len(late)-1)] }
			b.figure(name+"_p50_ms", at(0.5), "ms late, p50", "")
			b.figure(name+"_p99_ms", at(0.99), "ms late, p99", "<= 100")
			b.figure(name+"_max_ms", at(1), "ms late, the latest", "")
		}
	}
	return nil
}

func (b *parts) retriesOnce(executors int, embedded bool) (late []float64, err error) {
	w, err := b.retriesWorld(executors, embedded)
	if w != nil {
		defer func() { err = errors.Join(err, w.close()) }()
	}
	if err != nil {
		return nil, err
	}
	seen := &retries{due: map[string]time.Time{}, done: make(chan struct{})}
	if _, err := w.nc.Subscribe(topology.ResultSubject(run.ID{Tenant: tenant, Run: "*"}, envelope.StepScope), seen.take); err != nil {
		return nil, err
	}
	if err := w.nc.Flush(); err != nil {
		return nil, err
	}
	began := time.Now()
	for i := range retryRuns {
		m := mixture[i%len(mixture)]
		if err := w.publish(1, "flaky", fmt.Sprintf(`{"takes":%d,"after":%d}`, m.takes, m.after)); err != nil {
			return nil, err
		}
		if err := w.publish(otherRate/retryRate, "noop", noopArgs); err != nil {
			return nil, err
		}
		time.Sleep(time.Until(began.Add(time.Duration(i+1) * time.Second / retryRate)))
	}
	select {
	case <-seen.done:
	case <-time.After(2 * time.Minute):
		return nil, fmt.Errorf("%d of %d retries were made", len(seen.late), retryRuns)
	}
	return seen.late, nil
}

// retriesWorld is a fleet whose tools are repeated soon. The world is returned to be closed even if it is not complete.
func (b *parts) retriesWorld(executors int, embedded bool) (w *world, err error) {
	if embedded {
		if w, err = newEmbeddedWorld(retrySlots / executors); err != nil {
			return w, err
		}
	} else if w, err = newWorld(b.bin); err != nil {
		return nil, err
	}
	for i := len(w.executors); i < executors; i++ {
		e, err := w.executor(fmt.Sprintf("executor%d", i+1), retrySlots/executors)
		if err != nil {
			return w, err
		}
		if err := e.ready(time.Minute); err != nil {
			return w, err
		}
	}
	_, err = w.reconciler("reconciler")
	return w, err
}

// newEmbeddedWorld is a world whose server is the first executor's. It is returned to be closed even with an error.
func newEmbeddedWorld(concurrency int) (w *world, err error) {
	w = &world{}
	if w.dir, err = os.MkdirTemp("", "agentrun-bench-"); err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return w, err
	}
	w.url, w.config = "nats://"+addr, filepath.Join(w.dir, "config.yaml")
	if err := os.WriteFile(w.config, []byte(worldConfig), 0o600); err != nil {
		return w, err
	}
	e, err := w.serve("executor1", nil, os.Args[0], []string{"executor"}, "--data", filepath.Join(w.dir, "executor1"), "--concurrency", strconv.Itoa(concurrency), "--embedded-nats")
	if err != nil {
		return w, err
	}
	w.executors = append(w.executors, e)
	if err := e.ready(time.Minute); err != nil {
		return w, err
	}
	if w.nc, err = nats.Connect(w.url, nats.MaxReconnects(-1)); err != nil {
		return w, err
	}
	w.js, err = jetstream.New(w.nc, jetstream.WithPublishAsyncMaxPending(4000))
	return w, err
}

// retries takes in the outcomes of steps: first when the next attempt is due, then when it was sent.
type retries struct {
	mu   sync.Mutex
	due  map[string]time.Time
	late []float64
	done chan struct{}
}

func (r *retries) take(m *nats.Msg) {
	var o struct {
		Outcome  envelope.Word `json:"outcome"`
		Envelope struct {
			Retry struct {
				NotBefore time.Time `json:"not_before"`
			} `json:"retry"`
			Result struct {
				Sent time.Time `json:"sent"`
			} `json:"result"`
		} `json:"envelope"`
	}
	if json.Unmarshal(m.Data, &o) != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch due := r.due[m.Subject]; {
	case o.Outcome == envelope.Retryable:
		r.due[m.Subject] = o.Envelope.Retry.NotBefore
	case !due.IsZero() && !o.Envelope.Result.Sent.IsZero():
		r.late = append(r.late, float64(o.Envelope.Result.Sent.Sub(due).Microseconds())/1000)
		if len(r.late) == retryRuns {
			close(r.done)
		}
	}
}
