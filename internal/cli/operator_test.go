package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
)

// ask runs the reconciler with answers from a stand-in for the operator service.
func ask(t *testing.T, url, stdin string, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	env := app.Env{
		Lookup: func(name string) (string, bool) {
			v, ok := map[string]string{"NATS_URL": url, "USER": "alice", "COLUMNS": "100"}[name]
			return v, ok
		},
		Stdin: strings.NewReader(stdin), Stdout: &o, Stderr: &e,
	}
	code = RunReconciler(t.Context(), args, env)
	return code, o.String(), e.String()
}

// A run is shown whenever it has changed, and no more once it has ended.
func TestWatchingARun(t *testing.T) {
	s := bustest.Start(t)
	nc := s.Conn()
	looks := 0
	_, err := nc.Subscribe("agentrun.op.*.get.acme", func(m *nats.Msg) {
		if strings.Contains(m.Subject, "deadletters") {
			_ = m.Respond([]byte(`{"ok":false,"code":"NOT_FOUND","message":"there is none"}`))
			return
		}
		looks++
		state := `"state":"running","spent":{"elapsed_seconds":` + fmt.Sprint(looks) + `}`
		if looks > 3 { // twice for what is shown, once for what has not changed, then its end
			state = `"state":"ok","outcome":"ok"`
		}
		_ = m.Respond([]byte(`{"ok":true,"run":{"tenant":"acme","run_id":"r","steps":[],` + state + `}}`))
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	watchEvery = 10 * time.Millisecond
	code, out, errs := ask(t, s.URL, "", "runs", "show", "acme/r", "--watch")
	if code != 0 || strings.Count(out, "run acme/r  running") != 1 || strings.Count(out, "run acme/r  ok") != 1 {
		t.Errorf("exit code %d %s\n%s", code, errs, out)
	}
}

// A watch that has shown something waits for a server, or a reconciler, that has gone, says so once, and goes on.
func TestAWatchOutlivesItsServer(t *testing.T) {
	s := bustest.Start(t)
	nc := s.Conn()
	shown, back := make(chan struct{}), make(chan struct{})
	looks := 0
	if _, err := nc.Subscribe("agentrun.op.runs.get.acme", func(m *nats.Msg) {
		state := `"state":"running"`
		select {
		case <-back:
			state = `"state":"ok","outcome":"ok"`
		default:
		}
		_ = m.Respond([]byte(`{"ok":true,"run":{"tenant":"acme","run_id":"r","steps":[],` + state + `}}`))
		if looks++; looks == 3 { // it has been shown
			close(shown)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Subscribe("agentrun.op.deadletters.get.acme", func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"ok":false,"code":"NOT_FOUND","message":"there is none"}`))
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	watchEvery = 10 * time.Millisecond
	var out bytes.Buffer
	errs := &told{line: make(chan string, 16)}
	env := app.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: errs, Lookup: func(name string) (string, bool) {
		v, ok := map[string]string{"NATS_URL": s.URL}[name]
		return v, ok
	}}
	ended := make(chan int, 1)
	go func() {
		ended <- RunReconciler(t.Context(), []string{"runs", "show", "acme/r", "--watch", "--timeout", "200ms"}, env)
	}()
	select {
	case <-shown:
	case code := <-ended:
		t.Fatalf("exit code %d: %s", code, <-errs.line)
	}
	s.Stop()
	if line := <-errs.line; !strings.Contains(line, "reconciler runs show: waiting: ") {
		t.Errorf("it says %q", line)
	}
	close(back)
	s.StartAgain()
	if code := <-ended; code != 0 || strings.Count(out.String(), "run acme/r  running") != 1 || strings.Count(out.String(), "run acme/r  ok") != 1 {
		t.Errorf("exit code %d\n%s", code, out.String())
	}
}

// told passes on what is written.
type told struct{ line chan string }

func (w *told) Write(b []byte) (int, error) {
	w.line <- string(b)
	return len(b), nil
}

// What confirms, chooses or changes something is never taken from the environment; where NATS is, is.
func TestNothingThatActsComesFromTheEnvironment(t *testing.T) {
	s := bustest.Start(t)
	asked := operatorOf(t, s, nil)
	var out, errs bytes.Buffer
	env := app.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Lookup: func(name string) (string, bool) {
		v, ok := map[string]string{
			"AGENTRUN_NATS": s.URL, "AGENTRUN_YES": "true", "AGENTRUN_BY": "mallory", "AGENTRUN_REASON": "none", "AGENTRUN_ALL": "true",
			"AGENTRUN_TENANT": "acme", "AGENTRUN_LETTER": "acme/r/1", "AGENTRUN_COMMIT_STATE": "committed", "AGENTRUN_ADD_BUDGET": "{}", "USER": "alice",
		}[name]
		return v, ok
	}}
	for _, x := range []struct{ args, errs string }{
		{"deadletters discard acme/r --reason r", "--yes"},
		{"deadletters discard acme/r --yes", "--reason"},
		{"deadletters assign acme/r --reason r --yes", "--to"},
		{"deadletters assign acme/r --to a.b --reason r --yes", "--to"},
		{"deadletters assign --to x --reason r --yes", "--tenant"},
		{"deadletters replay --reason r --yes", "--tenant"},
		{"deadletters replay --tenant acme --reason r --yes", "--all"},
		{"deadletters resolve acme/r --letter acme/r/1 --reason r --yes", "--commit-state"},
		{"deadletters resolve acme/r --commit-state committed --reason r --yes", "--letter"},
		{"runs cancel acme/r --reason r", "--yes"},
	} {
		errs.Reset()
		if code := RunReconciler(t.Context(), strings.Fields(x.args), env); code != 2 || !strings.Contains(errs.String(), x.errs) {
			t.Errorf("%s: exit code %d: %s", x.args, code, errs.String())
		}
		if calls := asked(); len(calls) > 0 {
			t.Errorf("%s asked %q", x.args, calls)
		}
	}
	RunReconciler(t.Context(), strings.Fields("deadletters discard acme/r --reason r --yes"), env)
	if calls := asked(); len(calls) != 1 || !strings.Contains(calls[0], `"by":"alice"`) || strings.Contains(calls[0], `"letter":`) {
		t.Errorf("asked %q", calls)
	}
}

const letterJSON = `{"schema":"agentrun.deadletter/v1","id":"acme/run_1042/1","tenant":"acme","run_id":"run_1042","owner":"billing-oncall","outcome":"needs_human","reason_code":"external_outcome_unknown","code":"VERIFICATION_UNAVAILABLE","failure_class":"dependency","commit_state":"unknown","next_action":"escalate","step":"apply_credit","tool":"apply_credit","completed_effects":[],"remaining_steps":["draft_reply"],"open":[{"step":"apply_credit","operation_ref":"acme/run_1042/apply_credit","attempt":1,"reason_code":"external_outcome_unknown","commit_state":"unknown"}],"allowed_actions":["resolve","discard"],"replays":0,"budget":{},"spent":{},"created_at":"2026-01-01T00:00:00.000Z"}`

const runJSON = `{"tenant":"acme","run_id":"run_1042","state":"needs_human","outcome":"needs_human","reason_code":"external_outcome_unknown","episode":1,"more":false,"steps":[{"step":"apply_credit","tool":"apply_credit","effect":"write","state":"needs_human","attempt":1,"code":"VERIFICATION_UNAVAILABLE","commit_state":"unknown"},{"step":"draft_reply","tool":"draft_reply","effect":"","state":"ready","attempt":0}],"budget":{"max_tool_calls":8},"spent":{"tool_calls":1},"completed_effects":[],"history":[{"at":"2026-01-01T00:00:00.000Z","kind":"accepted","by":""},{"at":"2026-01-01T00:00:01.000Z","kind":"dispatch","by":"w1","step":"apply_credit","attempt":1,"code":"OUTCOME_UNKNOWN","commit_state":"unknown"},{"at":"2026-01-01T00:00:05.000Z","kind":"verify","by":"r1","step":"apply_credit","attempt":1,"code":"VERIFICATION_UNAVAILABLE"}],"created_at":"2026-01-01T00:00:00.000Z","updated_at":"2026-01-01T00:00:05.000Z"}`

// operatorOf answers operator calls with fixed replies and keeps the requests.
func operatorOf(t *testing.T, s *bustest.Server, replies map[string]string) (asked func() []string) {
	t.Helper()
	nc := s.Conn()
	requests := make(chan string, 100)
	_, err := nc.Subscribe("agentrun.op.>", func(m *nats.Msg) {
		requests <- m.Subject + " " + string(m.Data)
		call := strings.TrimPrefix(m.Subject[:strings.LastIndexByte(m.Subject, '.')], "agentrun.op.")
		reply := replies[call]
		if reply == "" {
			reply = `{"ok":false,"code":"NOT_FOUND","message":"there is none"}`
		}
		_ = m.Respond([]byte(reply))
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() (out []string) {
		for len(requests) > 0 {
			out = append(out, <-requests)
		}
		return out
	}
}

func TestOperatorCommands(t *testing.T) {
	s := bustest.Start(t)
	asked := operatorOf(t, s, map[string]string{
		"deadletters.list":    `{"ok":true,"deadletters":[` + letterJSON + `],"total":1}`,
		"deadletters.get":     `{"ok":true,"deadletter":` + letterJSON + `}`,
		"deadletters.claim":   `{"ok":true,"deadletter":null}`,
		"deadletters.resolve": `{"ok":true,"run_id":"run_1042","episode":2}`,
		"deadletters.replay":  `{"ok":true,"results":[{"run_id":"a","ok":true,"episode":2},{"run_id":"b","ok":false,"code":"CLAIMED"}],"left":1}`,
		"deadletters.assign":  `{"ok":true,"run_id":"run_1042","results":[{"run_id":"a","ok":true}],"left":0}`,
		"runs.get":            `{"ok":true,"run":` + runJSON + `}`,
		"runs.payload":        `{"ok":true,"steps":[{"step":"apply_credit","tool":"apply_credit","args":{"amount":5}}]}`,
		"runs.list":           `{"ok":true,"runs":[` + runJSON + `]}`,
		"runs.cancel":         `{"ok":true,"state":"cancelling"}`,
		"runs.discard":        `{"ok":true,"state":"cancelled"}`,
		"queues.list":         `{"ok":true,"queues":[{"queue":"default","waiting":7,"executors":2,"pulled":true},{"queue":"defualt","waiting":1,"executors":0,"pulled":false}],"unnamed":3}`,
	})
	for _, x := range []struct {
		args, stdin string
		code        int
		out, errs   string // parts
		request     string // of the last call
	}{
		{"deadletters list", "", 0, "acme/run_1042", "", `agentrun.op.deadletters.list._all {"limit":1000}`},
		{"deadletters list --owner x --tenant acme", "", 0, "maybe", "", `agentrun.op.deadletters.list.acme {"owner":"x","limit":1000}`},
		{"deadletters list --json", "", 0, `"total":1`, "", ""},
		{"deadletters claim", "", 0, "no unclaimed", "", `agentrun.op.deadletters.claim._all {"by":"alice","for_seconds":300}`},
		{"deadletters show acme/run_1042", "", 0, "it may have happened", "", ""},
		{"deadletters show run_1042 --tenant acme --json", "", 0, `"deadletter":{`, "", ""},
		{"deadletters show run_1042", "", 2, "", "--tenant", ""},
		{"deadletters resolve acme/run_1042 --reason r --commit-state committed --yes", "", 2, "", "--letter", ""},
		{"deadletters resolve acme/run_1042 --letter acme/run_1042/1 --reason r --commit-state committed", "", 2, "", "--yes", ""},
		{"deadletters resolve acme/run_1042 --letter acme/run_1042/1 --commit-state committed --yes", "", 2, "", "--reason", ""},
		{
			`deadletters resolve acme/run_1042 --letter acme/run_1042/1 --reason r --commit-state committed --result {"id":1} --yes`, "", 0, "episode 2", "",
			`agentrun.op.deadletters.resolve.acme {"run_id":"run_1042","letter":"acme/run_1042/1","by":"alice","reason":"r","commit_state":"committed","result":{"id":1}}`,
		},
		{"deadletters discard acme/run_1042 --reason r --yes", "", 1, "", "NOT_FOUND: there is none", ""},
		{
			"deadletters assign acme/run_1042 --to billing --letter acme/run_1042/1 --reason r --yes", "", 0, "done", "",
			`agentrun.op.deadletters.assign.acme {"run_id":"run_1042","by":"alice","reason":"r","letter":"acme/run_1042/1","to":"billing"}`,
		},
		{
			"deadletters assign --tenant acme --owner platform --to billing --reason r --yes", "", 0, "1 done, 0 refused, 0 left", "",
			`agentrun.op.deadletters.assign.acme {"by":"alice","reason":"r","filter":{"owner":"platform"},"limit":100,"to":"billing"}`,
		},
		{"deadletters replay --tenant acme --reason r --yes", "", 2, "", "--all", ""},
		{"deadletters replay --tenant acme --all --reason r --yes", "", 1, "1 done, 1 refused, 1 left", "refused", ""},
		{"runs list", "", 0, "0/2", "", `agentrun.op.runs.list._all {"limit":1000}`},
		{"runs show acme/run_1042", "", 0, "dead letter acme/run_1042/1", "", ""},
		{"runs show acme/run_1042 --payload", "", 0, `args {"amount":5}`, "", ""},
		{"runs show acme/run_1042 --watch", "", 0, "ended needs_human", "", ""}, // it has ended: nothing more to see
		{"runs cancel acme/run_1042 --reason r -y", "", 0, "cancelling", "", ""},
		{"runs discard acme/run_1042 --reason r -y", "", 0, "cancelled", "", `agentrun.op.runs.discard.acme {"run_id":"run_1042","by":"alice","reason":"r"}`},
		{"queues list", "", 0, "defualt                          1          none\n(others)                         3          none", "", `agentrun.op.queues.list._all {}`},
		{"queues list --json", "", 0, `"unnamed":3`, "", ""},
	} {
		code, out, errs := ask(t, s.URL, x.stdin, strings.Fields(x.args)...)
		if code != x.code || !strings.Contains(out, x.out) || !strings.Contains(errs, x.errs) {
			t.Errorf("%s: exit code %d, wanted %d\n%s%s", x.args, code, x.code, out, errs)
		}
		calls := asked()
		if x.request != "" && (len(calls) == 0 || calls[len(calls)-1] != x.request) {
			t.Errorf("%s asked %q", x.args, calls)
		}
		if code == 2 && len(calls) > 0 {
			t.Errorf("%s is bad usage and asked %q", x.args, calls)
		}
		for _, line := range strings.Split(out, "\n") {
			if !strings.Contains(x.args, "--json") && len([]rune(line)) > 100 && !regexp.MustCompile(`^ +reconciler `).MatchString(line) {
				t.Errorf("%s: a line is wider than the terminal: %s", x.args, line)
			}
		}
		if strings.Contains(x.args, "--json") && !json.Valid([]byte(out)) {
			t.Errorf("%s prints no JSON: %s", x.args, out)
		}
	}
	for _, x := range []struct{ budget, want string }{
		{`{"max_tool_cals":5}`, `--add-budget: unknown key "max_tool_cals": did you mean max_tool_calls?`},
		{`{"turns":5}`, `--add-budget: unknown key "turns": remove it, or use one of max_turns,`},
	} {
		code, _, errs := ask(t, s.URL, "", "deadletters", "replay", "acme/run_1042", "--reason", "r", "--yes", "--add-budget", x.budget)
		if calls := asked(); code != 2 || !strings.Contains(errs, x.want) || len(calls) > 0 {
			t.Errorf("%s: exit code %d, asked %q: %s", x.budget, code, calls, errs)
		}
	}
	if code, _, errs := ask(t, "nats://127.0.0.1:1", "", "deadletters", "list"); code != 1 || !strings.Contains(errs, "cannot reach NATS") {
		t.Errorf("without a server: %d %s", code, errs)
	}
}

// Who may not make a call learns it from the server's word, and does not wait for an answer that cannot come.
func TestACallThatIsNotPermitted(t *testing.T) {
	s := bustest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"agentrun.op.>"}}}}}
	})
	url := strings.Replace(s.URL, "nats://", "nats://u:p@", 1)
	code, out, errs := ask(t, url, "", "runs", "list", "--timeout", "1h")
	if code != 1 || out != "" || !strings.Contains(errs, "this NATS user may not make the call") || !strings.Contains(errs, "agentrun.op.runs.list._all") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

// Who has an inbox of another name learns that, and does not wait for a reply that cannot come.
func TestAReplyThatIsNotPermitted(t *testing.T) {
	s := bustest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Deny: []string{"_INBOX.>"}}}}}
	})
	url := strings.Replace(s.URL, "nats://", "nats://u:p@", 1)
	code, out, errs := ask(t, url, "", "runs", "list", "--timeout", "1h")
	if code != 1 || out != "" || !strings.Contains(errs, "this NATS user may not make the call") || !strings.Contains(errs, "--inbox-prefix") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

// With --json a refusal is printed too, for programs.
func TestARefusalAsJSON(t *testing.T) {
	s := bustest.Start(t)
	operatorOf(t, s, nil)
	code, out, errs := ask(t, s.URL, "", "runs", "show", "acme/r", "--json")
	if code != 1 || out != `{"ok":false,"code":"NOT_FOUND","message":"there is none"}`+"\n" || errs != "reconciler runs show: NOT_FOUND: there is none\n" {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}
