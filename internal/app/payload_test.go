package app_test

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/run"
)

// runs.get shows each call as it went, and while one is in flight who holds the run; runs.payload has args and results,
// without what the config keeps secret.
func TestWhatARunShows(t *testing.T) {
	t.Setenv("SECRET_OF_THE_CONFIG", "hunter2-hunter2")
	s := newStack(t)
	config, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(config), `url: "`+s.URL+`/load"`, `url: "`+s.URL+`/load", headers: {X: "${SECRET_OF_THE_CONFIG}"}`, 1)
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	arrived, goOn := make(chan struct{}), make(chan struct{})
	s.answer(func(r *http.Request, _ string, n int) (int, string) {
		switch {
		case r.URL.Path == "/load" && n == 1:
			return 503, "{}"
		case r.URL.Path == "/load":
			return 200, `{"id":"l1","header":"` + r.Header.Get("X") + `"}`
		}
		close(arrived)
		<-goOn
		return 201, `{"id":"p1"}`
	})
	s.executor("w1")
	s.reconciler("r1")
	s.submit("acme", "r", []M{step("a", "load", M{"n": 1}), step("b", "pay", M{"id": M{"$from": "a#/id"}})})
	<-arrived
	r := s.op("runs.get", "acme", M{"run_id": "r"})
	if l := r.Run.Lease; l == nil || l.Worker != "w1" || l.SignAt == 0 || l.Left <= 0 || l.Left > l.Seconds {
		t.Errorf("lease %+v", l)
	}
	payload := func() []run.Payload {
		t.Helper()
		r := s.op("runs.payload", "acme", M{"run_id": "r"})
		if len(r.Steps) != 2 {
			t.Fatalf("%+v", r.Steps)
		}
		return r.Steps
	}
	if p := payload(); string(p[0].Args) != `{"n":1}` || string(p[0].Result) != `{"id":"l1","header":"[redacted]"}` || string(p[1].Args) != `{"id":"l1"}` {
		t.Errorf("%s %s %s", p[0].Args, p[0].Result, p[1].Args)
	}
	close(goOn)
	if o := s.end("acme", "r", 1); o.Outcome != "ok" {
		t.Fatalf("ended %s", o.Outcome)
	}
	r = s.op("runs.get", "acme", M{"run_id": "r"})
	var status []int
	for _, e := range r.Run.History {
		if e.Kind == engine.EventDispatch {
			status = append(status, e.HTTPStatus)
			if e.SentAt < e.StartedAt || e.AnsweredAt < e.SentAt {
				t.Errorf("started %s, sent %s, answered %s", e.StartedAt, e.SentAt, e.AnsweredAt)
			}
		}
	}
	if len(status) != 3 || status[0] != 503 || status[1] != 200 || status[2] != 201 || r.Run.Lease != nil {
		t.Errorf("statuses %v, lease %+v", status, r.Run.Lease)
	}
	if p := payload(); len(p[1].Result) == 0 {
		t.Errorf("the result of a run that has ended: %+v", p)
	}
}
