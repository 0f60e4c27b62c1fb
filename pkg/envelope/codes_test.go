package envelope

import (
	"strings"
	"testing"
)

// The table of contract §6 as it is written there, column by column: what a read gets, and behind "/" what a write gets
// once it was dispatched, where that differs. POISON_JOB of a write keeps what was last established, which the run knows
// and the table does not.
const contractTable = `
JOB_INVALID              | validation    | invalid_job                   | not_committed         | never               | correct_input                     | fatal
UNKNOWN_TOOL             | validation    | unknown_tool                  | not_committed         | never               | correct_input                     | fatal
INVALID_ARGUMENT         | validation    | invalid_input                 | not_committed         | after_input_fix     | correct_input                     | fatal
REFERENCE_UNRESOLVED     | validation    | unresolved_reference          | not_committed         | after_input_fix     | correct_input                     | fatal
UPSTREAM_REJECTED_INPUT  | validation    | provider_rejected_input       | not_committed         | after_input_fix     | correct_input                     | fatal
RESOURCE_NOT_FOUND       | validation    | resource_not_found            | not_committed         | after_input_fix     | correct_input                     | fatal
IDENTICAL_RETRY          | validation    | identical_retry               | not_committed         | never               | correct_input                     | fatal
NOT_AUTHORIZED           | authorization | not_authorized                | not_committed         | never               | escalate                          | fatal
UPSTREAM_DENIED          | authorization | provider_denied               | not_committed         | never               | escalate                          | fatal
MISSING_APPROVAL         | authorization | approval_required             | not_committed         | never               | request_approval                  | needs_human
STEP_CONFLICT            | conflict      | step_conflict                 | not_committed         | never               | escalate                          | fatal
RUN_CLOSED               | conflict      | run_closed                    | not_committed         | never               | escalate                          | fatal
STATE_CONFLICT           | conflict      | state_conflict                | not_committed         | never               | escalate                          | fatal
VERSION_CONFLICT         | conflict      | version_conflict              | not_committed         | never               | escalate                          | fatal
RESOURCE_LOCKED          | dependency    | resource_locked               | not_committed         | after_delay         | wait_and_retry                    | retryable
UPSTREAM_RATE_LIMITED    | dependency    | provider_rate_limited         | not_committed         | after_delay         | wait_and_retry                    | retryable
CREDENTIALS_EXPIRED      | dependency    | credentials_expired           | not_committed         | after_delay         | wait_and_retry                    | retryable
UPSTREAM_UNAVAILABLE     | dependency    | provider_unavailable          | not_committed         | after_delay         | wait_and_retry                    | retryable
UPSTREAM_TIMEOUT         | dependency    | provider_timeout              | not_committed         | after_delay         | wait_and_retry                    | retryable
UPSTREAM_ERROR           | dependency    | provider_error                | not_committed         | after_delay         | wait_and_retry                    | retryable
OUTCOME_UNKNOWN          | dependency    | external_outcome_unknown      | unknown               | never               | verify_operation                  | unknown
OPERATION_PENDING        | dependency    | operation_pending             | unknown               | never               | verify_operation                  | unknown
VERIFIED_ABSENT          | dependency    | verified_absent               | not_committed         | after_delay         | wait_and_retry                    | retryable
OUTCOME_DISPUTED         | dependency    | external_outcome_disputed     | unknown               | never               | escalate                          | needs_human
VERIFICATION_UNAVAILABLE | dependency    | external_outcome_unknown      | unknown               | never               | escalate                          | needs_human
RESULT_INVALID           | dependency    | invalid_result                | not_committed/unknown | never               | escalate/verify_operation         | fatal/unknown
RESULT_TOO_LARGE         | dependency    | result_too_large              | not_committed/unknown | never               | escalate/verify_operation         | fatal/unknown
WORKER_LOST              | internal      | worker_lost                   | not_committed/unknown | after_delay/never   | wait_and_retry/verify_operation   | retryable/unknown
POISON_JOB               | internal      | poison_job                    | not_committed         | never               | escalate                          | needs_human
INTERNAL_ERROR           | internal      | internal_error                | not_committed/unknown | never               | escalate/verify_operation         | needs_human/unknown
ATTEMPTS_EXHAUSTED       | dependency    | attempt_budget_exhausted      | not_committed         | never               | escalate                          | needs_human
TURNS_EXHAUSTED          | authorization | turn_budget_exhausted         | not_committed         | never               | escalate                          | needs_human
TOOL_CALLS_EXHAUSTED     | authorization | tool_call_budget_exhausted    | not_committed         | never               | escalate                          | needs_human
TIME_EXHAUSTED           | authorization | elapsed_budget_exhausted      | not_committed         | never               | escalate                          | needs_human
INPUT_TOKENS_EXHAUSTED   | authorization | input_token_budget_exhausted  | not_committed         | never               | escalate                          | needs_human
OUTPUT_TOKENS_EXHAUSTED  | authorization | output_token_budget_exhausted | not_committed         | never               | escalate                          | needs_human
COST_EXHAUSTED           | authorization | cost_budget_exhausted         | not_committed         | never               | escalate                          | needs_human
CANCELLED                | conflict      | cancelled                     | not_committed         | never               | escalate                          | cancelled
`

