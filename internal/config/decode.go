package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
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

// object reads a mapping whose keys are known. A key that is not is reported at its own place.
type object struct {
	d    *decoder
	n    *node
	path string
	at   place // of the key that holds the mapping
	// misspelt are known keys that an unknown one was probably meant to be: they are not reported as missing as well.
	misspelt map[string]bool
}

// object returns nil, with an error recorded, if the value is no mapping.
func (d *decoder) object(p *pair, path string, keys ...string) *object {
	n := p.value
	if n.broken {
		return nil
	}
	if n.kind != mappingNode {
		d.fail(n, "%s must be a mapping with %s, not %s", path, keyList(keys), n.describe())
		return nil
	}
	o := &object{d: d, n: n, path: path, at: p.place, misspelt: map[string]bool{}}
	known := map[string]bool{}
	for _, k := range keys {
		known[k] = true
	}
	for _, p := range n.pairs {
		if known[p.key] {
			continue
		}
		meant := Nearest(p.key, keys)
		if meant != "" && n.pair(meant) == nil {
			o.misspelt[meant] = true
			d.failAt(p.place, "unknown key %s in %s: did you mean %s?", quote(p.key), path, meant)
			continue
		}
		d.failAt(p.place, "unknown key %s in %s: remove it, or use one of %s", quote(p.key), path, keyList(keys))
	}
	return o
}

func (o *object) sub(key string) string {
	if o.path == topLevel {
		return key
	}
	return o.path + "." + key
}

// keyList names the keys that are allowed; a tool's are too many for a sentence.
func keyList(keys []string) string {
	const most = 14
	if len(keys) > most {
		return "the keys " + strings.Join(keys[:most], ", ") + " and others (docs/config.md)"
	}
	if len(keys) == 1 {
		return "the key " + keys[0]
	}
	return "the keys " + strings.Join(keys, ", ")
}

// get returns the pair of a key, or nil if the file does not give it. A key without a value is an error: it is as likely
// a slip as a wish for the default.
func (o *object) get(key string) *pair {
	p := o.n.pair(key)
	if p == nil || p.value.broken {
		return nil
	}
	if p.value.kind == scalarNode && p.value.resolve() == nullScalar {
		o.d.failAt(p.place, "%s has no value: give one or remove the key", o.sub(key))
		p.value.broken = true
		return nil
	}
	return p
}

// has reports whether the file gives the key, or something that was probably meant to be it.
func (o *object) has(key string) bool { return o.n.pair(key) != nil || o.misspelt[key] }

func (o *object) require(key, remedy string) {
	if !o.has(key) && !o.n.partial {
		o.d.failAt(o.at, "%s needs %s: %s", o.path, key, remedy)
	}
}

// text reads a string that may not be empty.
func (o *object) text(key, otherwise string) string {
	p := o.get(key)
	if p == nil {
		return otherwise
	}
	s, ok := o.d.text(p.value, o.sub(key))
	if !ok {
		return otherwise
	}
	if s == "" {
		o.d.fail(p.value, "%s is empty: give a value or remove the key", o.sub(key))
	}
	return s
}

func (d *decoder) text(n *node, path string) (string, bool) {
	if n.broken {
		return "", false
	}
	if n.kind != scalarNode {
		d.fail(n, "%s must be text, not %s", path, n.describe())
		return "", false
	}
	if t := n.resolve(); t != stringScalar && t != noNumberScalar {
		d.fail(n, "%s must be text, not %s: put it in quotes", path, n.describe())
		return "", false
	}
	return d.expand(n, path)
}

func (o *object) choice(key, otherwise string, options ...string) string {
	p := o.get(key)
	if p == nil {
		return otherwise
	}
	s, ok := o.d.text(p.value, o.sub(key))
	if !ok {
		return otherwise
	}
	for _, opt := range options {
		if s == opt {
			return s
		}
	}
	o.d.fail(p.value, "%s must be %s, not %s", o.sub(key), strings.Join(options, " or "), quote(p.value.text))
	return otherwise
}

func (o *object) boolean(key string, otherwise bool) bool {
	p := o.get(key)
	if p == nil {
		return otherwise
	}
	n := p.value
	if n.kind == scalarNode && n.resolve() == boolScalar {
		return n.isTrue()
	}
	o.d.fail(n, "%s must be true or false, not %s", o.sub(key), o.d.asWritten(n))
	return otherwise
}

// asWritten is a value for a message: as in the file, never as the environment made it.
func (d *decoder) asWritten(n *node) string {
	if n.kind != scalarNode || n.text == "" {
		return n.describe()
	}
	return quote(n.text)
}

