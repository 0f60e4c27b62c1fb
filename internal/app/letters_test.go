package app_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
)

// readyz is what a process says of its readiness.
func (s *stack) readyz(p *process) (status int, text string) {
	s.t.Helper()
	resp, err := http.Get("http://" + p.http + "/readyz")
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// At --max-letters ends wait, and everybody says so: the executor counts the letters that there are and not the attempts
// to write one, the reconciler is not ready while what it must write is refused, and an audit finds nothing broken. With
// room again everything is said.
func TestAtTheLimitOfLetters(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.args = []string{"--lease", "1s", "--max-letters", "20"}
	s.answer(notFound)
	r := s.reconciler("r1")
	const runs, most = 30, 20
	for i := range runs {
		s.submit("acme", fmt.Sprintf("r%d", i), []M{step("s", "tell", nil)})
	}
	e := s.executor("w1")
	bustest.Eventually(t, "all have ended, and as many letters are written as there may be", func() bool {
		return len(s.op("runs.list", "acme", M{"state": "fatal"}).Runs) == runs && len(s.letters()) == most
	})
	bustest.Eventually(t, "the reconciler says that letters find no room", func() bool {
		status, text := s.readyz(r)
		return status == 503 && strings.Contains(text, "dead letters of") && strings.Contains(text, "--max-letters")
	})
	bustest.Eventually(t, "the executor says how many letters are open", func() bool {
		_, text := s.readyz(e)
		_, text, _ = strings.Cut(text, "room: ")
		var open int
		if n, _ := fmt.Sscanf(text, "%d dead letters are open, --max-letters is 20", &open); n == 1 && open > most {
			t.Fatalf("the executor says %q", text)
		}
		return open == most
	})
	report, err := app.Audit(t.Context(), app.Connection{NATS: s.server.URL}, "audit")
	if err != nil || len(report.Found) != 0 || report.Waiting != runs-most {
		t.Errorf("the audit found %v, and %d that wait: %v", report.Found, report.Waiting, err)
	}
	for _, subject := range s.letters()[:runs-most] {
		s.op("deadletters.discard", "acme", M{"run_id": subject[strings.LastIndexByte(subject, '.')+1:], "by": "alice", "reason": "x"})
	}
	bustest.Eventually(t, "every run's end is said", func() bool { return len(s.outcomes("agentrun.results.acme.*.run")) == runs })
	bustest.Eventually(t, "the reconciler is ready again", func() bool { status, _ := s.readyz(r); return status == 200 })
	report, err = app.Audit(t.Context(), app.Connection{NATS: s.server.URL}, "audit")
	if err != nil || len(report.Found) != 0 || report.Waiting != 0 {
		t.Errorf("afterwards the audit found %v, and %d that wait: %v", report.Found, report.Waiting, err)
	}
}
