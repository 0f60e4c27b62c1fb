package app

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/operator"
)

// queues asks a reconciler for queues that have jobs and that nobody pulls; those of this executor are consumers' part.
func (d *doctor) queues(ctx context.Context, nc *nats.Conn) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	reply, err := askQueues(ctx, nc)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		d.find("queues", Doubtful, "start a reconciler: it settles what executors leave behind, and sees queues that nobody pulls", "no reconciler answers")
		return
	case err != nil:
		d.find("queues", Doubtful, "let this user publish on "+queuesSubject+" (deploy/nats/accounts.conf), and start reconcilers of this version",
			"whether there are queues that nobody pulls cannot be learned: %v", err)
		return
	}
	unpulled := reply.Unnamed
	for _, q := range reply.Queues {
		if q.Pulled || q.Waiting == 0 || slices.Contains(d.Queues, q.Queue) {
			continue
		}
		unpulled += q.Waiting
		d.find("queue "+q.Queue, Doubtful, "start an executor with --queues "+q.Queue+"; if a publisher has misspelt the name: nats stream purge "+bus.JobsStream+" --subject "+"'agentrun.jobs."+q.Queue+".>'",
			"%d jobs wait and no executor takes them", q.Waiting)
	}
	if reply.Unnamed > 0 {
		d.find("queues", Doubtful, "nats stream subjects "+bus.JobsStream+" names them", "%d jobs are in queues that no executor takes", reply.Unnamed)
	} else if unpulled == 0 {
		d.find("queues", Well, "", "no other queue has jobs that nobody takes")
	}
}

// queuesSubject is where queues.list is answered.
const queuesSubject = opPrefix + "queues.list." + operator.All

// askQueues makes the call until it is answered: a reconciler that has only just started does not know yet.
func askQueues(ctx context.Context, nc *nats.Conn) (*operator.QueuesReply, error) {
	for {
		m, err := Request(ctx, nc, queuesSubject, []byte("{}"))
		if err != nil {
			return nil, err
		}
		var refusal operator.RefusalShape
		reply := new(operator.QueuesReply)
		if err := errors.Join(json.Unmarshal(m.Data, &refusal), json.Unmarshal(m.Data, reply)); err != nil {
			return nil, err
		}
		if reply.OK {
			return reply, nil
		}
		timer := time.NewTimer(100 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, errors.New(refusal.Message)
		}
	}
}
