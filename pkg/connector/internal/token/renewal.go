package token

import (
	"net/http"
	"time"

	"github.com/agentrun/executor/pkg/connector"
)

// refusalsMax bounds how many operations are remembered whose token was refused: twice as many may be.
const refusalsMax = 4096

// Credentials are what calls go out with that may be renewed: an access token, texts from files, both or nothing.
type Credentials struct {
	Tokens *Source                // nil: none
	Files  []connector.SecretFile // as they were when the calls were made ready
}

// Answered is told of each complete answer to a call, with the token that it carried. It says of a 401 that the credentials
// are being renewed, if they are: a token is, once for each operation, and a file is if it holds something else by now.
func (c *Credentials) Answered(r *connector.Request, status int, id uint64) (out *connector.Renewal) {
	refused := status == http.StatusUnauthorized
	if c.Tokens != nil {
		operation := r.OperationRef
		if r.Lookup {
			operation += " lookup" // no reference has a space
		}
		out = c.Tokens.answered(operation, refused, id)
	}
	if refused && connector.Renewed(c.Files) {
		out = &connector.Renewal{After: connector.RenewalWait}
	}
	return out
}

// answered notes whether a token was refused where it was used. It is renewed for an operation once: who is refused with the
// next one as well is not let in.
func (s *Source) answered(operation string, refused bool, id uint64) *connector.Renewal {
	s.mu.Lock()
	defer s.mu.Unlock()
	with, before := s.refusals.get(operation)
	s.refusals.forget(operation)
	if !refused || before && with != id {
		return nil
	}
	s.refusals.put(operation, id)
	return &connector.Renewal{After: s.drop(id, time.Now())}
}

// Drop says that a token was refused where it was used by something that is no operation.
func (s *Source) Drop(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(id, time.Now())
}

// drop ends the use of a token: at once, or a pause after the drop before it, so that an API which takes no token of this
// client does not have one asked for with every call. It returns how long the token is still used.
func (s *Source) drop(id uint64, now time.Time) time.Duration {
	if s.current.ID != id {
		return 0 // there is another one already
	}
	at := now
	if next := s.dropped.Add(pause); !s.dropped.IsZero() && now.Before(next) {
		at = next
	}
	if now.Before(s.dropped) {
		at = s.dropped // that drop is still to come
	}
	s.dropped = at
	if at.Equal(now) {
		s.current = held{}
		return 0
	}
	if s.current.end.IsZero() || at.Before(s.current.end) {
		s.current.renew, s.current.end = at, at
	}
	return at.Sub(now)
}

// refusals are the operations whose last answer was that their token is refused, with that token. The oldest are forgotten
// first; the zero value is ready for use.
type refusals struct{ young, old map[string]uint64 }

func (r *refusals) get(operation string) (id uint64, there bool) {
	if id, there = r.young[operation]; !there {
		id, there = r.old[operation]
	}
	return id, there
}

func (r *refusals) put(operation string, id uint64) {
	if r.young == nil || len(r.young) == refusalsMax {
		r.young, r.old = map[string]uint64{}, r.young
	}
	r.young[operation] = id
}

func (r *refusals) forget(operation string) {
	delete(r.young, operation)
	delete(r.old, operation)
}
