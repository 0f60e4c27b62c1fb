package app_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/bus/bustest"
)

// The server takes messages of 64 KB. What does not fit is kept as an object or refused when it comes; no run waits for its
// deadline because its record, its outcome or its letter is too large to be stored. A server with another limit counts as
// soon as it is connected.
func TestLimitsFollowTheServer(t *testing.T) {
	t.Parallel()
	s := newStack(t, bustest.MaxPayload(64<<10))
	s.executor("e1")
	s.reconciler("r1")
	of := func(kb int) func(*http.Request, string, int) (int, string) {
		return func(*http.Request, string, int) (int, string) {
			return 200, `{"id":"x1","text":"` + strings.Repeat("x", kb<<10) + `"}`
		}
	}
	ends := func(runID, outcome string) {
		t.Helper()
		if o := s.end("acme", runID, 1); o.Outcome != outcome {
			t.Errorf("%s: %s, %s", runID, o.Outcome, o.Reason)
		}
	}
	// place says where the result of a run's first step is.
	place := func(runID string) string {
		for _, o := range s.outcomes("agentrun.results.acme." + runID + ".step") {
			switch {
			case o.Envelope["result_ref"] != nil:
				return "object"
			case o.Envelope["result"] != nil:
				return "outcome"
			}
		}
		return "nowhere"
	}

	s.answer(of(100))
	s.submit("acme", "large", []M{step("a", "load", nil), step("b", "pay", nil)})
	ends("large", "ok")
	if got := place("large"); got != "object" || s.count("POST /pay") != 1 {
		t.Errorf("a result of 100 KB is in the %s, %d payments", got, s.count("POST /pay"))
	}

	s.answer(of(12)) // small ones, which only together do not fit
	var many []M
	for i := range 12 {
		many = append(many, step(fmt.Sprintf("s%d", i), "pay", nil))
	}
	s.submit("acme", "many", many)
	ends("many", "ok")

	// A job that fits the server's messages, and whose record does not.
	s.submit("acme", "refused", []M{step("a", "load", M{"text": strings.Repeat("x", 58<<10)})})
	ends("refused", "fatal")
	if n := len(s.letters()); n != 1 {
		t.Errorf("%d letters for the job that was refused", n)
	}

	s.server.Stop()
	s.server.Change(bustest.MaxPayload(1 << 20))
	s.server.StartAgain()
	s.answer(of(100))
	s.submit("acme", "roomy", []M{step("a", "load", nil)})
	ends("roomy", "ok")
	if got := place("roomy"); got != "outcome" {
		t.Errorf("with 1 MiB a result of 100 KB is in the %s", got)
	}
}
