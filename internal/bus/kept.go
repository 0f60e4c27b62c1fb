package bus

import (
	"context"
	"fmt"
	"time"
)

// Keeper is what a connection asks of whoever keeps its streams (internal/streams). All methods are safe for concurrent use;
// but for Admit they return at once.
type Keeper interface {
	// Check asks for a look at the streams soon: one does not answer, or the connection has changed.
	Check()
	// Forget throws away what the last look found: whoever comes back may have another store. Doubt is both: something
	// contradicts what was found.
	Forget()
	Doubt()
	// Saw notes that AGENTRUN_RUNS has reached a sequence.
	Saw(seq uint64)
	// Single reports whether the streams have one replica each, so that whoever answers is the leader.
	Single() bool
	// Admit keeps a place for a new message of a stream of registers until done is called, with whether it was stored.
	// port.ErrFull.
	Admit(ctx context.Context, stream string) (done func(stored bool), err error)
	// Bucket is what the object store is made with, should it not be there.
	Bucket() (replicas int, retention time.Duration)
}

// unkept are streams that nobody keeps: the connection of a command, which takes them as they are.
type unkept struct{}

func (unkept) Check()                       {}
func (unkept) Forget()                      {}
func (unkept) Doubt()                       {}
func (unkept) Saw(uint64)                   {}
func (unkept) Single() bool                 { return false }
func (unkept) Bucket() (int, time.Duration) { return 0, 0 }
func (unkept) Admit(context.Context, string) (func(bool), error) {
	return func(bool) {}, nil
}

// Facts is the part of a stream's info that matters here.
type Facts struct {
	Created time.Time `json:"created"`
	Now     time.Time `json:"ts"`
	Config  struct {
		MaxMsgs     int64 `json:"max_msgs"`
		Replicas    int   `json:"num_replicas"`
		AllowDirect bool  `json:"allow_direct"`
	} `json:"config"`
	State struct {
		Messages int64  `json:"messages"`
		FirstSeq uint64 `json:"first_seq"`
		LastSeq  uint64 `json:"last_seq"`
	} `json:"state"`
}

// Facts reads a stream's info, and the clock with it.
func (c *Conn) Facts(ctx context.Context, stream string) (Facts, error) {
	var f Facts
	sent := c.clock.now()
	if err := c.Ask(ctx, "STREAM.INFO."+stream, nil, &f); err != nil {
		return Facts{}, fmt.Errorf("stream %s: %w", stream, err)
	}
	if !f.Now.IsZero() {
		c.clock.sample(f.Now, sent, c.clock.now())
	}
	return f, nil
}
