package deadletter

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentrun/executor/pkg/envelope"
)

// Contract §8, for every reason a run can end with.
func TestSeverity(t *testing.T) {
	want := map[string]Severity{
		"external_outcome_unknown": Page, "external_outcome_disputed": Page, "attempt_budget_exhausted": Page,
		"not_authorized": Page, "provider_denied": Page, "poison_job": Page, "run_overdue": Page, "effect_without_run": Page,
		"turn_budget_exhausted": Ticket, "tool_call_budget_exhausted": Ticket, "elapsed_budget_exhausted": Ticket,
		"input_token_budget_exhausted": Ticket, "output_token_budget_exhausted": Ticket, "cost_budget_exhausted": Ticket,
	}
	reasons := []string{ReasonOverdue, ReasonForgotten, "invoice_already_paid", ""}
	for _, row := range envelope.Codes() {
		reasons = append(reasons, row.ReasonCode)
	}
	seen := map[string]bool{}
	for _, reason := range reasons {
		seen[reason] = true
		if got := SeverityOf(reason); got != want[reason] {
			t.Errorf("%q: %q, want %q", reason, got, want[reason])
		}
		if s := SummaryOf(reason); !strings.HasSuffix(s, ".") || len(s) > 120 {
			t.Errorf("%q: %q is no sentence", reason, s)
		}
	}
	for reason := range want {
		if !seen[reason] {
			t.Errorf("no code has the reason %q", reason)
		}
	}
	for reason := range rules {
		if _, ok := want[reason]; !ok {
			t.Errorf("an alert for %q that the contract does not name", reason)
		}
	}
}

func TestLetterAlert(t *testing.T) {
	l := sample()
	a, ok := l.Alert(at)
	if !ok {
		t.Fatal("no alert for an unknown write")
	}
	data, err := json.Marshal(a)
	want := `{"schema":"agentrun.alert/v1","tenant":"acme","owner":"billing-oncall","reason_code":"external_outcome_unknown","severity":"page",` +
		`"run_id":"run_1042","workflow":"resolve_billing_case","tool":"apply_credit","count":1,"first_at":"2026-12-01T10:00:00.000Z",` +
		`"at":"2026-12-01T10:00:00.000Z","summary":"A write may have happened and could not be verified; a person must establish what happened."}`
	if err != nil || string(data) != want {
		t.Errorf("\n got %s\nwant %s", data, want)
	}

	tests := []struct {
		name   string
		reason string
		commit envelope.CommitState
		want   Severity
	}{
		{"a ticket", "cost_budget_exhausted", envelope.NotCommitted, Ticket},
		{"an unknown write beside a budget", "cost_budget_exhausted", envelope.Unknown, Page},
		{"an unknown write beside a refusal", "invalid_input", envelope.Unknown, Page},
		{"an approval", ReasonApprovalRequired, envelope.NotCommitted, None},
		{"a code of the config", "invoice_already_paid", envelope.NotCommitted, None},
		{"a job that cannot be read", ReasonInvalidJob, envelope.NotCommitted, None},
	}
	for _, tt := range tests {
		l.ReasonCode, l.Open[0].CommitState = tt.reason, tt.commit
		a, ok := l.Alert(at)
		if ok != (tt.want != None) || a.Severity != tt.want {
			t.Errorf("%s: %v, %q, want %q", tt.name, ok, a.Severity, tt.want)
		}
		if ok && a.ReasonCode != tt.reason {
			t.Errorf("%s: the reason became %s", tt.name, a.ReasonCode)
		}
	}
}

func TestDisputed(t *testing.T) {
	l := sample()
	l.ReasonCode = "provider_denied"
	if a := l.Disputed(at); a.Severity != Page || a.ReasonCode != "external_outcome_disputed" || a.RunID != l.RunID || a.Count != 1 {
		t.Errorf("%+v", a)
	}
}

func TestBurst(t *testing.T) {
	a := Burst("acme", "billing-oncall", "invalid_input", 7, at, at.Add(BurstWindow))
	data, err := json.Marshal(a)
	want := `{"schema":"agentrun.alert/v1","tenant":"acme","owner":"billing-oncall","reason_code":"invalid_input","severity":"page","count":7,` +
		`"first_at":"2026-12-01T10:00:00.000Z","at":"2026-12-01T10:05:00.000Z","summary":"Several runs of the tenant ended for the same reason within five minutes."}`
	if err != nil || string(data) != want {
		t.Errorf("\n got %s\nwant %s", data, want)
	}
}
