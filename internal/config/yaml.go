package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
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

// columnOf is the column of a byte of a line.
func (doc *document) columnOf(line, index int) int {
	return utf8.RuneCountInString(doc.lines[line-1][:index]) + 1
}

// yamlReader turns the parser's tree into nodes, refusing what this file has no use for.
type yamlReader struct {
	d    *decoder
	stop bool // too deep or too much: reported, and nothing of the file is used

	known   map[*yaml.Node]*node // what is complete, by anchors
	aliased int                  // values that aliases stand for, in all
}

// ahead is a line before the text: the parser takes line 0 for no line at all, and would name another one.
const ahead = "#\n"

// read returns the root, or nil with an error recorded. JSON is YAML too.
func (d *decoder) read(text string) *node {
	language := "YAML"
	switch {
	case looksLikeJSON(text):
		language, text = "JSON", withoutEscapes(text)
	case strings.HasSuffix(d.name, ".json"):
		d.jsonError(text)
		return nil
	case d.tabbed() || d.directed():
		return nil
	}
	from := &oneByOne{text: ahead + text}
	dec := yaml.NewDecoder(from)
	var body *yaml.Node
	for {
		doc, err := decodeNode(dec)
		switch {
		case errors.Is(err, io.EOF):
			if body == nil {
				d.failAt(place{1, 1}, emptyFile)
				return nil
			}
			y := &yamlReader{d: d, known: map[*yaml.Node]*node{}}
			if root := y.value(body, 0); !y.stop {
				return root
			}
			return nil
		case err != nil:
			d.syntaxError(language, err.Error(), from.read-len(ahead))
			return nil
		case len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" && doc.Content[0].Value == "":
			// An empty document: only the marks that begin and end it.
		case body != nil:
			d.failAt(lineUp(doc), "a second YAML document starts here: the config is one document, put everything under one set of keys")
			return nil
		default:
			body = doc.Content[0]
		}
	}
}

// lineUp is a node's place in the text without the line ahead.
func lineUp(n *yaml.Node) place {
	return place{max(n.Line-strings.Count(ahead, "\n"), 1), max(n.Column, 1)}
}

// decodeNode reads one document. A panic inside the parser is a defect of the library on a strange file, and the person who
// wrote the file is better served by a sentence than by a stack; a process that reads its config again by none.
func decodeNode(dec *yaml.Decoder) (doc *yaml.Node, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("yaml: the file cannot be read")
		}
	}()
	doc = &yaml.Node{}
	return doc, dec.Decode(doc)
}

// oneByOne gives a text byte by byte, so that it is known how far the parser had to look.
type oneByOne struct {
	text string
	read int
}

func (r *oneByOne) Read(p []byte) (int, error) {
	if r.read == len(r.text) {
		return 0, io.EOF
	}
	r.read++
	return copy(p[:1], r.text[r.read-1:]), nil
}

// looksLikeJSON reports whether the text is one JSON object. One with a mistake in it is complained about as YAML, unless
// it is named .json.
func looksLikeJSON(text string) bool {
	s := strings.TrimLeft(text, " \t\r\n")
	return s != "" && s[0] == '{' && json.Valid([]byte(s))
}

// jsonError complains about a file that is named .json and is no JSON object.
func (d *decoder) jsonError(text string) {
	var v map[string]json.RawMessage
	e, ok := errors.AsType[*json.SyntaxError](json.Unmarshal([]byte(text), &v))
	if !ok {
		d.failAt(place{1, 1}, "the file must be one JSON object with the keys defaults, tools, mcp_servers, tenants")
		return
	}
	d.failAt(d.doc.placeOf(max(int(e.Offset)-1, 0)), "not valid JSON: %s: correct it, or name the file .yaml", printable(e.Error()))
}

// placeOf is the place of a byte of the text.
func (doc *document) placeOf(offset int) place {
	for i, s := range doc.lines {
		if offset <= len(s) {
			return place{i + 1, doc.columnOf(i+1, offset)}
		}
		offset -= len(s) + 1
	}
	return place{1, 1}
}

var (
	jsonString = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	jsonEscape = regexp.MustCompile(`\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}`)
)

