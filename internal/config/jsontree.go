package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"
)

// readJSON reads a text that is valid JSON. JSON has rules of its own where the YAML parser differs (surrogate pairs,
// tabs between tokens), so it does not go through it.
func (d *decoder) readJSON(text string) *node {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	r := &jsonReader{d: d, text: text, dec: dec, place: place{1, 1}}
	root := r.value(0)
	if r.deep {
		return nil
	}
	return root
}

// jsonError complains about a file that is named .json and is no JSON object.
func (d *decoder) jsonError(text string) {
	var v map[string]json.RawMessage
	err := json.Unmarshal([]byte(text), &v)
	e, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		d.failAt(place{1, 1}, "the file must be one JSON object with the keys defaults, tools, mcp_servers, tenants")
		return
	}
	at := place{1, 1}
	for _, c := range text[:max(int(e.Offset)-1, 0)] {
		if at.col++; c == '\n' {
			at = place{at.line + 1, 1}
		}
	}
	d.failAt(at, "not valid JSON: %s: correct it, or name the file .yaml", printable(e.Error()))
}

// looksLikeJSON reports whether the text is one JSON object. One with a mistake in it is complained about as YAML, unless
// it is named .json.
func looksLikeJSON(text string) bool {
	s := bytes.TrimLeft([]byte(text), " \t\r\n")
	return len(s) > 0 && s[0] == '{' && json.Valid(s)
}

type jsonReader struct {
	d      *decoder
	text   string
	dec    *json.Decoder
	deep   bool // something was nested too deep, and reported
	offset int  // of place
	place
}

// next reads a token and where it begins. The text is valid, so there is no error.
func (r *jsonReader) next() (json.Token, place) {
	from := int(r.dec.InputOffset())
	for from < len(r.text) && strings.IndexByte(" \t\r\n,:", r.text[from]) >= 0 {
		from++
	}
	for r.offset < from {
		c, size := utf8.DecodeRuneInString(r.text[r.offset:])
		r.offset += size
		if r.col++; c == '\n' {
			r.line, r.col = r.line+1, 1
		}
	}
	t, _ := r.dec.Token()
	return t, r.place
}

func (r *jsonReader) value(depth int) *node {
	t, at := r.next()
	out := &node{place: at}
	// encoding/json itself stops at 10,000 levels, so this recursion is bounded; only the first level too deep is reported.
	if depth > depthMax && !r.deep {
		r.deep = true
		r.d.failAt(at, "%s", tooDeep)
	}
	switch v := t.(type) {
	case json.Delim:
		if v == '{' {
			r.object(out, depth)
		} else {
			out.kind = sequenceNode
			for r.dec.More() {
				out.items = append(out.items, r.value(depth+1))
			}
			r.next()
		}
	case string:
		out.style, out.text = doubleQuoted, v
	case json.Number:
		out.text = v.String()
	case bool:
		if out.text = "false"; v {
			out.text = "true"
		}
	default:
		out.text = "null"
	}
	return out
}

func (r *jsonReader) object(out *node, depth int) {
	out.kind = mappingNode
	for r.dec.More() {
		t, at := r.next()
		key, _ := t.(string)
		value := r.value(depth + 1)
		r.d.add(out, pair{key: key, place: at, value: value})
	}
	r.next()
}
