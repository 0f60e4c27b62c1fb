package engine_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares with a file, or rewrites it.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the code does now (go test ./internal/engine -update rewrites it):\n%s", path, got)
	}
}

// A history is a script: each line that begins with "> " is an event, "#" begins a remark, and what follows an event is
// what came of it. The events are those of (*teller).do.
func TestHistories(t *testing.T) {
	files, err := filepath.Glob("testdata/histories/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no histories: %v", err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			script, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			h := &teller{driver: driver{t: t, tools: tools(), now: start}}
			for _, line := range strings.Split(string(script), "\n") {
				if event, ok := strings.CutPrefix(line, "> "); ok {
					fmt.Fprintln(&h.out, line)
					h.do(strings.Fields(event))
					h.tell()
				} else if strings.HasPrefix(line, "#") || line == "" && h.out.Len() > 0 && !strings.HasSuffix(h.out.String(), "\n\n") {
					fmt.Fprintln(&h.out, line)
				}
			}
			golden(t, path, append(bytes.TrimRight(h.out.Bytes(), "\n"), '\n'))
		})
	}
}

type teller struct {
	driver
	out  bytes.Buffer
	told int // outcomes so far
}

// words of an event: "job MEMBERS STEP:TOOL[?]:ARGS …" (MEMBERS "-" for none, "?" for optional), "begin STEP",
// "reply STEP ok RESULT | silent | CODE [RETRY-AFTER-MS]", "lease-ended", "window STEP", "lookup STEP found|absent|undecided|later|pending|failed [WAIT-MS]",
// "pass DURATION", "expire", "cancel", "report STEP committed|not_committed", "resolve STEP committed|not_committed",
// "approve", "replay [ARGS]", "discard".
func (h *teller) do(w []string) {
	h.t.Helper()
	at := func(i int) string {
		if i < len(w) {
			return w[i]
		}
		return ""
	}
	var verdict any
	switch at(0) {
	case "job":
		verdict = h.takeJob(w[1:])
	case "begin":
		if x := h.begin(at(1)); x != nil {
			verdict = "dispatch " + x.Key + " " + string(x.Args.Text())
		} else {
			verdict = "not dispatched"
		}
	case "reply":
		verdict = h.reply(h.r.Step(at(1)).Dispatch, h.replyOf(at(1), at(2), at(3)))
	case "lease-ended":
		h.leaseEnded()
	case "window":
		h.windowOver(h.r.Step(at(1)).Dispatch)
	case "lookup":
		l := envelope.Lookup{Answer: envelope.Answer(at(2))}
		if l.Answer == envelope.Found {
			l = found(`{"id":"c"}`)
		}
		fmt.Sscan(at(3), &l.RetryAfter)
		s := h.r.Step(at(1))
		verdict = h.looked(s.Dispatch, l, s.Doubt != nil && s.Doubt.WindowOver)
	case "pass":
		by, err := time.ParseDuration(at(1))
		if err != nil {
			h.t.Fatal(err)
		}
		h.pass(by)
	case "expire":
		h.expire()
	case "cancel":
		verdict = h.cancel()
	case "report":
		v, err := h.r.Report(at(1), h.r.Step(at(1)).Attempt, "webhook", resolution(at(2)), h.tools, h.now)
		verdict = said(v, err)
	default:
		verdict = h.operator(w)
	}
	if verdict != nil {
		fmt.Fprintln(&h.out, "  ", verdict)
	}
	h.check()
}

func said(v any, err *engine.Refusal) any {
	if err != nil {
		return err
	}
	return v
}

func resolution(word string) engine.Resolution {
	res := engine.Resolution{CommitState: envelope.CommitState(word), EvidenceRef: "ev"}
	if res.CommitState == envelope.Committed {
		res.Result = json.RawMessage(`{"id":"c"}`)
	}
	return res
}

func (h *teller) operator(w []string) any {
	c := h.by("alice")
	var a *engine.Answer
	var err *engine.Refusal
	switch w[0] {
	case "resolve":
		c.Step = w[1]
		a, err = h.r.Resolve(c, resolution(w[2]), h.tools)
	case "approve":
		a, err = h.r.Approve(c)
	case "replay":
		with := engine.ReplayWith{}
		if len(w) > 1 {
			with.Args = json.RawMessage(w[1])
		}
		a, err = h.r.Replay(c, with)
	case "discard":
		a, err = h.r.Discard(c)
	case "assign":
		if _, err = h.r.Assign(c, w[1]); err == nil {
			return fmt.Sprintf("letter %s is of %s", h.r.Letter.ID, h.r.Letter.Owner)
		}
	default:
		h.t.Fatalf("no event %q", w[0])
	}
	if err != nil {
		return err
	}
	return fmt.Sprintf("letter %s settled, episode %d", a.Letter, h.r.Episode)
}

