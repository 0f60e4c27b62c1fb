package connector

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	depthMax        = 512  // nesting of a reply; args are bounded by the core (contract §12)
	numberBytesMax  = 4096 // of one number's text
	numberExponents = 1000 // |exponent|: beyond it the schema library would compute for minutes or fail
)

var (
	errNotJSON    = errors.New("not JSON")
	errUnreadable = errors.New("JSON that reads in more than one way, or beyond the limits")
)

// decodeJSON reads one JSON value: objects as map[string]any, numbers as json.Number with their digits as written.
// It returns errNotJSON for what the grammar refuses, and errUnreadable for duplicate keys, bytes that are no UTF-8,
// and values beyond the limits above: two readers could disagree about those, so nobody acts on them.
func decodeJSON(b []byte) (any, error) {
	if !utf8.Valid(b) {
		return nil, errUnreadable
	}
	d := decoder{b: string(b)} // copied once; keys and values are parts of it
	d.space()
	v, err := d.value(0)
	if err != nil {
		return nil, err
	}
	d.space()
	if d.i != len(b) {
		return nil, errNotJSON
	}
	if d.odd {
		return nil, errUnreadable
	}
	return v, nil
}

type decoder struct {
	b   string
	i   int
	odd bool // grammatical, but unreadable
}

func (d *decoder) space() {
	for d.i < len(d.b) {
		switch d.b[d.i] {
		case ' ', '\t', '\n', '\r':
			d.i++
		default:
			return
		}
	}
}

func (d *decoder) value(depth int) (any, error) {
	if depth > depthMax {
		return nil, errUnreadable
	}
	if d.i >= len(d.b) {
		return nil, errNotJSON
	}
	switch c := d.b[d.i]; {
	case c == '{':
		return d.object(depth)
	case c == '[':
		return d.array(depth)
	case c == '"':
		return d.text()
	case c == '-' || (c >= '0' && c <= '9'):
		return d.number()
	case strings.HasPrefix(d.b[d.i:], "true"):
		d.i += 4
		return true, nil
	case strings.HasPrefix(d.b[d.i:], "false"):
		d.i += 5
		return false, nil
	case strings.HasPrefix(d.b[d.i:], "null"):
		d.i += 4
		return nil, nil
	}
	return nil, errNotJSON
}

func (d *decoder) object(depth int) (any, error) {
	d.i++
	m := make(map[string]any)
	d.space()
	if d.eat('}') {
		return m, nil
	}
	for {
		d.space()
		if d.i >= len(d.b) || d.b[d.i] != '"' {
			return nil, errNotJSON
		}
		k, err := d.text()
		if err != nil {
			return nil, err
		}
		d.space()
		if !d.eat(':') {
			return nil, errNotJSON
		}
		d.space()
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		if _, dup := m[k]; dup {
			d.odd = true
		}
		m[k] = v
		d.space()
		if d.eat('}') {
			return m, nil
		}
		if !d.eat(',') {
			return nil, errNotJSON
		}
	}
}

func (d *decoder) array(depth int) (any, error) {
	d.i++
	list := []any{}
	d.space()
	if d.eat(']') {
		return list, nil
	}
	for {
		d.space()
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
		d.space()
		if d.eat(']') {
			return list, nil
		}
		if !d.eat(',') {
			return nil, errNotJSON
		}
	}
}

func (d *decoder) eat(c byte) bool {
	if d.i < len(d.b) && d.b[d.i] == c {
		d.i++
		return true
	}
	return false
}

// text reads a string at its opening quote.
func (d *decoder) text() (string, error) {
	d.i++
	start := d.i
	for d.i < len(d.b) {
		switch c := d.b[d.i]; {
		case c == '"':
			s := d.b[start:d.i]
			d.i++
			return s, nil
		case c == '\\':
			return d.escapedText(start)
		case c < ' ':
			return "", errNotJSON
		default:
			d.i++
		}
	}
	return "", errNotJSON
}

