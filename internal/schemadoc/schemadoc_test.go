package schemadoc

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

const root = "../.."

func TestDocumentsAreCurrent(t *testing.T) {
	if err := Check(root); err != nil {
		t.Errorf("%v\nrun: go run ./internal/schemadoc/gen", err)
	}
}

func TestCheckNamesWhatIsStale(t *testing.T) {
	dir := t.TempDir()
	for _, pkg := range []string{"pkg/envelope", "pkg/budget", "pkg/deadletter", "pkg/run", "internal/engine"} {
		if err := os.CopyFS(filepath.Join(dir, pkg), os.DirFS(filepath.Join(root, pkg))); err != nil {
			t.Fatal(err)
		}
	}
	if err := Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := Check(dir); err != nil {
		t.Errorf("just written: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "docs/schema/job.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "docs/codes.md")); err != nil {
		t.Fatal(err)
	}
	err := Check(dir)
	if !errors.Is(err, ErrStale) || !strings.Contains(err.Error(), "docs/schema/job.json") || !strings.Contains(err.Error(), "docs/codes.md") ||
		strings.Contains(err.Error(), "alert.json") {
		t.Errorf("got %v", err)
	}
	if _, err := Files(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory without the sources: %v", err)
	}
}

// compile makes the validator of one message, with the formats of times asserted.
func compile(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	files, err := Files(root)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	for _, f := range files {
		if f.Path != "docs/schema/"+name+".json" {
			continue
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(f.Data))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AddResource(f.Path, doc); err != nil {
			t.Fatal(err)
		}
		s, err := c.Compile(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		if s.DraftVersion != 2020 {
			t.Errorf("draft %d", s.DraftVersion)
		}
		return s
	}
	t.Fatalf("no schema %s", name)
	return nil
}

func validate(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

func TestMessagesOfTheContract(t *testing.T) {
	for _, tt := range contractMessages {
		t.Run(tt.name, func(t *testing.T) {
			if err := validate(t, compile(t, tt.schema), tt.text); err != nil {
				t.Errorf("%#v", err)
			}
		})
	}
}

// Each row is a message of the contract with one thing changed that its reader could not work with.
func TestSchemasRefuse(t *testing.T) {
	tests := []struct{ message, old, new string }{
		{"job", `"agentrun.job/v1"`, `"agentrun.job/v2"`},
		{"job", `"tenant": "acme", `, ``},
		{"job", `"run_1042"`, `"run.1042"`},
		{"job", `"run_1042"`, `"*"`},
		{"job", `"billing-oncall"`, `""`},
		{"job", `"step": "load_invoice"`, `"step": "load invoice"`},
		{"job", `"tool": "get_invoice"`, `"tool": "../get"`},
		{"job", `{"case": "c_9"}`, `["c_9"]`},
		{"job", `"max_turns": 12`, `"max_turns": -1`},
		{"job", `"max_turns": 12`, `"max_turns": 1.5`},
		{"job", `"max_turns": 12`, `"max_turns": 9007199254740992`},
		{"job", `"max_elapsed_seconds": 45`, `"max_elapsed_seconds": "45s"`},
		{"job", `"input_tokens": 1200`, `"input_tokens": -1`},
		{"job", `"more": false`, `"priority": 10`},
		{"job", `"more": false`, `"deadline": "tomorrow"`},
		{"job", `"optional": true`, `"optional": "yes"`},
		{"success", `"commit_state": "committed"`, `"commit_state": "unknown"`},
		{"success", `2026-12-01T10:00:00.000Z`, `today`},
		{"failure", `"code": "OUTCOME_UNKNOWN", `, ``},
		{"failure", `"OUTCOME_UNKNOWN"`, `"outcome unknown"`},
		{"failure", `"dependency"`, `"weather"`},
		{"failure", `"never"`, `"sometimes"`},
		{"failure", `"next_action": "verify_operation", `, ``},
		{"failure", `"apply_credit.verify"`, `{"a": 1}`},
		{"failure", `"apply_credit.verify"`, `"` + strings.Repeat("a", 257) + `"`},
		{"outcome", `"n": 3`, `"n": 0`},
		{"outcome", `"scope": "step"`, `"scope": "job"`},
		{"outcome", `"completed_effects": []`, `"completed_effects": null`},
		{"outcome", `"outcome": "retryable"`, `"outcome": "maybe"`},
		{"outcome", `"envelope": {"ok": false, "code"`, `"envelope": {"ok": false, "coda"`},
		{"deadletter", `"open": [{"step"`, `"open": [{"stop"`},
		{"deadletter", `["resolve", "discard"]`, `["retry"]`},
		{"deadletter", `"kind": "dispatch"`, `"kind": "call"`},
		{"deadletter", `"by": "alice", `, ``},
		{"deadletter", `"replays": 0, `, ``},
		{"alert", `"page"`, `"shout"`},
		{"alert", `"count": 1,`, ``},
	}
	for _, tt := range tests {
		var found bool
		for _, m := range contractMessages {
			if m.name != tt.message {
				continue
			}
			found = true
			text := strings.Replace(m.text, tt.old, tt.new, 1)
			if text == m.text {
				t.Errorf("%s: nothing to replace: %s", tt.message, tt.old)
			} else if validate(t, compile(t, m.schema), text) == nil {
				t.Errorf("%s: %s passed as %s", tt.message, tt.old, tt.new)
			}
		}
		if !found {
			t.Errorf("no message %s", tt.message)
		}
	}
}

// A newer peer may add fields anywhere.
func TestSchemasAllowWhatTheyDoNotKnow(t *testing.T) {
	for _, m := range contractMessages {
		text := strings.ReplaceAll(m.text, `{"step"`, `{"new": [1], "step"`)
		text = strings.Replace(text, "{", `{"new_at_the_top": null, `, 1)
		if err := validate(t, compile(t, m.schema), text); err != nil {
			t.Errorf("%s: %#v", m.name, err)
		}
	}
}

// Every schema describes itself, and every value of an enum is there.
func TestSchemasAreWhole(t *testing.T) {
	files, err := Files(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Path, ".json") {
			continue
		}
		name := strings.TrimSuffix(filepath.Base(f.Path), ".json")
		var head struct {
			Schema      string `json:"$schema"`
			ID          string `json:"$id"`
			Title       string `json:"title"`
			Description string `json:"description"`
			Type        string `json:"type"`
		}
		if err := json.Unmarshal(f.Data, &head); err != nil {
			t.Fatal(err)
		}
		if head.Schema != "https://json-schema.org/draft/2020-12/schema" || head.ID != "urn:agentrun:"+name+":v1" ||
			head.Title == "" || head.Description == "" || head.Type != "object" {
			t.Errorf("%s: %+v", f.Path, head)
		}
		for _, banned := range []string{`"additionalProperties": false`, `"enum": []`, `"enum": null`, `\u003`} {
			if name != "config" && bytes.Contains(f.Data, []byte(banned)) { // a config with an unknown key is wrong
				t.Errorf("%s has %s", f.Path, banned)
			}
		}
		compile(t, name)
	}
	src, err := readSources(root, "pkg/envelope", "pkg/deadletter", "pkg/run", "internal/engine")
	if err != nil {
		t.Fatal(err)
	}
	for typ, want := range map[string]int{
		"envelope.Category": 5, "envelope.CommitState": 3, "envelope.Directive": 3, "envelope.NextAction": 5, "envelope.Word": 6,
		"envelope.Scope": 2, "envelope.Effect": 2, "deadletter.Action": 4, "deadletter.AttemptKind": 2, "deadletter.Severity": 2, "run.State": 8,
	} {
		if got := len(src.values[typ]); got != want {
			t.Errorf("%s has %d values, want %d", typ, got, want)
		}
	}
}

// What the code writes passes its own schema: a value of each message with every field set.
func TestTypesPassTheirSchemas(t *testing.T) {
	src, err := readSources(root, "pkg/envelope", "pkg/budget", "pkg/deadletter", "pkg/run", "internal/engine")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		t.Run(m.name, func(t *testing.T) {
			v := reflect.New(reflect.TypeOf(m.value)).Elem()
			fill(src, v)
			if m.schema != "" {
				v.FieldByName("Schema").SetString(m.schema)
			}
			data, err := json.Marshal(v.Interface())
			if err != nil {
				t.Fatal(err)
			}
			if err := validate(t, compile(t, m.name), string(data)); err != nil {
				t.Errorf("%s\n%#v", data, err)
			}
		})
	}
}

