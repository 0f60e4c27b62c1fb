package config

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// document is the file's text and what was read from it.
type document struct {
	lines []string // without line ends
	ascii []bool   // of lines: a column is a byte, which long lines are found by
	root  *node
}

func (doc *document) setText(text string) {
	doc.lines = strings.Split(text, "\n")
	doc.ascii = make([]bool, len(doc.lines))
	for i, s := range doc.lines {
		doc.ascii[i] = utf8.RuneCountInString(s) == len(s)
	}
}

// sourceAt returns the rest of a line from a column on, "" if there is no such place.
func (doc *document) sourceAt(line, col int) string {
	if line < 1 || line > len(doc.lines) {
		return ""
	}
	s := doc.lines[line-1]
	if doc.ascii[line-1] {
		return s[min(max(col, 1)-1, len(s)):]
	}
	for ; col > 1 && s != ""; col-- {
		_, size := utf8.DecodeRuneInString(s)
		s = s[size:]
	}
	return s
}

// yamlReader turns the parser's tree into nodes, refusing what this file has no use for.
type yamlReader struct {
	d    *decoder
	stop bool // too deep or too much: reported, and nothing of the file is used

	anchors map[string]*node
	aliased int // values that aliases stand for, in all
}

// readYAML returns the root, or nil with an error recorded.
func (d *decoder) readYAML(text string) *node {
	if d.tabbed() {
		return nil
	}
	file, ok := d.parseYAML(text)
	if !ok {
		return nil
	}
	var body ast.Node
	for i, doc := range file.Docs {
		switch b := doc.Body.(type) {
		case nil:
			// An empty document: only the marks that begin and end it.
		case *ast.DirectiveNode:
			d.failAt(pos(b.GetToken()), "YAML directives are not supported: remove the line")
			return nil
		default:
			if body != nil {
				at := pos(b.GetToken())
				if start := file.Docs[i].Start; start != nil {
					at = pos(start)
				}
				d.failAt(at, "a second YAML document starts here: the config is one document, put everything under one set of keys")
				return nil
			}
			body = b
		}
	}
	if body == nil {
		d.failAt(place{1, 1}, emptyFile)
		return nil
	}
	y := &yamlReader{d: d, anchors: map[string]*node{}}
	root := y.value(body, 0)
	if y.stop {
		return nil
	}
	return root
}

// tabbed refuses tabs but in comments and at the end of lines. YAML allows more, and the parser then drops them from
// text or counts columns wrong, both without a word.
func (d *decoder) tabbed() bool {
	for i, line := range d.doc.lines {
		s := line
		for _, comment := range []string{" #", "\t#"} {
			s, _, _ = strings.Cut(s, comment)
		}
		s = strings.TrimRight(s, " \t")
		tab := strings.IndexByte(s, '\t')
		switch at := (place{i + 1, utf8.RuneCountInString(s[:max(tab, 0)]) + 1}); {
		case tab < 0 || s[0] == '#':
		case strings.Trim(s[:tab], " ") == "":
			d.failAt(at, "a tab cannot indent YAML: use spaces")
			return true
		default:
			d.failAt(at, "a tab in YAML: use spaces, or \\t in double quotes")
			return true
		}
	}
	return false
}

// parseYAML runs the YAML parser. A panic inside it is a defect of the library on a strange file, and the person who
// wrote the file is better served by a sentence than by a stack.
func (d *decoder) parseYAML(text string) (file *ast.File, ok bool) {
	defer func() {
		if recover() != nil {
			d.failAt(place{1, 1}, "the file cannot be read as YAML: check quotes, brackets and indentation")
			file, ok = nil, false
		}
	}()
	tokens := lexer.Tokenize(text)
	if at, problem := tooMuch(tokens); problem != "" {
		d.failAt(at, "%s", problem)
		return nil, false
	}
	// Duplicate keys are looked for in the tree, so that all of them are reported.
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		d.syntaxError(err)
		return nil, false
	}
	return file, true
}