func (d *decoder) escapedText(start int) (string, error) {
	out := append([]byte(nil), d.b[start:d.i]...)
	for d.i < len(d.b) {
		c := d.b[d.i]
		switch {
		case c == '"':
			d.i++
			return string(out), nil
		case c < ' ':
			return "", errNotJSON
		case c != '\\':
			out = append(out, c)
			d.i++
			continue
		}
		d.i++
		if d.i >= len(d.b) {
			return "", errNotJSON
		}
		c = d.b[d.i]
		d.i++
		switch c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, ok := d.hex4()
			if !ok {
				return "", errNotJSON
			}
			out = utf8.AppendRune(out, d.paired(r))
		default:
			return "", errNotJSON
		}
	}
	return "", errNotJSON
}

func (d *decoder) hex4() (rune, bool) {
	if d.i+4 > len(d.b) {
		return 0, false
	}
	n, err := strconv.ParseUint(d.b[d.i:d.i+4], 16, 16)
	if err != nil {
		return 0, false
	}
	d.i += 4
	return rune(n), true
}

// paired completes a surrogate; one that stands alone becomes U+FFFD in the decoded value (the raw bytes keep it).
func (d *decoder) paired(r rune) rune {
	if !utf16.IsSurrogate(r) {
		return r
	}
	at := d.i
	if d.eat('\\') && d.eat('u') {
		if low, ok := d.hex4(); ok {
			if full := utf16.DecodeRune(r, low); full != utf8.RuneError {
				return full
			}
		}
	}
	d.i = at
	return utf8.RuneError
}

func (d *decoder) number() (any, error) {
	start := d.i
	d.eat('-')
	switch {
	case d.eat('0'):
	case d.digits() > 0:
	default:
		return nil, errNotJSON
	}
	if d.eat('.') && d.digits() == 0 {
		return nil, errNotJSON
	}
	if d.eat('e') || d.eat('E') {
		if !d.eat('-') {
			d.eat('+')
		}
		at := d.i
		if d.digits() == 0 {
			return nil, errNotJSON
		}
		if n, err := strconv.Atoi(d.b[at:d.i]); err != nil || n > numberExponents {
			d.odd = true
		}
	}
	if d.i-start > numberBytesMax {
		d.odd = true
	}
	return json.Number(d.b[start:d.i]), nil
}

func (d *decoder) digits() int {
	start := d.i
	for d.i < len(d.b) && d.b[d.i] >= '0' && d.b[d.i] <= '9' {
		d.i++
	}
	return d.i - start
}

// compact returns JSON without white space, as a copy; digits and escapes stay as written.
func compact(b []byte) json.RawMessage {
	if bytes.IndexByte(b, ' ') < 0 && !bytes.ContainsAny(b, "\t\r\n") {
		return bytes.Clone(b)
	}
	var out bytes.Buffer
	out.Grow(len(b))
	if err := json.Compact(&out, b); err != nil {
		return nil
	}
	return out.Bytes()
}

// AppendJSON appends a decoded value as compact JSON: keys sorted by bytes, json.Number as written, so that the same
// value is always the same bytes. It reports false for a value that JSON cannot hold.
func AppendJSON(b []byte, v any) ([]byte, bool) {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), true
	case bool:
		return strconv.AppendBool(b, v), true
	case json.Number:
		return append(b, v...), true
	case string:
		return appendText(b, v), true
	case []any:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ',')
			}
			var ok bool
			if b, ok = AppendJSON(b, e); !ok {
				return b, false
			}
		}
		return append(b, ']'), true
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		b = append(b, '{')
		for i, k := range keys {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendText(b, k), ':')
			var ok bool
			if b, ok = AppendJSON(b, v[k]); !ok {
				return b, false
			}
		}
		return append(b, '}'), true
	}
	return b, false
}

func appendText(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
			i++
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			i++
		case c < utf8.RuneSelf:
			b = append(b, c)
			i++
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			b = utf8.AppendRune(b, r)
			i += n
		}
	}
	return append(b, '"')
}
