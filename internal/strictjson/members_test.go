package strictjson_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/agentrun/executor/internal/strictjson"
)

func TestElements(t *testing.T) {
	for data, want := range map[string][]string{
		`[]`:    nil,
		` [ ] `: nil,
		`[1]`:   {"1"},
		"[ 1 ,\n\"a,]\\\"\", {\"b\":[2]} , [[]] ]": {"1", `"a,]\""`, `{"b":[2]}`, "[[]]"},
	} {
		var got []string
		ok := strictjson.Elements(json.RawMessage(data), func(e json.RawMessage) { got = append(got, string(e)) })
		if !ok || !slices.Equal(got, want) {
			t.Errorf("%s: %v %q, want %q", data, ok, got, want)
		}
	}
	for _, data := range []string{`{}`, `null`, `1`, `"[]"`, ``} {
		if strictjson.Elements(json.RawMessage(data), func(json.RawMessage) { t.Errorf("%s has an element", data) }) {
			t.Errorf("%q passed for an array", data)
		}
	}
}
