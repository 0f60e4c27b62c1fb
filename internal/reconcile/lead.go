package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
)

// FleetSchema is the schema name of the reconcilers' own record.
const FleetSchema = "agentrun.fleet/v1"

// fleetLease is how long a silent active reconciler stays the active one.
const fleetLease = 5 * time.Second

// fleetState is the record of which reconciler is active.
type fleetState struct {
	Schema string        `json:"schema"`
	Lease  *engine.Lease `json:"lease,omitempty"`
	ID     string        `json:"id,omitempty"` // the --id of the active one, for people
	// SettledThrough is the sequence in AGENTRUN_RUNS below which nothing is owed by any end, in the store of that token.
	SettledThrough uint64        `json:"settled_through"`
	Store          string        `json:"store,omitempty"`
	At             envelope.Time `json:"at,omitempty"`
	// Foreign members are those of a newer build, and stay.
	Foreign strictjson.Foreign `json:"-"`
}

func decodeFleet(data []byte) (fleetState, error) {
	var name struct {
		Schema string `json:"schema"`
	}
	var s fleetState
	if err := json.Unmarshal(data, &name); err != nil {
		return s, err
	}
	if name.Schema != FleetSchema {
		return s, fmt.Errorf("%w: its schema is %q, this build reads %s; start a reconciler of that version", engine.ErrNewer, name.Schema, FleetSchema)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, err
	}
	_, err := strictjson.KeepForeign(&s, data)
	return s, err
}

func (s *fleetState) encode() ([]byte, error) {
	data, err := strictjson.Marshal(s)
	if err != nil {
		return nil, err
	}
	return strictjson.AppendForeign(nil, s, data), nil
}

func (rc *Reconciler) loadFleet(ctx context.Context) (fleetState, uint64, error) {
	data, seq, err := rc.Fleet.LoadFleet(ctx, port.ActiveRecord)
	if err != nil {
		return fleetState{}, 0, fmt.Errorf("reconciler: reading which one is active: %w", err)
	}
	var s fleetState
	if seq != 0 {
		if s, err = decodeFleet(data); err != nil {
			return fleetState{}, 0, fmt.Errorf("reconciler: the record of which one is active: %w", err)
		}
	}
	return s, seq, nil
}

// lead holds the lease on being active, or watches the one who does. The rules are those of every lease: a taker has
// itself seen the same lease unchanged for its whole length; a holder stops a tenth before its end, counted from before
// it sent the last write that was acknowledged, on a clock that counts suspension.
func (rc *Reconciler) lead(ctx context.Context) error {
	var seen *engine.Lease
	since := time.Now()
	var until time.Duration // boot clock
	id := uuid.NewString()
	lost := context.AfterFunc(ctx, func() { rc.setActive(false) })
	defer lost()
	for {
		wait := rc.leadOnce(ctx, id, &seen, &since, &until)
		if rc.Boot() >= until {
			rc.setActive(false)
		}
		if !pause.For(ctx, wait) {
			rc.resign(id)
			return ctx.Err()
		}
	}
}

func (rc *Reconciler) leadOnce(ctx context.Context, id string, seen **engine.Lease, since *time.Time, until *time.Duration) (wait time.Duration) {
	const poll = fleetLease / 10
	if !rc.current() {
		// Records that journals are restored into are judged when all have been.
		rc.setActive(false)
		return poll
	}
	octx, cancel := context.WithTimeout(ctx, fleetLease/2)
	defer cancel()
	state, seq, err := rc.loadFleet(octx)
	if rc.newerFleet(err); err != nil {
		return poll
	}
	mine := state.Lease != nil && state.Lease.ID == id
	if state.Lease != nil && !mine {
		if *seen == nil || **seen != *state.Lease {
			*seen, *since = state.Lease, time.Now()
			rc.setActive(false)
			return poll
		}
		if time.Since(*since) < time.Duration(state.Lease.Seconds*float64(time.Second)) {
			return poll
		}
	}
	next := fleetState{
		Schema: FleetSchema, ID: rc.ID, At: rc.Records.Now(), Foreign: state.Foreign,
	}
	next.SettledThrough, next.Store = rc.settledThrough(state, mine)
	next.Lease = &engine.Lease{Holder: rc.Holder, ID: id, Seconds: fleetLease.Seconds()}
	if mine {
		next.Lease.Renewal = state.Lease.Renewal + 1
	}
	data, err := next.encode()
	if err != nil {
		return poll
	}
	sent := rc.Boot()
	_, err = rc.Fleet.SaveFleet(octx, port.ActiveRecord, data, port.Header{Lease: record.LeaseHeader(next.Lease)}, seq)
	switch {
	case errors.Is(err, port.ErrConflict):
		return 10 * time.Millisecond
	case err != nil:
		return poll
	}
	*until = sent + fleetLease - fleetLease/10
	*seen = nil
	rc.mu.Lock()
	if rc.token == next.Store {
		rc.settled = max(rc.settled, next.SettledThrough)
	}
	rc.mu.Unlock()
	rc.setActive(true)
	return fleetLease / 3
}

// newerFleet says once that the fleet is led by a newer version: this process stands by and leaves its record alone.
func (rc *Reconciler) newerFleet(err error) {
	newer := errors.Is(err, engine.ErrNewer)
	if newer && !rc.outdated {
		rc.Log.Error("standing by: the fleet's record was written by a newer version", "error", err)
	}
	rc.outdated = newer
}

// settledThrough is the highest revision below which no end owes anything, as far as this process knows, and of which store.
// A standby that takes over starts from what the last active one had established.
func (rc *Reconciler) settledThrough(state fleetState, mine bool) (seq uint64, store string) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	stored := state.SettledThrough
	if state.Store != "" && state.Store != rc.token {
		stored = 0
	}
	if !mine || !rc.seenAll() {
		return stored, rc.token
	}
	through := rc.through
	for _, e := range rc.ends {
		if e.seq <= through {
			through = e.seq - 1
		}
	}
	return max(through, stored), rc.token
}

// resign gives the lease up at a clean stop, so that a standby need not wait for its end.
func (rc *Reconciler) resign(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state, seq, err := rc.loadFleet(ctx)
	if err != nil || state.Lease == nil || state.Lease.ID != id {
		return
	}
	state.Lease, state.At = nil, rc.Records.Now()
	if data, err := state.encode(); err == nil {
		_, _ = rc.Fleet.SaveFleet(ctx, port.ActiveRecord, data, port.Header{}, seq)
	}
}

func (rc *Reconciler) setActive(active bool) {
	rc.mu.Lock()
	was := rc.active
	rc.active = active
	if was && !active {
		clear(rc.refused) // another one tries now
		rc.showRefused()
	}
	rc.mu.Unlock()
	if was == active {
		return
	}
	rc.poke()
	if rc.OnActive != nil {
		rc.OnActive(active)
	}
	if active {
		rc.Log.Info("active: recovering and waking runs")
	} else {
		rc.Log.Info("standby")
	}
}
