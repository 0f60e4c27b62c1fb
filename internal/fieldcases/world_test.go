package fieldcases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// limit bounds every wait: far beyond what anything takes, so that a busy machine fails no test.
const limit = 90 * time.Second

// full reports whether the cases run in the sizes in which they were reported.
func full() bool { return os.Getenv("FIELDCASES_FULL") != "" }

// sized is a size as reported, or the one that fits into a test.
func sized(reported, scaled int) int {
	if full() {
		return reported
	}
	return scaled
}

// tool is one tool of the world's config.
type tool struct {
	name     string
	write    bool
	timeout  time.Duration // 0: 10 s
	window   time.Duration // of a write's lookup
	noVerify bool
	always   bool          // verify.always
	lookups  int           // verify.max_attempts; 0: 50
	attempts int           // retry.max_attempts; 0: 3
	delay    time.Duration // retry.initial_delay; 0: 50 ms
	delayMax time.Duration // retry.max_delay; 0: 400 ms
	extra    string        // further lines of YAML, indented by four spaces
	verify   string        // further lines of its verify, indented by six spaces
}

func (x tool) yaml(url string) string {
	or := func(d, otherwise time.Duration) time.Duration {
		if d > 0 {
			return d
		}
		return otherwise
	}
	count := func(n, otherwise int) int {
		if n > 0 {
			return n
		}
		return otherwise
	}
	var b strings.Builder
	effect, method := "read", "GET"
	if x.write {
		effect, method = "write", "POST"
	}
	fmt.Fprintf(&b, "  %s:\n    effect: %s\n", x.name, effect)
	if !strings.Contains(x.extra, "command:") {
		fmt.Fprintf(&b, "    http: {method: %s, url: \"%s/call/%s?ref={operation_ref}\", headers: {X-Worker: \"${WORKER}\"}}\n", method, url, x.name)
	}
	fmt.Fprintf(&b, "    timeout: %s\n", or(x.timeout, 10*time.Second))
	fmt.Fprintf(&b, "    retry: {max_attempts: %d, initial_delay: %s, max_delay: %s, multiplier: 2, jitter: 0}\n",
		count(x.attempts, 3), or(x.delay, 50*time.Millisecond), or(x.delayMax, 400*time.Millisecond))
	b.WriteString(x.extra)
	if !x.write {
		return b.String()
	}
	b.WriteString("    evidence_ref: body.id\n    errors:\n      - {when: \"status == 503\", code: UPSTREAM_UNAVAILABLE, commit_state: not_committed}\n")
	if x.noVerify {
		return b.String()
	}
	fmt.Fprintf(&b, "    verify:\n      http: {method: GET, url: \"%s/lookup/%s?ref={operation_ref}\"}\n", url, x.name)
	fmt.Fprintf(&b, "      committed: \"status == 200 && size(body.items) > 0\"\n      not_committed: \"status == 200 && size(body.items) == 0\"\n")
	fmt.Fprintf(&b, "      result: \"body.items[0]\"\n      evidence_ref: \"body.items[0].id\"\n      consistency_window: %s\n", or(x.window, 200*time.Millisecond))
	fmt.Fprintf(&b, "      timeout: 2s\n      max_attempts: %d\n      always: %t\n%s", count(x.lookups, 50), x.always, x.verify)
	return b.String()
}

// world is what a case happens in: a NATS server or a cluster, a provider, and the processes.
type world struct {
	t        *testing.T
	lease    time.Duration
	nats     *bustest.Server  // nil in a cluster
	cluster  *bustest.Cluster // nil for one server
	url      string
	provider *provider
	config   string
	nc       *nats.Conn
	js       jetstream.JetStream
	replicas int

	changed *change
	mu      sync.Mutex
	seen    map[string][]*envelope.Outcome // by run, in the stream's order
	unread  func()                         // ends the reader of the outcomes
	last    uint64
	twice   map[string]bool // operations that may have more than one row: the case is about it
}

const tenant = "acme"

// newWorld makes a world with one server and these tools.
func newWorld(t *testing.T, lease time.Duration, tools ...tool) *world {
	t.Helper()
	s := bustest.Start(t)
	return makeWorld(t, &world{nats: s, url: s.URL, lease: lease, replicas: 1}, tools)
}

// newWorldOf makes a world with streams of so many replicas: one, on one server, or three on three.
func newWorldOf(t *testing.T, replicas int, lease time.Duration, tools ...tool) *world {
	t.Helper()
	if replicas == 1 {
		return newWorld(t, lease, tools...)
	}
	c := bustest.StartCluster(t)
	return makeWorld(t, &world{cluster: c, url: c.URL, lease: lease, replicas: replicas}, tools)
}

