package config

import (
	"cmp"
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/agentrun/executor/pkg/connector"
)

// Locate turns a complaint of whoever compiles a tool into "file:line:column: message". A place inside a text (CEL
// counts lines and columns of its own) becomes a place in the file where the text stands there as it is; where ${NAME}
// or folding has changed it, the text's beginning is the best there is. What came from the environment is not shown.
func (f *File) Locate(tool string, e *connector.SpecError) string {
	at, path, inside, all := f.find("tools", append([]any{tool}, e.Path...)...)
	if all && inside.kind == yaml.ScalarNode && e.Line > 0 {
		at = f.doc.placeInside(inside, e.Line, max(e.Column, 1))
	}
	return Place{f.Name, at.line, at.col}.String() + ": " + path + ": " + f.redact(e.Message, inside)
}

// Warn is a warning about what stands at the end of a path of keys (and numbers from 0, of items in lists). What came from
// the environment is not shown.
func (f *File) Warn(message, key string, more ...any) Warning {
	at, path, inside, _ := f.find(key, more...)
	return Warning{Place: Place{f.Name, at.line, at.col}, Message: path + ": " + f.redact(message, inside)}
}

// find follows a path of keys as far as the file gives it: what it does not give (a default) is complained about at what
// would hold it. all says that it gives the whole path.
func (f *File) find(first string, more ...any) (at place, path string, n *node, all bool) {
	at, path, n = place{1, 1}, first, f.doc.root
	walk := func(key any) bool {
		switch k := key.(type) {
		case string:
			if p := n.pair(k); p != nil {
				at, n = p.place, p.value
				return true
			}
		case int:
			if k >= 0 && k < len(n.items) {
				at, n = n.items[k].place, n.items[k]
				return true
			}
		}
		return false
	}
	all = walk(first)
	for _, key := range more {
		all = all && walk(key)
		if i, isIndex := key.(int); isIndex {
			path += index(i)
		} else {
			path += fmt.Sprintf(".%v", key)
		}
	}
	if all && n.kind == yaml.ScalarNode {
		at = n.place
	}
	return at, path, n, all
}

// redact removes what came from the environment; of the value that is complained about also what is shorter than the
// limit for redaction elsewhere.
func (f *File) redact(s string, n *node) string {
	for _, secret := range f.Secrets {
		s = strings.ReplaceAll(s, secret, "[redacted]")
	}
	if n != nil {
		n.each(func(n *node) {
			for _, v := range n.substituted {
				s = strings.ReplaceAll(s, v, "[redacted]")
			}
		})
	}
	return s
}

// placeInside finds where line and column of a text, from 1, stand in the file: it follows the text along its source, and gives
// the text's beginning where the two part.
func (doc *document) placeInside(n *node, line, col int) place {
	lines := strings.Split(n.text, "\n")
	if strings.Contains(n.text, "${") || line > len(lines) || col > utf8.RuneCountInString(lines[line-1])+1 {
		return n.place
	}
	text, left := []rune(n.text), col-1
	for _, s := range lines[:line-1] {
		left += utf8.RuneCountInString(s) + 1
	}
	at, margin := n.place, 0
	switch n.style {
	case yaml.DoubleQuotedStyle, yaml.SingleQuotedStyle:
		at.col++
	case yaml.LiteralStyle, yaml.FoldedStyle:
		margin = indent(doc.sourceAt(at.line+1, 1))
		at = place{at.line + 1, margin + 1}
	}
	source := doc.sourceAt(at.line, at.col)
	for left > 0 {
		if strings.Trim(source, " ") == "" && at.line < len(doc.lines) && (text[0] == ' ' || text[0] == '\n') {
			// A line break became a space, or was kept; empty lines are line breaks.
			for at.line++; strings.Trim(doc.sourceAt(at.line, 1), " ") == "" && at.line < len(doc.lines); at.line++ {
			}
			if at.col = margin + 1; margin == 0 {
				at.col = indent(doc.sourceAt(at.line, 1)) + 1
			}
			source = doc.sourceAt(at.line, at.col)
			breaks := 1
			for text[0] == '\n' && breaks < left && text[breaks] == '\n' {
				breaks++
			}
			text, left = text[breaks:], left-breaks
			continue
		}
		r, size := utf8.DecodeRuneInString(source)
		if length := escapeLength(source, n.style); length > 1 && length <= len(source) {
			size, at.col = length, at.col+length-1
		} else if r != text[0] {
			return n.place
		}
		source, text, left = source[size:], text[1:], left-1
		at.col++
	}
	return at
}

// escapeLength is how many characters, all of them ASCII, of the source stand for the next one of the text; 1 if that is itself.
func escapeLength(s string, style yaml.Style) int {
	switch {
	case style == yaml.SingleQuotedStyle && strings.HasPrefix(s, "''"):
		return 2
	case style != yaml.DoubleQuotedStyle || len(s) < 2 || s[0] != '\\':
		return 1
	}
	return cmp.Or(map[byte]int{'x': 4, 'u': 6, 'U': 10}[s[1]], 2)
}
