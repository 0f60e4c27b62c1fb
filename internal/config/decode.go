package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// decoder collects what a file holds and everything that is wrong with it.
type decoder struct {
	name     string
	env      func(string) (string, bool)
	files    *files // nil: none may be read
	doc      *document
	errs     Errors
	warnings []Warning
	secrets  map[string]bool
}

func (d *decoder) at(p place) Place { return Place{File: d.name, Line: p.line, Column: p.col} }

func (d *decoder) failAt(p place, format string, args ...any) {
	d.errs = append(d.errs, Error{Place: d.at(p), Message: fmt.Sprintf(format, args...)})
}

func (d *decoder) fail(n *node, format string, args ...any) { d.failAt(n.place, format, args...) }

func (d *decoder) warn(p place, format string, args ...any) {
	d.warnings = append(d.warnings, Warning{Place: d.at(p), Message: fmt.Sprintf(format, args...)})
}

// object reads a mapping that was held against the schema. What does not fit is reported already, and counts as not given.
type object struct {
	d    *decoder
	n    *node
	path string
	at   place // of the key that holds the mapping
}

// object returns nil if there is no mapping.
func (d *decoder) object(p *pair, path string) *object {
	if p == nil || p.value.broken || p.value.kind != yaml.MappingNode {
		return nil
	}
	return &object{d: d, n: p.value, path: path, at: p.place}
}

// object is the mapping at a key, nil if there is none.
func (o *object) object(key string) *object { return o.d.object(o.get(key), o.sub(key)) }

func (o *object) sub(key string) string {
	if o.path == topLevel {
		return key
	}
	return o.path + "." + key
}

// get returns the pair of a key, or nil if the file does not give it.
func (o *object) get(key string) *pair {
	if p := o.n.pair(key); p != nil && !p.value.broken {
		return p
	}
	return nil
}

// has reports whether the file gives the key, or something that was probably meant to be it.
func (o *object) has(key string) bool { return o.n.pair(key) != nil || o.n.misspelt[key] }

func (o *object) text(key, otherwise string) string {
	if p := o.get(key); p != nil {
		return p.value.value
	}
	return otherwise
}

func (o *object) boolean(key string) bool {
	p := o.get(key)
	return p != nil && p.value.isTrue()
}

// said is boolean for a key that means something else when it is absent: nil then.
func (o *object) said(key string) *bool {
	if o.get(key) == nil {
		return nil
	}
	v := o.boolean(key)
	return &v
}

func (o *object) whole(key string, otherwise int64) int64 {
	if p := o.get(key); p != nil {
		v, _ := strconv.ParseInt(p.value.text, 10, 64)
		return v
	}
	return otherwise
}

func (o *object) number(key string, otherwise float64) float64 {
	if p := o.get(key); p != nil {
		v, _ := strconv.ParseFloat(p.value.text, 64)
		return v
	}
	return otherwise
}

// duration reads a Go duration string. 0s is allowed where least is 0.
func (o *object) duration(key string, otherwise, least, most time.Duration) time.Duration {
	p := o.get(key)
	if p == nil {
		return otherwise
	}
	v, err := time.ParseDuration(p.value.value)
	if err != nil || v < least || v > most {
		o.d.fail(p.value, "%s must be between %s and %s, not %s", o.sub(key), short(least), short(most), quote(p.value.text))
		return otherwise
	}
	return v
}

// short prints a duration as a person writes it: 15m, not 15m0s.
func short(v time.Duration) string {
	s := v.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// items are the elements of a list.
func (o *object) items(key string) []*node {
	if p := o.get(key); p != nil {
		return p.value.items
	}
	return nil
}

// texts reads a list of strings; each checks one that could be read.
func (o *object) texts(key string, each func(n *node, path, s string)) (out []string) {
	for i, n := range o.items(key) {
		if !n.broken && each != nil {
			each(n, o.sub(key)+index(i), n.value)
		}
		out = append(out, n.value)
	}
	return out
}

// entries returns the pairs of a mapping whose keys are the user's own.
func (o *object) entries(key string) (out []*pair) {
	if p := o.get(key); p != nil {
		for i := range p.value.pairs {
			out = append(out, &p.value.pairs[i])
		}
	}
	return out
}

// textMap reads a mapping of names to strings; each checks an entry whose value could be read.
func (o *object) textMap(key string, each func(p *pair, path string)) map[string]string {
	var out map[string]string
	for _, p := range o.entries(key) {
		if !p.value.broken && each != nil {
			each(p, o.sub(key)+"."+printable(p.key))
		}
		if out == nil {
			out = map[string]string{}
		}
		out[p.key] = p.value.value
	}
	return out
}

// any is the value at a key, nil if there is none.
func (o *object) any(key string) any {
	if p := o.get(key); p != nil {
		return o.d.any(p.value, o.sub(key))
	}
	return nil
}

// any reads a value of any shape as encoding/json with UseNumber would.
func (d *decoder) any(n *node, path string) any {
	switch {
	case n.broken:
		return nil
	case n.kind == yaml.MappingNode:
		out := make(map[string]any, len(n.pairs))
		for _, p := range n.pairs {
			out[p.key] = d.any(p.value, below(path, p.key))
		}
		return out
	case n.kind == yaml.SequenceNode:
		out := make([]any, len(n.items))
		for i, item := range n.items {
			out[i] = d.any(item, path+index(i))
		}
		return out
	}
	switch n.resolve() {
	case nullScalar:
		return nil
	case boolScalar:
		return n.isTrue()
	case numberScalar:
		return jsonNumber(n.text)
	case noNumberScalar:
		d.fail(n, "%s: %s is not the same number everywhere: write it in plain decimal digits, or in quotes if it is text", path, quote(n.text))
		return nil
	}
	return n.value
}

func index(i int) string { return fmt.Sprintf("[%d]", i) }
