package engine

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
)

// Contract §8, for every reason a run can end with.
func TestSeverity(t *testing.T) {
	want := map[string]deadletter.Severity{
		"external_outcome_unknown": deadletter.Page, "external_outcome_disputed": deadletter.Page, "attempt_budget_exhausted": deadletter.Page,
		"not_authorized": deadletter.Page, "provider_denied": deadletter.Page, "poison_job": deadletter.Page, "run_overdue": deadletter.Page, "effect_without_run": deadletter.Page,
		"turn_budget_exhausted": deadletter.Ticket, "tool_call_budget_exhausted": deadletter.Ticket, "elapsed_budget_exhausted": deadletter.Ticket,
		"input_token_budget_exhausted": deadletter.Ticket, "output_token_budget_exhausted": deadletter.Ticket, "cost_budget_exhausted": deadletter.Ticket,
	}
	reasons := []string{deadletter.ReasonOverdue, deadletter.ReasonForgotten, "invoice_already_paid", ""}
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
	for reason := range alerts {
		if _, ok := want[reason]; !ok {
			t.Errorf("an alert for %q that the contract does not name", reason)
		}
	}
}

func TestLetterAlert(t *testing.T) {
	l := sample()
	a, ok := AlertOf(&l, at)
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
		want   deadletter.Severity
	}{
		{"a ticket", "cost_budget_exhausted", envelope.NotCommitted, deadletter.Ticket},
		{"an unknown write beside a budget", "cost_budget_exhausted", envelope.Unknown, deadletter.Page},
		{"an unknown write beside a refusal", "invalid_input", envelope.Unknown, deadletter.Page},
		{"an approval", deadletter.ReasonApprovalRequired, envelope.NotCommitted, deadletter.None},
		{"a code of the config", "invoice_already_paid", envelope.NotCommitted, deadletter.None},
		{"a job that cannot be read", deadletter.ReasonInvalidJob, envelope.NotCommitted, deadletter.None},
	}
	for _, tt := range tests {
		l.ReasonCode, l.Open[0].CommitState = tt.reason, tt.commit
		a, ok := AlertOf(&l, at)
		if ok != (tt.want != deadletter.None) || a.Severity != tt.want {
			t.Errorf("%s: %v, %q, want %q", tt.name, ok, a.Severity, tt.want)
		}
		if ok && a.ReasonCode != tt.reason {
			t.Errorf("%s: the reason became %s", tt.name, a.ReasonCode)
		}
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