func makeWorld(t *testing.T, w *world, tools []tool) *world {
	t.Helper()
	w.t, w.provider, w.changed = t, startProvider(t), newChange()
	w.seen, w.twice = map[string][]*envelope.Outcome{}, map[string]bool{}
	w.config = filepath.Join(t.TempDir(), "config.yaml")
	var b strings.Builder
	b.WriteString("defaults:\n  owner: oncall\n  workflow: case\n  actor: agent:test\n  budget: {max_turns: 100, max_tool_calls: 1000, max_attempts_per_step: 100, max_elapsed: 10m}\ntools:\n")
	for _, x := range tools {
		b.WriteString(x.yaml(w.provider.URL))
	}
	if err := os.WriteFile(w.config, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(w.url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	w.nc = nc
	if w.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	return w
}

// process describes a process; start begins it. own: as an operating system process of its own.
func (w *world) process(role, name string, own bool, flags ...string) *process {
	w.t.Helper()
	args := []string{
		"--nats", w.url, "--config", w.config, "--id", name, "--lease", w.lease.String(), "--http", "127.0.0.1:0",
		"--replicas", fmt.Sprint(w.replicas), "--log-level", "debug",
	}
	if role == "executor" && !slices.Contains(flags, "--data") {
		args = append(args, "--data", w.t.TempDir())
	}
	for i := 0; i+1 < len(flags); i += 2 { // a flag that is given wins over the world's
		if at := slices.Index(args, flags[i]); at >= 0 {
			args[at+1] = flags[i+1]
		} else {
			args = append(args, flags[i], flags[i+1])
		}
	}
	p := &process{t: w.t, role: role, args: args, own: own, env: []string{"WORKER=" + name}, log: &log{}}
	w.t.Cleanup(func() {
		if p.ended != nil {
			p.end()
		}
		if w.t.Failed() {
			w.t.Logf("log of %s (its end):\n%s", name, tail(p.log.String(), 6000))
		}
	})
	return p
}

func tail(s string, most int) string {
	if len(s) > most {
		return "…" + s[len(s)-most:]
	}
	return s
}

func (w *world) executor(name string, flags ...string) *process {
	w.t.Helper()
	return w.process("executor", name, false, flags...).start()
}

func (w *world) reconciler(name string, flags ...string) *process {
	w.t.Helper()
	return w.process("reconciler", name, false, flags...).start()
}

// both starts one executor and one reconciler inside the test and follows the outcomes.
func (w *world) both(flags ...string) (executor, reconciler *process) {
	w.t.Helper()
	executor = w.executor("w1", flags...)
	reconciler = w.reconciler("r1")
	w.follow()
	return executor, reconciler
}

// follow reads every outcome from the stream, from now to the test's end, across restarts of the server.
func (w *world) follow() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	stop := func() { cancel(); <-ended }
	w.mu.Lock()
	first := w.unread == nil
	w.unread = stop
	w.mu.Unlock()
	if first {
		w.t.Cleanup(func() { w.unread() })
	}
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			w.read(ctx)
		}
	}()
}

// forget begins to read anew: the stream of outcomes was wiped.
func (w *world) forget() {
	w.unread()
	w.mu.Lock()
	clear(w.seen)
	w.last = 0
	w.mu.Unlock()
	w.follow()
}

// read takes outcomes in until the stream ends them.
func (w *world) read(ctx context.Context) {
	rest := func() {
		timer := time.NewTimer(20 * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	w.mu.Lock()
	from := w.last + 1
	w.mu.Unlock()
	setup, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	cons, err := w.js.OrderedConsumer(setup, topology.ResultsStream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
	})
	if err != nil {
		rest()
		return
	}
	messages, err := cons.Messages()
	if err != nil {
		rest()
		return
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			rest()
			return
		}
		meta, err := m.Metadata()
		var o envelope.Outcome
		if err != nil || json.Unmarshal(m.Data(), &o) != nil {
			w.t.Errorf("not an outcome: %s", m.Data())
			continue
		}
		w.mu.Lock()
		if meta.Sequence.Stream > w.last {
			w.last = meta.Sequence.Stream
			w.seen[o.RunID] = append(w.seen[o.RunID], &o)
		}
		w.mu.Unlock()
		w.changed.raise()
	}
}

