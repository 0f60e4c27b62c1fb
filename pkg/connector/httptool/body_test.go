package httptool_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/httptool"
	"github.com/agentrun/executor/pkg/envelope"
)

type m = map[string]any

// sent calls a tool and returns the request that arrived, or the place in the args for which nothing was sent.
func sent(t *testing.T, p *peer, h connector.HTTPSpec, args string) (req *http.Request, body, refused string) {
	t.Helper()
	h.URL = p.url() + h.URL
	if h.Method == "" {
		h.Method = "POST"
	}
	got := make(chan *http.Request, 1)
	p.mu.Lock()
	p.answer = func(r *http.Request, b string) string {
		got <- r
		body = b
		return "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
	}
	p.mu.Unlock()
	tool, err := connector.Compile(connector.Spec{Name: "tool", Effect: envelope.Write, Kind: connector.KindSpec{HTTP: &h}}, p.kind)
	if err != nil {
		t.Fatal(err)
	}
	if field, ok := tool.CheckArgs([]byte(args)); !ok {
		if reply := tool.Caller.Call(t.Context(), newCall(args)); reply.OK {
			t.Errorf("%s is refused by CheckArgs and sent all the same", args)
		}
		return nil, "", field
	}
	if reply := tool.Caller.Call(t.Context(), newCall(args)); !reply.OK {
		t.Fatalf("%s: %+v", args, reply)
	}
	return <-got, body, ""
}

func TestBody(t *testing.T) {
	p := newPeer(t)
	jira := m{"fields": m{
		"summary": "{title} ({amount})", "amount": "{amount}", "labels": []any{"agentrun", "{operation_ref}"}, "tags": "{tags}",
		"fixed": m{"n": true}, "key": "key {idempotency_key}", "query": "{ a { b } }",
	}}
	for _, c := range []struct {
		name string
		spec connector.HTTPSpec
		args string
		want string // the body, or /place of what is refused
	}{
		{
			"types, digits, and text around",
			connector.HTTPSpec{Body: jira},
			`{"title": "A \"credit\"", "amount": 12345678901234567890.10, "tags": [1.0, {"x": null}]}`,
			`{"fields":{"amount":12345678901234567890.10,"fixed":{"n":true},"key":"key acme/r/s","labels":["agentrun","acme/r/s"],"query":"{ a { b } }","summary":"A \"credit\" (12345678901234567890.10)","tags":[1.0,{"x":null}]}}`,
		},
		{"what is not given is left out", connector.HTTPSpec{Body: m{"a": "{a}", "l": []any{"{a}", "x"}}}, `{}`, `{"l":["x"]}`},
		{"null stays null", connector.HTTPSpec{Body: m{"a": "{a}"}}, `{"a": null}`, `{"a":null}`},
		{"a text needs its arg", connector.HTTPSpec{Body: m{"a": "to {a}"}}, `{}`, "/a"},
		{"an object is no text", connector.HTTPSpec{Body: m{"a": "to {a}"}}, `{"a": {}}`, "/a"},
		{"an arg without a place", connector.HTTPSpec{Body: m{"a": "{a}"}}, `{"a": 1, "b": 2}`, "/b"},
		{"the others beside", connector.HTTPSpec{URL: "/{id}", Body: m{"ref": "{operation_ref}", "...": "{...}"}}, `{"id": "i", "b": 2.50}`, `{"b":2.50,"ref":"acme/r/s"}`},
		{"the others below a name", connector.HTTPSpec{Body: m{"ticket": "{...}", "a": "{a}"}}, `{"a": 1, "b": 2}`, `{"a":1,"ticket":{"b":2}}`},
		{"another may not take a name of the config", connector.HTTPSpec{Body: m{"ref": "{operation_ref}", "...": "{...}"}}, `{"ref": "other"}`, "/ref"},
		{"nor may an arg be called so", connector.HTTPSpec{Body: m{"r": "{operation_ref}", "...": "{...}"}}, `{"operation_ref": "other"}`, `{"operation_ref":"other","r":"acme/r/s"}`},
		{"the whole body is an arg", connector.HTTPSpec{Body: "{items}"}, `{"items": [1, 2]}`, `[1,2]`},
		{"which must be there", connector.HTTPSpec{Body: "{items}"}, `{}`, "/items"},
		{"a DELETE with a body", connector.HTTPSpec{Method: "DELETE", Body: m{"why": "{why}"}}, `{"why": "x"}`, `{"why":"x"}`},
		{
			"a form as Stripe reads it",
			connector.HTTPSpec{Form: m{
				"amount": "{amount}", "metadata": m{"ref": "{operation_ref}"}, "items": "{items}", "description": "for {who}", "on": true, "none": nil,
			}},
			`{"amount": 500, "who": "a&b=c d", "items": [{"price": "p_1", "quantity": 2}, {"price": "p_2"}]}`,
			`amount=500&description=for%20a%26b%3Dc%20d&items[0][price]=p_1&items[0][quantity]=2&items[1][price]=p_2&metadata[ref]=acme%2Fr%2Fs&on=true`,
		},
		{"all args as a form", connector.HTTPSpec{Form: "{...}"}, `{"a": "1", "b": {"c": [true]}}`, `a=1&b[c][0]=true`},
		{"no structure in a name", connector.HTTPSpec{Form: m{"metadata": m{"ref": "{operation_ref}"}, "...": "{...}"}}, `{"metadata[ref]": "other"}`, "/metadata[ref]"},
		{"nor further down", connector.HTTPSpec{Form: m{"x": "{x}"}}, `{"x": [{"a][b": 1}]}`, "/x"},
		{"nor below the others", connector.HTTPSpec{Form: "{...}"}, `{"x": {"": 1}}`, "/x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, body, refused := sent(t, p, c.spec, c.args)
			if got := body + refused; got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			want := "application/json"
			if c.spec.Form != nil {
				want = "application/x-www-form-urlencoded"
			}
			if req != nil && req.Header.Get("Content-Type") != want {
				t.Errorf("Content-Type %q", req.Header.Get("Content-Type"))
			}
		})
	}
}

