package httptool

import (
	"encoding/json"
	"maps"
	"net/url"
	"strings"
	"testing"

	"github.com/agentrun/executor/pkg/connector"
)

func expandFor(t testing.TB, raw string, args map[string]any) (got, field string) {
	t.Helper()
	tmpl, err := parseTemplate(raw)
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	rest := maps.Clone(args)
	for _, name := range tmpl.names {
		delete(rest, name)
	}
	if field, ok := tmpl.check(args, rest); !ok {
		return "", field
	}
	c := &connector.Call{OperationRef: "acme/r/s", IdempotencyKey: "acme/r/s.p2"}
	return tmpl.expand(c, args, rest), ""
}

func TestExpand(t *testing.T) {
	type m = map[string]any
	for _, c := range []struct {
		url, want string
		args      m
	}{
		{"https://h/invoices/{id}", "https://h/invoices/inv_7", m{"id": "inv_7"}},
		{"https://h/invoices/{id}", "https://h/invoices/a%20b%2Fc%3Fd%23e%25%C3%A9", m{"id": "a b/c?d#e%é"}},
		{"https://h/{n}/{b}", "https://h/12345678901234567890/true", m{"n": json.Number("12345678901234567890"), "b": true}},
		{"https://h/{id}/x", "https://h/i/x?a=1&z=%7B%22k%22%3A%5B1.10%5D%7D", m{"id": "i", "z": m{"k": []any{json.Number("1.10")}}, "a": json.Number("1"), "nil": nil}},
		{"https://h/?ref={operation_ref}&key={idempotency_key}", "https://h/?ref=acme%2Fr%2Fs&key=acme%2Fr%2Fs.p2", nil},
		{"https://h/{operation_ref}", "https://h/acme%2Fr%2Fs", nil},
		{"https://h?q={q}", "https://h/?q=a%26b%3Dc%0A&r=1", m{"q": "a&b=c\n", "r": json.Number("1")}},
		{"https://h/x?fixed=1", "https://h/x?fixed=1&b=2", m{"b": "2"}},
		{"https://h:8443/v{n}.json", "https://h:8443/v...json", m{"n": ".."}},
		{"https://h/{id}", "https://h/...", m{"id": "..."}},
		{"https://h/x/{id}", "https://h/x/i?fixed=2", m{"id": "i", "fixed": "2"}},
		{"https://h/{id}/{id}?x={id}", "https://h/i/i?x=i", m{"id": "i"}},
	} {
		if got, field := expandFor(t, c.url, c.args); got != c.want || field != "" {
			t.Errorf("%s %v: got %s (%s), want %s", c.url, c.args, got, field, c.want)
		}
	}
}

func TestExpandRefuses(t *testing.T) {
	type m = map[string]any
	for _, c := range []struct {
		url, field string
		args       m
	}{
		{"https://h/x/{id}", "/id", m{"id": ".."}},
		{"https://h/x/{id}", "/id", m{"id": "."}},
		{"https://h/x/{id}", "/id", m{"id": "../admin"}},
		{"https://h/x/{id}", "/id", m{"id": "a/../../admin"}},
		{"https://h/x/{id}", "/id", m{"id": `a\..\admin`}},
		{"https://h/x/{id}", "/id", m{"id": "%2e%2e"}},
		{"https://h/x/{id}", "/id", m{"id": "..%2fadmin"}},
		{"https://h/x/{id}", "/id", m{"id": "%252e%252e%252fadmin"}},
		{"https://h/x/{id}", "/id", m{"id": "..;v=1"}},
		{"https://h/x/{id}", "/id", m{"id": "a\r\nHost: evil"}},
		{"https://h/x/{id}", "/id", m{"id": "a%0d%0a"}},
		{"https://h/x/{id}", "/id", m{"id": "a\x00"}},
		{"https://h/x/{id}", "/id", m{"id": ""}},
		{"https://h/x/{id}", "/id", m{"id": nil}},
		{"https://h/x/{id}", "/id", m{"id": m{}}},
		{"https://h/x/{id}", "/id", m{"id": []any{"a"}}},
		{"https://h/x/{id}", "/id", m{}},
		{"https://h/x/{a~b}", "", nil}, // parse error, below
		{"https://h/x/{a}{b}/y", "/b", m{"a": ".", "b": "."}},
		{"https://h/x/.{a}/y", "/a", m{"a": "."}},
		{"https://h/?q={q}", "/q", m{"q": ""}},
		{"https://h/?account=7", "/account", m{"account": "8"}},
	} {
		if c.field == "" {
			if _, err := parseTemplate(c.url); err == nil {
				t.Errorf("%s was accepted", c.url)
			}
			continue
		}
		if got, field := expandFor(t, c.url, c.args); field != c.field {
			t.Errorf("%s %q: got %s (%s)", c.url, c.args, got, field)
		}
	}
}

// Whatever an arg holds, it stays where it was put: same scheme and host, as many path segments and parameters as the
// template has, and the value arrives as it was given.
func FuzzExpand(f *testing.F) {
	for _, s := range []string{"a", "..", "a/b", "%2e%2e%2f", "a?b#c", "a&b=c", "\r\nX: y", "é", "//evil", `\`, "..;", "@evil"} {
		f.Add(s, s)
	}
	tmpl, err := parseTemplate("https://api.internal:8443/v1/{a}/credits?q={b}&fixed=1")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		args, rest := map[string]any{"a": a, "b": b, "rest": a}, map[string]any{"rest": a}
		if _, ok := tmpl.check(args, rest); !ok {
			return
		}
		raw := tmpl.expand(&connector.Call{}, args, rest)
		if !printable(raw) {
			t.Fatalf("%q is no URL", raw)
		}
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		segments := strings.Split(u.EscapedPath(), "/")
		if u.Host != "api.internal:8443" || u.User != nil || u.Fragment != "" || len(segments) != 4 || segments[1] != "v1" || segments[3] != "credits" {
			t.Fatalf("%q and %q made %s", a, b, raw)
		}
		if back, err := url.PathUnescape(segments[2]); err != nil || back != a {
			t.Fatalf("%q arrives as %q (%v)", a, back, err)
		}
		q, err := url.ParseQuery(u.RawQuery)
		if err != nil || len(q) != 3 || q.Get("q") != b || q.Get("rest") != a || q.Get("fixed") != "1" {
			t.Fatalf("%q and %q made %v (%v)", a, b, q, err)
		}
		for _, piece := range strings.FieldsFunc(u.Path, func(r rune) bool { return r == '/' || r == '\\' }) {
			if piece == "." || piece == ".." {
				t.Fatalf("%q leaves its place: %s", a, raw)
			}
		}
	})
}
