package deploy

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/bus/bustest"
)

// Behind a backlog an executor with the shipped permissions takes the urgent job first; one that may not look ahead says
// so and takes the jobs as they came. Neither does one twice.
func TestBacklogUnderTheShippedPermissions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, without string
		urgentFirst   bool
	}{
		{"as shipped", "", true},
		{"without looking", `"$JS.API.DIRECT.GET.AGENTRUN_JOBS"`, false},
		{"without removing", `"$JS.API.STREAM.MSG.DELETE.AGENTRUN_JOBS"`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			accounts := read(t, "deploy/nats/accounts.conf")
			if c.without != "" {
				if !strings.Contains(accounts, c.without) {
					t.Fatalf("accounts.conf has no %s", c.without)
				}
				accounts = strings.Replace(accounts, c.without, "", 1)
			}
			writeFile(t, filepath.Join(dir, "accounts.conf"), accounts)
			writeFile(t, filepath.Join(dir, "nats.conf"), read(t, "deploy/nats/nats.conf"))
			n := start(t, filepath.Join(dir, "nats.conf"), nil)

			var mu sync.Mutex
			var called []string
			tool := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				called = append(called, r.URL.Query().Get("for"))
				mu.Unlock()
				time.Sleep(20 * time.Millisecond) // how long a call takes
				_, _ = w.Write([]byte("{}"))
			}))
			t.Cleanup(tool.Close)
			config := filepath.Join(dir, "config.yaml")
			writeFile(t, config, fmt.Sprintf("defaults: {owner: o, workflow: w, actor: a}\ntools:\n  work: {effect: read, http: {method: GET, url: %q}}\n", tool.URL))
			flags := func(user string) []string {
				return []string{"--nats", n.as(user), "--inbox-prefix", inbox(user), "--config", config, "--id", user}
			}
			reconcilerServe(t, flags("reconciler")...)
			p := n.publisher(t, "publisher-acme")
			const jobs = 120
			for i := range jobs {
				name, priority := fmt.Sprintf("r%d", i), 5
				if i == jobs-1 {
					name, priority = "urgent", 9
				}
				job := fmt.Sprintf(`{"schema":"agentrun.job/v1","tenant":"acme","run_id":%q,"priority":%d,"steps":[{"step":"s","tool":"work","args":{"for":%q}}]}`, name, priority, name)
				if _, err := p.js.Publish(t.Context(), "agentrun.jobs.default.acme."+name, []byte(job)); err != nil {
					t.Fatal(err)
				}
			}
			executor := executorServe(t, append(flags("executor"), "--concurrency", "1")...)
			bustest.Eventually(t, "all are called", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(called) >= jobs
			})
			executor.stop()
			mu.Lock()
			defer mu.Unlock()
			if at := slices.Index(called, "urgent"); c.urgentFirst != (at < jobs/2) {
				t.Errorf("the urgent one was number %d of %d", at, jobs)
			}
			if slices.Sort(called); len(slices.Compact(called)) != jobs {
				t.Errorf("%d calls for %d jobs", len(called), jobs)
			}
			if told := strings.Contains(executor.log.String(), "first come, first served"); told == c.urgentFirst {
				t.Errorf("said that it cannot look ahead: %t", told)
			}
		})
	}
}
