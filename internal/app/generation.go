package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/fleet"
	"github.com/agentrun/executor/internal/generation"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// journalID is the journal's random id, without the number of its start.
func journalID(j *journal.Journal) string {
	id, _, _ := strings.Cut(j.Holder(), ".")
	return id
}

// keptStore tells drivers which store of records this is: what the keeper says, as far as the streams have been looked at
// since the last reconnect, and as the other executors have been heard.
type keptStore struct {
	*generation.Keeper
	conn *streams.Conn
}

func (s keptStore) Current() (token string, ok bool) {
	token, ok = s.Keeper.Current()
	return token, ok && s.conn.Looked() && s.Together(s.conn.Server())
}

// leaveWait bounds the last look of an executor that ends.
const leaveWait = 2 * time.Second

// Leave looks once more, so that an executor that ended in order remembers all that it could have seen.
func (s keptStore) Leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveWait)
	defer cancel()
	if s.conn.LookNow(ctx) == nil {
		s.Keeper.Leave()
	}
	s.Depart()
}

// talk lets the keeper and those of other processes hear one another until stop is called, which is after the last write.
func talk(ctx context.Context, conn *streams.Conn, k *generation.Keeper) (stop func(), err error) {
	deaf, err := conn.OnTold(fleet.Hint, k.Told)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		k.Talk(ctx)
	}()
	return func() {
		cancel()
		<-ended
		deaf()
	}, nil
}

// keeper makes the keeper of generations of a process; j and restore are nil for a reconciler.
func (p *process) keeper(c *Process, conn *streams.Conn, j *journal.Journal, restore func(context.Context) error) (*generation.Keeper, error) {
	config := generation.Config{
		ID: c.ID, Store: conn, Ready: p.ready, Log: p.log, Retention: c.RunRetention, Lost: p.observer.StoreLost,
		Now: func() envelope.Time { return envelope.TimeNotBefore(conn.Clock().Upper()) }, Restore: restore,
		Seen: conn.Seen, Tell: func(data []byte) { _ = conn.Tell(fleet.Hint, data) }, // it is said again
	}
	name := ""
	if j != nil {
		name = journalID(j)
		host, err := os.Hostname()
		if err != nil {
			return nil, err
		}
		dir, err := filepath.Abs(filepath.Dir(j.Path()))
		if err != nil {
			return nil, err
		}
		config.Journal = j
		config.Member = generation.Member{Journal: name, Holder: j.Holder(), ID: c.ID, Host: host, Dir: dir}
	}
	k, err := generation.New(config)
	if err != nil {
		return nil, err
	}
	conn.OnLook(func(st streams.Status) {
		look := generation.Look{
			Asked: st.Asked, Created: st.Created, Last: st.Last, Losses: st.Losses, Loss: st.Loss,
			State: st.Fleet[generation.StateName].Data, Member: st.Fleet[name].Seq,
		}
		if c := st.Changed; c != nil && c.What == streams.Settings && c.Stream == topology.RunsStream {
			look.Unfit = c.Error()
		}
		p.observer.StoreChanged(st.Changed != nil && st.Changed.What == streams.Settings, st.Changed != nil && st.Changed.What == streams.Paused)
		k.Together(conn.Server())
		k.Looked(look)
	})
	return k, nil
}

// LostJournal says in the fleet's present generation that a journal is lost, so that nobody waits for it: the writes that
// only it knew may be sent again.
func LostJournal(ctx context.Context, c Connection, journal string) error {
	if !run.ValidID(journal) {
		return errors.New("a journal's id is what /readyz and doctor name it by")
	}
	o := c.bus("executor journal lost")
	o.Logger = slog.New(slog.DiscardHandler) // the error says it
	return once(ctx, o, executorRights, func(ctx context.Context, conn *streams.Conn) error {
		if err := conn.Require(ctx, topology.RunsStream); err != nil {
			return fmt.Errorf("%w (is this a user of the fleet's account, and has a reconciler been started?)", err)
		}
		return generation.Confirm(ctx, conn, journal, nil)
	})
}

// executorRights is who may do what an executor does.
const executorRights = "the user executor of deploy/nats/accounts.conf has it"