// until waits for signals of outcomes and of the provider until done is true.
func (w *world) until(what string, done func() bool) {
	w.t.Helper()
	if !w.within(limit, done) {
		w.t.Fatalf("not within %s: %s\n%s", limit, what, w.story())
	}
}

func (w *world) within(d time.Duration, done func() bool) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		outcome, provider := w.changed.wait(), w.provider.changed.wait()
		if done() {
			return true
		}
		select {
		case <-outcome:
		case <-provider:
		case <-timer.C:
			return done()
		}
	}
}

// step is one step of a job.
type step map[string]any

func do(name, tool string) step {
	return step{"step": name, "tool": tool, "args": map[string]any{"for": name}}
}

// job makes a job of steps; more are further members of the job.
func job(runID string, more map[string]any, steps ...step) []byte {
	j := map[string]any{"schema": "agentrun.job/v1", "tenant": tenant, "run_id": runID, "steps": steps}
	maps.Copy(j, more)
	data, err := json.Marshal(j)
	if err != nil {
		panic(err)
	}
	return data
}

// publish puts a job into the queue, and again until the server has it.
func (w *world) publish(runID string, more map[string]any, steps ...step) {
	w.t.Helper()
	w.send("default", runID, job(runID, more, steps...))
}

func (w *world) send(queue, runID string, data []byte) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for {
		once, end := context.WithTimeout(ctx, 2*time.Second)
		_, err := w.js.Publish(once, topology.JobSubject(queue, run.ID{Tenant: tenant, Run: runID}), data, jetstream.WithRetryAttempts(0))
		end()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			w.t.Fatalf("job of %s not published: %v", runID, err)
		}
	}
}

func ref(runID, step string) string { return tenant + "/" + runID + "/" + step }

// outcomes of a run with this scope, in order.
func (w *world) outcomes(runID string, scope envelope.Scope) []*envelope.Outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*envelope.Outcome
	for _, o := range w.seen[runID] {
		if o.Scope == scope {
			out = append(out, o)
		}
	}
	return out
}

// end is the terminal outcome of a run's episode, nil while there is none.
func (w *world) end(runID string, episode int) *envelope.Outcome {
	ends := w.outcomes(runID, envelope.RunScope)
	if len(ends) < episode {
		return nil
	}
	return ends[episode-1]
}

// mustEnd waits for a run's first end and checks it; reason may be empty.
func (w *world) mustEnd(runID string, word envelope.Word, reason string) *envelope.Outcome {
	w.t.Helper()
	w.until("run "+runID+" ends", func() bool { return w.end(runID, 1) != nil })
	o := w.end(runID, 1)
	if o.Outcome != word || o.ReasonCode != reason {
		history := ""
		if r := w.record(runID); r != nil {
			history = fmt.Sprintf("its history: %+v", r.History)
		}
		w.t.Fatalf("run %s ended %s (%s), wanted %s (%s)\n%s\n%s", runID, o.Outcome, o.ReasonCode, word, reason, history, w.story())
	}
	return o
}

// mustStep waits for a step's outcome with this word.
func (w *world) mustStep(runID, step string, word envelope.Word) *envelope.Outcome {
	w.t.Helper()
	var found *envelope.Outcome
	w.until(fmt.Sprintf("step %s of %s is %s", step, runID, word), func() bool {
		for _, o := range w.outcomes(runID, envelope.StepScope) {
			if o.Step == step && o.Outcome == word {
				found = o
				return true
			}
		}
		return false
	})
	return found
}

// mustCalls waits until an operation was called n times.
func (w *world) mustCalls(ref string, n int) {
	w.t.Helper()
	w.until(fmt.Sprintf("%s is called %d times", ref, n), func() bool { return len(w.provider.callsOf(ref)) >= n })
}

// record reads a run's record; nil if there is none.
func (w *world) record(runID string) *engine.Run {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	stream, err := w.js.Stream(ctx, topology.RunsStream)
	if err != nil {
		return nil
	}
	m, err := stream.GetLastMsgForSubject(ctx, topology.RunSubject(run.ID{Tenant: tenant, Run: runID}))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		return nil
	}
	r, err := engine.Decode(m.Data)
	if err != nil {
		w.t.Fatalf("record of %s: %v", runID, err)
	}
	return r
}

// waiting is how many messages a stream has; very many while nobody can tell.
func (w *world) waiting(stream string) uint64 {
	w.t.Helper()
	ctx, cancel := w.deadline()
	defer cancel()
	s, err := w.js.Stream(ctx, stream)
	if err != nil {
		return math.MaxUint64
	}
	return s.CachedInfo().State.Msgs
}

