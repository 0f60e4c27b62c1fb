package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

func environment(m map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

var noEnvironment = environment(nil)

const billingToken = "tok-0123456789"

func sample(t *testing.T) (*File, []Warning) {
	t.Helper()
	f, warnings, err := Load("testdata/sample.yaml", environment(map[string]string{"BILLING_TOKEN": billingToken}))
	if err != nil {
		t.Fatal(err)
	}
	return f, warnings
}

func TestSampleOfTheContract(t *testing.T) {
	f, warnings := sample(t)
	if len(warnings) != 0 {
		t.Errorf("warnings: %v", warnings)
	}
	retry := run.Retry{
		MaxAttempts: 3, InitialDelay: 500 * time.Millisecond, MaxDelay: time.Minute, Multiplier: 2, Jitter: 0.2,
		MaxRetryAfter: 15 * time.Minute,
	}
	thousand := int64(1000)
	wantDefaults := Defaults{
		Owner: "platform-oncall",
		Budget: budget.Limits{
			MaxTurns: 12, MaxToolCalls: 32, MaxAttemptsPerStep: 3, MaxElapsedMillis: 900_000, MaxInputTokens: 500_000,
			MaxOutputTokens: 80_000, MaxEstimatedCostMinorUnits: 500,
		},
		MaxBudget: &budget.Ceiling{MaxToolCalls: &thousand}, Retry: retry, PoisonAfter: 3, UnknownToolGrace: 5 * time.Minute,
	}
	if !reflect.DeepEqual(f.Defaults, wantDefaults) {
		t.Errorf("defaults:\n got %+v\nwant %+v", f.Defaults, wantDefaults)
	}
	if len(f.Tools) != 2 || f.Tools[0].Name != "apply_credit" || f.Tools[1].Name != "get_invoice" {
		t.Fatalf("tools: %+v", f.Tools)
	}
	credit := f.Tools[0]
	if got := credit.InputSchema.(map[string]any)["properties"].(map[string]any)["amount_minor"].(map[string]any)["minimum"]; !reflect.DeepEqual(got, jsonNumber("1")) {
		t.Errorf("minimum is %T %v", got, got)
	}
	credit.InputSchema, credit.OutputSchema, credit.ErrorSchema = nil, nil, nil
	want := connector.Spec{
		Name: "apply_credit", Effect: envelope.Write, Owner: "billing-oncall",
		Kind: connector.KindSpec{HTTP: &connector.HTTPSpec{
			Method: "POST", URL: "https://billing.internal/credits",
			Headers: map[string]string{"Authorization": "Bearer " + billingToken}, IdempotencyHeader: "Idempotency-Key",
		}},
		Timeout: 10 * time.Second, EvidenceRef: "body.credit_id",
		Errors: []connector.Rule{
			{When: "status == 409 && body.error.type == 'already_paid'", Code: "INVOICE_ALREADY_PAID", Category: envelope.Conflict},
			{When: "status == 409 && body.error.type == 'duplicate'", Code: "DUPLICATE_OPERATION", CommitState: envelope.Committed},
			{When: "status == 503", Code: "UPSTREAM_UNAVAILABLE", CommitState: envelope.NotCommitted},
		},
		SafeDetails: map[string]string{"field": "body.error.field"},
		Verify: &connector.VerifySpec{
			Kind: connector.KindSpec{HTTP: &connector.HTTPSpec{
				Method: "GET", URL: "https://billing.internal/credits?operation_ref={operation_ref}", IdempotencyHeader: "Idempotency-Key",
			}},
			Committed: "status == 200 && size(body.items) > 0", NotCommitted: "status == 200 && size(body.items) == 0",
			Result: "body.items[0]", EvidenceRef: "body.items[0].credit_id", ConsistencyWindow: 2 * time.Second, HasWindow: true,
			Timeout: 10 * time.Second, MaxAttempts: 5,
		},
		IdempotencyKey: "operation", Retry: retry,
		Allow:       &connector.Allow{Tenants: []string{"acme"}, Actors: []string{"agent:support"}},
		Concurrency: 16, Rate: &connector.Rate{PerSecond: 20, Burst: 40, Scope: "executor"}, MaxResultBytes: 256 << 10, PoisonAfter: 3,
	}
	if !reflect.DeepEqual(credit, want) {
		t.Errorf("apply_credit:\n got %+v\nwant %+v", credit, want)
	}
	if !reflect.DeepEqual(f.Secrets, []string{billingToken}) {
		t.Errorf("secrets: %v", f.Secrets)
	}
}

func TestDefaultsWithoutDefaults(t *testing.T) {
	f, _, err := Parse("c.yaml", []byte("tools: {t: {effect: read, http: {url: 'http://h/'}}}"), noEnvironment)
	if err != nil {
		t.Fatal(err)
	}
	if f.Defaults.Retry != builtinRetry() || f.Defaults.Budget != builtinBudget() || f.Defaults.PoisonAfter != 3 || f.Defaults.MaxBudget != nil {
		t.Errorf("defaults: %+v", f.Defaults)
	}
	s := f.Tools[0]
	if s.Timeout != 30*time.Second || s.Kind.HTTP.Method != "GET" || s.MaxResultBytes != 262144 || s.PoisonAfter != 3 || s.Allow != nil || s.Rate != nil || s.Concurrency != 0 {
		t.Errorf("tool: %+v", s)
	}
}

func TestLoadOfAFileThatIsNotThere(t *testing.T) {
	_, _, err := Load(filepath.Join(t.TempDir(), "no.yaml"), noEnvironment)
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
}

func TestWindowOfZeroIsAWindow(t *testing.T) {
	for text, want := range map[string]bool{"consistency_window: 0s,": true, "": false} {
		f, _, err := Parse("c.yaml", []byte("tools: {t: {effect: write, http: {url: 'http://h/'}, verify: {"+text+
			" http: {url: 'http://h/{operation_ref}'}, committed: 'true', not_committed: 'false'}}}"), noEnvironment)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Tools[0].Verify.HasWindow; got != want {
			t.Errorf("%q: HasWindow is %v", text, got)
		}
	}
}

func TestNothingOfTheEnvironmentChangesTheStructure(t *testing.T) {
	evil := "x\"\n  other: {effect: read, http: {url: 'http://evil/'}}\n#${HOME}'"
	f, _, err := Parse("c.yaml", []byte("tools:\n  t:\n    effect: write\n    command: {argv: [prog, \"${V}\", '$${V} $$ $ $$$${V}']}\n"),
		environment(map[string]string{"V": evil, "HOME": "home-of-someone"}))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Tools) != 1 || !reflect.DeepEqual(f.Tools[0].Kind.Command.Argv, []string{"prog", evil, "${V} $$ $ $$${V}"}) {
		t.Errorf("tools: %+v", f.Tools[0].Kind.Command)
	}
}

func TestSecretsLongestFirst(t *testing.T) {
	f, warnings, err := Parse("c.yaml", []byte("tools: {t: {effect: write, command: {argv: ['${A}', '${B}', 'x${SHORT}', 'y${EMPTY}', '${A}']}}}"),
		environment(map[string]string{"A": "12345678", "B": "123456789", "SHORT": "1234567", "EMPTY": ""}))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(f.Secrets, []string{"123456789", "12345678"}) {
		t.Errorf("secrets: %v", f.Secrets)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0].String(), "EMPTY is set but empty") {
		t.Errorf("warnings: %v", warnings)
	}
}

// TestDocumentedExample holds the example of docs/config.md to the file that these tests read.
func TestDocumentedExample(t *testing.T) {
	doc, err := os.ReadFile("../../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("testdata/sample.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), "```yaml\n"+string(example)+"```\n") {
		t.Error("docs/config.md does not show testdata/sample.yaml as it is")
	}
}
