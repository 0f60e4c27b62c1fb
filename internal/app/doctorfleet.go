package app

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/fleet"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/terminal"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/client"
)

// queues asks a reconciler for queues that have jobs and that nobody pulls; those of this executor are consumers' part.
func (d *doctor) queues(ctx context.Context, nc *nats.Conn) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	reply, err := askQueues(ctx, nc)
	switch {
	case errors.Is(err, client.ErrNoReconciler):
		d.find("queues", Doubtful, "start a reconciler: it settles what executors leave behind, and sees queues that nobody pulls", "no reconciler answers")
		return
	case err != nil:
		d.find("queues", Doubtful, "let this user publish on "+topology.OpSubject("queues.list", client.AllTenants)+" (deploy/nats/accounts.conf), and start reconcilers of this version",
			"whether there are queues that nobody pulls cannot be learned: %v", err)
		return
	}
	unpulled := reply.Unnamed
	for _, q := range reply.Queues {
		if q.Pulled || q.Waiting == 0 || slices.Contains(d.Queues, q.Queue) {
			continue
		}
		unpulled += q.Waiting
		d.find("queue "+q.Queue, Doubtful, "start an executor with --queues "+q.Queue+"; if a publisher has misspelt the name: nats stream purge "+topology.JobsStream+" --subject "+"'agentrun.jobs."+q.Queue+".>'",
			"%s", terminal.Count(q.Waiting, "job waits and no executor takes it", "jobs wait and no executor takes them"))
	}
	if reply.Unnamed > 0 {
		d.find("queues", Doubtful, "nats stream subjects "+topology.JobsStream+" names them", "%s in queues that no executor takes", terminal.Count(reply.Unnamed, "job is", "jobs are"))
	} else if unpulled == 0 {
		d.find("queues", Well, "", "no other queue has jobs that nobody takes")
	}
}

// askQueues makes the call until it is answered: a reconciler that has only just started does not know yet.
func askQueues(ctx context.Context, nc *nats.Conn) (*client.QueueList, error) {
	c, err := client.New(nc)
	if err != nil {
		return nil, err
	}
	for {
		list, err := c.Queues(ctx)
		if !errors.Is(err, client.ErrUnavailable) {
			return list, err
		}
		if !pause.For(ctx, 100*time.Millisecond) {
			return nil, err
		}
	}
}

// executors lists those that live, with what each works by, and says where those of one queue differ. The file of this
// executor is held against theirs: it may have been changed and not be loaded.
func (d *doctor) executors(ctx context.Context, nc *nats.Conn) {
	all, err := askExecutors(ctx, nc)
	if err != nil {
		d.find("executors", Doubtful, "let this user publish and subscribe to "+topology.HintSubject(fleet.Hint)+" (deploy/nats/accounts.conf)", "which there are cannot be learned: %v", err)
		return
	}
	if len(all) == 0 {
		d.find("executors", Well, "", "none runs")
		return
	}
	for _, e := range all {
		d.find("executor "+e.ID, Well, "", "version %s, config %s, %d tools, queues %s", cmp.Or(e.Version, "not told"), cmp.Or(e.Config, "not told"),
			len(e.Tools), strings.Join(e.Queues, ", "))
	}
	if d.file != nil {
		own := d.file.Digests()
		all = append(all, fleet.Offer{ID: "the file " + d.Config, Queues: d.Queues, Config: own.File, Parts: own.Parts})
	}
	found := fleet.Differences(all)
	for _, line := range found {
		d.find("configs", Doubtful, "give each the same file and reload it (SIGHUP); executors that differ on purpose are better given queues of their own", "%s", line)
	}
	if len(found) == 0 {
		d.find("configs", Well, "", "executors of one queue work by one config")
	}
}

// answersWithin is how long executors have to answer a doctor.
const answersWithin = 500 * time.Millisecond

// askExecutors asks all executors what they have.
func askExecutors(ctx context.Context, nc *nats.Conn) ([]fleet.Offer, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	subject := topology.HintSubject(fleet.Hint)
	all := fleet.NewOnlooker(func(data []byte) error { return nc.Publish(subject, data) })
	sub, err := nc.SubscribeSync(subject)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	all.Ask()
	if err := nc.FlushWithContext(ctx); err != nil {
		return nil, err
	}
	if last := nc.LastError(); last != nil && strings.Contains(last.Error(), subject) {
		return nil, last
	}
	ctx, cancel = context.WithTimeout(ctx, answersWithin)
	defer cancel()
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			break
		}
		all.Told(m.Data)
	}
	if heard, _ := all.Hears(); !heard {
		return nil, errors.New("the question was not heard")
	}
	return all.Living(), nil
}
