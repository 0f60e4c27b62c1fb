// Package observe shows what the processes do: metrics, logs and the HTTP endpoints (contract §11). One Observer gets
// every transition; drivers call it through interfaces of their own and know nothing of Prometheus.
package observe

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/agentrun/executor/pkg/envelope"
)

const namespace = "agentrun"

// Observer turns transitions into metrics. Its methods are cheap and safe for concurrent use; no argument may be a run id
// or free text.
type Observer struct {
	registry *prometheus.Registry
	tools    *names
	owners   *names
	codes    *names
	queues   *names // that executors take
	strays   *names // that only publishers know
	servers  *names

	outcomes     *prometheus.CounterVec
	calls        *prometheus.CounterVec
	callSeconds  *prometheus.HistogramVec
	resolved     *prometheus.CounterVec
	settle       prometheus.Histogram
	prevented    *prometheus.CounterVec
	escalations  *prometheus.CounterVec
	letters      *prometheus.GaugeVec
	slowed       *prometheus.GaugeVec
	inFlight     prometheus.Gauge
	commit       prometheus.Histogram
	refusals     *prometheus.CounterVec
	strayLines   *prometheus.CounterVec
	waiting      *replaced
	unpulled     *replaced
	config       *replaced
	configs      *replaced
	passedOn     *prometheus.CounterVec
	used         *prometheus.GaugeVec
	journalFree  prometheus.Gauge
	retryLate    prometheus.Histogram
	clockJumps   *prometheus.CounterVec
	unstored     atomic.Pointer[func() time.Duration]
	storeFault   *prometheus.GaugeVec
	reloads      *prometheus.CounterVec
	reloadFailed prometheus.Gauge
	auditOverdue prometheus.Gauge
	auditOK      prometheus.Gauge
	auditBudget  prometheus.Gauge
	auditOwner   prometheus.Gauge
	auditBroken  prometheus.Gauge
}

// Role says which process the metrics are for: only a reconciler has the audits.
type Role int

// The two processes.
const (
	Executor Role = iota
	Reconciler
)

