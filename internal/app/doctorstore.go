package app

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/generation"
)

// generation says whether the store of runs is the one that this executor's journal knows, and whether the fleet waits for
// journals.
func (d *doctor) generation(ctx context.Context, nc *nats.Conn, js jetstream.JetStream) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	s, err := js.Stream(ctx, bus.RunsStream)
	if err != nil {
		return // streams has said so
	}
	info := s.CachedInfo()
	const fix = "start executor serve, which restores the journal by itself, before anything else; by hand: executor journal restore --data DIR --nats URL --config FILE"
	switch k := d.known; {
	case k.Created.IsZero():
	case !k.Created.Equal(info.Created):
		d.find("store", Ill, fix, "%s is not the one that the journal knows: it was made anew", bus.RunsStream)
		return
	case info.State.LastSeq < k.Seen:
		d.find("store", Ill, fix, "%s has gone back: it ends at sequence %d, and this executor has seen %d", bus.RunsStream, info.State.LastSeq, k.Seen)
		return
	}
	m, err := nc.RequestWithContext(ctx, "$JS.API.DIRECT.GET."+bus.RunsStream+".agentrun.runs._fleet."+generation.StateName, nil)
	if err != nil || m.Header.Get("Status") != "" {
		if err != nil && !errors.Is(err, nats.ErrNoResponders) {
			d.find("store", Doubtful, "give this user the direct gets of deploy/nats/accounts.conf", "whether the fleet waits for journals cannot be read: %v", err)
		}
		return
	}
	var state generation.State
	if err := json.Unmarshal(m.Data, &state); err != nil {
		d.find("store", Doubtful, "use the newest version's doctor", "the record of its generation cannot be read: %v", err)
		return
	}
	var names []string
	for _, m := range state.Missing() {
		names = append(names, m.String())
	}
	if len(names) > 0 {
		d.find("store", Ill, "start these executors on their disks; executor journal restore for one that cannot start, executor journal lost ID for one whose journal is lost",
			"records were lost (%s), and the fleet waits for the journals of %s", state.Cause, strings.Join(names, ", "))
		return
	}
	d.find("store", Well, "", "no journal is waited for")
}
