package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	idleJobs   = 10_000
	idleSettle = 30 * time.Second
	scrapes    = 15 * time.Second // how often a Prometheus asks
)

// idlePart measures what the real commands use while nothing is to be done: with deploy/config.yaml, scraped every 15
// seconds, connected to a NATS server of their own; and once more after 10,000 calls of its HTTP write tool.
func (b *parts) idlePart() (err error) {
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"credit_id":"cr_3"}`)
	}))
	defer provider.Close()
	w, err := newWorld(b.bin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return fmt.Errorf("where is the module? %w", err)
	}
	config, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "deploy", "config.yaml"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(w.config, config, 0o600); err != nil {
		return err
	}
	env := []string{"BILLING_URL=" + provider.URL, "BILLING_TOKEN=token-of-the-bench"}
	e, err := w.serve("executor", env, filepath.Join(b.bin, "executor"), nil, "--data", filepath.Join(w.dir, "data"))
	if err != nil {
		return err
	}
	r, err := w.serve("reconciler", env, filepath.Join(b.bin, "reconciler"), nil)
	if err != nil {
		return err
	}
	for _, p := range []*process{e, r} {
		if err := p.ready(time.Minute); err != nil {
			return err
		}
	}
	b.say("idle: bin/executor and bin/reconciler with deploy/config.yaml, scraped every %s, for %s each; the least of windows of %s\n", scrapes, b.idle, idleWindow)
	time.Sleep(idleSettle / 3)
	if err := b.idleFor("fresh", w.server(), e, r); err != nil {
		return err
	}
	if err := w.publish(idleJobs, "apply_credit", noopArgs); err != nil {
		return err
	}
	if err := w.wait(0); err != nil {
		return err
	}
	for _, p := range []*process{e, r} {
		b.figure("idle_busy_"+p.name+"_rss_peak_mb", p.memory("VmHWM"), fmt.Sprintf("MB RSS at most over %d jobs, %s", idleJobs, p.name), "")
	}
	time.Sleep(idleSettle)
	return b.idleFor("after", w.server(), e, r)
}

// idleWindow is how long a look at the processor time takes. Of several the least counts: what else the machine and its
// host do is counted as the process's while it waits for them.
const idleWindow = 20 * time.Second

func (b *parts) idleFor(when string, all ...*process) error {
	least := make([]float64, len(all))
	peak := make([]float64, len(all))
	for n := 0; n == 0 || time.Duration(n+1)*idleWindow <= b.idle; n++ {
		used, err := idleOnce(all, peak)
		if err != nil {
			return err
		}
		for i := range all {
			if n == 0 || used[i] < least[i] {
				least[i] = used[i]
			}
		}
	}
	for i, p := range all {
		cpuAim, rssAim := "< 1", "< 40"
		if p.http == "" {
			cpuAim, rssAim = "", ""
		}
		name := "idle_" + when + "_" + p.name
		what := map[string]string{"fresh": "just started", "after": fmt.Sprintf("after %d jobs", idleJobs)}[when]
		b.figure(name+"_cpu_percent", least[i], "% of a core, "+p.name+", "+what, cpuAim)
		b.figure(name+"_rss_mb", peak[i], "MB RSS at most, "+p.name+", "+what, rssAim)
		b.figure(name+"_anon_mb", p.memory("RssAnon"), "MB of it its own; the rest are pages of files: the program, the journal", "")
	}
	return nil
}

// idleOnce is the share of a core that each process used in one window, in percent; peak is raised to its resident set.
func idleOnce(all []*process, peak []float64) ([]float64, error) {
	used := make([]float64, len(all))
	for i, p := range all {
		t, err := p.cpu()
		if err != nil {
			return nil, err
		}
		used[i] = t.Seconds()
	}
	began := time.Now()
	for scraped := began.Add(-scrapes / 2); time.Since(began) < idleWindow; time.Sleep(time.Second) {
		for i, p := range all {
			peak[i] = max(peak[i], p.memory("VmRSS"))
		}
		if time.Since(scraped) < scrapes {
			continue
		}
		scraped = time.Now()
		for _, p := range all {
			if p.http == "" {
				continue
			}
			if err := p.scrape(); err != nil {
				return nil, err
			}
		}
	}
	took := time.Since(began)
	for i, p := range all {
		t, err := p.cpu()
		if err != nil {
			return nil, err
		}
		used[i] = 100 * (t.Seconds() - used[i]) / took.Seconds()
	}
	return used, nil
}
