// Package strictjson reads and writes JSON as the contract has it: one check that refuses whatever two readers might
// understand differently, walks over text that passed it, in which every digit stays as it was written, and a writer for
// the messages that are written for every step. It is as pure as the core, which uses it, and no part of what users import.
// Why it is here, and what of it goes with encoding/json/v2: docs/decisions/0010-strict-json.md.
package strictjson

import (
	"bytes"
	"fmt"
	"slices"
	"unicode/utf8"
)

// JSONFault says why bytes were refused as JSON. The texts are fixed: none ever quotes the data.
type JSONFault string

const (
	FaultTooLarge     JSONFault = "larger than allowed"
	FaultTooDeep      JSONFault = "nested deeper than allowed"
	FaultDuplicateKey JSONFault = "duplicate key in an object"
	FaultTrailing     JSONFault = "bytes after the end of the value"
	FaultEnd          JSONFault = "unexpected end"
	FaultUTF8         JSONFault = "invalid UTF-8"
	FaultSurrogate    JSONFault = "lone surrogate in an escape"
	FaultControl      JSONFault = "raw control character in a string"
	FaultEscape       JSONFault = "invalid escape"
	FaultNumber       JSONFault = "invalid number"
	FaultBOM          JSONFault = "byte order mark"
	FaultSyntax       JSONFault = "unexpected byte"
)

// JSONError is the error of CheckJSON: what is wrong, and at which byte of the data, counted from 0.
type JSONError struct {
	Fault  JSONFault
	Offset int
}

func (e *JSONError) Error() string { return fmt.Sprintf("json: %s at byte %d", e.Fault, e.Offset) }

// Bounds limits what CheckJSON lets through.
type Bounds struct {
	MaxBytes int // 0: no limit
	MaxDepth int // containers around the innermost value, [] being 1; 0, or more than maxNesting: maxNesting
}

// maxNesting is the depth that encoding/json can read back. Nothing deeper is accepted anywhere.
const maxNesting = 10_000

// fewKeys is up to how many keys of one object are compared one by one; the keys of larger objects are sorted at the
// object's end, so that no object costs quadratic time.
const fewKeys = 16

// key is where a key's text lies: in the data, or unescaped in checker.names. It holds no pointer, so that the keys of
// an ordinary document stay on the stack.
type key struct {
	from, to  int
	unescaped bool
	at        int // of its quote in the data
}

func (k key) text(data, names []byte) []byte {
	if k.unescaped {
		return names[k.from:k.to]
	}
	return data[k.from:k.to]
}

type checker struct {
	data     []byte
	i        int // after a fault: the offset of the fault
	maxDepth int
	names    []byte // the unescaped text of keys that have escapes

	// The n keys of all open objects, the innermost last: the first ones in few, which stays on the stack, and those for
	// which it has no room in many.
	n    int
	few  [48]key
	many []key
}

// CheckJSON reads the data once and refuses all that two JSON readers might understand differently, or that is outside
// the bounds. It accepts exactly one RFC 8259 value with optional white space around it, in UTF-8, without a byte order
// mark, without duplicate keys (compared after unescaping) and without lone surrogates. Numbers pass as written,
// whatever their size; \u0000 passes as data. The error is a *JSONError. No memory is allocated unless a key is escaped,
// an object has more than 16 keys, more than 48 keys are open at once, or the data is refused.
func CheckJSON(data []byte, b Bounds) error {
	c := checker{data: data, maxDepth: b.MaxDepth}
	if c.maxDepth <= 0 || c.maxDepth > maxNesting {
		c.maxDepth = maxNesting
	}
	if f := c.document(b.MaxBytes); f != "" {
		return &JSONError{Fault: f, Offset: c.i}
	}
	return nil
}