func (o *object) whole(key string, otherwise, least, most int64) int64 {
	p := o.get(key)
	if p == nil {
		return otherwise
	}
	n, path := p.value, o.sub(key)
	if n.kind != scalarNode || n.style != plainStyle || !plainInteger.MatchString(n.text) {
		remedy := "write it in plain decimal digits"
		if n.kind == scalarNode && n.style != plainStyle {
			remedy += " and without quotes"
		}
		o.d.fail(n, "%s must be a whole number, not %s: %s", path, o.d.asWritten(n), remedy)
		return otherwise
	}
	v, err := strconv.ParseInt(n.text, 10, 64)
	if err != nil || v < least || v > most {
		o.d.fail(n, "%s must be between %d and %d, not %s", path, least, most, printable(n.text))
		return otherwise
	}
	return v
}

func (o *object) number(key string, otherwise, least, most float64) float64 {
	p := o.get(key)
	if p == nil {
		return otherwise
	}
	n, path := p.value, o.sub(key)
	if n.kind != scalarNode || n.resolve() != numberScalar || coreRadix.MatchString(n.text) {
		o.d.fail(n, "%s must be a number, not %s: write it in plain decimal digits", path, o.d.asWritten(n))
		return otherwise
	}
	v, err := strconv.ParseFloat(n.text, 64)
	if err != nil || v < least || v > most {
		o.d.fail(n, "%s must be between %s and %s, not %s", path, decimal(least), decimal(most), printable(n.text))
		return otherwise
	}
	return v
}

func decimal(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// duration reads a Go duration string. 0s is allowed where least is 0.
func (o *object) duration(key string, otherwise, least, most time.Duration) time.Duration {
	p := o.get(key)
	if p == nil {
		return otherwise
	}
	n, path := p.value, o.sub(key)
	if n.kind == scalarNode && n.resolve() == numberScalar {
		o.d.fail(n, "%s must be a duration such as 500ms, 30s or 2m, not %s: add the unit", path, printable(n.text))
		return otherwise
	}
	if n.kind != scalarNode || n.resolve() != stringScalar {
		o.d.fail(n, "%s must be a duration such as 500ms, 30s or 2m, not %s", path, o.d.asWritten(n))
		return otherwise
	}
	s, ok := o.d.expand(n, path)
	if !ok {
		return otherwise
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		o.d.fail(n, "%s must be a duration such as 500ms, 30s or 2m, not %s", path, quote(n.text))
		return otherwise
	}
	if v < least || v > most {
		o.d.fail(n, "%s must be between %s and %s, not %s", path, short(least), short(most), quote(n.text))
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

// texts reads a list of strings with at least one element.
func (o *object) texts(key string, each func(n *node, path, s string)) []string {
	p := o.get(key)
	if p == nil {
		return nil
	}
	path := o.sub(key)
	if p.value.kind != sequenceNode {
		o.d.fail(p.value, "%s must be a list, not %s: write [a, b]", path, p.value.describe())
		return nil
	}
	if len(p.value.items) == 0 {
		o.d.fail(p.value, "%s is an empty list: name something or remove the key", path)
		return nil
	}
	var out []string
	for i, n := range p.value.items {
		itemPath := fmt.Sprintf("%s[%d]", path, i)
		s, ok := o.d.text(n, itemPath)
		if ok && each != nil {
			each(n, itemPath, s)
		}
		out = append(out, s)
	}
	return out
}

// entries returns the pairs of a mapping whose keys are the user's own.
func (o *object) entries(key, of string) []*pair {
	p := o.get(key)
	if p == nil {
		return nil
	}
	if p.value.kind != mappingNode {
		o.d.fail(p.value, "%s must be a mapping of %s, not %s", o.sub(key), of, p.value.describe())
		return nil
	}
	out := make([]*pair, len(p.value.pairs))
	for i := range p.value.pairs {
		out[i] = &p.value.pairs[i]
	}
	return out
}

// textMap reads a mapping of names to strings; each checks an entry whose value could be read.
func (o *object) textMap(key, of string, each func(p *pair, path, s string)) map[string]string {
	var out map[string]string
	for _, p := range o.entries(key, of) {
		path := o.sub(key) + "." + printable(p.key)
		s, ok := o.d.text(p.value, path)
		if ok && each != nil {
			each(p, path, s)
		}
		if out == nil {
			out = map[string]string{}
		}
		out[p.key] = s
	}
	return out
}

// Nearest is the key of keys that was probably meant, or "". A duration has a unit in its name in JSON and none in the
// config file, so the unit does not count.
func Nearest(key string, keys []string) string {
	plain := func(key string) string {
		return strings.TrimSuffix(strings.ToLower(strings.ReplaceAll(key, "-", "_")), "_seconds")
	}
	key = plain(key)
	best, at := "", max(len(key)/3, 1)
	for _, k := range keys {
		if dist := distance(key, plain(k), at); dist <= at {
			if dist < at || best == "" {
				best, at = k, dist
			}
		}
	}
	return best
}

// distance counts the letters to change, add, drop or swap with the next, giving up above most.
func distance(a, b string, most int) int {
	if len(a)-len(b) > most || len(b)-len(a) > most {
		return most + 1
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			cost := last[j]
			if a[i] != b[j] {
				cost++
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				cost = min(cost, before[j-1]+1)
			}
			row[j+1] = min(cost, last[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
