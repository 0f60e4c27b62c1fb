package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// fleetPrefix is where the fleet keeps what it agrees on, among the run records. What lies there is no run.
const fleetPrefix = runsPrefix + "_fleet."

// FleetMessage is a record of the fleet as stored.
type FleetMessage struct {
	Data []byte
	Seq  uint64
}

// LoadFleet reads a record of the fleet at the leader; its Seq is 0 if there is none.
func (c *Conn) LoadFleet(ctx context.Context, name string) (FleetMessage, error) {
	if !IsIdentifier(name) {
		return FleetMessage{}, fmt.Errorf("bus: load fleet record %s: %w", name, ErrNotLiteral)
	}
	m, err := c.last(ctx, RunsStream, fleetPrefix+name)
	switch {
	case errors.Is(err, ErrNotFound):
		return FleetMessage{}, nil
	case err != nil:
		return FleetMessage{}, fmt.Errorf("bus: load fleet record %s: %w", name, err)
	}
	return FleetMessage{Data: m.Data, Seq: m.Seq}, nil
}

// SaveFleet is Runs.Save for a record of the fleet, which is forgotten after ttl; 0 keeps it.
func (c *Conn) SaveFleet(ctx context.Context, name string, data []byte, ttl time.Duration, expect uint64) (uint64, error) {
	if !IsIdentifier(name) {
		return 0, fmt.Errorf("bus: save fleet record %s: %w", name, ErrNotLiteral)
	}
	msg := &nats.Msg{Subject: fleetPrefix + name, Header: RecordHeader{State: "fleet", TTL: ttl}.nats(expect), Data: data}
	seq, err := c.compareAndSet(ctx, RunsStream, msg, expect)
	if err != nil {
		return 0, fmt.Errorf("bus: save fleet record %s at %d: %w", name, expect, err)
	}
	return seq, nil
}

// FleetNames are the names of all records of the fleet.
func (c *Conn) FleetNames(ctx context.Context) ([]string, error) {
	ask := struct {
		Filter string `json:"subjects_filter"`
		Offset int    `json:"offset"`
	}{Filter: fleetPrefix + "*"}
	var names []string
	for {
		var page struct {
			Total int `json:"total"`
			State struct {
				Subjects map[string]uint64 `json:"subjects"`
			} `json:"state"`
		}
		if err := c.api(ctx, "STREAM.INFO."+RunsStream, ask, &page); err != nil {
			return nil, fmt.Errorf("bus: names of fleet records: %w", err)
		}
		for subject := range page.State.Subjects {
			names = append(names, strings.TrimPrefix(subject, fleetPrefix))
		}
		if ask.Offset += len(page.State.Subjects); len(page.State.Subjects) == 0 || ask.Offset >= page.Total {
			return names, nil
		}
	}
}

func (c *Conn) readFleet(ctx context.Context) (map[string]FleetMessage, error) {
	out := make(map[string]FleetMessage, len(c.opts.Fleet))
	for _, name := range c.opts.Fleet {
		r, err := c.LoadFleet(ctx, name)
		if err != nil {
			return nil, err
		}
		if r.Seq != 0 {
			out[name] = r
		}
	}
	return out, nil
}