func rowOf(cells []string, effect Effect) Row {
	at := func(i int) string {
		read, write, differs := strings.Cut(strings.TrimSpace(cells[i]), "/")
		if differs && effect == Write {
			return write
		}
		return read
	}
	return Row{
		Code: Code(at(0)), Category: Category(at(1)), ReasonCode: at(2), CommitState: CommitState(at(3)),
		Directive: Directive(at(4)), NextAction: NextAction(at(5)), Outcome: Word(at(6)),
	}
}

func TestTableIsTheContract(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(contractTable), "\n")
	rows := Codes()
	if len(rows) != len(lines) {
		t.Fatalf("%d codes, the contract has %d", len(rows), len(lines))
	}
	for i, line := range lines {
		cells := strings.Split(line, "|")
		read, write := rowOf(cells, Read), rowOf(cells, Write)
		if rows[i] != read {
			t.Errorf("line %d:\n got %+v\nwant %+v", i+1, rows[i], read)
		}
		if !Known(read.Code) {
			t.Errorf("%s is not known", read.Code)
			continue
		}
		if got := RowFor(read.Code, Read); got != read {
			t.Errorf("read:\n got %+v\nwant %+v", got, read)
		}
		if got := RowFor(read.Code, Write); got != write {
			t.Errorf("write:\n got %+v\nwant %+v", got, write)
		}
	}
}

// What holds for every row, whatever the table says.
func TestRowsAreConsistent(t *testing.T) {
	for _, row := range Codes() {
		for _, effect := range []Effect{Read, Write} {
			r := RowFor(row.Code, effect)
			if (r.Outcome == UnknownNow) != (r.NextAction == VerifyOperation) {
				t.Errorf("%s %s: unknown and verify_operation go together", r.Code, effect)
			}
			if (r.Outcome == Retryable) != (r.Directive == AfterDelay) {
				t.Errorf("%s %s: retryable and after_delay go together", r.Code, effect)
			}
			if r.Directive != Never && r.CommitState != NotCommitted {
				t.Errorf("%s %s: another attempt needs not_committed", r.Code, effect)
			}
			if r.Outcome == UnknownNow && r.CommitState != Unknown {
				t.Errorf("%s %s: an unknown outcome that knows %s", r.Code, effect, r.CommitState)
			}
		}
		agent, user, operator := row.Messages()
		for _, m := range []string{agent, user, operator} {
			if m == "" || !strings.HasSuffix(m, ".") || len(m) > 160 {
				t.Errorf("%s: %q is no sentence", row.Code, m)
			}
		}
	}
}

func TestRowForPanicsOnAForeignCode(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it gave a row")
		}
	}()
	RowFor("INVOICE_ALREADY_PAID", Read)
}

