package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
)

// fleet stands in for executors: it answers each job with the outcomes that the test wrote for its run.
type fleet struct {
	t   *testing.T
	url string
	js  jetstream.JetStream

	mu     sync.Mutex
	script map[string][]envelope.Outcome // by run id; published when the job arrives
	n      map[string]int                // messages by result subject
	jobs   []string                      // subjects of the jobs that arrived
}

// standIn runs a fleet on a fresh server at url, reached with the rights of admin.
func standIn(t *testing.T, admin string) *fleet {
	t.Helper()
	conn, err := streams.Connect(streams.Options{Options: bus.Options{URL: admin, Name: "test", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := conn.Setup(ctx, streams.Config{Queues: []string{"default"}}); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(admin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	f := &fleet{t: t, url: admin, script: map[string][]envelope.Outcome{}, n: map[string]int{}}
	if f.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // an outcome can reach the command before its acknowledgement reaches the fleet
		f.mu.Lock()
		defer f.mu.Unlock()
	})
	if _, err := nc.Subscribe("agentrun.jobs.>", f.job); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fleet) job(m *nats.Msg) {
	f.mu.Lock()
	f.jobs = append(f.jobs, m.Subject)
	run := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	outcomes := f.script[run]
	delete(f.script, run)
	f.mu.Unlock()
	f.publish(run, outcomes...)
}

// answer says what the next job of a run comes to.
func (f *fleet) answer(run string, outcomes ...envelope.Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script[run] = outcomes
}

// publish completes the outcomes and puts them into the stream.
func (f *fleet) publish(run string, outcomes ...envelope.Outcome) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range outcomes {
		subject := "agentrun.results.acme." + run + "." + string(o.Scope)
		f.n[subject]++
		o.Schema, o.Tenant, o.RunID, o.N = "agentrun.outcome/v1", "acme", run, f.n[subject]
		o.ID, o.Terminal, o.At = fmt.Sprintf("acme/%s/%s/%d", run, o.Scope, o.N), o.Outcome.Terminal(), 1764583200000
		data, err := json.Marshal(o)
		if err != nil {
			f.t.Error(err)
			return
		}
		if _, err := f.js.Publish(context.Background(), subject, data); err != nil {
			f.t.Error(err)
		}
	}
}

func step(name string, word envelope.Word, code envelope.Code) envelope.Outcome {
	return envelope.Outcome{Scope: envelope.StepScope, Step: name, Outcome: word, ReasonCode: strings.ToLower(string(code)), Envelope: &envelope.Envelope{OK: word == envelope.OK, Code: code}}
}

func end(word envelope.Word) envelope.Outcome {
	return envelope.Outcome{Scope: envelope.RunScope, Outcome: word}
}

func jobJSON(run string, more bool, steps ...string) string {
	var list []string
	for _, s := range steps {
		list = append(list, fmt.Sprintf(`{"step":%q,"tool":"t","args":{}}`, s))
	}
	return fmt.Sprintf(`{"schema":"agentrun.job/v1","tenant":"acme","run_id":%q,"more":%v,"steps":[%s]}`, run, more, strings.Join(list, ","))
}

// lines are the outcomes that were printed, as "step:outcome" or "RUN:outcome".
func lines(t *testing.T, out string) string {
	t.Helper()
	var got []string
	for line := range strings.Lines(out) {
		var o envelope.Outcome
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Errorf("not one JSON object per line: %q: %v", line, err)
			continue
		}
		name := o.Step
		if o.Scope == envelope.RunScope {
			name = "RUN"
		}
		got = append(got, name+":"+string(o.Outcome))
	}
	return strings.Join(got, " ")
}

