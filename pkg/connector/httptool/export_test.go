package httptool

import (
	"net/url"
	"testing"

	"github.com/agentrun/executor/pkg/connector"
)

// FormStaysApart encodes an arg of any name and value beside a parameter of the config.
func FormStaysApart(t *testing.T, name, value string) {
	c, err := parseContent("form", map[string]any{"metadata": map[string]any{"ref": "{operation_ref}"}, "...": "{...}"})
	if err != nil {
		t.Fatal(err)
	}
	rest := map[string]any{name: value, "nested": map[string]any{name: value}}
	if _, ok := c.check(rest, rest, false); !ok {
		return
	}
	b, _ := c.encode(&connector.Call{OperationRef: "acme/r/s"}, rest, rest)
	got, err := url.ParseQuery(string(b))
	if err != nil || len(got["metadata[ref]"]) != 1 || got.Get("metadata[ref]") != "acme/r/s" {
		t.Fatalf("%q %q: %s (%v)", name, value, b, err)
	}
	if name != "nested" && (len(got) != 3 || got.Get(name) != value || got.Get("nested["+name+"]") != value) {
		t.Fatalf("%q %q: %s", name, value, b)
	}
}
