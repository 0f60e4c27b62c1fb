package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"
)

// Of the fleet: as many calls in flight as the single process has.
const (
	fleetExecutors   = 2
	fleetConcurrency = 256
	fleetRounds      = 5
)

// stretch is a piece of work that was measured.
type stretch struct {
	perSecond float64
	micros    float64 // CPU of all processes per job
	each      map[string]float64
}

// fleetPart holds two executors and a NATS server, three processes over TCP, against the single process of the table, in
// turn. Per core means: jobs per second of processor time of all processes that work, the server included.
func (b *parts) fleetPart() error {
	var single, fleet []stretch
	for round := range fleetRounds {
		s, err := sample("agentrun", plan{sync: "default", concurrency: fleetConcurrency, backlog: b.n})
		if err != nil {
			return err
		}
		single = append(single, stretch{perSecond: s.JobsPerSecond, micros: s.CPUMicros})
		f, err := b.fleetOnce(round)
		if err != nil {
			return err
		}
		fleet = append(fleet, f)
	}
	var perCore, perSecond []float64
	for i := range single {
		perCore = append(perCore, single[i].micros/fleet[i].micros)
		perSecond = append(perSecond, fleet[i].perSecond/single[i].perSecond)
	}
	one, two := leastCPU(single), leastCPU(fleet)
	b.say("fleet: %d executors with --concurrency %d each and a NATS server, three processes over TCP; %d jobs, %d rounds in turn: ratios are medians of the rounds, all else is of the best\n",
		fleetExecutors, fleetConcurrency/fleetExecutors, b.n, fleetRounds)
	b.figure("fleet_single_jobs_per_cpu_s", 1e6/one.micros, "jobs per CPU second, one process", "")
	b.figure("fleet_jobs_per_cpu_s", 1e6/two.micros, "jobs per CPU second, fleet", "")
	b.figure("fleet_per_core_ratio", median(perCore), fmt.Sprintf("of the single process's jobs per CPU second (%.2f to %.2f)", slices.Min(perCore), slices.Max(perCore)), ">= 0.8")
	b.figure("fleet_per_second_ratio", median(perSecond), fmt.Sprintf("of its jobs per second, on the same cores (%.2f to %.2f)", slices.Min(perSecond), slices.Max(perSecond)), "")
	b.figure("fleet_single_cpu_us_per_job", one.micros, "µs CPU per job, one process", "")
	b.figure("fleet_cpu_us_per_job", two.micros, "µs CPU per job, fleet", "")
	b.figure("fleet_server_cpu_us_per_job", two.each["nats-server"], "µs CPU per job, of it the NATS server", "")
	b.figure("fleet_single_jobs_per_s", best(single), "jobs/s, one process", "")
	b.figure("fleet_jobs_per_s", best(fleet), "jobs/s, fleet", "")
	return nil
}

func leastCPU(all []stretch) stretch {
	return slices.MinFunc(all, func(a, b stretch) int { return int(a.micros - b.micros) })
}

func best(all []stretch) float64 {
	return slices.MaxFunc(all, func(a, b stretch) int { return int(a.perSecond - b.perSecond) }).perSecond
}

// fleetOnce works a backlog off. It measures from when a tenth is done, so that starting the processes does not count.
func (b *parts) fleetOnce(round int) (s stretch, err error) {
	w, err := newWorld(b.bin)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.publish(b.n, "noop", noopArgs); err != nil {
		return s, err
	}
	for i := range fleetExecutors {
		name := fmt.Sprintf("executor%d", i+1)
		if _, err := w.executor(name, fleetConcurrency/fleetExecutors, b.profile(fmt.Sprintf("fleet-%d-%s", round+1, name))...); err != nil {
			return s, err
		}
	}
	if err := w.wait(uint64(b.n * 9 / 10)); err != nil {
		return s, err
	}
	b.toggle(w)
	s, err = w.measure()
	b.toggle(w)
	return s, err
}

// profile is the environment that makes a process write its CPU profile into -profiles.
func (b *parts) profile(name string) []string {
	if b.profiles == "" {
		return nil
	}
	return []string{profileEnv + "=" + filepath.Join(b.profiles, name+".prof")}
}

// toggle begins or ends the profiles of a world's executors and reconcilers.
func (b *parts) toggle(w *world) {
	if b.profiles == "" {
		return
	}
	for _, p := range w.processes[1:] {
		_ = p.cmd.Process.Signal(profileSignal)
	}
	time.Sleep(500 * time.Millisecond) // until it is written
}

// measure works off what is in the queue.
func (w *world) measure() (s stretch, err error) {
	before, err := w.cpu()
	if err != nil {
		return s, err
	}
	began := time.Now()
	left, err := w.jobs()
	if err != nil {
		return s, err
	}
	if err := w.wait(0); err != nil {
		return s, err
	}
	return w.stretchSince(began, before, float64(left))
}

func (w *world) stretchSince(began time.Time, before spent, jobs float64) (s stretch, err error) {
	s.perSecond = jobs / time.Since(began).Seconds()
	now, err := w.cpu()
	if err != nil {
		return s, err
	}
	s.micros, s.each = now.since(before, jobs)
	return s, nil
}
