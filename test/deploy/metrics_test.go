package deploy

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// metric is what the golden lists of internal/observe say of one.
type metric struct {
	kind   string
	labels map[string]bool
}

// knownMetrics reads the golden lists: "counter agentrun_x{a,b}" on each line.
func knownMetrics(t *testing.T) map[string]metric {
	t.Helper()
	known := map[string]metric{}
	for _, file := range []string{"metrics_executor.golden", "metrics_reconciler.golden"} {
		for _, line := range strings.Split(strings.TrimSpace(read(t, "internal/observe/testdata/"+file)), "\n") {
			kind, rest, _ := strings.Cut(line, " ")
			name, rest, _ := strings.Cut(rest, "{")
			labels, _, _ := strings.Cut(rest, "}")
			m := metric{kind: kind, labels: map[string]bool{"instance": true, "job": true}}
			for _, label := range strings.Split(labels, ",") {
				m.labels[label] = true
			}
			known[name] = m
			if kind == "histogram" {
				m.labels["le"] = true
				for _, suffix := range []string{"_bucket", "_sum", "_count"} {
					known[name+suffix] = m
				}
			}
		}
	}
	if len(known) < 15 {
		t.Fatalf("only %d metrics in the golden lists", len(known))
	}
	return known
}

var (
	selector = regexp.MustCompile(`\b(agentrun_[a-z_]+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)\s*"`)
	grouping = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// checkExpression fails for each metric that does not exist, each label that it does not have, and each counter that is
// shown as it is.
func checkExpression(t *testing.T, known map[string]metric, where, expr string) {
	t.Helper()
	labels := map[string]bool{"le": true}
	found := selector.FindAllStringSubmatch(expr, -1)
	for _, s := range found {
		m, ok := known[s[1]]
		if !ok {
			t.Errorf("%s: there is no metric %s", where, s[1])
			continue
		}
		for label := range m.labels {
			labels[label] = true
		}
		for _, label := range matcher.FindAllStringSubmatch(s[2], -1) {
			if !m.labels[label[1]] {
				t.Errorf("%s: %s has no label %s", where, s[1], label[1])
			}
		}
	}
	if len(found) == 0 && !strings.Contains(expr, "up{") && !strings.Contains(expr, "agentrun:") {
		t.Errorf("%s looks at nothing of ours: %s", where, expr)
	}
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		for _, label := range strings.Split(g[1], ",") {
			if label = strings.TrimSpace(label); len(found) > 0 && !labels[label] {
				t.Errorf("%s groups by %s, which none of its metrics has: %s", where, label, expr)
			}
		}
	}
}

type ruleFile struct {
	Groups []struct {
		Rules []struct {
			Alert, Record, Expr string
			Labels, Annotations map[string]string
		}
	}
}

// TestRulesUseMetricsThatExist, and every alert says what to do: a section of docs/operations.md.
func TestRulesUseMetricsThatExist(t *testing.T) {
	t.Parallel()
	var file ruleFile
	if err := yaml.Unmarshal([]byte(read(t, "deploy/prometheus/rules.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	known, sections := knownMetrics(t), anchors(read(t, "docs/operations.md"))
	tests := read(t, "deploy/prometheus/rules_test.yaml") + read(t, "deploy/prometheus/rules_day_test.yaml")
	alerts := 0
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			checkExpression(t, known, rule.Alert+rule.Record, rule.Expr)
			if rule.Alert == "" {
				continue
			}
			alerts++
			if s := rule.Labels["severity"]; s != "page" && s != "ticket" {
				t.Errorf("%s has the severity %q", rule.Alert, s)
			}
			_, anchor, _ := strings.Cut(rule.Annotations["runbook_url"], "/docs/operations.md#")
			if anchor != strings.ToLower(rule.Alert) || !sections[anchor] {
				t.Errorf("%s: docs/operations.md has no section %q", rule.Alert, anchor)
			}
			if !strings.Contains(tests, "name: "+rule.Alert+"\n") {
				t.Errorf("%s has no test in rules_test.yaml", rule.Alert)
			}
		}
	}
	if alerts < 20 {
		t.Errorf("only %d alerts", alerts)
	}
}

var heading = regexp.MustCompile(`(?m)^#{1,6} (.+)$`)

// anchors are those that GitHub makes of a document's headings.
func anchors(document string) map[string]bool {
	out := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(document, -1) {
		anchor := strings.ToLower(strings.TrimSpace(h[1]))
		anchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(anchor, "")
		out[strings.ReplaceAll(anchor, " ", "-")] = true
	}
	return out
}

// TestTheDashboardUsesMetricsThatExist, and has panels that do not lie on each other.
func TestTheDashboardUsesMetricsThatExist(t *testing.T) {
	t.Parallel()
	var board struct {
		Panels []struct {
			ID           int
			Title, Type  string
			Description  string
			Targets      []struct{ Expr string }
			GridPosition struct{ H, W, X, Y int } `json:"gridPos"`
		}
		Templating struct {
			List []struct {
				Name  string
				Query any
			}
		}
	}
	if err := json.Unmarshal([]byte(read(t, "deploy/grafana/dashboard.json")), &board); err != nil {
		t.Fatal(err)
	}
	known := knownMetrics(t)
	ids, cells := map[int]bool{}, map[[2]int]string{}
	shown := ""
	for _, p := range board.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPosition.X; x < p.GridPosition.X+p.GridPosition.W; x++ {
			for y := p.GridPosition.Y; y < p.GridPosition.Y+p.GridPosition.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Errorf("%s lies on %s, or beside the board", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 || p.Description == "" {
			t.Errorf("%s shows nothing, or does not say what", p.Title)
		}
		for _, target := range p.Targets {
			checkExpression(t, known, p.Title, target.Expr)
			shown += target.Expr + "\n"
		}
	}
	for name, m := range known {
		if m.kind != "histogram" && !strings.Contains(shown, name) {
			t.Errorf("no panel shows %s", name)
		}
	}
	for _, v := range board.Templating.List {
		for _, s := range selector.FindAllStringSubmatch(fmt.Sprint(v.Query), -1) {
			if _, ok := known[s[1]]; !ok {
				t.Errorf("the variable %s asks for %s, which does not exist", v.Name, s[1])
			}
		}
	}
}
