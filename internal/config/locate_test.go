package config

import (
	"strings"
	"testing"

	"github.com/agentrun/executor/pkg/connector"
)

const placesFile = `defaults:
  owner: ops
tools:
  t:
    effect: write
    http:
      url: "https://h/${PATH_OF_API}/x"
    evidence_ref: "body.\"id\" + x"
    input_schema:
      properties:
        a: {type: nonsense}
    errors:
      - when: status == 409
        code: STATE_CONFLICT
      - {when: 'body == ''x'' + y', code: STATE_CONFLICT}
      - when: |
          status == 500
            && body.é + z
        code: STATE_CONFLICT
      - when: >-
          status == 501 &&
          body.bad
        code: STATE_CONFLICT
      - when: status == 502 &&
          body.worse
        code: STATE_CONFLICT
      - when: "status == ${STATUS} && q"
        code: STATE_CONFLICT
`

func TestLocate(t *testing.T) {
	f, _, err := Parse("c.yaml", []byte(placesFile), environment(map[string]string{"PATH_OF_API": "secret-path", "STATUS": "503"}))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path      []any
		line, col int
		message   string
		want      string
	}{
		{nil, 0, 0, "m", "4:3: tools.t: m"},
		{[]any{"effect"}, 0, 0, "m", "5:13: tools.t.effect: m"},
		{[]any{"timeout"}, 0, 0, "m", "4:3: tools.t.timeout: m"},
		{[]any{"verify", "committed"}, 1, 3, "m", "4:3: tools.t.verify.committed: m"},
		{[]any{"http", "url"}, 0, 0, "cannot reach https://h/secret-path/x", "7:12: tools.t.http.url: cannot reach https://h/[redacted]/x"},
		{[]any{"evidence_ref"}, 1, 1, "m", "8:20: tools.t.evidence_ref: m"},
		{[]any{"evidence_ref"}, 1, 13, "m", "8:34: tools.t.evidence_ref: m"},
		{[]any{"input_schema"}, 0, 0, "m", "9:5: tools.t.input_schema: m"},
		{[]any{"input_schema", "properties", "a", "type"}, 0, 0, "m", "11:19: tools.t.input_schema.properties.a.type: m"},
		{[]any{"errors", 0, "when"}, 1, 8, "m", "13:22: tools.t.errors[0].when: m"},
		{[]any{"errors", 1, "when"}, 1, 15, "m", "15:33: tools.t.errors[1].when: m"},
		{[]any{"errors", 2, "when"}, 1, 8, "m", "17:18: tools.t.errors[2].when: m"},
		{[]any{"errors", 2, "when"}, 2, 15, "m", "18:25: tools.t.errors[2].when: m"},
		{[]any{"errors", 3, "when"}, 1, 8, "m", "21:18: tools.t.errors[3].when: m"},
		{[]any{"errors", 3, "when"}, 1, 18, "m", "22:11: tools.t.errors[3].when: m"},
		{[]any{"errors", 4, "when"}, 1, 1, "m", "24:15: tools.t.errors[4].when: m"},
		{[]any{"errors", 4, "when"}, 1, 18, "m", "25:11: tools.t.errors[4].when: m"},
		{[]any{"errors", 4, "when"}, 9, 1, "m", "24:15: tools.t.errors[4].when: m"},
		{[]any{"errors", 5, "when"}, 1, 18, "undeclared 'q' | status == 503 && q", "27:15: tools.t.errors[5].when: undeclared 'q' | status == [redacted] && q"},
		{[]any{"errors", 9, "when"}, 1, 1, "m", "12:5: tools.t.errors[9].when: m"},
	} {
		got := f.Locate("t", &connector.SpecError{Path: c.path, Line: c.line, Column: c.col, Message: c.message})
		if want := "c.yaml:" + c.want; got != want {
			t.Errorf("%v %d:%d\n got %s\nwant %s", c.path, c.line, c.col, got, want)
		}
	}
}

func TestLocateInJSON(t *testing.T) {
	text := "{\n\t\"tools\": {\"t\": {\"effect\": \"write\", \"evidence_ref\": \"\\u0061 + é + b\",\n\t\t\"command\": {\"argv\": [\"p\"]}}}\n}\n"
	f, _, err := Parse("c.json", []byte(text), noEnvironment)
	if err != nil {
		t.Fatal(err)
	}
	got := f.Locate("t", &connector.SpecError{Path: []any{"evidence_ref"}, Line: 1, Column: 9, Message: "m"})
	if want := "c.json:2:67: tools.t.evidence_ref: m"; got != want || !strings.HasPrefix(f.doc.sourceAt(2, 67), `b"`) {
		t.Errorf("got %s, want %s (%q)", got, want, f.doc.sourceAt(2, 67))
	}
}
