package app_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/deadletter"
)

// page reads what a process shows on its HTTP port.
func (p *process) page(t *testing.T, path string) string {
	t.Helper()
	resp, err := http.Get("http://" + p.http + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// A queue whose executor has gone, or that never had one, is known by name to whoever publishes, to operators and in the
// metrics; one that an executor takes is not among them, however busy or new it is.
func TestAQueueThatNobodyPulls(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	r := s.reconciler("r1")
	e := s.executor("w1", "--queues", "default,slow")
	c, err := client.New(s.nc)
	if err != nil {
		t.Fatal(err)
	}
	pulled := func(queue string, want bool) {
		t.Helper()
		bustest.Eventually(t, queue, func() bool {
			got, err := c.Pulled(t.Context(), "acme", queue)
			if err != nil && !errors.Is(err, client.ErrUnavailable) {
				t.Fatal(err)
			}
			return err == nil && got == want
		})
	}
	pulled("default", true)
	pulled("slow", true)
	pulled("defualt", false)
	if _, err := c.Pulled(t.Context(), "acme", "not a queue"); !errors.Is(err, client.ErrBadRequest) {
		t.Errorf("no queue's name: %v", err)
	}
	if _, err := s.js.Publish(t.Context(), "agentrun.jobs.defualt.acme.r", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := e.stop(); err != nil {
		t.Fatal(err)
	}
	pulled("default", false) // at once: it has said that it goes
	s.submit("acme", "r", []M{step("a", "load", nil)})

	const want = `{"queues":[{"queue":"default","waiting":1,"executors":0,"pulled":false},{"queue":"defualt","waiting":1,"executors":0,"pulled":false},{"queue":"slow","waiting":0,"executors":0,"pulled":false}],"unnamed":0}`
	// The server counts a message for its consumers a moment after it has acknowledged it.
	bustest.Eventually(t, "what waits where", func() bool {
		list, err := c.Queues(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		return string(got) == want
	})
	bustest.Eventually(t, "the metrics name it", func() bool {
		metrics := r.page(t, "/metrics")
		return strings.Contains(metrics, `agentrun_jobs_unpulled{queue="default"} 1`) && strings.Contains(metrics, `agentrun_jobs_unpulled{queue="defualt"} 1`) &&
			strings.Contains(metrics, `agentrun_jobs_waiting{queue="slow"} 0`)
	})
	again := s.executor("w2")
	pulled("default", true)
	bustest.Eventually(t, "the metrics name one only", func() bool {
		metrics := r.page(t, "/metrics")
		return !strings.Contains(metrics, `agentrun_jobs_unpulled{queue="default"}`) && strings.Contains(metrics, `agentrun_jobs_unpulled{queue="defualt"} 1`)
	})
	bustest.Eventually(t, "an executor shows its own", func() bool {
		metrics := again.page(t, "/metrics")
		return strings.Contains(metrics, `agentrun_jobs_waiting{queue="default"} 0`) && !strings.Contains(metrics, "defualt")
	})
}

// A job on a subject whose queue can have no executor, since it is no identifier's, is answered by a reconciler as executors
// answer one whose other tokens are none: with one letter for a job, however often it was published.
func TestAJobInNoQueue(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.reconciler("r1")
	c, err := client.New(s.nc)
	if err != nil {
		t.Fatal(err)
	}
	data := []byte(`{"schema":"agentrun.job/v1"}`)
	other, err := s.js.Publish(t.Context(), "agentrun.jobs.nobody.acme.r", []byte(`{"schema":"agentrun.job/v1","steps":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	tenants := map[string]string{"agentrun.jobs.*.acme.r": "acme", "agentrun.jobs.*.acme.>": "acme", "agentrun.jobs.no!queue.acme.r": "acme", "agentrun.jobs.no!queue.ac!me.r": "_invalid", "agentrun.jobs.ümlaut.acme": "acme"}
	for subject := range tenants {
		for range 2 {
			if _, err := s.js.Publish(t.Context(), subject, data); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.reconciler("r2") // looks at once
	for subject, tenant := range tenants {
		id := engine.InvalidRunID(subject, data)
		bustest.Eventually(t, "the letter of "+subject, func() bool {
			l, err := c.Get(t.Context(), tenant, id)
			return err == nil && l.ReasonCode == deadletter.ReasonInvalidJob && bytes.Equal(l.Raw, data) && slices.Equal(l.AllowedActions, []deadletter.Action{deadletter.Discard})
		})
	}
	bustest.Eventually(t, "the jobs have left the stream", func() bool {
		stream, err := s.js.Stream(t.Context(), topology.JobsStream)
		if err != nil {
			return false
		}
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == 1 && info.State.FirstSeq == other.Sequence
	})
}
