package streams

import (
	"testing"

	"github.com/agentrun/executor/internal/topology"
)

// A look that comes while messages are on their way counts those that are stored already: a stream never seems to hold more
// than it may.
func TestNoMoreThanThereMayBe(t *testing.T) {
	for _, replicated := range []bool{false, true} {
		c := &Conn{}
		c.status.LettersMax, c.status.replicated = 2, replicated
		var settled []func(bool)
		for range 2 {
			s, err := c.Admit(t.Context(), topology.LettersStream)
			if err != nil {
				t.Fatal(err)
			}
			settled = append(settled, s)
		}
		c.status.Letters = 1 // the look
		settled[0](true)
		settled[1](true)
		if c.status.Letters != 2 || c.status.lettersKept != 0 {
			t.Errorf("replicated %t: %d letters of 2, %d places kept", replicated, c.status.Letters, c.status.lettersKept)
		}
	}
}
