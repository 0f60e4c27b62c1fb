package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/agentrun/executor/internal/terminal"
)

// progress prints one line that renews itself on a terminal, and a line every half minute elsewhere.
func progress() func(string) {
	tty := terminal.Is(os.Stderr)
	last := time.Now()
	return func(line string) {
		switch {
		case tty:
			fmt.Fprintf(os.Stderr, "\r\x1b[K%s", line)
		case time.Since(last) > 30*time.Second:
			last = time.Now()
			fmt.Fprintln(os.Stderr, line)
		}
	}
}

// rows are the lines of the table: what, and how much.
func (o *Result) rows() [][2]string {
	n := func(v int) string { return fmt.Sprint(v) }
	f := func(k Kind) string { return fmt.Sprint(o.Faults[k]) }
	ms := func(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
	return [][2]string{
		{"deaths (SIGKILL)", n(o.Deaths)},
		{"– executors, journal kept", f(KillExecutor)},
		{"– executors, journal lost", f(LoseJournal)},
		{"– reconcilers", f(KillReconciler)},
		{"– gateways", f(KillGateway)},
		{"– NATS, restarted on its store", f(KillNATS)},
		{"– NATS, an older copy of its store put back", f(RestoreNATS)},
		{"executors paused past their lease (SIGSTOP)", f(PauseExecutor)},
		{"reconcilers paused", f(PauseReconciler)},
		{"NATS paused", f(PauseNATS)},
		{"executors drained (SIGTERM)", f(Drain)},
		{"connections whose NATS replies were lost", f(Deafen)},
		{"processes that ended by themselves", f(OwnEnd)},
		{"runs", n(o.Runs)},
		{"– by calls through a gateway", n(o.Calls)},
		{"– – how often their agents called", n(o.Tries)},
		{"jobs acknowledged by the stream", n(o.Jobs)},
		{"requests at the provider", n(o.Requests)},
		{"– by programs (command tools)", n(o.Commands)},
		{"– – whose executor was killed before they wrote", n(o.Orphaned)},
		{"lookups at the provider", n(o.Lookups)},
		{"writes in its ledger", n(o.Rows)},
		{"duplicate writes", n(o.count(RuleDuplicate))},
		{"lost runs", n(o.count(RuleLoss))},
		{"other broken promises", n(len(o.Findings) - o.count(RuleDuplicate) - o.count(RuleLoss))},
		{"twice by a request that outlived its lease, disputed", n(o.Gaps)},
		{"a killed executor's step goes on after (median)", ms(median(o.Recovered))},
		{"an unknown write is settled after its window (median)", ms(median(o.Verified))},
		{"everything settled after the last fault", o.Settled.Round(100 * time.Millisecond).String()},
		{"duration", o.Took.Round(time.Second).String()},
		{"seed", fmt.Sprint(o.Seed)},
	}
}

// speed are the lines about the calm fleet.
func (o *Result) speed() [][2]string {
	s := o.Speed
	if s == nil {
		return nil
	}
	ms := func(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
	return [][2]string{
		{fmt.Sprintf("a killed worker's read is dispatched again after (median of %d; the lease is %s)", len(s.Reads), s.Lease), ms(median(s.Reads))},
		{fmt.Sprintf("a killed worker's write is unknown after (median of %d)", len(s.Writes)), ms(median(s.Writes))},
		{fmt.Sprintf("a write that never happened is proved absent after (median of %d; the window is %s)", len(s.Verified), s.Window), ms(median(s.Verified))},
		{fmt.Sprintf("%d expired leases are recovered, from the start of a reconciler, within", s.Leases), s.All.Round(10 * time.Millisecond).String()},
	}
}

func (o *Result) ends() [][2]string {
	var out [][2]string
	for _, k := range slices.SortedFunc(maps.Keys(o.Ends), func(a, b string) int {
		return cmp.Or(cmp.Compare(o.Ends[b], o.Ends[a]), cmp.Compare(a, b))
	}) {
		out = append(out, [2]string{"runs ended " + k, fmt.Sprint(o.Ends[k])})
	}
	return out
}

func (o *Result) table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, r := range slices.Concat(o.rows(), o.ends(), o.speed()) {
		fmt.Fprintf(w, "%s\t%s\n", r[0], r[1])
	}
	_ = w.Flush()
	for _, end := range o.OwnEnds {
		b.WriteString("ended by itself: " + end + "\n")
	}
	return b.String()
}

func (o *Result) findings() string {
	var b strings.Builder
	for i, f := range o.Findings {
		if i == 50 {
			fmt.Fprintf(&b, "… and %d more\n", len(o.Findings)-i)
			break
		}
		fmt.Fprintf(&b, "BROKEN %s %s: %s\n", f.Rule, f.ID, f.What)
	}
	for _, s := range o.Stories {
		b.WriteString("\n" + s)
	}
	return b.String()
}

// markdown is docs/crash-report.md.
func (o *Result) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Kill test

Written by %[1]smake crash%[1]s. Real executors, reconcilers and a real nats-server are killed, paused and cut off while jobs
are published; the provider commits every request that it accepts, repeats included, and keeps its own ledger. At the end
the ledger is compared with the outcomes in AGENTRUN_RESULTS, the records and the letters.

Repeat it with:

    make crash N=%[2]d SEED=%[3]d

The seed decides the faults and their order, the runs and what the provider does with each request; which moment of a run a
fault meets depends on the machine. This run: %[4]s, %[5]s/%[6]s, %[7]d processors, lease %[8]s, 4 executors, 2 reconcilers, a
fault every %[9]s on average.

| what | how much |
| --- | ---: |
`, "`", o.Options.Deaths, o.Seed, runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), o.Lease, o.Interval)
	for _, r := range o.rows() {
		fmt.Fprintf(&b, "| %s | %s |\n", r[0], r[1])
	}
	if len(o.OwnEnds) > 0 {
		b.WriteString("\nEnded by itself, with its last line:\n\n")
		for _, end := range o.OwnEnds {
			fmt.Fprintf(&b, "    %s\n", end)
		}
	}
	b.WriteString("\nHow the runs ended:\n\n| end | runs |\n| --- | ---: |\n")
	for _, r := range o.ends() {
		fmt.Fprintf(&b, "| %s | %s |\n", strings.TrimPrefix(r[0], "runs ended "), r[1])
	}
	if o.Speed != nil {
		b.WriteString("\nHow fast a calm fleet recovers, measured after the faults:\n\n| what | how much |\n| --- | ---: |\n")
		for _, r := range o.speed() {
			fmt.Fprintf(&b, "| %s | %s |\n", r[0], r[1])
		}
	}
	b.WriteString(`
Ends that are not ok are the provider's doing: it refused the input or reported a conflict (fatal), or a write of a tool
without a lookup stayed unknown, which only a person can settle (needs_human). Each has exactly one letter.

What is checked, for every run: exactly one terminal outcome; outcomes numbered without gaps or repeats; no step with two
terminal outcomes; no write committed twice and none sent again once it was committed; completed effects equal to the ledger;
never more requests than the record has reserved; a record at its end that breaks none of the rules; one letter for each end
that needs one and none for others; empty queues.
`)
	return b.String()
}
