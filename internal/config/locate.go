package config

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/agentrun/executor/pkg/connector"
)

// Locate turns a complaint of whoever compiles a tool into "file:line:column: message". A place inside a text (CEL
// counts lines and columns of its own) becomes a place in the file where the text stands there as it is; where ${NAME}
// or folding has changed it, the text's beginning is the best there is. What came from the environment is not shown.
func (f *File) Locate(tool string, e *connector.SpecError) string {
	at, path, inside, all := f.find("tools", append([]any{tool}, e.Path...)...)
	if all && inside.kind == scalarNode && e.Line > 0 {
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
	if all && n.kind == scalarNode {
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

// placeInside finds where line and column of a text, from 1, stand in the file.
func (doc *document) placeInside(n *node, line, col int) place {
	if strings.Contains(n.text, "${") {
		return n.place
	}
	lines := strings.Split(n.text, "\n")
	if line > len(lines) || col > utf8.RuneCountInString(lines[line-1])+1 {
		return n.place
	}
	at := n.place
	switch n.style {
	case literalBlock:
		at = doc.insideLiteral(n, lines[line-1], line, col)
	case foldedBlock, plainStyle:
		if line == 1 {
			at = doc.insideFolded(n, lines[0], col)
		}
	case singleQuoted, doubleQuoted:
		if line == 1 {
			at = doc.insideQuoted(n, col)
		}
	}
	return at
}

func (doc *document) insideLiteral(n *node, want string, line, col int) place {
	at := n.line + line
	if indent, ok := strings.CutSuffix(doc.sourceAt(at, 1), want); ok && strings.Trim(indent, " ") == "" {
		return place{at, len(indent) + col}
	}
	return n.place
}

// insideFolded follows a text whose line breaks became spaces.
func (doc *document) insideFolded(n *node, text string, col int) place {
	line, left := n.line, col
	source := doc.sourceAt(line, n.col)
	start := n.col
	if n.style == foldedBlock {
		line, start = line+1, 1
		source = doc.sourceAt(line, 1)
	}
	for {
		trimmed := strings.TrimLeft(source, " ")
		if trimmed == "" || !strings.HasPrefix(text, firstWord(trimmed)) {
			return n.place
		}
		start += len(source) - len(trimmed)
		length := 0 // of the piece of text on this line
		for a, b := []rune(text), []rune(trimmed); length < len(a) && length < len(b) && a[length] == b[length]; {
			length++
		}
		piece := strings.TrimRight(string([]rune(text)[:length]), " ")
		length = utf8.RuneCountInString(piece)
		rest := strings.TrimLeft(strings.TrimPrefix(text, piece), " ")
		if left <= length || rest == "" {
			return place{line, start + left - 1}
		}
		left -= utf8.RuneCountInString(text) - utf8.RuneCountInString(rest)
		if left < 1 {
			return place{line, start + length}
		}
		text, line, start = rest, line+1, 1
		source = doc.sourceAt(line, 1)
	}
}

func firstWord(s string) string {
	if i := strings.IndexAny(s, " \n"); i >= 0 {
		return s[:i]
	}
	return s
}

// insideQuoted counts characters of the text along its quoted form on one line.
func (doc *document) insideQuoted(n *node, col int) place {
	source := []rune(doc.sourceAt(n.line, n.col))
	i := 1 // past the quote
	for range col - 1 {
		if i >= len(source) {
			return n.place
		}
		i += escapeLength(source[i:], n.style)
	}
	if i >= len(source) {
		return n.place
	}
	return place{n.line, n.col + i}
}

// escapeLength is how many characters of the source stand for the next one of the text.
func escapeLength(s []rune, style scalarStyle) int {
	switch {
	case style == singleQuoted && s[0] == '\'' && len(s) > 1 && s[1] == '\'':
		return 2
	case style != doubleQuoted || s[0] != '\\' || len(s) < 2:
		return 1
	}
	switch s[1] {
	case 'x':
		return 4
	case 'u':
		return 6
	case 'U':
		return 10
	}
	return 2
}