func TestSubmitWaits(t *testing.T) {
	t.Parallel()
	f := standIn(t, bustest.Start(t).URL)
	for _, x := range []struct {
		run    string
		before []envelope.Outcome // in the stream already
		job    string
		after  []envelope.Outcome // when the job arrives
		code   int
		out    string
	}{
		{"ok", nil, jobJSON("ok", false, "a"), []envelope.Outcome{step("a", "retryable", "UPSTREAM_ERROR"), step("a", "ok", ""), end("ok")}, 0, "a:retryable a:ok RUN:ok"},
		{"fatal", nil, jobJSON("fatal", false, "a"), []envelope.Outcome{step("a", "fatal", "RESOURCE_NOT_FOUND"), end("fatal")}, 2, "a:fatal RUN:fatal"},
		{"human", nil, jobJSON("human", false, "a"), []envelope.Outcome{end("needs_human")}, 3, "RUN:needs_human"},
		{"cancelled", nil, jobJSON("cancelled", false, "a"), []envelope.Outcome{end("cancelled")}, 4, "RUN:cancelled"},
		{"more", nil, jobJSON("more", true, "a", "b"), []envelope.Outcome{step("a", "ok", ""), step("b", "ok", "")}, 0, "a:ok b:ok"},
		{"more_fatal", nil, jobJSON("more_fatal", true, "a", "b"), []envelope.Outcome{step("a", "fatal", "INVALID_ARGUMENT"), step("b", "ok", "")}, 2, "a:fatal b:ok"},
		{"more_ends", nil, jobJSON("more_ends", true, "a", "b"), []envelope.Outcome{step("a", "needs_human", "MISSING_APPROVAL"), end("needs_human")}, 3, "a:needs_human RUN:needs_human"},
		{"more_empty", nil, jobJSON("more_empty", true), nil, 0, ""},
		// The run had ended before: the end is in the stream, whether the job repeats it or comes too late.
		{"again", []envelope.Outcome{step("a", "ok", ""), end("ok")}, jobJSON("again", false, "a"), nil, 0, "RUN:ok"},
		{"again_fatal", []envelope.Outcome{step("a", "fatal", "STATE_CONFLICT"), end("fatal")}, jobJSON("again_fatal", false, "a"), nil, 2, "RUN:fatal"},
		{"closed", []envelope.Outcome{step("a", "ok", ""), end("ok")}, jobJSON("closed", false, "b"), []envelope.Outcome{step("b", "fatal", "RUN_CLOSED")}, 2, "b:fatal"},
		// An operator replayed the run: its earlier end is not the answer.
		{"replayed", []envelope.Outcome{step("a", "fatal", "STATE_CONFLICT"), end("fatal"), step("a", "retryable", "UPSTREAM_ERROR")}, jobJSON("replayed", false, "a"), []envelope.Outcome{step("a", "ok", ""), end("ok")}, 0, "a:ok RUN:ok"},
		// A known step keeps its outcome; only the new one is told of, then both are the answer.
		{"known", []envelope.Outcome{step("a", "ok", "")}, jobJSON("known", true, "a", "b"), []envelope.Outcome{step("b", "ok", "")}, 0, "b:ok a:ok"},
		// Refused jobs.
		{"invalid", nil, jobJSON("invalid", false, "a"), []envelope.Outcome{{Scope: "step", Outcome: "fatal", ReasonCode: "invalid_job", Envelope: &envelope.Envelope{Code: envelope.CodeJobInvalid}}}, 2, ":fatal"},
		{"conflict", []envelope.Outcome{step("a", "ok", "")}, jobJSON("conflict", false, "a"), []envelope.Outcome{step("a", "fatal", "STEP_CONFLICT")}, 2, "a:fatal"},
	} {
		t.Run(x.run, func(t *testing.T) {
			t.Parallel()
			f.publish(x.run, x.before...)
			f.answer(x.run, x.after...)
			code, out, errs := command(t, map[string]string{"AGENTRUN_NATS": f.url}, x.job, "submit", "--wait", "--timeout", "30s")
			// Who sends a run again is told that this is its earlier answer.
			told, want := strings.Contains(errs, "nothing was done: acme/"+x.run+" had its answer before"), strings.HasPrefix(x.run, "again")
			if code != x.code || told != want || !want && errs != "" {
				t.Errorf("exit code %d, wanted %d; stderr %q", code, x.code, errs)
			}
			if got := lines(t, out); got != x.out {
				t.Errorf("printed %q, wanted %q", got, x.out)
			}
		})
	}
}

func TestSubmitWithoutWaiting(t *testing.T) {
	t.Parallel()
	f := standIn(t, bustest.Start(t).URL)
	file := write(t, "job.json", jobJSON("r1", false, "a"))
	code, out, errs := command(t, map[string]string{"NATS_URL": f.url}, "", "submit", "-f", file, "--queue", "bulk")
	if code != 0 || errs != "" || !strings.Contains(out, `"run_id":"r1"`) || !json.Valid([]byte(out)) {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, out, errs)
	}
	bustest.Eventually(t, "the job is on its subject", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.jobs) == 1 && f.jobs[0] == "agentrun.jobs.bulk.acme.r1"
	})
}

