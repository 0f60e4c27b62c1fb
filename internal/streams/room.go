package streams

import (
	"context"
	"fmt"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
)

// headroom is what the server's limit of a replicated stream of registers is above ours. A single server lets an update
// through when the stream is full; a replicated stream counts it as one more and refuses it. There Conn.Admit keeps to
// our limit.
const headroom = 1024

func serverLimit(n int64, replicas int) int64 {
	if n > 0 && replicas > 1 {
		return n + n/10 + headroom
	}
	return n
}

// ourLimit is the inverse of serverLimit.
func ourLimit(n int64, replicas int) int64 {
	if n > headroom && replicas > 1 {
		return ((n-headroom)*10 + 10) / 11
	}
	return n
}

// Admit keeps a place for a new message of a stream of registers until done is called, with whether it was stored. In a
// replicated stream it refuses one beyond our limit (see serverLimit). What others have added since the last look is not
// counted: the server's own limit bounds that.
func (c *Conn) Admit(ctx context.Context, stream string) (done func(stored bool), err error) {
	for fresh := false; ; fresh = true {
		c.mu.Lock()
		count, limit, kept := &c.status.Runs, c.status.RunsMax, &c.status.runsKept
		if stream == topology.LettersStream {
			count, limit, kept = &c.status.Letters, c.status.LettersMax, &c.status.lettersKept
		}
		room := !c.status.replicated || *count+*kept < limit
		if room {
			*kept++
		}
		c.mu.Unlock()
		if room {
			return func(stored bool) {
				c.mu.Lock()
				defer c.mu.Unlock()
				*kept--
				if stored && (limit <= 0 || *count < limit) { // a look meanwhile may have counted it
					*count++ // exact again at the next look
				}
			}, nil
		}
		if fresh {
			return nil, fmt.Errorf("%w: %s has %d messages", port.ErrFull, stream, limit)
		}
		if err := c.observe(ctx); err != nil {
			return nil, err
		}
	}
}

// LettersFull reads whether the stream of letters is at its limit: what ends then waits for room, and is not lost.
func (c *Conn) LettersFull(ctx context.Context) (bool, error) {
	f, err := c.Facts(ctx, topology.LettersStream)
	if err != nil {
		return false, fmt.Errorf("streams: size of the letters: %w", err)
	}
	limit := ourLimit(f.Config.MaxMsgs, f.Config.Replicas)
	return limit > 0 && f.State.Messages >= limit, nil
}
