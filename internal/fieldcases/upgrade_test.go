package fieldcases

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// This build takes over what the fleets of earlier versions left behind: every run comes to its right end, each write is
// done once, letters can be answered, and nothing is broken afterwards. The journal is met with the store that it knows,
// and with one that it does not, as after a restore.
func TestFixturesComeToTheirEnd(t *testing.T) {
	for _, f := range fixtures(t) {
		t.Run(f.version(), func(t *testing.T) {
			t.Parallel()
			f.takeOver(t, true)
		})
		t.Run(f.version()+" on another store", func(t *testing.T) {
			t.Parallel()
			f.takeOver(t, false)
		})
	}
}

func (f *fixture) takeOver(t *testing.T, known bool) {
	w := f.load(t)
	w.twice = map[string]bool{}
	data := t.TempDir()
	if err := os.CopyFS(data, os.DirFS(filepath.Join(f.dir, "data"))); err != nil {
		t.Fatal(err)
	}
	if known {
		w.knows(data)
	}
	w.provider.script(nil)
	executor := w.executor("e1", "--data", data, "--queues", "default,second,third")
	w.reconciler("r1")
	w.follow()

	// What nobody has to do anything about.
	for _, id := range []string{"queued", "waiting", "parallel", "flying", "told", "lost", "unknown-done", "unknown-gone", "said"} {
		w.mustEnd(id, envelope.OK, "")
	}
	cancelled := w.mustEnd("cancelling", envelope.Cancelled, "cancelled")
	if e := cancelled.CompletedEffects; len(e) != 1 || e[0].Step != "a" {
		t.Errorf("cancelling ended with the effects %+v", e)
	}
	if n := w.provider.lookupsOf(ref("told", "a")); n != 0 {
		t.Errorf("told was looked up %d times: its reply is in the journal", n)
	}
	if n := len(w.provider.callsOf(ref("told", "a"))) + len(w.provider.callsOf(ref("flying", "a"))) + len(w.provider.callsOf(ref("unknown-done", "a"))); n != 0 {
		t.Errorf("%d calls of writes that were done", n)
	}

	// What publishers and people do.
	w.publish("done", nil, do("a", "read"), step{"step": "b", "tool": "pay", "args": map[string]any{"for": map[string]any{"$from": "a#/id"}}},
		step{"step": "c", "tool": "read", "args": map[string]any{}, "optional": true}) // again
	w.publish("waived", map[string]any{"more": false}, do("c", "read"))
	w.mustEnd("waived", envelope.OK, "")
	w.publish("open", map[string]any{"more": false}, do("b", "read"))
	w.publish("amend", map[string]any{"more": false}, step{"step": "a", "tool": "pay", "args": map[string]any{"for": "better"}})
	w.mustEnd("open", envelope.OK, "")
	w.mustEnd("amend", envelope.OK, "")
	act := func(verb, id string, more map[string]any) {
		t.Helper()
		request := map[string]any{"run_id": id, "by": "alice", "reason": "upgraded", "letter": tenant + "/" + id + "/1"}
		maps.Copy(request, more)
		w.op("deadletters."+verb, request)
	}
	act("resolve", "human", map[string]any{"commit_state": "committed", "evidence_ref": "m1"})
	act("resolve", "evidenced", map[string]any{"commit_state": "committed", "evidence_ref": "m1"})
	act("approve", "gated", nil)
	act("replay", "fatal", nil)
	act("replay", "broke", map[string]any{"add_budget": map[string]any{"max_tool_calls": 5}})
	act("discard", "invalid", nil)
	act("replay", "replayed", map[string]any{"letter": tenant + "/replayed/2"})
	w.until("replayed ends a third time", func() bool { return w.end("replayed", 3) != nil })
	if o := w.end("replayed", 3); o.Outcome != envelope.OK {
		t.Errorf("replayed ended %s (%s)", o.Outcome, o.ReasonCode)
	}
	for _, id := range []string{"human", "evidenced", "gated", "fatal", "broke"} {
		w.until(id+" ends again", func() bool { return w.end(id, 2) != nil })
		if o := w.end(id, 2); o.Outcome != envelope.OK {
			t.Errorf("%s ended %s (%s) after its letter was answered", id, o.Outcome, o.ReasonCode)
		}
	}
	w.idle()
	bustest.Eventually(t, "every letter is answered", func() bool { return len(w.letters()) == 0 })

	w.balanced()
	if ends := w.outcomes("done", envelope.RunScope); len(ends) != 1 || ends[0].Outcome != envelope.OK {
		t.Errorf("done has %d ends", len(ends))
	}
	for _, id := range []string{"done", "open", "amend", "queued", "waiting", "parallel", "flying", "told", "lost", "unknown-done", "unknown-gone", "cancelling", "human", "evidenced", "gated", "fatal", "said"} {
		for _, s := range w.record(id).Steps {
			if n := len(w.provider.rowsOf(ref(id, s.Name))); s.Effect == envelope.Write && s.State == run.OK && n != 1 {
				t.Errorf("%s is in the ledger %d times", ref(id, s.Name), n)
			}
		}
	}
	executor.stop()
	report, err := app.Audit(t.Context(), app.Connection{NATS: w.url}, "test")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range report.Found {
		t.Errorf("audit: %s", found)
	}
	if r, err := journal.Check(app.JournalPath(data)); err != nil || len(r.Problems) > 0 {
		t.Errorf("journal: %v %v", r.Problems, err)
	}
}

