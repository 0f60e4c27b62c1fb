package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/run"
)

// Wake is port.Waker's: it waits for the acknowledgement.
func (c *Conn) Wake(ctx context.Context, queue string, id run.ID) (fresh bool, err error) {
	if !topology.LiteralRun(id) || !run.ValidID(queue) {
		return false, fmt.Errorf("bus: wake %s in %s: %w", id, queue, ErrNotLiteral)
	}
	err = c.put(ctx, &nats.Msg{Subject: topology.WakeSubject(queue, id)})
	if err != nil && !errors.Is(err, port.ErrFull) {
		return false, fmt.Errorf("bus: wake %s: %w", id, err)
	}
	return err == nil, nil
}

// Hint is port.Hints'. Without a listener, or without a connection, it is lost.
func (c *Conn) Hint(holder string, id run.ID) error {
	if !topology.Literal(holder) {
		return fmt.Errorf("bus: hint to %s: %w", holder, ErrNotLiteral)
	}
	if err := c.nc.Publish(topology.HintSubject(holder), hint{id.Tenant, id.Run}.encode()); err != nil {
		return fmt.Errorf("bus: hint %s: %w", id, err)
	}
	return nil
}

// OnHint calls fn, from one goroutine, with each run that a hint to holder names, until stop is called.
func (c *Conn) OnHint(holder string, fn func(run.ID)) (stop func(), err error) {
	sub, err := c.nc.Subscribe(topology.HintSubject(holder), func(m *nats.Msg) {
		var h hint
		id := run.ID{}
		if json.Unmarshal(m.Data, &h) == nil {
			id = run.ID{Tenant: h.Tenant, Run: h.RunID}
		}
		if run.ValidID(id.Tenant) && run.ValidID(id.Run) {
			fn(id)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("bus: hints of %s: %w", holder, err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

// Tell sends everyone who listens at a holder's name something that only these processes understand. Nothing is promised.
func (c *Conn) Tell(holder string, data []byte) error {
	if err := c.nc.Publish(topology.HintSubject(holder), data); err != nil {
		return fmt.Errorf("bus: tell %s: %w", holder, err)
	}
	return nil
}

// OnTold calls fn, from one goroutine, with what Tell sends to the name, until stop is called. It listens when it returns,
// or, where there is no connection then, from the next one on.
func (c *Conn) OnTold(holder string, fn func(data []byte)) (stop func(), err error) {
	sub, err := c.nc.Subscribe(topology.HintSubject(holder), func(m *nats.Msg) { fn(m.Data) })
	if err != nil {
		return nil, fmt.Errorf("bus: what is told to %s: %w", holder, err)
	}
	_ = c.nc.Flush()
	return func() { _ = sub.Unsubscribe() }, nil
}

// FindJob finds the first job of the run that still is in any queue; port.ErrNotFound if there is none. It may at this
// moment be with an executor.
func (c *Conn) FindJob(ctx context.Context, id run.ID) (engine.Message, error) {
	if !topology.LiteralRun(id) {
		return engine.Message{}, fmt.Errorf("bus: find job of %s: %w", id, ErrNotLiteral)
	}
	m, err := c.get(ctx, topology.JobsStream, getRequest{Seq: 1, NextBySubject: topology.JobSubject("*", id)})
	if err != nil {
		return engine.Message{}, fmt.Errorf("bus: find job of %s: %w", id, err)
	}
	return MessageOf(topology.ParseQueueSubject(topology.Jobs, m.Subject).Queue, m.Seq, m.Time, m.Header, m.Data), nil
}
