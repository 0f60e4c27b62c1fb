package observe

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/envelope"
)

var update = flag.Bool("update", false, "write the golden files anew")

// everything calls each method of an observer once.
func everything(o *Observer) {
	o.Outcome("step", "retryable", "provider_rate_limited")
	o.Outcome("run", "ok", "")
	o.ToolCall("get_invoice", envelope.Read, "", 20*time.Millisecond)
	o.ToolCall("apply_credit", envelope.Write, envelope.CodeOutcomeUnknown, time.Second)
	o.UnknownResolved("apply_credit", "committed")
	o.SettleTime(time.Second)
	o.DuplicatePrevented("apply_credit")
	o.Escalation("apply_credit", "approval_required")
	o.LettersOpen("billing-oncall", "approval_required", 1)
	o.RunsInFlight(1)
	o.JournalCommit(time.Millisecond)
	o.Refusal("STEP_CONFLICT")
	o.StrayLine("billing")
	o.Breaker("get_invoice", true)
	o.Room(Room{Runs: 0.1, JournalFree: 0.9})
	o.Config("0123456789ab")
	o.Configs(map[string]int{"default": 1})
	o.PassedOn("apply_credit")
	o.Queues([]Queue{{Name: "default", Waiting: 3}}, 0)
	o.Audited(Audit{})
	o.ConfigReloaded(true)
}

// listMetrics lists our metrics with their types and labels, one per line.
func listMetrics(t *testing.T, o *Observer) string {
	t.Helper()
	families, err := o.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "agentrun_") {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		sort.Strings(labels)
		line := fmt.Sprintf("%s %s{%s}", strings.ToLower(f.GetType().String()), f.GetName(), strings.Join(labels, ","))
		if h := f.GetMetric()[0].GetHistogram(); h != nil {
			line += fmt.Sprintf(" classic=%v native=%v", len(h.GetBucket()) > 0, h.Schema != nil)
		}
		lines = append(lines, line)
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n") + "\n"
}

func TestMetricNamesAreTheContracts(t *testing.T) {
	for _, x := range []struct {
		file string
		role Role
	}{{"metrics_executor.golden", Executor}, {"metrics_reconciler.golden", Reconciler}} {
		o := New(x.role, "get_invoice")
		everything(o)
		got := listMetrics(t, o)
		path := filepath.Join("testdata", x.file)
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs (go test -update writes it anew)\ngot:\n%s\nwant:\n%s", path, got, want)
		}
	}
}

func TestAuditsAreZeroFromTheStart(t *testing.T) {
	o := New(Reconciler)
	body := scrape(t, o)
	for _, name := range []string{"runs_overdue", "ok_without_result", "budget_end_without_dead_letter", "dead_letters_without_owner"} {
		if !strings.Contains(body, "\nagentrun_audit_"+name+" 0\n") {
			t.Errorf("audit_%s is not 0 in a fresh reconciler", name)
		}
	}
	o.Audited(Audit{RunsOverdue: 1, OKWithoutResult: 2, BudgetEndWithoutDeadLetter: 3, DeadLettersWithoutOwner: 4})
	body = scrape(t, o)
	for i, name := range []string{"runs_overdue", "ok_without_result", "budget_end_without_dead_letter", "dead_letters_without_owner"} {
		if !strings.Contains(body, fmt.Sprintf("\nagentrun_audit_%s %d\n", name, i+1)) {
			t.Errorf("audit_%s does not show what was found", name)
		}
	}
}

func TestLabelsAreCapped(t *testing.T) {
	o := New(Executor, "configured")
	for i := range 3 * labelCap {
		o.Escalation(fmt.Sprintf("from_a_job_%d", i), "unknown_tool")
		o.LettersOpen(fmt.Sprintf("owner_%d", i), "unknown_tool", 1)
	}
	o.Escalation("configured", "approval_required")
	families, err := o.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		label := map[string]string{"agentrun_escalations_total": "tool", "agentrun_dead_letters_open": "owner"}[f.GetName()]
		if label == "" {
			continue
		}
		values := map[string]float64{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == label {
					values[l.GetValue()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
		if len(values) > labelCap+1 {
			t.Errorf("%s has %d values of %s, at most %d and other are wanted", f.GetName(), len(values), label, labelCap)
		}
		if values["other"] < 2*labelCap {
			t.Errorf("%s counts %v as other", f.GetName(), values["other"])
		}
		if label == "tool" && values["configured"] != 1 {
			t.Error("a tool of the config lost its name to names from jobs")
		}
	}
}

// Label values that Prometheus would panic on, or that are text rather than names, become other.
func TestHostileLabels(t *testing.T) {
	o := New(Executor)
	o.Escalation("bad\xff", strings.Repeat("x", labelBytesMax+1))
	if body := scrape(t, o); !strings.Contains(body, `agentrun_escalations_total{reason_code="other",tool="other"} 1`) {
		t.Errorf("hostile labels are not other:\n%s", grep(body, "agentrun_escalations"))
	}
}

func TestLettersGoUpAndDown(t *testing.T) {
	o := New(Reconciler)
	o.LettersOpen("a", "x", 1)
	o.LettersOpen("a", "x", 1)
	o.LettersOpen("a", "x", -1)
	if body := scrape(t, o); !strings.Contains(body, `agentrun_dead_letters_open{owner="a",reason_code="x"} 1`) {
		t.Errorf("got:\n%s", grep(body, "dead_letters_open"))
	}
	o.ForgetLetters()
	if body := scrape(t, o); strings.Contains(body, "dead_letters_open{") {
		t.Error("letters stand after they were forgotten")
	}
}

func scrape(t *testing.T, o *Observer) string {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(o.Registry(), NewReadiness()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("/metrics answers %d", w.Code)
	}
	body, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return "\n" + string(body)
}

func grep(text, part string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
