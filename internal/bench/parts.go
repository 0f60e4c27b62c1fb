package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/topology"
)

// Figure is one measured number of a fleet.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Aim   string  `json:"aim,omitempty"`
}

// parts are what is measured of fleets of real processes; each can be run alone.
type parts struct {
	bin      string // the built commands
	n        int
	waiting  int
	records  int
	idle     time.Duration
	profiles string
	figures  []Figure
}

// The parts by name, in the order in which they run; the table is first.
var partNames = []string{"table", "fleet", "idle", "waiting", "restart", "retries", "large", "gateway"}

// chosen are the names of -only, in order; all of them if it is empty.
func chosen(only string) ([]string, error) {
	if only == "" {
		return partNames, nil
	}
	names := strings.Split(only, ",")
	for _, name := range names {
		if !slices.Contains(partNames, name) {
			return nil, fmt.Errorf("-only: %q is none of %s", name, strings.Join(partNames, ", "))
		}
	}
	return names, nil
}

// run measures the parts of that name.
func (b *parts) run(names []string) (err error) {
	do := map[string]func() error{"fleet": b.fleetPart, "idle": b.idlePart, "waiting": b.waitingPart, "restart": b.restartPart, "retries": b.retriesPart, "large": b.largePart, "gateway": b.gatewayPart}
	if !slices.ContainsFunc(names, func(n string) bool { return do[n] != nil }) {
		return nil
	}
	// The processes are started by this goroutine and end with its thread: it must not move to another.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if b.bin, err = os.MkdirTemp("", "agentrun-bench-bin-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.bin)) }()
	if err := buildCommands(b.bin); err != nil {
		return err
	}
	for _, name := range names {
		if f := do[name]; f != nil {
			if err := f(); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

func (b *parts) say(format string, args ...any) { fmt.Printf("\n"+format, args...) }

// figure keeps a number and prints it at once.
func (b *parts) figure(name string, value float64, unit, aim string) {
	b.figures = append(b.figures, Figure{name, value, unit, aim})
	if aim != "" {
		aim = "   aim " + aim
	}
	fmt.Printf("%12s  %-s%s   [%s]\n", number(value), unit, aim, name)
}

// number shows three digits at least and no false precision.
func number(v float64) string {
	switch {
	case v >= 100 || v == 0:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// jobs is how many jobs wait or are being worked on.
func (w *world) jobs() (uint64, error) {
	s, err := w.state(topology.JobsStream)
	return s.Msgs, err
}