// Where a reconciler says that no executor takes the queue's jobs, submit warns, with and without --wait; it says nothing
// where one does, where it cannot be said, and where no answer comes.
func TestSubmitWarnsOfAQueueThatNobodyPulls(t *testing.T) {
	t.Parallel()
	s := bustest.Start(t)
	f := standIn(t, s.URL)
	nc := s.Conn()
	_, err := nc.Subscribe("agentrun.op.queues.get.acme", func(m *nats.Msg) {
		var q struct{ Queue string }
		if err := json.Unmarshal(m.Data, &q); err != nil {
			t.Error(err)
		}
		switch q.Queue {
		case "silent":
		case "unknown":
			_ = m.Respond([]byte(`{"ok":false,"code":"UNAVAILABLE","message":"not yet"}`))
		default:
			_ = m.Respond(fmt.Appendf(nil, `{"ok":true,"queue":%q,"pulled":%t}`, q.Queue, q.Queue == "default"))
		}
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range []struct {
		queue        string
		warns, waits bool
	}{{"default", false, false}, {"defualt", true, false}, {"defualt", true, true}, {"default", false, true}, {"unknown", false, false}, {"silent", false, false}} {
		run := fmt.Sprintf("r%d", i)
		f.answer(run, step("a", "ok", ""), end("ok"))
		args := []string{"submit", "--nats", s.URL, "--queue", x.queue}
		if x.waits {
			args = append(args, "--wait", "--timeout", "20s")
		}
		code, out, errs := command(t, nil, jobJSON(run, false, "a"), args...)
		warned := strings.Contains(errs, "no executor takes jobs of queue "+x.queue)
		if code != 0 || warned != x.warns || !x.warns && errs != "" {
			t.Errorf("%+v: exit code %d, stdout %q, stderr %q", x, code, out, errs)
		}
	}
}

// What a shell's tracer has in TRACEPARENT goes with the job.
func TestSubmitPassesTheTraceOn(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	f := standIn(t, server.URL)
	conn := server.Conn()
	jobs, err := conn.SubscribeSync("agentrun.jobs.>")
	if err == nil {
		err = conn.Flush() // the job comes on another connection: only now is it sure to come later than the subscription
	}
	if err != nil {
		t.Fatal(err)
	}
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	if code, _, errs := command(t, map[string]string{"NATS_URL": f.url, "TRACEPARENT": trace}, jobJSON("r1", false, "a"), "submit"); code != 0 {
		t.Fatalf("exit code %d, stderr %q", code, errs)
	}
	job, err := jobs.NextMsg(10 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if got := job.Header["traceparent"]; len(got) != 1 || got[0] != trace {
		t.Errorf("the job came with traceparent %q", got)
	}
}

func TestSubmitTimesOut(t *testing.T) {
	t.Parallel()
	f := standIn(t, bustest.Start(t).URL)
	code, _, errs := command(t, nil, jobJSON("slow", false, "a"), "submit", "--nats", f.url, "--wait", "--timeout", "300ms")
	if code != 5 || !strings.Contains(errs, "--timeout") || !strings.Contains(errs, "acme/slow") {
		t.Errorf("exit code %d, stderr %q", code, errs)
	}
}

// Ctrl-C ends the wait, not the run.
func TestSubmitIsInterrupted(t *testing.T) {
	t.Parallel()
	f := standIn(t, bustest.Start(t).URL)
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	env := app.Env{Lookup: func(string) (string, bool) { return "", false }, Stdin: strings.NewReader(jobJSON("r", false, "a")), Stdout: &out, Stderr: &errs}
	done := make(chan int, 1)
	go func() { done <- Run(ctx, []string{"submit", "--nats", f.url, "--wait"}, env) }()
	bustest.Eventually(t, "the job arrives", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.jobs) == 1
	})
	cancel()
	if code := <-done; code != 1 || !strings.Contains(errs.String(), "goes on without") || out.Len() > 0 {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, &out, &errs)
	}
}

