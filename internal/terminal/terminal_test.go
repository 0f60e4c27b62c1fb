package terminal

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/agentrun/executor/pkg/envelope"
)

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func outcomes() []*envelope.Outcome {
	at := envelope.Time(1764583200000) // 2025-12-01T10:00:00Z
	two := 2
	return []*envelope.Outcome{
		{Scope: "step", Step: "load_invoice", Outcome: envelope.Retryable, ReasonCode: "provider_rate_limited", Attempt: &two, NotBefore: at.Add(1e9), At: at},
		{Scope: "step", Step: "apply_credit", Outcome: envelope.OK, Attempt: &two, At: at, Envelope: &envelope.Envelope{OK: true, Verification: &envelope.Verification{EvidenceRef: "cr_3"}}},
		{Scope: "step", Step: "pay", Outcome: envelope.UnknownNow, ReasonCode: "external_outcome_unknown", NextAction: envelope.VerifyOperation, At: at},
		{Scope: "step", Outcome: envelope.Fatal, ReasonCode: "invalid_job", NextAction: envelope.CorrectInput, At: at},
		{Scope: "run", RunID: "run_1042", Outcome: envelope.OK, At: at, CompletedEffects: []envelope.CompletedEffect{{Step: "apply_credit", EvidenceRef: "cr_3"}}},
		{Scope: "run", RunID: "run_7", Outcome: envelope.NeedsHuman, ReasonCode: "approval_required", FailedStep: "pay", NextAction: envelope.RequestApproval, At: at, RemainingSteps: []string{"tell", "close"}},
	}
}

const plain = `10:00:00.000  load_invoice      retryable    #2   provider_rate_limited, next attempt in 1s
10:00:00.000  apply_credit      ok           #2   proven by cr_3
10:00:00.000  pay               unknown           external_outcome_unknown, next: verify_operation
10:00:00.000  (job)             fatal             invalid_job, next: correct_input
10:00:00.000  run run_1042      ok                done: apply_credit cr_3
10:00:00.000  run run_7         needs_human       approval_required, at pay, next: request_approval, not started: tell close
`

func TestOutcomeLinesAreAligned(t *testing.T) {
	var b bytes.Buffer
	p := New(&b, env())
	if p.Terminal() {
		t.Error("a buffer is taken for a terminal")
	}
	for _, o := range outcomes() {
		p.Outcome(o)
	}
	if b.String() != plain {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), plain)
	}
}

func TestColour(t *testing.T) {
	for _, x := range []struct {
		tty  bool
		env  func(string) string
		want bool
	}{
		{true, env(), true},
		{true, env("NO_COLOR", "1"), false},
		{true, env("TERM", "dumb"), false},
		{false, env(), false},
	} {
		var b bytes.Buffer
		p := newPrinter(&b, x.tty, x.env)
		p.Outcome(outcomes()[0])
		if got := strings.Contains(b.String(), "\x1b["); got != x.want {
			t.Errorf("terminal %v, NO_COLOR %q, TERM %q: colour is %v", x.tty, x.env("NO_COLOR"), x.env("TERM"), got)
		}
	}
}

// Colour changes no column: without its codes the line is the plain one.
func TestColourKeepsColumns(t *testing.T) {
	var b bytes.Buffer
	p := newPrinter(&b, true, env())
	for _, o := range outcomes() {
		p.Outcome(o)
	}
	got := b.String()
	for _, s := range []Style{"0", Bold, Dim, Red, Green, Yellow, Cyan} {
		got = strings.ReplaceAll(got, fmt.Sprintf("\x1b[%sm", s), "")
	}
	if got != plain {
		t.Errorf("got:\n%s", got)
	}
}

func TestTheStatusLineIsReplaced(t *testing.T) {
	var b bytes.Buffer
	p := newPrinter(&b, true, env("NO_COLOR", "1"))
	p.Status("waiting, 1s")
	p.Status("waiting, 2s")
	p.Line("done")
	if got, want := b.String(), "waiting, 1s\r\x1b[Kwaiting, 2s\r\x1b[Kdone\n"; got != want {
		t.Errorf("got %q, wanted %q", got, want)
	}
	b.Reset()
	p = newPrinter(&b, false, env())
	p.Status("waiting")
	if b.Len() > 0 {
		t.Errorf("a status line in a pipe: %q", b.String())
	}
}

func TestCleanTakesControlCharacters(t *testing.T) {
	if got := Clean("a\x1b[31mb\n\u202ec"); got != "a?[31mb??c" {
		t.Errorf("got %q", got)
	}
}

func TestAFileIsNoTerminal(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if Is(f) || IsInput(f) {
		t.Error("the null device is taken for a terminal")
	}
}