// New makes an observer with a registry of its own, and the Go and process metrics beside ours. The tools of the config
// keep their names as labels whatever names jobs bring.
func New(role Role, tools ...string) *Observer {
	o := &Observer{
		registry: prometheus.NewRegistry(), tools: newNames(tools...), owners: newNames(), codes: newNames(), queues: newNames(), strays: newNames(), servers: newNames(),
	}
	o.outcomes = counters("outcomes_total", "Outcomes stored, each once in the fleet, by scope (step or run), outcome and reason.", "scope", "outcome", "reason_code")
	o.calls = counters("tool_calls_total", "Dispatches of tools, retries included; code is ok or the code of the failure.", "tool", "effect", "code")
	o.callSeconds = prometheus.NewHistogramVec(histogram("tool_call_duration_seconds", "How long a dispatch of a tool took.", slow), []string{"tool"})
	o.resolved = counters("unknown_resolved_total", "Unknown writes that were settled, by what was established.", "tool", "verdict")
	o.settle = prometheus.NewHistogram(histogram("unknown_settle_seconds", "Time from a write becoming unknown to its settlement.", slow))
	o.prevented = counters("duplicate_writes_prevented_total", "Writes that would have been sent a second time but for their record, journal or lookup.", "tool")
	o.escalations = counters("escalations_total", "Runs that ended for a person, by the tool of their failed step.", "tool", "reason_code")
	o.letters = gauges("dead_letters_open", "Dead letters that are open.", "owner", "reason_code")
	o.slowed = gauges("tool_breaker_open", "1 while a tool is slowed down for everyone on this executor, because it limits its rate or is not available.", "tool")
	o.inFlight = gauge("runs_in_flight", "Runs that this process works on at this moment.")
	o.commit = prometheus.NewHistogram(histogram("journal_commit_seconds", "How long a commit of the journal took, its fsync included.", fast))
	o.refusals = counters("refusals_total", "Jobs, steps and calls that were refused.", "code")
	o.strayLines = counters("mcp_stray_lines_total", "Lines of the standard output of an MCP server that are no JSON-RPC and were skipped.", "server")
	o.retryLate = prometheus.NewHistogram(histogram("retry_late_seconds", "From when an attempt that waited was due until it was sent.", slow))
	o.clockJumps = counters("clock_jumps_total", "Times that the NATS server's clock was found set by a second or more, forward or back.", "direction")
	for _, direction := range []string{"forward", "back"} {
		o.clockJumps.WithLabelValues(direction) // from zero on, so that the first one shows
	}
	o.registry.MustRegister(
		o.retryLate, o.clockJumps, o.outcomes, o.calls, o.callSeconds, o.resolved, o.settle, o.prevented, o.escalations, o.letters, o.slowed, o.inFlight, o.commit, o.refusals, o.strayLines,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	o.auditOverdue = gauge("audit_runs_overdue", "Runs that should have moved on and did not. Zero unless something is broken.")
	o.auditOK = gauge("audit_ok_without_result", "Runs that ended ok although a write has no result. Zero unless something is broken.")
	o.auditBudget = gauge("audit_budget_end_without_dead_letter", "Runs that a budget ended and that have no dead letter. Zero unless something is broken.")
	o.auditOwner = gauge("audit_dead_letters_without_owner", "Dead letters that belong to nobody. Zero unless something is broken.")
	o.auditBroken = gauge("audit_broken_records", "Records that break a rule and are left alone. Zero unless something is broken.")
	o.waiting = newReplaced("jobs_waiting", "Jobs in a queue, those in an executor's hands included: an executor shows its queues, a reconciler all.", "queue")
	o.unpulled = newReplaced("jobs_unpulled", "Jobs in a queue that no executor takes.", "queue")
	o.used = gauges("store_used_ratio", "How full a store is, of its limit: runs (--max-runs), letters (--max-letters), jobs (--max-jobs).", "store")
	o.journalFree = gauge("journal_free_ratio", "Free space on the journal's disk; below a tenth nothing new is taken in.")
	o.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: "store_unacknowledged_seconds",
		Help: "How long the oldest write that NATS has not acknowledged has waited. Above ten nothing is stored.",
	}, func() float64 {
		if age := o.unstored.Load(); age != nil {
			return (*age)().Seconds()
		}
		return 0
	}))
	o.storeFault = gauges("store_fault", "1 while the store of runs has lost records that are being restored (lost), forgets what it must keep (settings), or delivers nothing of a queue (paused).", "fault")
	for _, fault := range []string{"lost", "settings", "paused"} {
		o.storeFault.WithLabelValues(fault).Set(0)
	}
	o.registry.MustRegister(o.storeFault)
	o.config = newReplaced("config_info", "1 for the config that this process works by; the digest is the same where config files say the same.", "digest")
	o.configs = newReplaced("fleet_configs", "How many different configs the living executors of a queue have.", "queue")
	o.passedOn = counters("passed_on_total", "Runs given back every half second while another executor has the next step's tool and this one does not.", "tool")
	o.reloads = counters("config_reloads_total", "Attempts to take the config in anew, on request or because a secret or TLS file has changed; result is ok or failed.", "result")
	for _, result := range []string{"ok", "failed"} {
		o.reloads.WithLabelValues(result)
	}
	o.reloadFailed = gauge("config_reload_failed", "1 while the last attempt to take the config in anew has failed: what was in force before stays.")
	o.registry.MustRegister(o.reloads, o.reloadFailed)
	if role != Reconciler {
		o.registry.MustRegister(o.used, o.journalFree, o.passedOn)
	}
	o.registry.MustRegister(o.waiting, o.config)
	if role != Executor {
		o.registry.MustRegister(o.unpulled, o.configs, o.auditOverdue, o.auditOK, o.auditBudget, o.auditOwner, o.auditBroken)
	}
	return o
}

// Registry is where the metrics are gathered, for /metrics.
func (o *Observer) Registry() *prometheus.Registry { return o.registry }

// Outcome counts an outcome that was published. reasonCode is "" on ok.
func (o *Observer) Outcome(scope, outcome, reasonCode string) {
	o.outcomes.WithLabelValues(scope, outcome, o.codes.label(reasonCode)).Inc()
}

// ToolCall counts one dispatch and how long it took. code is "" on success.
func (o *Observer) ToolCall(tool string, effect envelope.Effect, code envelope.Code, took time.Duration) {
	word := "ok"
	if code != "" {
		word = o.codes.label(string(code))
	}
	tool = o.tools.label(tool)
	o.calls.WithLabelValues(tool, string(effect), word).Inc()
	o.callSeconds.WithLabelValues(tool).Observe(took.Seconds())
}

// UnknownResolved counts an unknown write that was settled. verdict is one of found, absent, escalated and person.
func (o *Observer) UnknownResolved(tool, verdict string) {
	o.resolved.WithLabelValues(o.tools.label(tool), verdict).Inc()
}

// SettleTime is how long a write was unknown before it was settled.
func (o *Observer) SettleTime(took time.Duration) { o.settle.Observe(took.Seconds()) }

// DuplicatePrevented counts a write that was not sent again because it was known to have been sent.
func (o *Observer) DuplicatePrevented(tool string) {
	o.prevented.WithLabelValues(o.tools.label(tool)).Inc()
}