// tooMuch guards the parser, which recurses (brackets that are open, and marks on one line that each open a level), and
// whose time grows with the square of the entries.
func tooMuch(tokens token.Tokens) (place, string) {
	open, line, marks, entries := 0, 0, 0, 0
	for _, t := range tokens {
		if t.Position == nil {
			continue
		}
		if t.Position.Line != line {
			line, marks = t.Position.Line, 0
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			open++
		case token.MappingEndType, token.SequenceEndType:
			open = max(open-1, 0)
		case token.MappingValueType, token.CollectEntryType:
			entries++
		case token.SequenceEntryType:
			entries++
			marks++
		case token.MappingKeyType, token.AnchorType, token.TagType, token.AliasType:
			marks++
		}
		if open > depthMax || marks > depthMax {
			return pos(t), tooDeep
		}
		if entries > entriesMax {
			return pos(t), fmt.Sprintf("more than %d keys and list items up to here: split the tools over several fleets, or write the file as JSON", entriesMax)
		}
	}
	return place{}, ""
}

func (d *decoder) syntaxError(err error) {
	at, message := place{1, 1}, "cannot be read"
	if e, ok := errors.AsType[yaml.Error](err); ok {
		if t := e.GetToken(); t != nil {
			at = pos(t)
		}
		message = e.GetMessage()
	}
	if strings.Contains(d.doc.sourceAt(at.line, 1), "${") {
		d.failAt(at, "not valid YAML: %s: a ${NAME} inside { } or [ ] needs quotes around it", printable(message))
		return
	}
	d.failAt(at, "not valid YAML: %s: check quotes, brackets and indentation here", printable(message))
}

func pos(t *token.Token) place {
	if t == nil || t.Position == nil || t.Position.Line < 1 {
		return place{1, 1}
	}
	return place{t.Position.Line, max(t.Position.Column, 1)}
}

// value converts a node. It never returns nil; what is refused becomes an empty scalar at its place, so that reading can
// go on and find further errors.
func (y *yamlReader) value(n ast.Node, depth int) *node {
	if n == nil {
		return &node{place: place{1, 1}, broken: true}
	}
	at := pos(n.GetToken())
	out := &node{place: at}
	if depth > depthMax {
		out.broken = true
		y.tooMuch(out, tooDeep)
		return out
	}
	switch v := n.(type) {
	case *ast.MappingNode:
		y.mapping(out, v.Values, v.IsFlowStyle, depth)
	case *ast.MappingValueNode:
		y.mapping(out, []*ast.MappingValueNode{v}, v.IsFlowStyle, depth)
	case *ast.SequenceNode:
		out.kind = sequenceNode
		for _, item := range v.Values {
			out.items = append(out.items, y.value(item, depth+1))
		}
	case *ast.LiteralNode:
		out.style = literalBlock
		if v.Start != nil && v.Start.Type == token.FoldedType {
			out.style = foldedBlock
		}
		if v.Value != nil {
			out.text = v.Value.Value
		}
	case *ast.NullNode:
		out.text = "null"
	case *ast.StringNode:
		out.text = v.Value
		switch v.Token.Type {
		case token.StringType:
			out.place = y.settle(at, v.Value)
		case token.SingleQuoteType:
			out.style = singleQuoted
		case token.DoubleQuoteType:
			out.style = doubleQuoted
		}
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		out.text = n.GetToken().Value
		out.place = y.settle(at, out.text)
	case *ast.AnchorNode:
		// Known from here on only: an alias inside its own anchor would have no end.
		value := y.value(v.Value, depth)
		y.anchors[anchorName(v.Name)] = value
		return value
	case *ast.AliasNode:
		return y.alias(v, out, depth)
	case *ast.TagNode:
		y.d.failAt(at, "YAML tags are not supported: remove %s, and quote the value if it is text", printable(n.GetToken().Value))
		out.broken = true
	default:
		y.d.failAt(at, "unexpected YAML: write a mapping, a list, text, a number, true or false")
		out.broken = true
	}
	return out
}

