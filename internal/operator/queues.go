package operator

import (
	"context"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/run"
)

// Queues is what is known of the queues of jobs. Safe for concurrent use.
type Queues interface {
	// Pulled reports whether a living executor takes the queue's jobs; known is false while that cannot be said.
	Pulled(queue string) (pulled, known bool)
	// List are all queues by name, read now, and how many jobs lie in queues that are not among them.
	List(ctx context.Context) (queues []Queue, unnamed int64, err error)
}

// Queue is one queue of jobs.
type Queue struct {
	Queue     string `json:"queue"`
	Waiting   int64  `json:"waiting"`   // jobs, those in an executor's hands included
	Executors int    `json:"executors"` // that take them
	Pulled    bool   `json:"pulled"`    // there is one at least
}

// QueuesRequest asks for all queues.
type QueuesRequest struct{}

// QueuesReply has all queues by name.
type QueuesReply struct {
	OK      bool    `json:"ok"`
	Queues  []Queue `json:"queues"`
	Unnamed int64   `json:"unnamed,omitempty"` // jobs of queues that nobody pulls and whose names are not found yet
}

// QueueRequest names a queue.
type QueueRequest struct {
	Queue string `json:"queue"`
}

// QueueReply is all that a publisher may know of a queue.
type QueueReply struct {
	OK     bool   `json:"ok"`
	Queue  string `json:"queue"`
	Pulled bool   `json:"pulled"`
}

// errUnheard is the answer while executors have not been heard.
func errUnheard() error {
	return refuse(Unavailable, "which executors there are is not known yet: make the same call again. If it stays so, let the reconciler's NATS user publish on agentrun.hint.> and subscribe to agentrun.hint._tools")
}

func (o *Operator) listQueues(ctx context.Context, tenant string, _ *QueuesRequest) (any, error) {
	if tenant != port.AllTenants {
		return nil, badRequest("the queues are everyone's: ask for them with %s in the place of the tenant", port.AllTenants)
	}
	if _, known := o.Queues.Pulled(""); !known {
		return nil, errUnheard()
	}
	queues, unnamed, err := o.Queues.List(ctx)
	if err != nil {
		return nil, err
	}
	return QueuesReply{OK: true, Queues: queues, Unnamed: unnamed}, nil
}

func (o *Operator) getQueue(_ context.Context, _ string, q *QueueRequest) (any, error) {
	if !run.ValidID(q.Queue) {
		return nil, badRequest("queue is no identifier")
	}
	pulled, known := o.Queues.Pulled(q.Queue)
	if !known {
		return nil, errUnheard()
	}
	return QueueReply{OK: true, Queue: q.Queue, Pulled: pulled}, nil
}