func (c *checker) document(maxBytes int) JSONFault {
	if maxBytes > 0 && len(c.data) > maxBytes {
		c.i = maxBytes
		return FaultTooLarge
	}
	if bytes.HasPrefix(c.data, []byte("\xef\xbb\xbf")) {
		return FaultBOM
	}
	c.space()
	if f := c.value(0); f != "" {
		return f
	}
	c.space()
	if c.i < len(c.data) {
		return FaultTrailing
	}
	return ""
}

func (c *checker) space() { c.i = skipSpace(c.data, c.i) }

// value reads one value; depth is the number of containers around it.
func (c *checker) value(depth int) JSONFault {
	if c.i >= len(c.data) {
		return FaultEnd
	}
	switch b := c.data[c.i]; {
	case b == '"':
		_, f := c.str()
		return f
	case b == '{' || b == '[':
		if depth >= c.maxDepth {
			return FaultTooDeep
		}
		c.i++
		c.space()
		if b == '{' {
			return c.object(depth + 1)
		}
		return c.array(depth + 1)
	case b == '-' || (b >= '0' && b <= '9'):
		return c.number()
	case b == 't':
		return c.word("true")
	case b == 'f':
		return c.word("false")
	case b == 'n':
		return c.word("null")
	}
	return FaultSyntax
}

func (c *checker) word(w string) JSONFault {
	for k := 0; k < len(w); k++ {
		if c.i >= len(c.data) {
			return FaultEnd
		}
		if c.data[c.i] != w[k] {
			return FaultSyntax
		}
		c.i++
	}
	return ""
}

func (c *checker) array(depth int) JSONFault {
	if c.at(']') {
		c.i++
		return ""
	}
	for {
		if f := c.value(depth); f != "" {
			return f
		}
		if done, f := c.more(']'); done || f != "" {
			return f
		}
	}
}

func (c *checker) object(depth int) JSONFault {
	if c.at('}') {
		c.i++
		return ""
	}
	base := c.n
	for {
		if c.i >= len(c.data) {
			return FaultEnd
		}
		if c.data[c.i] != '"' {
			return FaultSyntax
		}
		if f := c.key(base); f != "" {
			return f
		}
		c.space()
		if c.i >= len(c.data) {
			return FaultEnd
		}
		if c.data[c.i] != ':' {
			return FaultSyntax
		}
		c.i++
		c.space()
		if f := c.value(depth); f != "" {
			return f
		}
		done, f := c.more('}')
		if f != "" {
			return f
		}
		if done {
			return c.closeKeys(base)
		}
	}
}

// key reads a key and remembers it; the open object's keys begin at base.
func (c *checker) key(base int) JSONFault {
	start := c.i
	escaped, f := c.str()
	if f != "" {
		return f
	}
	k := key{from: start + 1, to: c.i - 1, at: start}
	if escaped {
		k.from, k.unescaped = len(c.names), true
		c.names = append(c.names, appendUnescaped(nil, c.data[start+1:c.i-1])...)
		k.to = len(c.names)
	}
	if c.n-base < fewKeys {
		name := k.text(c.data, c.names)
		for i := base; i < c.n; i++ {
			if bytes.Equal(c.keyAt(i).text(c.data, c.names), name) {
				c.i = start
				return FaultDuplicateKey
			}
		}
	}
	if c.n < len(c.few) {
		c.few[c.n] = k
	} else {
		c.many = append(c.many[:c.n-len(c.few)], k)
	}
	c.n++
	return ""
}

func (c *checker) keyAt(i int) key {
	if i < len(c.few) {
		return c.few[i]
	}
	return c.many[i-len(c.few)]
}

// closeKeys forgets the keys of an object that ends, after comparing those that were too many to compare on the way.
func (c *checker) closeKeys(base int) JSONFault {
	n := c.n
	c.n = base
	if n-base <= fewKeys {
		return ""
	}
	own := make([]key, 0, n-base)
	for i := base; i < n; i++ {
		own = append(own, c.keyAt(i))
	}
	if at := firstDuplicate(own, c.data, c.names); at >= 0 {
		c.i = at
		return FaultDuplicateKey
	}
	return ""
}

