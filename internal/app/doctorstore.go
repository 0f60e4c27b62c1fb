package app

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/generation"
	"github.com/agentrun/executor/internal/topology"
)

// generation says whether the store of runs is the one that this executor's journal knows, and whether the fleet waits for
// journals.
func (d *doctor) generation(ctx context.Context, nc *nats.Conn, js jetstream.JetStream) {
	s, err := d.stream(ctx, js, topology.RunsStream)
	if err != nil {
		return // streams has said so
	}
	info := s.CachedInfo()
	const fix = "start executor serve, which restores the journal by itself, before anything else; by hand: executor journal restore --data DIR --nats URL --config FILE"
	switch k := d.known; {
	case k.Created.IsZero():
	case !k.Created.Equal(info.Created):
		d.find("store", Ill, fix, "%s is not the one that the journal knows: it was made anew", topology.RunsStream)
		return
	case info.State.LastSeq < k.Seen:
		d.find("store", Ill, fix, "%s has gone back: it ends at sequence %d, and this executor has seen %d", topology.RunsStream, info.State.LastSeq, k.Seen)
		return
	}
	m, err := d.request(ctx, nc, d.API().Subject("DIRECT.GET."+topology.RunsStream+"."+topology.FleetSubject(generation.StateName)), nil)
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

// jetstream reports whether anybody answers the API that the flags name. Who is not permitted to ask is told by streams.
func (d *doctor) jetstream(ctx context.Context, js jetstream.JetStream) bool {
	_, err := d.stream(ctx, js, topology.RunsStream)
	if !bus.Unanswered(err) {
		return true
	}
	d.find("jetstream", Ill, bus.ElsewhereRemedy, "%s does not answer this user: %v", d.API().Subject(">"), err)
	return false
}

// streams looks at every stream: is it there, has it the copies it must have, does it keep what it is given?
func (d *doctor) streams(ctx context.Context, js jetstream.JetStream) {
	for _, name := range []string{topology.JobsStream, topology.WakesStream, topology.RunsStream, topology.ResultsStream, topology.LettersStream, topology.AlertsStream} {
		s, err := d.stream(ctx, js, name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			d.find(name, Doubtful, "start a reconciler: it makes the streams; where they are in another JetStream domain or account, name it with --js-domain or --js-prefix", "not there yet")
			continue
		case err != nil:
			d.find(name, Ill, "give this user "+d.API().Subject("STREAM.INFO."+name)+" (deploy/nats/accounts.conf)", "not readable: %v", err)
			continue
		}
		info := s.CachedInfo()
		if name == topology.RunsStream {
			off := time.Since(info.TimeStamp)
			h := Well
			if off.Abs() > clockOffMax {
				h = Doubtful
			}
			d.find("clock", h, "let NTP set both clocks; times in outcomes are the server's", "%s off the server's", off.Round(time.Millisecond))
		}
		if faults := losing(info.Config); len(faults) > 0 {
			d.find(name, Ill, "correct it with nats stream edit, or remove an empty one and let a reconciler make it", "%s", strings.Join(faults, "; "))
			continue
		}
		if info.Config.Replicas < d.Replicas {
			d.find(name, Ill, "start a reconciler with the same --replicas", "%d copies, --replicas is %d", info.Config.Replicas, d.Replicas)
			continue
		}
		d.find(name, Well, "", "%d messages, %d copies", info.State.Msgs, info.Config.Replicas)
	}
}

// losing names the settings with which a stream would lose what is relied on.
func losing(c jetstream.StreamConfig) (faults []string) {
	fault := func(is bool, text string) {
		if is {
			faults = append(faults, text)
		}
	}
	kept := c.Name != topology.ResultsStream && c.Name != topology.AlertsStream // these two forget by age
	fault(c.Storage != jetstream.FileStorage, "it is in memory only")
	fault(c.NoAck, "it acknowledges nothing")
	fault(kept && c.Discard != jetstream.DiscardNew, "when full it drops old messages")
	fault(kept && c.MaxAge > 0, "its messages expire")
	fault(!kept && c.MaxMsgs > 0, "it drops old messages by number")
	fault((c.Name == topology.RunsStream || c.Name == topology.LettersStream) && c.MaxBytes > 0, "it is limited by bytes, so that an update may be refused")
	fault(c.Name == topology.JobsStream && (c.AllowRollup || c.AllowMsgTTL || c.AllowMsgSchedules), "publishers may remove or schedule messages by a header")
	fault((c.Name == topology.JobsStream || c.Name == topology.WakesStream) != (c.Retention == jetstream.WorkQueuePolicy), "its retention is not what it must be")
	return faults
}