func TestHeadersTakeArgs(t *testing.T) {
	p := newPeer(t)
	spec := connector.HTTPSpec{Method: "PUT", URL: "/{id}", Headers: map[string]string{"if-match": "{etag}", "X-Why": `ref {operation_ref}, {"n": {n}}`, "Accept": "text/{kind}"}}
	req, body, refused := sent(t, p, spec, `{"id": "i", "etag": "W/\"7\"", "n": 1.50, "kind": "plain", "other": 1}`)
	if refused != "" {
		t.Fatalf("refused: %s", refused)
	}
	h := req.Header
	if h.Get("If-Match") != `W/"7"` || h.Get("X-Why") != `ref acme/r/s, {"n": 1.50}` || len(h["Accept"]) != 1 || h.Get("Accept") != "text/plain" {
		t.Errorf("headers %v", h)
	}
	if body != `{"other":1}` {
		t.Errorf("body %s: what a header takes is not sent again", body)
	}
	// A header without its value would be no condition at all, and a value may not begin another header.
	for _, etag := range []string{`null`, `""`, `"a\r\nX: y"`, `"a\nX: y"`, `"a\u0000"`, `"é"`, `" a"`, `{}`, `["a"]`, `"\u007f"`} {
		if _, _, refused := sent(t, p, spec, `{"id": "i", "n": 1, "kind": "k", "etag": `+etag+`}`); refused != "/etag" {
			t.Errorf("%s: refused %q", etag, refused)
		}
	}
	if _, _, refused := sent(t, p, spec, `{"id": "i", "n": 1, "kind": "k"}`); refused != "/etag" {
		t.Errorf("no etag: refused %q", refused)
	}
	req, _, _ = sent(t, p, connector.HTTPSpec{Method: "DELETE", Headers: map[string]string{"If-Match": "{etag}"}}, `{"etag": "7", "b": 1}`)
	if req.URL.RawQuery != "b=1" {
		t.Errorf("query %s", req.URL.RawQuery)
	}
}

func TestBodiesThatAreNone(t *testing.T) {
	for _, c := range []struct {
		spec connector.HTTPSpec
		want string
	}{
		{connector.HTTPSpec{Method: "GET", Body: m{}}, "[http body]: a GET or HEAD has no body"},
		{connector.HTTPSpec{Method: "POST", Body: m{}, Form: m{}}, "[http form]: is there beside body"},
		{connector.HTTPSpec{Method: "POST", Form: []any{}}, "[http form]: must be a mapping"},
		{connector.HTTPSpec{Method: "POST", Form: "{items}"}, "[http form]: must be a mapping"},
		{connector.HTTPSpec{Method: "POST", Body: m{"a": m{"{b}": 1}}}, "[http body a]: a placeholder may fill in a value"},
		{connector.HTTPSpec{Method: "POST", Body: m{"...": "x"}}, "[http body]: ... stands for the other args"},
		{connector.HTTPSpec{Method: "POST", Body: m{"a": "{...}", "b": []any{"{...}"}}}, "[http body b 0]: {...} is there twice"},
	} {
		c.spec.URL = "http://127.0.0.1/"
		_, err := connector.Compile(connector.Spec{Name: "tool", Effect: envelope.Write, Kind: connector.KindSpec{HTTP: &c.spec}}, httptool.New())
		var at *connector.SpecError
		if !errors.As(err, &at) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %s", c.spec, err, c.want)
		}
	}
}

// FuzzForm: whatever an arg holds, the parameters that the config writes arrive as it wrote them.
func FuzzForm(f *testing.F) {
	for _, s := range []string{"a", "metadata[ref]", "a&metadata[ref]=x", "%5B", "é", ""} {
		f.Add(s, s)
	}
	f.Fuzz(httptool.FormStaysApart)
}
