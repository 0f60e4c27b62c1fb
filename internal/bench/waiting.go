package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Of the waiting runs.
const (
	waitingRounds  = 13
	waitingLatency = 2000      // jobs one at a time in each, in turn
	aDay           = "86400"   // seconds until the retry is due
	settleAfter    = 2 * lease // the reconciler has looked at each by then
)

// waitingPart holds a world in whose store many runs wait for a retry that is due tomorrow against one without them. Both are
// up at the same time, an executor, a reconciler and a NATS server each, and are measured in turn.
func (b *parts) waitingPart() (err error) {
	var worlds [2]*world // without, with
	for i := range worlds {
		w, err := newWorld(b.bin)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.close()) }()
		worlds[i] = w
		if _, err := w.reconciler("reconciler", b.profile(fmt.Sprintf("waiting-%d-reconciler", i))...); err != nil {
			return err
		}
		e, err := w.executor("executor", fleetConcurrency, b.profile(fmt.Sprintf("waiting-%d-executor", i))...)
		if err != nil {
			return err
		}
		if err := e.ready(time.Minute); err != nil {
			return err
		}
	}
	with := worlds[1]
	before := with.processes[1].memory("VmRSS")
	b.say("waiting: %d runs whose retry is due tomorrow; an executor with --concurrency %d, a reconciler and a NATS server\n", b.waiting, fleetConcurrency)
	if err := with.publish(b.waiting, "later", `{"seconds":`+aDay+`}`); err != nil {
		return err
	}
	if err := with.wait(0); err != nil {
		return err
	}
	idle, err := with.processes[1].cpu()
	if err != nil {
		return err
	}
	time.Sleep(settleAfter)
	now, err := with.processes[1].cpu()
	if err != nil {
		return err
	}
	b.figure("waiting_looks_cpu_s", (now - idle).Seconds(), "CPU seconds of the reconciler for looking at each once", "")
	b.figure("waiting_reconciler_bytes_per_run", (with.processes[1].memory("VmRSS")-before)*1024*1024/float64(b.waiting), "bytes RSS of the reconciler per waiting run", "")
	for _, w := range worlds {
		b.toggle(w)
	}
	var speed, micros [2][]float64
	each := map[string]*[2][]float64{"executor": {}, "reconciler": {}, "nats-server": {}}
	for round := range waitingRounds {
		for k := range worlds {
			i := (k + round) % 2 // who goes first changes
			s, err := worlds[i].round(b.n / 4)
			if err != nil {
				return err
			}
			if round == 0 {
				continue // to warm up
			}
			speed[i], micros[i] = append(speed[i], s.perSecond), append(micros[i], s.micros)
			for name := range each {
				each[name][i] = append(each[name][i], s.each[name])
			}
		}
	}
	for _, w := range worlds {
		b.toggle(w)
	}
	latency, err := latencies(worlds)
	if err != nil {
		return err
	}
	b.ratio("waiting_jobs_per_s", speed, "jobs/s", ">= 0.9")
	b.ratio("waiting_cpu_us_per_job", micros, "µs CPU per job", "<= 1.1")
	for _, name := range []string{"executor", "reconciler", "nats-server"} {
		b.ratio("waiting_"+name+"_cpu_us_per_job", *each[name], "µs CPU per job, "+name, "")
	}
	b.quantiles("waiting_latency", latency)
	return nil
}

// ratio gives the medians and the median of the ratios of each round.
func (b *parts) ratio(name string, v [2][]float64, unit, aim string) {
	var ratios []float64
	for i := range v[0] {
		ratios = append(ratios, v[1][i]/v[0][i])
	}
	b.figure(name+"_without", median(v[0]), unit+", without", "")
	b.figure(name+"_with", median(v[1]), unit+", with", "")
	b.figure(name+"_ratio", median(ratios), unit+", with / without", aim)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// round publishes jobs and measures until the last is done.
func (w *world) round(n int) (s stretch, err error) {
	before, err := w.cpu()
	if err != nil {
		return s, err
	}
	began := time.Now()
	if err := w.publish(n, "noop", noopArgs); err != nil {
		return s, err
	}
	if err := w.wait(0); err != nil {
		return s, err
	}
	return w.stretchSince(began, before, float64(n))
}

// latencies are the times from publishing a job to its run's outcome, one at a time and in each world in turn, in
// microseconds.
func latencies(worlds [2]*world) (took [2][]float64, err error) {
	var subs [2]*nats.Subscription
	for i, w := range worlds {
		if subs[i], err = w.nc.SubscribeSync(topology.ResultSubject(run.ID{Tenant: tenant, Run: "*"}, envelope.RunScope)); err != nil {
			return took, err
		}
		defer func() { _ = subs[i].Unsubscribe() }()
	}
	for range waitingLatency {
		for i, w := range worlds {
			w.published++
			began := time.Now()
			msg := &nats.Msg{Subject: topology.JobSubject(queue, id(w.published)), Data: jobFor(w.published, "noop", noopArgs)}
			if err := w.nc.PublishMsg(msg); err != nil {
				return took, err
			}
			if _, err := subs[i].NextMsg(10 * time.Second); err != nil {
				return took, fmt.Errorf("job %d: %w", w.published, err)
			}
			took[i] = append(took[i], float64(time.Since(began).Nanoseconds())/1000)
		}
	}
	return took, nil
}

// quantiles compares medians and 99th percentiles.
func (b *parts) quantiles(name string, v [2][]float64) {
	for _, q := range []struct {
		name string
		of   float64
		aim  string
	}{{"p50", 0.5, "<= 1.1"}, {"p99", 0.99, ""}} {
		var at [2]float64
		for i := range v {
			sorted := slices.Sorted(slices.Values(v[i]))
			at[i] = sorted[int(q.of*float64(len(sorted)))]
		}
		b.figure(name+"_"+q.name+"_us_without", at[0], "µs "+q.name+" publish to outcome, without", "")
		b.figure(name+"_"+q.name+"_us_with", at[1], "µs "+q.name+" publish to outcome, with", "")
		b.figure(name+"_"+q.name+"_ratio", at[1]/at[0], q.name+" publish to outcome, with / without", q.aim)
	}
}