// withoutEscapes writes out what is escaped in JSON as the YAML parser does not know it: a slash, and characters as two
// surrogates. Spaces after the text make up for it, so that everything else keeps its place.
func withoutEscapes(text string) string {
	return jsonString.ReplaceAllStringFunc(text, func(s string) string {
		out := jsonEscape.ReplaceAllStringFunc(s, func(escape string) string {
			if len(escape) > 2 || escape == `\/` {
				_ = json.Unmarshal([]byte(`"`+escape+`"`), &escape)
			}
			return escape
		})
		return out + strings.Repeat(" ", utf8.RuneCountInString(s)-utf8.RuneCountInString(out))
	})
}

// tabbed refuses tabs but in comments and at the end of lines: they look like spaces and are none.
func (d *decoder) tabbed() bool {
	for i, line := range d.doc.lines {
		s := line
		for _, comment := range []string{" #", "\t#"} {
			s, _, _ = strings.Cut(s, comment)
		}
		s = strings.TrimRight(s, " \t")
		tab := strings.IndexByte(s, '\t')
		switch at := (place{i + 1, d.doc.columnOf(i+1, max(tab, 0))}); {
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

// directed refuses directives, which stand before everything else.
func (d *decoder) directed() bool {
	for i, line := range d.doc.lines {
		if strings.HasPrefix(line, "%") {
			d.failAt(place{i + 1, 1}, "YAML directives are not supported: remove the line")
			return true
		}
		if s := strings.TrimSpace(line); s != "" && s[0] != '#' {
			break
		}
	}
	return false
}

// slips tells of what the parser says where it means: at the last of the characters in a line that it names, or (without
// characters) at the last word that it has read. early are said with the line before. means is a better word.
var slips = []struct {
	says, means, at string
	early           bool
}{
	{says: "',' or ']'", means: "a [ without its ], or a , is missing", at: "[", early: true},
	{says: "',' or '}'", means: "a { without its }, or a , is missing", at: "{", early: true},
	{says: "undefined tag handle", at: "!", early: true},
	{says: "node content", means: "a value is missing", at: ",:[{", early: true},
	{says: "did not find expected"},
	{says: "end of stream", means: "a quoted text without its end", at: `"'`},
	{says: "document indicator", means: "a quoted text without its end", at: `"'`},
	{says: "escape", at: `\`},
	{says: "cannot start any token", means: "no text can begin with this character", at: "@`%|>"},
	{says: "mapping values are not allowed", at: ":"},
}

var (
	yamlError     = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?(.*)$`)
	unknownAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
)

// syntaxError says what the parser said of a text that it has read so far.
func (d *decoder) syntaxError(language, says string, read int) {
	m := yamlError.FindStringSubmatch(says)
	if m == nil {
		m = []string{"", "", says}
	}
	if a := unknownAnchor.FindStringSubmatch(m[2]); a != nil {
		at := max(strings.Index(strings.Join(d.doc.lines, "\n"), "*"+a[1]), 0)
		d.failAt(d.doc.placeOf(at), noAnchor, printable(a[1]), printable(a[1]))
		return
	}
	line, _ := strconv.Atoi(m[1])
	line-- // the one ahead
	seen := strings.Split(strings.Join(d.doc.lines, "\n")[:max(read, 0)], "\n")
	at := ""
	for _, slip := range slips {
		if strings.Contains(m[2], slip.says) {
			m[2] = cmp.Or(slip.means, m[2])
			if at = slip.at; slip.early {
				line++
			} else if at == "" {
				line = len(strings.Split(strings.TrimRight(strings.Join(seen, "\n"), " \n"), "\n"))
			}
			break
		}
	}
	line = min(max(line, 1), len(seen))
	if strings.Contains(m[2], "exceeded max depth") {
		d.failAt(d.doc.tooDeepIn(line), tooDeep)
		return
	}
	s := seen[line-1]
	col := utf8.RuneCountInString(s[:cmp.Or(max(strings.LastIndexAny(s, at), 0), indent(s))]) + 1
	remedy := "check quotes, brackets and indentation here"
	if strings.Contains(d.doc.lines[line-1], "${") {
		remedy = "a ${NAME} inside { } or [ ] needs quotes around it"
	}
	d.failAt(place{line, col}, "not valid %s: %s: %s", language, printable(m[2]), remedy)
}

func indent(s string) int { return len(s) - len(strings.TrimLeft(s, " ")) }

// tooDeepIn is where one level too many begins in a line that the parser has given up on.
func (doc *document) tooDeepIn(line int) place {
	levels := 0
	for i, c := range doc.lines[line-1] {
		if strings.ContainsRune("[{-?", c) {
			if levels++; levels > depthMax {
				return place{line, doc.columnOf(line, i)}
			}
		}
	}
	return place{line, 1}
}

const noAnchor = "the alias *%s has no anchor: write &%s before the value that it stands for, above this line"

// value converts a node. It never returns nil; what is refused becomes an empty scalar at its place, so that reading can
// go on and find further errors.
func (y *yamlReader) value(n *yaml.Node, depth int) *node {
	out := &node{kind: n.Kind, place: lineUp(n)}
	if n.Kind == yaml.AliasNode {
		return y.alias(n, out, depth)
	}
	source := y.d.doc.sourceAt(out.line, out.col)
	if strings.HasPrefix(source, "&") {
		out.place, source = y.d.doc.behind(out.place, source[1+len(n.Anchor):])
	}
	switch {
	case depth > depthMax:
		y.tooMuch(out, tooDeep)
	case n.Style&yaml.TaggedStyle != 0, strings.HasPrefix(source, "!"):
		tag, _, _ := strings.Cut(source, " ")
		y.d.fail(out, "YAML tags are not supported: remove %s, and quote the value if it is text", printable(tag))
		out.broken = true
	case n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content) && !y.stop; i += 2 {
			if key, ok := y.key(n.Content[i]); ok {
				y.d.add(out, pair{key: n.Content[i].Value, place: key, value: y.value(n.Content[i+1], depth+1)})
			} else {
				out.partial = true
			}
		}
	case n.Kind == yaml.SequenceNode:
		for i := 0; i < len(n.Content) && !y.stop; i++ {
			out.items = append(out.items, y.value(n.Content[i], depth+1))
		}
	default:
		out.text, out.value, out.style = n.Value, n.Value, n.Style&^yaml.FlowStyle
		if out.style == 0 && out.text == "" && n.Anchor == "" {
			out.col++ // behind the colon or dash, where a value would begin
		}
	}
	// Known from here on only: an alias inside its own anchor would have no end.
	y.known[n] = out
	return out
}

// behind is where the value of an anchor begins, here or on a later line, and what stands there.
func (doc *document) behind(at place, rest string) (place, string) {
	for at.line < len(doc.lines) && (strings.Trim(rest, " ") == "" || strings.TrimLeft(rest, " ")[0] == '#') {
		at.line++
		rest = doc.lines[at.line-1]
	}
	rest = strings.TrimLeft(rest, " ")
	return place{at.line, doc.columnOf(at.line, len(doc.lines[at.line-1])-len(rest))}, rest
}

// tooMuch ends the reading with one complaint, the first.
func (y *yamlReader) tooMuch(n *node, problem string) {
	if !y.stop {
		y.d.fail(n, "%s", problem)
	}
	y.stop, n.broken = true, true
}

// alias returns the anchor's value itself: a mistake in it is reported where it is written.
func (y *yamlReader) alias(n *yaml.Node, out *node, depth int) *node {
	value := y.known[n.Alias]
	out.kind, out.broken = yaml.ScalarNode, true
	if value == nil {
		y.d.fail(out, noAnchor, printable(n.Value), printable(n.Value))
		return out
	}
	height, size := value.measure(aliasedMax - y.aliased)
	if y.aliased += size; y.aliased >= aliasedMax {
		y.tooMuch(out, fmt.Sprintf("the aliases up to here stand for more than %d values: write fewer", aliasedMax))
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

// key says where a key stands, and whether it is one that this file may have.
func (y *yamlReader) key(k *yaml.Node) (place, bool) {
	at := lineUp(k)
	line, source := y.d.doc.lines[at.line-1], y.d.doc.sourceAt(at.line, at.col)
	before := strings.TrimRight(line[:len(line)-len(source)], " ")
	switch {
	case strings.HasSuffix(before, "?"):
		at.col = y.d.doc.columnOf(at.line, len(before)-1)
		y.d.failAt(at, "a key that is marked with ? is not supported: write key: value")
	case k.Tag == "!!merge":
		y.d.failAt(at, "the merge key << is not supported: write the keys out")
	case k.Kind != yaml.ScalarNode || source != "" && strings.IndexByte("&!", source[0]) >= 0:
		y.d.failAt(at, "a key must be plain or quoted text")
	default:
		return at, true
	}
	return at, false
}