// RetryLate is how long after its time an attempt that waited was sent.
func (o *Observer) RetryLate(late time.Duration) { o.retryLate.Observe(late.Seconds()) }

// ClockJump counts that the NATS server's clock was set.
func (o *Observer) ClockJump(by time.Duration) {
	direction := "forward"
	if by < 0 {
		direction = "back"
	}
	o.clockJumps.WithLabelValues(direction).Inc()
}

// Breaker shows whether a tool is slowed down for everyone on this executor.
func (o *Observer) Breaker(tool string, open bool) {
	v := 0.0
	if open {
		v = 1
	}
	o.slowed.WithLabelValues(o.tools.label(tool)).Set(v)
}

// Escalation counts what was handed to a person. tool is "" where no tool is to blame.
func (o *Observer) Escalation(tool, reasonCode string) {
	o.escalations.WithLabelValues(o.tools.label(tool), o.codes.label(reasonCode)).Inc()
}

// LettersOpen changes the number of open dead letters of this owner and reason by change, which may be negative.
func (o *Observer) LettersOpen(owner, reasonCode string, change int) {
	o.letters.WithLabelValues(o.owners.label(owner), o.codes.label(reasonCode)).Add(float64(change))
}

// ForgetLetters sets all open dead letters back to none, before they are counted anew.
func (o *Observer) ForgetLetters() { o.letters.Reset() }

// RunsInFlight changes the number of runs that this process works on by change.
func (o *Observer) RunsInFlight(change int) { o.inFlight.Add(float64(change)) }

// JournalCommit is how long one commit of the journal took.
func (o *Observer) JournalCommit(took time.Duration) { o.commit.Observe(took.Seconds()) }

// Refusal counts a job, a step or an operator call that was refused.
func (o *Observer) Refusal(code string) { o.refusals.WithLabelValues(o.codes.label(code)).Inc() }

// StrayLine counts a line of an MCP server's standard output that is no JSON-RPC.
func (o *Observer) StrayLine(server string) {
	o.strayLines.WithLabelValues(o.servers.label(server)).Inc()
}

// Room is how full the places are that an executor needs. Ratios are from 0 to 1.
type Room struct {
	Runs, Letters, Jobs float64
	JournalFree         float64
}

// Room shows how full the places are.
func (o *Observer) Room(r Room) {
	o.used.WithLabelValues("runs").Set(r.Runs)
	o.used.WithLabelValues("letters").Set(r.Letters)
	o.used.WithLabelValues("jobs").Set(r.Jobs)
	o.journalFree.Set(r.JournalFree)
}

// Unstored is asked at each scrape for the age of the oldest write that NATS has not acknowledged.
func (o *Observer) Unstored(age func() time.Duration) { o.unstored.Store(&age) }

// StoreLost shows whether run records are known to be lost and not restored yet.
func (o *Observer) StoreLost(lost bool) { o.fault("lost", lost) }

// StoreChanged shows whether somebody has changed a stream so that it forgets, or paused a consumer.
func (o *Observer) StoreChanged(settings, paused bool) {
	o.fault("settings", settings)
	o.fault("paused", paused)
}

func (o *Observer) fault(name string, is bool) {
	v := 0.0
	if is {
		v = 1
	}
	o.storeFault.WithLabelValues(name).Set(v)
}

// ConfigReloaded counts an attempt to take the config in anew, and shows whether it was the last word.
func (o *Observer) ConfigReloaded(ok bool) {
	result, failed := "ok", 0.0
	if !ok {
		result, failed = "failed", 1
	}
	o.reloads.WithLabelValues(result).Inc()
	o.reloadFailed.Set(failed)
}

// Audit is what the reconciler's audits found: all zero unless something is broken.
type Audit struct {
	RunsOverdue, OKWithoutResult, BudgetEndWithoutDeadLetter, DeadLettersWithoutOwner, BrokenRecords int
}

// Audited shows the latest audit.
func (o *Observer) Audited(a Audit) {
	o.auditOverdue.Set(float64(a.RunsOverdue))
	o.auditOK.Set(float64(a.OKWithoutResult))
	o.auditBudget.Set(float64(a.BudgetEndWithoutDeadLetter))
	o.auditOwner.Set(float64(a.DeadLettersWithoutOwner))
	o.auditBroken.Set(float64(a.BrokenRecords))
}

// Classic buckets in seconds: fast is for one fsync, slow for calls and settlements.
var (
	fast = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5}
	slow = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}
)

// histogram has native buckets for servers that scrape them and classic ones for those that do not.
func histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Namespace: namespace, Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

func gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
}
