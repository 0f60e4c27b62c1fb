// Command bench measures jobs per second, latency, CPU and memory of an executor with an embedded NATS server, and beside
// it, in the same run, a floor: the same publishes, acknowledgements and journal commits in the same order with the same
// waits, and no logic. Each row runs in a process of its own. Then it measures fleets of real processes: two executors
// against the single one, idle processes, many waiting runs, a reconciler's restart, how late retries are. It prints what it finds and writes
// bench.json.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Row is one line of the table and of bench.json.
type Row struct {
	Name        string  `json:"name"`
	Sync        string  `json:"sync"`
	Concurrency int     `json:"concurrency"`
	Backlog     int     `json:"backlog"`
	Agentrun    float64 `json:"agentrun"`
	Floor       float64 `json:"floor,omitempty"`
	Ratio       float64 `json:"ratio,omitempty"`
}

// Sample is what one measured process says about itself.
type Sample struct {
	JobsPerSecond  float64 `json:"jobs_per_s"`
	CPUMicros      float64 `json:"cpu_us_per_job"`
	RSSMegabytes   float64 `json:"rss_mb"`      // peak while the backlog is worked off
	FillMegabytes  float64 `json:"rss_fill_mb"` // peak while it is published, by the same process
	RecordsPerSync float64 `json:"records_per_fsync"`
	WritesPerJob   float64 `json:"jetstream_writes_per_job"`
	P50Micros      float64 `json:"p50_us"`
	P99Micros      float64 `json:"p99_us"`
	CommitMicros   float64 `json:"journal_commit_us"`
}

type plan struct {
	sync        string
	concurrency int
	backlog     int
	latency     bool
	floor       bool
}