// knows makes a journal know this world's store, as it knew the one that it was written with.
func (w *world) knows(data string) {
	w.t.Helper()
	ctx, cancel := w.deadline()
	defer cancel()
	s, err := w.js.Stream(ctx, topology.RunsStream)
	if err != nil {
		w.t.Fatal(err)
	}
	j, err := journal.Open(app.JournalPath(data), journal.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := j.Adopt(port.Known{Created: s.CachedInfo().Created}); err != nil {
		w.t.Error(err)
	}
	if err := j.Close(); err != nil {
		w.t.Error(err)
	}
}

// The form of version 1 stays what it is: this build reads each record, letter and outcome that was stored and writes it
// again byte for byte. A change that fails here would be misread by the processes of the version before, or lose what
// they wrote: it needs a new schema (docs/decisions/0007).
func TestStoredFormIsKept(t *testing.T) {
	f := fixtureIn(t, "testdata/v1")
	same := func(m stored, got []byte, err error) {
		t.Helper()
		if err != nil || string(got) != string(m.Data) {
			t.Errorf("%s: %v\nstored  %s\nwritten %s", m.Subject, err, m.Data, got)
		}
	}
	states := map[string]bool{}
	missing := fieldsOf(reflect.TypeFor[engine.Run](), "", map[string]bool{})
	for _, m := range f.messages(t, topology.RunsStream) {
		if strings.HasSuffix(m.Subject, "_fleet.reconciler") {
			continue
		}
		r, err := engine.Decode(m.Data)
		if err != nil {
			t.Fatalf("%s: %v", m.Subject, err)
		}
		states[r.State()] = true
		got, err := r.Encode()
		same(m, got, err)
		var v any
		if err := json.Unmarshal(m.Data, &v); err != nil {
			t.Fatal(err)
		}
		tick(v, "", missing)
	}
	if got := strings.Join(slices.Sorted(maps.Keys(states)), " "); got != "cancelling fatal needs_human ok open running unknown waiting" {
		t.Errorf("the records are %s", got)
	}
	t.Logf("members that no record of the fixture has: %s", strings.Join(slices.Sorted(maps.Keys(missing)), " "))
	said, err := os.ReadFile(filepath.Join(f.dir, "facts.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	data := t.TempDir()
	if err := os.CopyFS(data, os.DirFS(filepath.Join(f.dir, "data"))); err != nil {
		t.Fatal(err)
	}
	if got := facts(t, data); string(got) != string(said) {
		t.Errorf("the journal said\n%s\nand is read as\n%s", said, got)
	}
	for _, m := range f.messages(t, topology.LettersStream) {
		l := new(deadletter.Letter)
		if err := json.Unmarshal(m.Data, l); err != nil {
			t.Fatalf("%s: %v", m.Subject, err)
		}
		got, err := strictjson.Marshal(l)
		same(m, got, err)
	}
	for _, m := range f.messages(t, topology.ResultsStream) {
		o := new(envelope.Outcome)
		if err := json.Unmarshal(m.Data, o); err != nil {
			t.Fatalf("%s: %v", m.Subject, err)
		}
		got, err := strictjson.Marshal(o)
		same(m, got, err)
	}
	for _, m := range f.messages(t, topology.AlertsStream) {
		a := new(deadletter.Alert)
		if err := json.Unmarshal(m.Data, a); err != nil {
			t.Fatalf("%s: %v", m.Subject, err)
		}
		got, err := strictjson.Marshal(a)
		same(m, got, err)
	}
}

// fieldsOf lists the members that a type's JSON may have, as paths without the places in lists.
func fieldsOf(t reflect.Type, path string, out map[string]bool) map[string]bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return out
	}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name != "" && name != "-" {
			out[path+"/"+name] = true
			fieldsOf(t.Field(i).Type, path+"/"+name, out)
		}
	}
	return out
}

// tick takes the members that a value has off the list.
func tick(v any, path string, missing map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			delete(missing, path+"/"+k)
			tick(e, path+"/"+k, missing)
		}
	case []any:
		for _, e := range v {
			tick(e, path, missing)
		}
	}
}