func (h *teller) takeJob(w []string) any {
	members, steps := "", []string{}
	if w[0] != "-" {
		members = w[0]
	}
	for _, s := range w[1:] {
		part := strings.SplitN(s, ":", 3)
		more := []string{}
		tool, optional := strings.CutSuffix(part[1], "?")
		if optional {
			more = append(more, `"optional":true`)
		}
		steps = append(steps, step(part[0], tool, part[2], more...))
	}
	data := job(members, steps...)
	h.seq++
	m := engine.Message{Seq: h.seq, Time: h.now, Queue: "default", Data: data}
	if h.r == nil {
		h.r = engine.Create(runID, m, defaults(), h.now)
		return nil
	}
	a := h.r.Append(m, defaults(), h.now)
	return fmt.Sprintf("changed %v, refused %d", a.Changed, a.Refused)
}

func (h *teller) replyOf(name, word, arg string) envelope.Reply {
	switch word {
	case "ok":
		if arg == "" {
			arg = "null"
		}
		return ok(arg)
	case "silent":
		return silent()
	}
	r := fails(envelope.Code(word), h.r.Step(name).Effect)
	fmt.Sscan(arg, &r.RetryAfter)
	return r
}

// tell prints what the event owes, and where the run stands.
func (h *teller) tell() {
	for ; h.told < len(h.r.Owed); h.told++ {
		o := h.r.Outcome(&h.r.Owed[h.told])
		line := fmt.Sprintf("%s/%d", o.Scope, o.N)
		if o.Step != "" {
			line += " " + o.Step
		}
		line += " " + string(o.Outcome)
		if o.Envelope != nil && o.Envelope.Code != "" {
			line += fmt.Sprintf(" %s (%s, %s, %s)", o.Envelope.Code, o.CommitState, o.Envelope.Retry.Directive, o.NextAction)
		}
		if o.NotBefore != 0 {
			line += fmt.Sprintf(" in %s", o.NotBefore.Sub(h.now))
		}
		fmt.Fprintln(&h.out, "   →", line)
	}
	states := []string{}
	for _, s := range h.r.Steps {
		states = append(states, s.Name+"="+string(s.State))
	}
	fmt.Fprintf(&h.out, "   %s: %s", h.r.State(), strings.Join(states, " "))
	if n := h.r.Next(h.now); len(n.Ready) > 0 {
		fmt.Fprintf(&h.out, "; next %s", strings.Join(n.Ready, ", "))
	}
	if h.r.Letter != nil && h.r.Letter.Open {
		fmt.Fprintf(&h.out, "; letter %s: %s", h.r.Letter.ID, strings.Join(actions(&h.driver), ", "))
	}
	fmt.Fprintln(&h.out)
}

// docs/state-machine.md is printed from the transition table.
func TestStateMachineDocument(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(`# The state machine of a step

Printed from ` + "`engine.Transitions()`" + ` by a test (` + "`go test ./internal/engine -run StateMachine -update`" + `): nothing else is allowed, and a
transition that is not in this table stops the process that tries it.

` + "```mermaid\nstateDiagram-v2\n")
	name := func(s run.State) string {
		if s == "" {
			return "[*]"
		}
		return string(s)
	}
	for _, e := range engine.Transitions() {
		fmt.Fprintf(&b, "    %s --> %s\n", name(e.From), name(e.To))
	}
	b.WriteString("```\n\n| from | to | when |\n| --- | --- | --- |\n")
	for _, e := range engine.Transitions() {
		from := "(new)"
		if e.From != "" {
			from = "`" + string(e.From) + "`"
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", from, e.To, e.When)
	}
	b.WriteString(`
A run has no state of its own that could disagree with its steps: it is what the first of these says that applies. It has
ended (` + "`ok`, `fatal`, `needs_human`, `cancelled`" + `); it is being cancelled (` + "`cancelling`" + `); a step is ` + "`unknown`" + `; one is executing
(` + "`running`" + `); one may start now (` + "`ready`" + `); one waits for its time (` + "`waiting`" + `); or it wants more jobs (` + "`open`" + `).
`)
	golden(t, filepath.Join("..", "..", "docs", "state-machine.md"), b.Bytes())
}

// Every transition is told once, and from every state that is not an end by itself there is a way on.
func TestTransitions(t *testing.T) {
	seen := map[[2]run.State]bool{}
	out := map[run.State]int{}
	for _, e := range engine.Transitions() {
		k := [2]run.State{e.From, e.To}
		if seen[k] || e.When == "" {
			t.Errorf("%v is told twice, or without a reason", k)
		}
		seen[k] = true
		out[e.From]++
	}
	for _, s := range []run.State{run.Ready, run.Waiting, run.Executing, run.Unknown, run.NeedsHuman, run.Fatal, run.Cancelled} {
		if out[s] == 0 {
			t.Errorf("no way leads out of %s", s)
		}
	}
	if out[run.OK] != 0 {
		t.Error("ok is left again")
	}
}
