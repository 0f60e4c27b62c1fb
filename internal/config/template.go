package config

import (
	"maps"
	"mime"
	"regexp"
	"slices"
	"strings"

	"github.com/agentrun/executor/pkg/connector"
)

var (
	// textPlaceholder is what httptool fills in texts of bodies and headers, where other braces are text.
	textPlaceholder = regexp.MustCompile(`\{([A-Za-z_][A-Za-z0-9_-]*|\.\.\.)\}`)
	variable        = regexp.MustCompile(`\$\{[^}]*\}`)
)

// template reads the value of body or form: of any shape, its texts with placeholders.
func (o *object) template(key string) any {
	if p := o.get(key); p != nil {
		p.value.each(func(n *node) { o.d.noPlaceholderFromOutside(n, o.sub(key)) })
	}
	return o.any(key)
}

// noPlaceholderFromOutside refuses a value from outside that makes a placeholder: it would take an arg that nobody
// meant to go there.
func (d *decoder) noPlaceholderFromOutside(n *node, path string) {
	if len(n.substituted) == 0 {
		return
	}
	if !slices.Equal(textPlaceholder.FindAllString(n.value, -1), textPlaceholder.FindAllString(variable.ReplaceAllString(n.text, ""), -1)) {
		d.fail(n, "%s: the value of an environment variable or file in it makes a {placeholder}: an arg would be put there", path)
	}
}

// placeholders are the names that a request takes: args, operation_ref and idempotency_key; rest says that {...} is there.
func placeholders(h *connector.HTTPSpec) (names map[string]bool, rest bool) {
	names = map[string]bool{}
	note := func(s string) {
		for _, m := range textPlaceholder.FindAllStringSubmatch(s, -1) {
			if m[1] == "..." {
				rest = rest || s == "{...}"
				continue
			}
			names[m[1]] = true
		}
	}
	note(h.URL)
	for _, v := range h.Headers {
		note(v)
	}
	eachText(h.Body, note)
	eachText(h.Form, note)
	return names, rest
}

func eachText(v any, f func(string)) {
	switch v := v.(type) {
	case string:
		f(v)
	case []any:
		for _, e := range v {
			eachText(e, f)
		}
	case map[string]any:
		for _, e := range v {
			eachText(e, f)
		}
	}
}

// args holds what a request takes against the args that the tool's input_schema names.
func (d *decoder) args(tool *object, s *connector.Spec) {
	schema, _ := s.InputSchema.(map[string]any)
	properties, described := schema["properties"].(map[string]any)
	known := map[string]bool{}
	for name := range properties {
		known[name] = true
	}
	required, _ := schema["required"].([]any)
	for _, v := range required {
		if name, ok := v.(string); ok {
			known[name] = true
		}
	}
	at := func(o *node, h *connector.HTTPSpec, path string) {
		if h == nil || o.pair("http") == nil {
			return
		}
		p := o.pair("http")
		names, rest := placeholders(h)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if known[name] || name == "operation_ref" || name == "idempotency_key" {
				continue
			}
			// Misspelt, the write would go out without what it can be found by.
			if meant := Nearest(name, []string{"operation_ref", "idempotency_key"}); meant != "" {
				d.failAt(p.place, "%s.http has a placeholder {%s}: did you mean {%s}? An arg of that name must be in input_schema", path, name, meant)
			} else if described {
				d.warn(p.place, "%s.http has a placeholder {%s} that nothing fills: input_schema has no such property", path, name)
			}
		}
		if path != tool.path || rest || (h.Body == nil && h.Form == nil) {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(known)) {
			if !names[name] {
				d.failAt(p.place, `%s.http sends %s of input_schema nowhere: give it a place in body or form, or the other args one: "...": "{...}"`,
					path, quote(name))
			}
		}
	}
	at(tool.n, s.Kind.HTTP, tool.path)
	if p := tool.n.pair("verify"); p != nil && s.Verify != nil {
		at(p.value, s.Verify.Kind.HTTP, tool.sub("verify"))
	}
}

// contentType warns of a Content-Type that the body does not have.
func (d *decoder) contentType(o *object, h *connector.HTTPSpec) {
	p := o.n.pair("headers")
	if p == nil {
		return
	}
	for i := range p.value.pairs {
		e := &p.value.pairs[i]
		if !strings.EqualFold(e.key, "Content-Type") {
			continue
		}
		kind, _, err := mime.ParseMediaType(h.Headers[e.key])
		const remedy = "remove it: the runtime sends the one that is right"
		switch {
		case h.Method == "GET" || h.Method == "HEAD" || h.Method == "DELETE" && h.Body == nil && h.Form == nil:
			d.warn(e.place, "%s.headers.%s: a %s has no body: %s", o.path, printable(e.key), h.Method, remedy)
		case h.Form != nil && (err != nil || kind != "application/x-www-form-urlencoded"):
			d.warn(e.place, "%s.headers.%s: form makes an application/x-www-form-urlencoded body: %s", o.path, printable(e.key), remedy)
		case h.Form == nil && kind == "application/x-www-form-urlencoded":
			d.warn(e.place, "%s.headers.%s: the body is JSON: write form for one that is not", o.path, printable(e.key))
		case h.Form == nil && (err != nil || kind != "application/json" && kind != "text/json" && !strings.HasSuffix(kind, "+json")):
			d.warn(e.place, "%s.headers.%s: the body is JSON: %s", o.path, printable(e.key), remedy)
		}
	}
}