// left says what lies in the queue, and what its consumers think of it.
func (w *world) left() string {
	ctx, cancel := w.deadline()
	defer cancel()
	s, err := w.js.Stream(ctx, topology.JobsStream)
	if err != nil {
		return err.Error()
	}
	state := s.CachedInfo().State
	out := fmt.Sprintf("%d messages, %d to %d", state.Msgs, state.FirstSeq, state.LastSeq)
	for seq := state.FirstSeq; seq <= min(state.LastSeq, state.FirstSeq+500); seq++ {
		if m, err := s.GetMsg(ctx, seq); err == nil {
			out += fmt.Sprintf("; %d: %s of %s", seq, m.Subject, m.Time.Format(time.StampMilli))
		}
	}
	list := s.ListConsumers(ctx)
	for c := range list.Info() {
		out += fmt.Sprintf("; %s: %d pending, %d unacknowledged, delivered to %+v, acknowledged to %+v", c.Name, c.NumPending, c.NumAckPending, c.Delivered, c.AckFloor)
	}
	return out
}

// undelivered is how many messages a stream's consumers say are still to be delivered, or to be acknowledged.
func (w *world) undelivered(stream string) uint64 {
	w.t.Helper()
	ctx, cancel := w.deadline()
	defer cancel()
	s, err := w.js.Stream(ctx, stream)
	if err != nil {
		return math.MaxUint64
	}
	n := uint64(0)
	list := s.ListConsumers(ctx)
	for c := range list.Info() {
		n += c.NumPending + uint64(c.NumAckPending)
	}
	if list.Err() != nil {
		return math.MaxUint64
	}
	return n
}

// letters are the runs that have a letter in the stream, one for each letter, sorted.
func (w *world) letters() []string {
	w.t.Helper()
	ctx, cancel := w.deadline()
	defer cancel()
	s, err := w.js.Stream(ctx, topology.LettersStream)
	if err != nil {
		w.t.Fatal(err)
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter("agentrun.deadletters.>"))
	if err != nil {
		w.t.Fatal(err)
	}
	var runs []string
	for subject, n := range info.State.Subjects {
		for range n {
			runs = append(runs, subject[strings.LastIndexByte(subject, '.')+1:])
		}
	}
	slices.Sort(runs)
	return runs
}

// idle waits until the queue has nothing left.
func (w *world) idle() {
	w.t.Helper()
	defer func() {
		if w.t.Failed() {
			w.t.Logf("left: %s", w.left())
		}
	}()
	bustest.Eventually(w.t, "the queue is empty", func() bool { return w.waiting(topology.JobsStream) == 0 })
}

// balanced checks what must hold whatever happened: outcomes numbered without gap or repeat, one end for each episode, and
// no write in the ledger twice.
func (w *world) balanced() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, outcomes := range w.seen {
		n := map[envelope.Scope]int{}
		for _, o := range outcomes {
			n[o.Scope]++
			if o.N != n[o.Scope] {
				w.t.Errorf("run %s: %s outcome %d is numbered %d (%s %s at %s)", id, o.Scope, n[o.Scope], o.N, o.Step, o.Outcome, o.At.Time())
			}
		}
	}
	for _, ref := range w.provider.twice() {
		if !w.twice[ref] {
			w.t.Errorf("%s is in the ledger %d times", ref, len(w.provider.rowsOf(ref)))
		}
	}
}

// story is what was seen, for a failure's message.
func (w *world) story() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	if len(w.seen) > 12 {
		fmt.Fprintf(&b, "%d runs seen", len(w.seen))
		return b.String()
	}
	for _, id := range slices.Sorted(maps.Keys(w.seen)) {
		fmt.Fprintf(&b, "%s:", id)
		for _, o := range w.seen[id] {
			fmt.Fprintf(&b, " %d %s:%s", o.N, o.Step, o.Outcome)
			if o.ReasonCode != "" {
				fmt.Fprintf(&b, "(%s)", o.ReasonCode)
			}
		}
		b.WriteByte('\n')
	}
	for _, c := range w.provider.callsOf("") {
		fmt.Fprintf(&b, "call %s #%d by %s at %s\n", c.Ref, c.Nth, c.Worker, c.At.Format("05.000"))
	}
	return b.String()
}

// deadline bounds one request.
func (w *world) deadline() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 10*time.Second)
}