// A fleet meets what a newer version wrote: it leaves that alone, says so, and does everything else.
func TestNewerVersionsAreLeftAlone(t *testing.T) {
	t.Parallel()
	f := fixtureIn(t, "testdata/v1")
	w := f.load(t)
	data := t.TempDir()
	if err := os.CopyFS(data, os.DirFS(filepath.Join(f.dir, "data"))); err != nil {
		t.Fatal(err)
	}
	w.knows(data)
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	stream, err := w.js.Stream(ctx, topology.RunsStream)
	if err != nil {
		t.Fatal(err)
	}
	subject := func(id string) string { return topology.RunSubject(run.ID{Tenant: tenant, Run: id}) }
	// rewrite is what a newer version does to a record.
	rewrite := func(subject, from, to string) *jetstream.RawStreamMsg {
		t.Helper()
		m, err := stream.GetLastMsgForSubject(ctx, subject)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Replace(string(m.Data), from, to, 1)
		if text == string(m.Data) {
			t.Fatalf("%s: nothing to rewrite in %s", subject, m.Data)
		}
		restored := stored{Subject: subject, Header: m.Header, Data: []byte(text)}
		restored.since(0)
		if _, err := w.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Header: restored.Header, Data: restored.Data}); err != nil {
			t.Fatal(err)
		}
		if m, err = stream.GetLastMsgForSubject(ctx, subject); err != nil {
			t.Fatal(err)
		}
		return m
	}
	newer := map[string]*jetstream.RawStreamMsg{}
	for id, change := range map[string][2]string{
		"open":    {"agentrun.record/v1", "agentrun.record/v2"}, // gets a job
		"flying":  {"agentrun.record/v1", "agentrun.record/v2"}, // the journal knows of it
		"lost":    {`"state":"executing"`, `"state":"suspended"`},
		"waiting": {`"budget":{`, `"budget":{"max_joules":5,`},
	} {
		newer[id] = rewrite(subject(id), change[0], change[1])
	}
	w.provider.script(nil)
	reconciler := w.reconciler("r1")
	executor := w.executor("e1", "--data", data, "--queues", "default,second,third")
	w.follow()
	w.publish("open", map[string]any{"more": false}, do("b", "read"))
	w.send("default", "strange", []byte(strings.Replace(string(job("strange", nil, do("a", "read"))), "job/v1", "job/v2", 1)))
	w.mustEnd("strange", envelope.Fatal, "invalid_job")
	for _, id := range []string{"queued", "parallel", "told", "unknown-done", "unknown-gone"} {
		w.mustEnd(id, envelope.OK, "")
	}
	if !slices.Contains(w.letters(), "strange") {
		t.Error("there is no letter about the job of an unknown schema")
	}
	says := func(p *process, what, id string) {
		t.Helper()
		bustest.Eventually(t, what+" is said of "+id, func() bool {
			for _, line := range strings.Split(p.log.String(), "\n") {
				if strings.Contains(line, what) && strings.Contains(line, "run_id="+id+" ") && strings.Contains(line, "written by a newer version") {
					return true
				}
			}
			return false
		})
	}
	says(executor, "run given up by this worker", "open")
	says(executor, "journal entry left for a newer version", "flying")
	says(reconciler, "run not tended to", "lost")
	says(reconciler, "run not tended to", "waiting")
	list := w.op("runs.list", map[string]any{"limit": 100})
	shown := map[string]bool{}
	for _, r := range list["runs"].([]any) {
		shown[r.(map[string]any)["run_id"].(string)] = true
	}
	if !shown["lost"] || !shown["told"] {
		t.Errorf("the list of runs has %v", slices.Sorted(maps.Keys(shown)))
	}

	// The fleet's own record too: whoever does not know it stands by.
	fleet := rewrite("agentrun.runs._fleet.reconciler", "agentrun.fleet/v1", "agentrun.fleet/v2")
	bustest.Eventually(t, "the reconciler stands by", func() bool {
		s := reconciler.log.String()
		return strings.Contains(s[max(strings.LastIndex(s, "standing by"), 0):], "msg=standby")
	})
	reconciler.stop()
	executor.stop()
	newer["_fleet"] = fleet
	for id, m := range newer {
		now, err := stream.GetLastMsgForSubject(ctx, m.Subject)
		if err != nil || now.Sequence != m.Sequence || string(now.Data) != string(m.Data) {
			t.Errorf("%s was written by the older version (%v)", id, err)
		}
	}
	report, err := app.Audit(t.Context(), app.Connection{NATS: w.url}, "test")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(report.Found); n == 0 {
		t.Error("the audit says nothing about records that it cannot read")
	}
	// The intent of flying waits for the version that knows its record.
	kept := false
	if err := journal.List(app.JournalPath(data), func(f engine.Fact) error {
		kept = kept || f.Intent.RunID == "flying" && !f.Settled
		return nil
	}); err != nil || !kept {
		t.Errorf("the intent of flying is not there unsettled (%v)", err)
	}
}