// Every other error exits 1 with one line.
func TestSubmitRefuses(t *testing.T) {
	t.Parallel()
	empty := bustest.Start(t)
	valid := jobJSON("r", false, "a")
	for _, x := range []struct {
		name, nats, job string
		args            []string
		want            string
	}{
		{"no server", "nats://127.0.0.1:1", valid, nil, "127.0.0.1:1"},
		{"no streams", empty.URL, valid, nil, "start an executor"},
		{"no streams, waiting", empty.URL, valid, []string{"--wait"}, "start an executor"},
		{"no JSON", empty.URL, `{"schema":`, nil, "JSON"},
		{"a comma too many", empty.URL, "{\"schema\": \"agentrun.job/v1\",\n  \"workflow\": \"ä\", }\n", nil, "<stdin>:2:20: "},
		{"nothing", empty.URL, ``, nil, "JSON"},
		{"no job", empty.URL, `{}`, nil, "schema"},
		{"bad tenant", empty.URL, strings.Replace(valid, "acme", "a.b", 1), nil, "a.b"},
		{"bad run", empty.URL, jobJSON("*", false), nil, "run_id"},
		{"misspelt steps", empty.URL, strings.Replace(valid, `"steps"`, `"stpes"`, 1), nil, `job: unknown key "stpes": did you mean steps?`},
		{"misspelt tenant", empty.URL, strings.Replace(valid, `"tenant"`, `"tennant"`, 1), nil, `job: unknown key "tennant": did you mean tenant?`},
		{"misspelt in a step", empty.URL, strings.Replace(valid, `"tool"`, `"Tool"`, 1), nil, `job/steps/0: unknown key "Tool": did you mean tool?`},
		{"misspelt limit", empty.URL, strings.Replace(valid, `"steps"`, `"budget":{"max_elapsed":5},"steps"`, 1), nil, `job/budget: unknown key "max_elapsed": did you mean max_elapsed_seconds?`},
		{"unlike any", empty.URL, strings.Replace(valid, `"steps"`, `"usage":{"color":5},"steps"`, 1), nil, `job/usage: unknown key "color": remove it, or use one of turns, input_tokens,`},
		{"two jobs", empty.URL, valid + valid, nil, "one job"},
		{"too large", empty.URL, strings.Replace(valid, `"a"`, `"`+strings.Repeat("a", jobBytesMax)+`"`, 1), nil, "larger"},
		{"no file", empty.URL, ``, []string{"-f", "/no/such/job.json"}, "/no/such/job.json"},
	} {
		code, out, errs := command(t, map[string]string{"AGENTRUN_NATS": x.nats}, x.job, append([]string{"submit"}, x.args...)...)
		if code != 1 || out != "" || !strings.Contains(errs, x.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", x.name, code, out, errs)
		}
	}
}

// A publisher with the rights of contract §2 and no more can submit and wait, also without the right to read later.
func TestSubmitNeedsOnlyAPublishersRights(t *testing.T) {
	t.Parallel()
	publish := []string{"agentrun.jobs.*.acme.>", "$JS.API.CONSUMER.CREATE.AGENTRUN_RESULTS.*.agentrun.results.acme.>"}
	user := func(name string, publish []string) *server.User {
		return &server.User{Username: name, Password: "pw", Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: publish},
			Subscribe: &server.SubjectPermission{Allow: []string{"agentrun.results.acme.>", "_INBOX.>"}},
		}}
	}
	s := bustest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "pw"}, user("publisher", publish), user("blind", publish[:1])}
	})
	as := func(name string) string { return strings.Replace(s.URL, "nats://", "nats://"+name+":pw@", 1) }
	f := standIn(t, as("admin"))
	f.publish("old", step("a", "ok", ""), end("ok"))
	f.answer("new", step("a", "ok", ""), end("ok"))
	f.answer("live", step("a", "ok", ""), end("ok"))
	for _, x := range []struct{ user, run, out string }{{"publisher", "new", "a:ok RUN:ok"}, {"publisher", "old", "RUN:ok"}, {"blind", "live", "a:ok RUN:ok"}} {
		code, out, errs := command(t, nil, jobJSON(x.run, false, "a"), "submit", "--nats", as(x.user), "--wait", "--timeout", "20s")
		if code != 0 || lines(t, out) != x.out || strings.Contains(errs, "queues.get") {
			t.Errorf("%s, %s: exit code %d, stdout %q, stderr %q", x.user, x.run, code, out, errs)
		}
	}
}

// A server that restarts while submit waits costs no outcome.
func TestSubmitSurvivesARestartOfTheServer(t *testing.T) {
	t.Parallel()
	s := bustest.Start(t)
	f := standIn(t, s.URL)
	type result struct {
		code int
		out  string
	}
	done := make(chan result, 1)
	go func() {
		code, out, _ := command(t, nil, jobJSON("r", false, "a"), "submit", "--nats", s.URL, "--wait", "--timeout", "30s")
		done <- result{code, out}
	}()
	bustest.Eventually(t, "the job arrives", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.jobs) == 1
	})
	s.Stop()
	s.StartAgain()
	bustest.Eventually(t, "the stream is back", func() bool {
		_, err := f.js.Stream(t.Context(), topology.ResultsStream)
		return err == nil
	})
	f.publish("r", step("a", "ok", ""), end("ok"))
	select {
	case r := <-done:
		if r.code != 0 || lines(t, r.out) != "a:ok RUN:ok" {
			t.Errorf("exit code %d, printed %q", r.code, r.out)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("submit missed the end of the run")
	}
}