// tooMuch ends the reading with one complaint, the first.
func (y *yamlReader) tooMuch(n *node, problem string) {
	if !y.stop {
		y.d.fail(n, "%s", problem)
	}
	y.stop = true
}

// alias returns the anchor's value itself: a mistake in it is reported where it is written.
func (y *yamlReader) alias(v *ast.AliasNode, out *node, depth int) *node {
	name := anchorName(v.Value)
	value := y.anchors[name]
	out.broken = true
	if value == nil {
		y.d.fail(out, "the alias *%s has no anchor: write &%s before the value that it stands for, above this line", printable(name), printable(name))
		return out
	}
	height, size := value.measure(entriesMax - y.aliased)
	if y.aliased += size; y.aliased >= entriesMax {
		y.tooMuch(out, fmt.Sprintf("the aliases up to here stand for more than %d values: write fewer", entriesMax))
		return out
	}
	if depth+height > depthMax {
		y.tooMuch(out, tooDeep)
		return out
	}
	return value
}

// measure counts how deep a value goes and how many values it holds, up to most.
func (n *node) measure(most int) (height, size int) {
	size = 1
	visit := func(child *node) {
		if size < most {
			h, s := child.measure(most - size)
			height, size = max(height, h+1), size+s
		}
	}
	for _, p := range n.pairs {
		visit(p.value)
	}
	for _, item := range n.items {
		visit(item)
	}
	return height, size
}

func anchorName(n ast.Node) string {
	if n == nil || n.GetToken() == nil {
		return ""
	}
	return n.GetToken().Value
}

func (y *yamlReader) mapping(out *node, values []*ast.MappingValueNode, flow bool, depth int) {
	out.kind = mappingNode
	for i, v := range values {
		key, at, ok := y.key(v.Key)
		if i == 0 && !flow {
			// The parser gives a block mapping the place of its first colon.
			out.place = at
		}
		if !ok {
			out.partial = true
			continue
		}
		y.d.add(out, pair{key: key, place: at, value: y.value(v.Value, depth+1)})
	}
}

func (y *yamlReader) key(k ast.MapKeyNode) (string, place, bool) {
	if k == nil {
		return "", place{1, 1}, false
	}
	at := pos(k.GetToken())
	switch v := k.(type) {
	case *ast.StringNode:
		if v.Token.Type == token.StringType {
			at = y.settle(at, v.Value)
		}
		return v.Value, at, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode, *ast.NullNode:
		return k.GetToken().Value, y.settle(at, k.GetToken().Value), true
	case *ast.MappingKeyNode:
		y.d.failAt(at, "a key that is marked with ? is not supported: write key: value")
		return "", at, false
	case *ast.MergeKeyNode:
		y.d.failAt(at, "the merge key << is not supported: write the keys out")
		return "", at, false
	}
	y.d.failAt(at, "a key must be plain or quoted text")
	return "", at, false
}

// settle corrects the place of text without quotes: the parser counts spaces after it as if they came before, and is off
// by one after some anchors.
func (y *yamlReader) settle(at place, text string) place {
	word := firstWord(text)
	if word == "" {
		return at
	}
	for col := at.col; col > 0; col-- {
		if strings.HasPrefix(y.d.doc.sourceAt(at.line, col), word) {
			return place{at.line, col}
		}
	}
	source := y.d.doc.sourceAt(at.line, at.col)
	if i := strings.Index(source, word); i >= 0 {
		return place{at.line, at.col + utf8.RuneCountInString(source[:i])}
	}
	return at
}

// printable shortens a text of the file and makes it safe for a terminal.
func printable(s string) string {
	s = strings.ToValidUTF8(s, "?")
	const most = 80
	if utf8.RuneCountInString(s) > most {
		s = string([]rune(s)[:most]) + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}

func quote(s string) string {
	const most = 80
	if utf8.RuneCountInString(s) > most {
		s = string([]rune(s)[:most]) + "…"
	}
	return fmt.Sprintf("%q", s)
}