func main() {
	if role() {
		return
	}
	one := flag.String("one", "", "internal: measure one configuration and print its sample as JSON")
	out := flag.String("out", "bench.json", "file for the rows as JSON")
	n := flag.Int("n", 20000, "jobs of an ordinary row")
	big := flag.Int("big", 200000, "jobs of the row with the large backlog; 0 leaves it out")
	quick := flag.Bool("quick", false, "of the table only concurrency 256 and the latency, and without -only nothing else")
	profile := flag.String("cpuprofile", "", "with -one: write a CPU profile of the measured part")
	only := flag.String("only", "", "measure these only, separated by commas: "+strings.Join(partNames, ", "))
	b := &parts{}
	flag.IntVar(&b.waiting, "waiting", 100000, "runs that wait, of -only waiting")
	flag.IntVar(&b.records, "records", 200000, "records of -only restart")
	flag.DurationVar(&b.idle, "idle", time.Minute, "how long each look of -only idle takes")
	flag.StringVar(&b.profiles, "profiles", "", "directory for CPU profiles of the executors of -only fleet")
	flag.Parse()
	if *one != "" {
		var p struct {
			Kind, Sync           string
			Concurrency, Backlog int
			Latency              bool
		}
		if err := json.Unmarshal([]byte(*one), &p); err != nil {
			fail(err)
		}
		s, err := measure(setup{kind: p.Kind, sync: p.Sync, concurrency: p.Concurrency, backlog: p.Backlog, latency: p.Latency, profile: *profile})
		if err != nil {
			fail(err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(s); err != nil {
			fail(err)
		}
		return
	}
	b.n = *n
	if *quick && *only == "" {
		*only = "table"
	}
	if err := all(*out, *only, *big, *quick, b); err != nil {
		fail(err)
	}
}

// all measures what is chosen and writes it, also if a later part fails.
func all(out, only string, big int, quick bool, b *parts) error {
	names, err := chosen(only)
	if err != nil {
		return err
	}
	var rows []Row
	if slices.Contains(names, "table") {
		if rows, err = table(b.n, big, quick); err != nil {
			return err
		}
	}
	err = b.run(names)
	body, failed := json.MarshalIndent(map[string]any{"rows": rows, "figures": b.figures}, "", "  ")
	if failed == nil {
		failed = os.WriteFile(out, append(body, '\n'), 0o644)
	}
	return errors.Join(err, failed)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

func table(n, big int, quick bool) ([]Row, error) {
	plans := []plan{
		{"default", 1, 0, true, true},
		{"default", 256, n, false, true},
	}
	if !quick {
		plans = []plan{
			{"default", 1, 0, true, true},
			{"default", 1, n / 10, false, true},
			{"default", 16, n, false, true},
			{"default", 64, n, false, true},
			{"default", 256, n, false, true},
			{"always", 1, 0, true, true},
			{"always", 64, n / 4, false, true},
			{"always", 256, n / 2, false, true},
		}
		if big > 0 {
			plans = append(plans, plan{"default", 256, big, false, false})
		}
	}
	var rows []Row
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "what\tsync\tconc\tbacklog\tagentrun\tfloor\tratio\tCPU µs/job\tRSS MB\t(fill)\trec/fsync\twrites/job\t")
	for _, p := range plans {
		a, f, err := sides(p)
		if err != nil {
			return rows, err
		}
		rows = append(rows, show(w, p, a, f)...)
		w.Flush()
	}
	return rows, nil
}

func show(w *tabwriter.Writer, p plan, a, f Sample) []Row {
	row := func(name string, x, y float64) Row {
		r := Row{Name: name, Sync: p.sync, Concurrency: p.concurrency, Backlog: p.backlog, Agentrun: x, Floor: y}
		if y > 0 {
			r.Ratio = x / y
		}
		return r
	}
	if p.latency {
		rows := []Row{row("latency_p50_us", a.P50Micros, f.P50Micros), row("latency_p99_us", a.P99Micros, f.P99Micros)}
		for _, r := range rows {
			fmt.Fprintf(w, "%s\t%s\t%d\t-\t%.0f\t%.0f\t%.2f\t\t\t\t\t\t\n", strings.TrimSuffix(r.Name, "_us")+" µs", p.sync, p.concurrency, r.Agentrun, r.Floor, r.Ratio)
		}
		return rows
	}
	if !p.floor {
		fmt.Fprintf(w, "jobs/s\t%s\t%d\t%d\t%.0f\t-\t-\t%.0f\t%.0f\t%.0f\t%.1f\t%.2f\t\n", p.sync, p.concurrency, p.backlog,
			a.JobsPerSecond, a.CPUMicros, a.RSSMegabytes, a.FillMegabytes, a.RecordsPerSync, a.WritesPerJob)
	} else {
		fmt.Fprintf(w, "jobs/s\t%s\t%d\t%d\t%.0f\t%.0f\t%.2f\t%.0f (%.0f)\t%.0f (%.0f)\t%.0f\t%.1f (%.1f)\t%.2f\t\n", p.sync, p.concurrency, p.backlog,
			a.JobsPerSecond, f.JobsPerSecond, a.JobsPerSecond/f.JobsPerSecond, a.CPUMicros, f.CPUMicros, a.RSSMegabytes, f.RSSMegabytes,
			a.FillMegabytes, a.RecordsPerSync, f.RecordsPerSync, a.WritesPerJob)
	}
	return []Row{
		row("jobs_per_s", a.JobsPerSecond, f.JobsPerSecond), row("cpu_us_per_job", a.CPUMicros, f.CPUMicros),
		row("rss_mb", a.RSSMegabytes, f.RSSMegabytes), row("records_per_fsync", a.RecordsPerSync, f.RecordsPerSync),
		row("jetstream_writes_per_job", a.WritesPerJob, f.WritesPerJob),
	}
}

// rounds is how often the row that matters most is measured, both sides in turn. The best of each counts: whatever else
// a machine does only makes a round slower.
const rounds = 3

func sides(p plan) (a, f Sample, err error) {
	n := 1
	if p.concurrency == 256 && p.floor && p.sync == "default" {
		n = rounds
	}
	for range n {
		x, err := sample("agentrun", p)
		if err != nil {
			return a, f, err
		}
		a = better(a, x)
		if !p.floor {
			continue
		}
		if x, err = sample("floor", p); err != nil {
			return a, f, err
		}
		f = better(f, x)
	}
	return a, f, nil
}

func better(a, b Sample) Sample {
	if a.JobsPerSecond > b.JobsPerSecond {
		return a
	}
	return b
}

func sample(kind string, p plan) (Sample, error) {
	ask, err := json.Marshal(map[string]any{"Kind": kind, "Sync": p.sync, "Concurrency": p.concurrency, "Backlog": p.backlog, "Latency": p.latency})
	if err != nil {
		return Sample{}, err
	}
	cmd := exec.Command(os.Args[0], "-one", string(ask))
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return Sample{}, fmt.Errorf("%s, concurrency %d: %w", kind, p.concurrency, err)
	}
	var s Sample
	return s, json.Unmarshal(text, &s)
}
