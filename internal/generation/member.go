package generation

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/strictjson"
)

// members reads the records of all executors.
func (k *Keeper) members(ctx context.Context) (out []Member, err error) {
	names, err := k.Store.FleetNames(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		data, revision, err := k.Store.LoadFleet(ctx, name)
		if err != nil {
			return nil, err
		}
		var m Member
		if revision != 0 && json.Unmarshal(data, &m) == nil && m.Schema == MemberSchema && m.Journal == name {
			m.Schema = ""
			out = append(out, m)
		}
	}
	return out, nil
}

// join keeps the executor's own record in the store: written at the start, soon after something was sent, and long before
// it would be forgotten.
func (k *Keeper) join(ctx context.Context, look Look) error {
	if k.Journal == nil {
		return nil
	}
	k.mu.Lock()
	age := time.Since(k.joined)
	first := k.joined.IsZero() // of this start
	due := first || k.dirty && age >= joinEvery || age >= k.Retention/refreshPart
	k.mu.Unlock()
	if !due {
		return nil
	}
	if look.Member == 0 || first {
		if err := k.replace(ctx); err != nil {
			return err
		}
	}
	return k.register(ctx, look.Member)
}

// replace finds the journals that were in this journal's directory before it: they are not there any more.
func (k *Keeper) replace(ctx context.Context) error {
	members, err := k.members(ctx)
	if err != nil {
		return err
	}
	var replaced []string
	for _, m := range members {
		if k.replaces(m) {
			replaced = append(replaced, m.Journal)
		}
	}
	k.mu.Lock()
	k.Config.Member.Replaces = replaced
	k.mu.Unlock()
	return nil
}

// replaces says whether a journal was in this journal's directory before it, and so is not there any more.
func (k *Keeper) replaces(m Member) bool {
	me := &k.Config.Member
	return m.Host == me.Host && m.Dir == me.Dir && m.Journal != me.Journal
}

// register writes the executor's own record.
func (k *Keeper) register(ctx context.Context, revision uint64) error {
	if k.Journal == nil {
		return nil
	}
	for {
		m := k.self()
		m.Schema = MemberSchema
		data, err := strictjson.Marshal(m)
		if err != nil {
			return err
		}
		k.mu.Lock()
		k.dirty = false
		k.mu.Unlock()
		next, err := k.Store.SaveFleet(ctx, m.Journal, data, port.Header{TTL: k.Retention}, revision)
		k.wroteNow()
		if err == nil {
			k.mu.Lock()
			k.joined = time.Now()
			k.known.Member, k.known.Joined = next, k.joined
			k.mu.Unlock()
			k.Journal.Joined(next, k.joined)
			return nil
		}
		if !errors.Is(err, port.ErrConflict) {
			return err
		}
		if _, revision, err = k.Store.LoadFleet(ctx, m.Journal); err != nil {
			return err
		}
	}
}