// fill sets every exported field below v; a typed string gets its first constant. OK stays false: an envelope with every
// field is a failure.
func fill(src *sources, v reflect.Value) {
	switch v.Type() {
	case rawType:
		v.SetBytes([]byte(`{"n":1e400}`))
		return
	case codeType:
		v.SetString("POISON_JOB")
		return
	case detailsType:
		v.Set(reflect.ValueOf(envelope.Details{"field": "/a", "n": 1, "soft": true}))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "OK" {
				fill(src, v.Field(i))
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(src, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(src, v.Index(0))
	case reflect.Map:
		elem := reflect.New(v.Type().Elem()).Elem()
		fill(src, elem)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("a").Convert(v.Type().Key()), elem)
	case reflect.String:
		v.SetString("a")
		if values := src.values[typeKey(v.Type())]; v.Type().PkgPath() != "" && len(values) > 0 {
			v.SetString(values[0].(string))
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1.5)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint64, reflect.Uint8:
		v.SetUint(1)
	}
}

// The patterns of the job's schema are those that a job is checked with.
func TestPatternsAgreeWithTheRun(t *testing.T) {
	id, tool := regexp.MustCompile(idPattern), regexp.MustCompile(toolPattern)
	names := []string{"", "a", "A-_9", "_a", "-a", "a.b", "a/b", "a b", "a*", "ä", "a\n", "9", strings.Repeat("a", 64), strings.Repeat("a", 65), strings.Repeat("a", 128), strings.Repeat("a", 129)}
	for _, s := range names {
		if id.MatchString(s) != run.ValidID(s) || tool.MatchString(s) != run.ValidTool(s) {
			t.Errorf("%q: the schema and the run disagree", s)
		}
	}
}