// firstDuplicate finds the first key that repeats an earlier one, or -1. It sorts the keys.
func firstDuplicate(keys []key, data, names []byte) int {
	slices.SortFunc(keys, func(a, b key) int {
		if d := bytes.Compare(a.text(data, names), b.text(data, names)); d != 0 {
			return d
		}
		return a.at - b.at
	})
	first := -1
	for k := 1; k < len(keys); k++ {
		same := bytes.Equal(keys[k-1].text(data, names), keys[k].text(data, names))
		if same && (first < 0 || keys[k].at < first) {
			first = keys[k].at
		}
	}
	return first
}

func (c *checker) at(b byte) bool { return c.i < len(c.data) && c.data[c.i] == b }

// more reads what follows a member: a comma and the space behind it, or the container's end.
func (c *checker) more(end byte) (done bool, f JSONFault) {
	c.space()
	if c.i >= len(c.data) {
		return false, FaultEnd
	}
	switch c.data[c.i] {
	case ',':
		c.i++
		c.space()
		return false, ""
	case end:
		c.i++
		return true, ""
	}
	return false, FaultSyntax
}

// plain has the bytes that stand for themselves in a string.
var plain = func() (t [256]bool) {
	for b := ' '; b < utf8.RuneSelf; b++ {
		t[b] = b != '"' && b != '\\'
	}
	return t
}()

// str reads a string from its opening quote and says whether it has escapes.
func (c *checker) str() (escaped bool, f JSONFault) {
	c.i++
	for c.i < len(c.data) {
		b := c.data[c.i]
		switch {
		case plain[b]:
			c.i++
		case b == '"':
			c.i++
			return escaped, ""
		case b == '\\':
			escaped = true
			if f := c.escape(); f != "" {
				return true, f
			}
		case b < ' ':
			return escaped, FaultControl
		default:
			r, n := utf8.DecodeRune(c.data[c.i:])
			if r == utf8.RuneError && n <= 1 {
				return escaped, FaultUTF8
			}
			c.i += n
		}
	}
	return escaped, FaultEnd
}

// escape reads one escape sequence, or a pair of them that stands for one character.
func (c *checker) escape() JSONFault {
	start := c.i
	if c.i+1 >= len(c.data) {
		c.i = len(c.data)
		return FaultEnd
	}
	switch c.data[c.i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		c.i += 2
		return ""
	case 'u':
	default:
		return FaultEscape
	}
	u, ok := hex4(c.data[c.i+2:])
	if !ok {
		return FaultEscape
	}
	c.i += 6
	switch {
	case u >= 0xdc00 && u < 0xe000:
		c.i = start
		return FaultSurrogate
	case u >= 0xd800 && u < 0xdc00:
		if _, ok := lowSurrogate(c.data[c.i:]); !ok {
			c.i = start
			return FaultSurrogate
		}
		c.i += 6
	}
	return ""
}

func (c *checker) number() JSONFault {
	if c.at('-') {
		c.i++
	}
	if c.at('0') {
		c.i++
	} else if !c.digits() {
		return c.badNumber()
	}
	if c.at('.') {
		c.i++
		if !c.digits() {
			return c.badNumber()
		}
	}
	if c.at('e') || c.at('E') {
		c.i++
		if c.at('+') || c.at('-') {
			c.i++
		}
		if !c.digits() {
			return c.badNumber()
		}
	}
	if c.i < len(c.data) {
		// What follows must end the number here, so that the fault is named as what it is: 01, 1.2.3, 1a.
		switch c.data[c.i] {
		case ' ', '\t', '\n', '\r', ',', ']', '}':
		default:
			return FaultNumber
		}
	}
	return ""
}

func (c *checker) badNumber() JSONFault {
	if c.i >= len(c.data) {
		return FaultEnd
	}
	return FaultNumber
}

func (c *checker) digits() bool {
	start := c.i
	for c.i < len(c.data) && c.data[c.i] >= '0' && c.data[c.i] <= '9' {
		c.i++
	}
	return c.i > start
}
