package httptool

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/connector"
)

const (
	restValue = "{...}" // the args that nothing else takes, as an object
	restKey   = "..."   // beside other members: they are put there
)

// textPlaceholder is what a text of a body or a header is searched for. Other braces in it are text: GraphQL has them.
var textPlaceholder = regexp.MustCompile(`\{[A-Za-z_][A-Za-z0-9_-]*\}`)

// exact is a value that is one placeholder: the arg as it is, with its type and digits.
type exact string

// phrase is a text with placeholders.
type phrase []part

// remainder are the args that URL, headers and the rest of the body do not take.
type remainder struct{}

// content is the body that the config writes: a JSON value whose texts may hold placeholders. It is JSON or, for form,
// application/x-www-form-urlencoded.
type content struct {
	root  any // of map[string]any, []any, exact, phrase, remainder and what JSON has besides
	form  bool
	names []string // args that it takes
	rest  bool
}

// parseContent reads body or form. Its errors have the place inside that key.
func parseContent(key string, v any) (*content, error) {
	c := &content{form: key == "form"}
	root, err := c.parse(v, []any{key})
	if err != nil {
		return nil, err
	}
	c.root = root
	if _, object := root.(map[string]any); c.form && !object && root != any(remainder{}) {
		return nil, fail(key, "must be a mapping of names to values, or \"{...}\" for all args")
	}
	return c, nil
}

func (c *content) parse(v any, path []any) (any, error) {
	at := func(message string) error { return &connector.SpecError{Path: slices.Clone(path), Message: message} }
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			switch {
			case key == restKey && v[key] != restValue:
				return nil, at(`... stands for the other args: write "...": "{...}"`)
			case textPlaceholder.MatchString(key):
				return nil, at("a placeholder may fill in a value, not a name")
			}
			parsed, err := c.parse(v[key], append(path, key))
			if err != nil {
				return nil, err
			}
			out[key] = parsed
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			parsed, err := c.parse(e, append(path, i))
			if err != nil {
				return nil, err
			}
			out[i] = parsed
		}
		return out, nil
	case string:
		if v == restValue {
			if c.rest {
				return nil, at("{...} is there twice: the other args go to one place")
			}
			c.rest = true
			return remainder{}, nil
		}
		return c.text(v), nil
	}
	return v, nil
}

func (c *content) text(s string) any {
	p := parsePhrase(s)
	c.names = p.args(c.names)
	switch {
	case len(p) == 1 && p[0].name != "":
		return exact(p[0].name)
	case p.fills():
		return p
	}
	return s
}

// parsePhrase splits a text into literals and placeholders.
func parsePhrase(s string) (p phrase) {
	at := 0
	for _, loc := range textPlaceholder.FindAllStringIndex(s, -1) {
		if loc[0] > at {
			p = append(p, part{literal: s[at:loc[0]]})
		}
		p = append(p, part{name: s[loc[0]+1 : loc[1]-1]})
		at = loc[1]
	}
	if at < len(s) {
		p = append(p, part{literal: s[at:]})
	}
	return p
}

// fills reports whether there is a placeholder.
func (p phrase) fills() bool {
	return slices.ContainsFunc(p, func(q part) bool { return q.name != "" })
}

// args adds the names of the args that it takes.
func (p phrase) args(names []string) []string {
	for _, q := range p {
		if q.name != "" && q.name != operationRef && q.name != idempotencyKey && !slices.Contains(names, q.name) {
			names = append(names, q.name)
		}
	}
	return names
}

// lacks names an arg that is not there or is no text, number or boolean; "" if there is none.
func (p phrase) lacks(args map[string]any) string {
	for _, name := range p.args(nil) {
		if _, scalar := scalarText(args[name]); !scalar {
			return name
		}
	}
	return ""
}

func (p phrase) expand(c *connector.Call, args map[string]any) string {
	var b strings.Builder
	for _, q := range p {
		if q.name == "" {
			b.WriteString(q.literal)
		} else {
			b.WriteString(value(c, args, q.name))
		}
	}
	return b.String()
}

// check says whether these args make a body; if not, which arg stands in the way. rest are the args that URL and headers
// leave over and the body does not name.
func (c *content) check(args, rest map[string]any, lookup bool) (name string, ok bool) {
	if !c.rest && !lookup {
		for _, name := range slices.Sorted(maps.Keys(rest)) {
			return name, false // it would be dropped without a word
		}
	}
	if e, ok := c.root.(exact); ok {
		if _, there := c.fill(e, &connector.Call{}, args, nil); !there {
			return string(e), false
		}
	}
	if name := c.lacks(c.root, args, rest); name != "" {
		return name, false
	}
	if c.form {
		return c.checkNames(args, rest)
	}
	return "", true
}

