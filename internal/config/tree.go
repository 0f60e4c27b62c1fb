package config

import (
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// place is a position in the file, line and column from 1, columns in characters.
type place struct{ line, col int }

// node is one value of the file: a mapping, a list or a scalar.
type node struct {
	kind yaml.Kind
	place
	broken bool // refused already: whoever reads it takes the default and says nothing more

	style yaml.Style // of a scalar; 0 if it has no quotes
	text  string     // of a scalar: unquoted, with ${NAME} as written
	value string     // of a scalar: text with what ${NAME} stands for
	// substituted are the values of variables and files that stand in the scalar's place. They tell what a message about this
	// value must not show, and that columns inside it mean nothing.
	substituted []string
	files       []string // those of them that are files

	// partial is set if a key of the mapping was refused: which one was meant, and so what is missing, is not known.
	partial bool
	// misspelt are known keys that an unknown one was probably meant to be: they are not reported as missing as well.
	misspelt map[string]bool
	pairs    []pair
	index    map[string]int // of pairs, by key
	items    []*node
}

// pair is one entry of a mapping.
type pair struct {
	key   string
	place // of the key
	value *node
}

func (n *node) pair(key string) *pair {
	if i, ok := n.index[key]; ok {
		return &n.pairs[i]
	}
	return nil
}

// add puts a pair into a mapping, or reports that its key is there already.
func (d *decoder) add(to *node, p pair) {
	if first := to.pair(p.key); first != nil {
		d.failAt(p.place, "duplicate key %s: it is already given on line %d, keep one", quote(p.key), first.line)
		return
	}
	if to.index == nil {
		to.index = map[string]int{}
	}
	to.index[p.key] = len(to.pairs)
	to.pairs = append(to.pairs, p)
}

// each visits a value and what is in it.
func (n *node) each(visit func(*node)) {
	visit(n)
	for _, p := range n.pairs {
		p.value.each(visit)
	}
	for _, item := range n.items {
		item.each(visit)
	}
}

// describe says what a value is, for a message.
func (n *node) describe() string {
	switch {
	case n.kind == yaml.MappingNode:
		return "a mapping"
	case n.kind == yaml.SequenceNode:
		return "a list"
	}
	switch n.resolve() {
	case nullScalar:
		return "empty"
	case boolScalar:
		return "true or false"
	case numberScalar, noNumberScalar:
		return "a number"
	}
	return "text"
}

// asWritten is a value for a message: as in the file, never as the environment made it.
func (n *node) asWritten() string {
	if n.kind != yaml.ScalarNode || n.text == "" {
		return n.describe()
	}
	return quote(n.text)
}

type scalarType int

const (
	stringScalar scalarType = iota
	nullScalar
	boolScalar
	numberScalar
	// noNumberScalar is what looks like a number and is not one everywhere: 017 is 15 to YAML 1.1 and 17 to YAML 1.2,
	// 1_000 is a number or text, .inf has no JSON. Guessing would be a surprise, so it is refused where a number can be.
	noNumberScalar
)

var (
	coreDecimal  = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)
	coreRadix    = regexp.MustCompile(`^0(o[0-7]+|x[0-9a-fA-F]+)$`)
	leadingZero  = regexp.MustCompile(`^[-+]?0[0-9]`)
	numberLike   = regexp.MustCompile(`^[-+]?(0b[01_]+|0[xX][0-9a-fA-F_]+|0o[0-7_]+|[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9_]+)?|\.(inf|Inf|INF)|[0-9][0-9_]*(:[0-5]?[0-9])+)$`)
	notANumber   = regexp.MustCompile(`^\.(nan|NaN|NAN)$`)
	plainInteger = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)
)

// resolve reads a scalar by the core schema of YAML 1.2, where yes, no, on, off and dates are text. (The tags of yaml.v3 are
// those of YAML 1.1 in part: 017 is 15 there, 0b11 and 1_000 are numbers.)
func (n *node) resolve() scalarType {
	if n.style != 0 {
		return stringScalar
	}
	switch n.text {
	case "", "~", "null", "Null", "NULL":
		return nullScalar
	case "true", "True", "TRUE", "false", "False", "FALSE":
		return boolScalar
	}
	switch {
	case coreDecimal.MatchString(n.text) && !leadingZero.MatchString(n.text), coreRadix.MatchString(n.text):
		return numberScalar
	case numberLike.MatchString(n.text), notANumber.MatchString(n.text):
		return noNumberScalar
	}
	return stringScalar
}

func (n *node) isNull() bool { return n.kind == yaml.ScalarNode && n.resolve() == nullScalar }

func (n *node) isTrue() bool { return strings.EqualFold(n.text, "true") }

// jsonNumber is the number as JSON writes it, every digit kept. It is for numberScalar only.
func jsonNumber(text string) json.Number {
	if coreRadix.MatchString(text) {
		i, _ := new(big.Int).SetString(text, 0)
		return json.Number(i.String())
	}
	text = strings.TrimPrefix(text, "+")
	mantissa, exponent := text, ""
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		mantissa, exponent = text[:i], text[i:]
	}
	if s, ok := strings.CutPrefix(mantissa, "-."); ok {
		mantissa = "-0." + s
	} else if strings.HasPrefix(mantissa, ".") {
		mantissa = "0" + mantissa
	}
	if strings.HasSuffix(mantissa, ".") {
		mantissa += "0"
	}
	return json.Number(mantissa + exponent)
}

// printable shortens a text of the file and makes it safe for a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, shortened(strings.ToValidUTF8(s, "?")))
}

func quote(s string) string { return fmt.Sprintf("%q", shortened(s)) }

func shortened(s string) string {
	const most = 80
	if utf8.RuneCountInString(s) > most {
		return string([]rune(s)[:most]) + "…"
	}
	return s
}
