package client

import "context"

// Queue is one queue of jobs.
type Queue struct {
	Queue     string `json:"queue"`
	Waiting   int64  `json:"waiting"`   // jobs, those in an executor's hands included
	Executors int    `json:"executors"` // that take them
	Pulled    bool   `json:"pulled"`    // there is one at least
}

// QueueList has all queues, by name.
type QueueList struct {
	Queues []Queue `json:"queues"`
	// Unnamed counts jobs of queues that no executor takes and whose names have not been found among very many others.
	Unnamed int64 `json:"unnamed"`
}

// Queues returns all queues of jobs, for those whose NATS user may ask for it. ErrUnavailable: the reconciler that answers
// has only just started.
func (c *Client) Queues(ctx context.Context) (*QueueList, error) {
	list := new(QueueList)
	if err := c.call(ctx, "queues.list", AllTenants, callWithin, struct{}{}, list); err != nil {
		return nil, err
	}
	return list, nil
}

// Pulled reports whether a living executor takes the queue's jobs. A job for a queue that nobody takes waits there until
// somebody does, so that a publisher may ask this to find a name that is misspelt. A tenant's publisher needs the right to
// publish on agentrun.op.queues.get.<tenant>. ErrUnavailable: it cannot be said now.
func (c *Client) Pulled(ctx context.Context, tenant, queue string) (bool, error) {
	var r struct {
		Pulled bool `json:"pulled"`
	}
	if err := c.call(ctx, "queues.get", tenant, callWithin, map[string]string{"queue": queue}, &r); err != nil {
		return false, err
	}
	return r.Pulled, nil
}
