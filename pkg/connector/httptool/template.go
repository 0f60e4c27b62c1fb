package httptool

import (
	"encoding/json"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/connector"
)

const (
	operationRef   = "operation_ref"
	idempotencyKey = "idempotency_key"
	segmentRounds  = 3 // how often a far side may decode a path before it looks at it
)

var placeholder = regexp.MustCompile(`\{[^{}]*\}`)

var placeholderName = regexp.MustCompile(`^\{[A-Za-z_][A-Za-z0-9_-]*\}$`)

// template is a URL with {name} in its path and query. Scheme, host and port are fixed by the config; what an arg fills
// in stays inside its path segment or query value.
type template struct {
	parts []part
	fixed map[string]bool // query parameters that the URL itself names
	names []string        // args that the URL uses up
	query bool            // the URL has a query
}

// part is literal text, or a placeholder.
type part struct {
	literal string
	name    string
	inQuery bool
}

func fail(key, message string) error {
	return &connector.SpecError{Path: []any{key}, Message: message}
}

func parseTemplate(raw string) (*template, error) {
	if !printable(raw) {
		return nil, fail("url", "must be percent-encoded: it has spaces, control characters or letters beyond ASCII")
	}
	rest, ok := strings.CutPrefix(raw, "https://")
	scheme := "https://"
	if !ok {
		if rest, ok = strings.CutPrefix(raw, "http://"); !ok {
			return nil, fail("url", "must begin with http:// or https://")
		}
		scheme = "http://"
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	host, tail := rest[:end], rest[end:]
	if host == "" || strings.ContainsAny(host, "{}") {
		return nil, fail("url", "the host must be written out; args may fill in path and query only")
	}
	if strings.Contains(host, "@") {
		return nil, fail("url", "must not hold credentials; use headers")
	}
	if strings.Contains(tail, "#") {
		return nil, fail("url", "must not have a fragment")
	}
	if tail == "" || tail[0] == '?' {
		tail = "/" + tail
	}
	t := &template{fixed: map[string]bool{}}
	path, query, hasQuery := strings.Cut(tail, "?")
	t.query = hasQuery
	if err := t.add(scheme+host+path, false); err != nil {
		return nil, err
	}
	if hasQuery {
		if err := t.add("?"+query, true); err != nil {
			return nil, err
		}
		if err := t.fixQuery(query); err != nil {
			return nil, err
		}
	}
	sample := placeholder.ReplaceAllString(scheme+host+tail, "x")
	u, err := url.Parse(sample)
	if err != nil || u.Host == "" || u.Hostname() == "" {
		return nil, fail("url", "is not a URL")
	}
	return t, nil
}

func (t *template) add(text string, inQuery bool) error {
	at := 0
	for _, loc := range placeholder.FindAllStringIndex(text, -1) {
		name := text[loc[0]:loc[1]]
		if !placeholderName.MatchString(name) {
			return fail("url", "a placeholder is a name in braces, like {invoice_id}")
		}
		name = name[1 : len(name)-1]
		t.parts = append(t.parts, part{literal: text[at:loc[0]]}, part{name: name, inQuery: inQuery})
		if name != operationRef && name != idempotencyKey && !slices.Contains(t.names, name) {
			t.names = append(t.names, name)
		}
		at = loc[1]
	}
	if strings.ContainsAny(text[at:], "{}") {
		return fail("url", "a brace that is no placeholder")
	}
	t.parts = append(t.parts, part{literal: text[at:]})
	return nil
}

// fixQuery notes which parameters the URL names, so that no arg can add a second value to one of them.
func (t *template) fixQuery(query string) error {
	for pair := range strings.SplitSeq(query, "&") {
		key, _, _ := strings.Cut(pair, "=")
		if strings.Contains(key, "{") {
			return fail("url", "a placeholder may fill in the value of a query parameter, not its name")
		}
		name, err := url.QueryUnescape(key)
		if err != nil {
			return fail("url", "is not a URL")
		}
		if name != "" {
			t.fixed[name] = true
		}
	}
	return nil
}

// check says whether these args make a URL; if not, which arg stands in the way. rest are those that go to the query
// beside what the URL names.
func (t *template) check(args, rest map[string]any) (field string, ok bool) {
	for _, name := range t.names {
		v, there := args[name]
		text, scalar := scalarText(v)
		if !there || !scalar || text == "" {
			return connector.Pointer(name), false
		}
	}
	if name, ok := t.checkSegments(args); !ok {
		return connector.Pointer(name), false
	}
	for name := range rest {
		if t.fixed[name] {
			return connector.Pointer(name), false
		}
	}
	return "", true
}

// checkSegments refuses values that could leave their place in the path on a far side that decodes it first: dot segments,
// also behind encoded slashes and backslashes and encoded more than once, and control characters. It looks at whole
// segments, so that {a}{b} cannot make one together.
func (t *template) checkSegments(args map[string]any) (name string, ok bool) {
	var segment strings.Builder
	filled := ""
	flush := func() bool {
		bad := filled != "" && escapes(segment.String())
		segment.Reset()
		return !bad
	}
	for _, p := range t.parts {
		if p.inQuery || (p.name == "" && strings.HasPrefix(p.literal, "?")) {
			break
		}
		if p.name == "" {
			pieces := strings.Split(p.literal, "/")
			segment.WriteString(pieces[0])
			for _, piece := range pieces[1:] {
				if !flush() {
					return filled, false
				}
				filled = ""
				segment.WriteString(piece)
			}
			continue
		}
		if p.name == operationRef || p.name == idempotencyKey {
			segment.WriteString("x") // three identifiers: no dots beside each other, no control characters
			continue
		}
		filled = p.name
		text, _ := scalarText(args[p.name])
		segment.WriteString(text)
	}
	if !flush() {
		return filled, false
	}
	return "", true
}

func escapes(segment string) bool {
	for range segmentRounds {
		for _, c := range segment {
			if c < ' ' || c == 0x7f {
				return true
			}
		}
		for _, piece := range strings.FieldsFunc(segment, func(r rune) bool { return r == '/' || r == '\\' }) {
			// A far side may strip parameters (;v=1) and spaces before it looks for dots.
			bare, _, _ := strings.Cut(piece, ";")
			if bare = strings.TrimSpace(bare); bare == "." || bare == ".." {
				return true
			}
		}
		decoded, err := url.PathUnescape(segment)
		if err != nil || decoded == segment {
			return false
		}
		segment = decoded
	}
	return false
}

// expand makes the URL. The args have passed check.
func (t *template) expand(c *connector.Call, args, rest map[string]any) string {
	var b strings.Builder
	for _, p := range t.parts {
		switch {
		case p.name == "":
			b.WriteString(p.literal)
		default:
			b.WriteString(percentEncode(value(c, args, p.name)))
		}
	}
	separator := byte('?')
	if t.query {
		separator = '&'
	}
	for _, name := range slices.Sorted(maps.Keys(rest)) {
		text, ok := queryText(rest[name])
		if !ok {
			continue
		}
		b.WriteByte(separator)
		b.WriteString(percentEncode(name))
		b.WriteByte('=')
		b.WriteString(percentEncode(text))
		separator = '&'
	}
	return b.String()
}

func value(c *connector.Call, args map[string]any, name string) string {
	switch name {
	case operationRef:
		return c.OperationRef
	case idempotencyKey:
		return c.IdempotencyKey
	}
	text, _ := scalarText(args[name])
	return text
}

// scalarText is a string as it is, a number as written, a boolean as true or false; nothing else can stand in a URL's
// placeholder.
func scalarText(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return string(v), true
	case bool:
		if v {
			return "true", true
		}
		return "false", true
	}
	return "", false
}

// queryText is a query parameter's value: arrays and objects as compact JSON; null is left out.
func queryText(v any) (string, bool) {
	if v == nil {
		return "", false
	}
	if text, ok := scalarText(v); ok {
		return text, true
	}
	b, ok := strictjson.AppendValue(nil, v)
	return string(b), ok
}

// percentEncode encodes everything but the unreserved characters of RFC 3986, the same for path and query: no reader can
// take a part of the value for structure.
func percentEncode(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(s) + 8)
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.', c == '~':
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}
