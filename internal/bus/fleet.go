package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/run"
)

// LoadFleet is port.Fleet's.
func (c *Conn) LoadFleet(ctx context.Context, name string) (data []byte, revision uint64, err error) {
	m, err := (*Stored)(nil), ErrNotLiteral
	if run.ValidID(name) {
		m, err = c.last(ctx, topology.RunsStream, topology.Fleet+name)
	}
	switch {
	case errors.Is(err, port.ErrNotFound):
		return nil, 0, nil
	case err != nil:
		return nil, 0, fmt.Errorf("bus: load fleet record %s: %w", name, err)
	}
	return m.Data, m.Seq, nil
}

// SaveFleet is port.Fleet's.
func (c *Conn) SaveFleet(ctx context.Context, name string, data []byte, h port.Header, expect uint64) (seq uint64, err error) {
	h.State = "fleet"
	err = ErrNotLiteral
	if run.ValidID(name) {
		seq, err = c.compareAndSet(ctx, topology.RunsStream, &nats.Msg{Subject: topology.Fleet + name, Header: header(h, expect), Data: data}, expect)
	}
	if err != nil {
		return 0, fmt.Errorf("bus: save fleet record %s at %d: %w", name, expect, err)
	}
	return seq, nil
}

// FleetNames are the names of all records of the fleet.
func (c *Conn) FleetNames(ctx context.Context) ([]string, error) {
	var names []string
	err := c.subjects(ctx, topology.RunsStream, topology.Fleet+"*", func(subject string) { names = append(names, strings.TrimPrefix(subject, topology.Fleet)) })
	if err != nil {
		return nil, fmt.Errorf("bus: names of fleet records: %w", err)
	}
	return names, nil
}