func TestCustom(t *testing.T) {
	const own = Code("INVOICE_ALREADY_PAID")
	tests := []struct {
		name     string
		code     Code
		category Category
		commit   CommitState
		effect   Effect
		want     Row
	}{
		{"validation", own, Validation, "", Write, Row{own, Validation, "invoice_already_paid", NotCommitted, AfterInputFix, CorrectInput, Fatal}},
		{"authorization", own, Authorization, "", Read, Row{own, Authorization, "invoice_already_paid", NotCommitted, Never, Escalate, Fatal}},
		{"conflict", own, Conflict, NotCommitted, Write, Row{own, Conflict, "invoice_already_paid", NotCommitted, Never, Escalate, Fatal}},
		{"dependency", own, Dependency, "", Write, Row{own, Dependency, "invoice_already_paid", NotCommitted, AfterDelay, WaitAndRetry, Retryable}},
		{"internal", own, Internal, "", Write, Row{own, Internal, "invoice_already_paid", NotCommitted, Never, Escalate, NeedsHuman}},
		{"no category", own, "", "", Read, Row{own, Dependency, "invoice_already_paid", NotCommitted, AfterDelay, WaitAndRetry, Retryable}},
		{"unknown write", own, Conflict, Unknown, Write, Row{own, Conflict, "invoice_already_paid", Unknown, Never, VerifyOperation, UnknownNow}},
		{"unknown means nothing for a read", own, Conflict, Unknown, Read, Row{own, Conflict, "invoice_already_paid", NotCommitted, Never, Escalate, Fatal}},
		{"the contract's own code", CodeUpstreamUnavailable, "", NotCommitted, Write, RowFor(CodeUpstreamUnavailable, Read)},
		{
			"the contract's own code, unknown", CodeUpstreamUnavailable, "", Unknown, Write,
			Row{CodeUpstreamUnavailable, Dependency, "provider_unavailable", Unknown, Never, VerifyOperation, UnknownNow},
		},
		{"a rule that knows better", CodeResultInvalid, "", NotCommitted, Write, RowFor(CodeResultInvalid, Read)},
		{"internal error that did nothing", CodeInternalError, "", NotCommitted, Write, RowFor(CodeInternalError, Read)},
		{"held stays held", CodeVerificationUnavailable, "", Unknown, Write, RowFor(CodeVerificationUnavailable, Write)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Custom(tt.code, tt.category, tt.commit, tt.effect)
			if got != tt.want {
				t.Errorf("\n got %+v\nwant %+v", got, tt.want)
			}
			if agent, user, operator := got.Messages(); agent == "" || user == "" || operator == "" {
				t.Error("a message is missing")
			}
		})
	}
}

func TestMessagesOfAnOwnCodeSayWhatTheRowSays(t *testing.T) {
	unknown, _, _ := Custom("OWN_CODE", Conflict, Unknown, Write).Messages()
	if want, _, _ := RowFor(CodeOutcomeUnknown, Write).Messages(); unknown != want {
		t.Errorf("an unknown write says %q", unknown)
	}
	if got, _, _ := (Row{Code: "OWN_CODE", Category: "strange"}).Messages(); got == "" {
		t.Error("a strange category has no message")
	}
}

func TestEscalatedAndNeverRetried(t *testing.T) {
	row := RowFor(CodeUpstreamError, Read)
	if got, want := row.Escalated(), (Row{CodeUpstreamError, Dependency, "provider_error", NotCommitted, Never, Escalate, NeedsHuman}); got != want {
		t.Errorf("escalated: %+v", got)
	}
	if got, want := row.NeverRetried(), (Row{CodeUpstreamError, Dependency, "provider_error", NotCommitted, Never, Escalate, Fatal}); got != want {
		t.Errorf("never retried: %+v", got)
	}
	if row != RowFor(CodeUpstreamError, Read) {
		t.Error("the row itself was changed")
	}
}

func TestValidCode(t *testing.T) {
	for c, want := range map[Code]bool{
		"ABC": true, "A1_": true, Code("A" + strings.Repeat("B", 63)): true,
		"AB": false, "": false, "1AB": false, "_AB": false, "AbC": false, "A-B": false, "ABC\n": false, "ÄBC": false,
		Code("A" + strings.Repeat("B", 64)): false,
	} {
		if got := ValidCode(c); got != want {
			t.Errorf("%q: %v", c, got)
		}
	}
	for _, row := range Codes() {
		if !ValidCode(row.Code) {
			t.Errorf("a config could not name %s", row.Code)
		}
	}
}

func TestTerminal(t *testing.T) {
	for w, want := range map[Word]bool{OK: true, Retryable: false, UnknownNow: false, NeedsHuman: true, Fatal: true, Cancelled: true} {
		if w.Terminal() != want {
			t.Errorf("%s: %v", w, !want)
		}
	}
}