// lacks names an arg that a text needs and that is not there, or one among the others that would be a second value of a
// member that the config writes.
func (c *content) lacks(v any, args, rest map[string]any) string {
	switch v := v.(type) {
	case phrase:
		return v.lacks(args)
	case []any:
		for _, e := range v {
			if name := c.lacks(e, args, rest); name != "" {
				return name
			}
		}
	case map[string]any:
		_, spread := v[restKey]
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if name := c.lacks(v[key], args, rest); name != "" {
				return name
			}
			if _, there := rest[key]; spread && there && key != restKey {
				return key
			}
		}
	}
	return ""
}

// checkNames keeps an arg's own member names from being read as structure: metadata[ref] belongs to the config.
func (c *content) checkNames(args, rest map[string]any) (name string, ok bool) {
	for _, name := range c.names {
		if !plainNames(args[name]) {
			return name, false
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rest)) {
		if c.rest && (!plainName(name) || !plainNames(rest[name])) {
			return name, false
		}
	}
	return "", true
}

func plainName(s string) bool { return s != "" && !strings.ContainsAny(s, "[]") }

func plainNames(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for name, e := range v {
			if !plainName(name) || !plainNames(e) {
				return false
			}
		}
	case []any:
		return !slices.ContainsFunc(v, func(e any) bool { return !plainNames(e) })
	}
	return true
}

// encode makes the body. The args have passed check; the same args are always the same bytes.
func (c *content) encode(call *connector.Call, args, rest map[string]any) ([]byte, bool) {
	v, _ := c.fill(c.root, call, args, rest)
	if c.form {
		return appendForm(nil, "", v), true
	}
	return strictjson.AppendValue(nil, v)
}

// fill puts the args in. A value that is a placeholder of an arg that is not there is left out with its name.
func (c *content) fill(v any, call *connector.Call, args, rest map[string]any) (filled any, there bool) {
	switch v := v.(type) {
	case exact:
		if v == operationRef || v == idempotencyKey {
			return value(call, args, string(v)), true
		}
		filled, there = args[string(v)]
		return filled, there
	case phrase:
		return v.expand(call, args), true
	case remainder:
		return rest, true
	case []any:
		out := make([]any, 0, len(v))
		for _, e := range v {
			if filled, there := c.fill(e, call, args, rest); there {
				out = append(out, filled)
			}
		}
		return out, true
	case map[string]any:
		out := make(map[string]any, len(v)+len(rest))
		for key, e := range v {
			if key == restKey {
				maps.Copy(out, rest)
			} else if filled, there := c.fill(e, call, args, rest); there {
				out[key] = filled
			}
		}
		return out, true
	}
	return v, true
}

// appendForm writes a value as Stripe and PHP read it: metadata[ref]=…&items[0][price]=…, sorted by name. null, and what is
// empty, has no parameter.
func appendForm(b []byte, name string, v any) []byte {
	switch v := v.(type) {
	case nil:
		return b
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			inner := percentEncode(key)
			if name != "" {
				inner = name + "[" + inner + "]"
			}
			b = appendForm(b, inner, v[key])
		}
		return b
	case []any:
		for i, e := range v {
			b = appendForm(b, name+"["+strconv.Itoa(i)+"]", e)
		}
		return b
	}
	text, _ := scalarText(v)
	if len(b) > 0 {
		b = append(b, '&')
	}
	return append(append(append(b, name...), '='), percentEncode(text)...)
}

// header is a header whose value takes args.
type header struct {
	name  string
	value phrase
}

// check says whether the args make a value that is one header of visible characters: nothing of it can begin another.
// Beyond ASCII the far side would read something else than was sent, and it cuts spaces off the ends.
func (h *header) check(args map[string]any) (name string, ok bool) {
	if name := h.value.lacks(args); name != "" {
		return name, false
	}
	for _, name := range h.value.args(nil) {
		text, _ := scalarText(args[name])
		hidden := func(r rune) bool { return r < ' ' || r > '~' }
		if text == "" || strings.TrimSpace(text) != text || strings.ContainsFunc(text, hidden) {
			return name, false
		}
	}
	return "", true
}
