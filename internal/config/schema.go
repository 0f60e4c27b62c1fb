package config

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"go.yaml.in/yaml/v3"
)

const schemaID = "urn:agentrun:config:v1"

//go:embed schema.json
var schemaText []byte

// Schema is the JSON Schema of the file, for editors and other programs. What holds between keys it does not say, nor what a
// text must be once ${NAME} is put in.
func Schema() []byte { return bytes.Clone(schemaText) }

// shape is the schema as it is held against a file here: with what stands for a variable already in its place, so that no
// text may look like one any more.
var shape = sync.OnceValue(func() *jsonschema.Schema {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schemaText))
	if err == nil {
		doc.(map[string]any)["$defs"].(map[string]any)["variable"] = false
		c := jsonschema.NewCompiler()
		if err = c.AddResource(schemaID, doc); err == nil {
			return c.MustCompile(schemaID)
		}
	}
	panic(err) // the schema is part of the program
})

// words is the schema's text, for what the compiled form does not keep: the order of keys and the sentences.
var words = sync.OnceValue(func() *yaml.Node {
	var doc yaml.Node
	if err := yaml.Unmarshal(schemaText, &doc); err != nil {
		panic(err)
	}
	return doc.Content[0]
})

// keyword is what a keyword says in the schema's text, nil if it is not there.
func keyword(s *jsonschema.Schema, name string) *yaml.Node {
	_, pointer, _ := strings.Cut(s.Location, "#")
	pointer, _ = url.PathUnescape(pointer)
	n := words()
	for _, token := range append(strings.Split(pointer, "/")[1:], name) {
		n = child(n, strings.NewReplacer("~1", "/", "~0", "~").Replace(token))
	}
	return n
}

func child(n *yaml.Node, token string) *yaml.Node {
	if n == nil {
		return nil
	}
	for i := 1; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		if n.Content[i-1].Value == token {
			return n.Content[i]
		}
	}
	if i, err := strconv.Atoi(token); err == nil && n.Kind == yaml.SequenceNode {
		return n.Content[i]
	}
	return nil
}

// keysOf are the keys that a mapping may have, in the schema's order.
func keysOf(s *jsonschema.Schema) (keys []string) {
	for i, n := range keyword(s, "properties").Content {
		if i%2 == 0 {
			keys = append(keys, n.Value)
		}
	}
	return keys
}

// of is the schema of a mapping's or list's element, nil if it may be anything.
func of(s *jsonschema.Schema, key string) (element *jsonschema.Schema) {
	switch {
	case s == nil:
		return nil
	case s.Items2020 != nil:
		element = s.Items2020
	case s.Properties[key] != nil:
		element = s.Properties[key]
	case s.PatternProperties != nil:
		for _, element = range s.PatternProperties { // there is one: what the user's own names look like
		}
	default:
		element, _ = s.AdditionalProperties.(*jsonschema.Schema)
	}
	for element != nil && element.Ref != nil {
		element = element.Ref
	}
	return element
}

// allows says that a schema names a type.
func allows(s *jsonschema.Schema, name string) bool {
	return s != nil && s.Types != nil && slices.Contains(s.Types.ToStrings(), name)
}

// is says that a schema names a type and no other.
func is(s *jsonschema.Schema, name string) bool {
	return allows(s, name) && len(s.Types.ToStrings()) == 1
}

// instance is a value as the schema sees it: with the environment in it, numbers only where they are what they look like to
// every reader. What is broken is left out.
func (d *decoder) instance(n *node, s *jsonschema.Schema, path string) any {
	switch n.kind {
	case yaml.MappingNode:
		out := make(map[string]any, len(n.pairs))
		for _, p := range n.pairs {
			sub := below(path, p.key)
			if s != nil && s.Properties[p.key] != nil && p.value.isNull() && !p.value.broken {
				// As likely a slip as a wish for the default.
				d.failAt(p.place, "%s has no value: give one or remove the key", sub)
				p.value.broken = true
			}
			if v := d.instance(p.value, of(s, p.key), sub); !p.value.broken {
				out[p.key] = v
			}
		}
		return out
	case yaml.SequenceNode:
		out := make([]any, len(n.items))
		for i, item := range n.items {
			out[i] = d.instance(item, of(s, ""), path+index(i))
		}
		return out
	}
	switch t := n.resolve(); {
	case n.broken, t == nullScalar:
		return nil
	case t == boolScalar:
		return n.isTrue()
	case t != numberScalar:
		if len(n.substituted) == 0 {
			d.expand(n, path)
		}
		return n.value
	case allows(s, "integer") && !plainInteger.MatchString(n.text), is(s, "number") && coreRadix.MatchString(n.text):
		return false // no number of the kind that is asked for, and no text either
	case allows(s, "integer") && allows(s, "string"):
		return n.text // a number that is the name of something
	}
	if i, err := strconv.ParseInt(n.text, 10, 64); err == nil {
		return i
	}
	f, _ := strconv.ParseFloat(n.text, 64)
	return min(max(f, -math.MaxFloat64), math.MaxFloat64)
}

func below(path, key string) string {
	if path == "" {
		return printable(key)
	}
	return path + "." + printable(key)
}

// hold holds the tree against the schema.
func (d *decoder) hold(root *node) {
	err := shape().Validate(d.instance(root, shape(), ""))
	if err == nil {
		return
	}
	var top *jsonschema.ValidationError
	if !errors.As(err, &top) {
		d.failAt(place{1, 1}, "the file does not have the shape of a config")
		return
	}
	faults := leaves(top)
	// That a value is of another type says it all, and a key that is misspelt is not missing too.
	rank := func(e *jsonschema.ValidationError) int {
		switch e.ErrorKind.(type) {
		case *kind.Type, *kind.AdditionalProperties:
			return 0
		case *kind.MinLength:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(faults, func(a, b *jsonschema.ValidationError) int {
		return cmp.Or(rank(a)-rank(b), slices.Compare(a.InstanceLocation, b.InstanceLocation))
	})
	for _, e := range faults {
		d.fault(root, e)
	}
}

// leaves are the faults themselves, without what they are part of.
func leaves(e *jsonschema.ValidationError) (out []*jsonschema.ValidationError) {
	if _, choice := e.ErrorKind.(*kind.AnyOf); choice || len(e.Causes) == 0 {
		return append(out, e)
	}
	for _, cause := range e.Causes {
		out = append(out, leaves(cause)...)
	}
	return out
}

// fault reports one thing that the schema does not allow.
func (d *decoder) fault(root *node, e *jsonschema.ValidationError) {
	n, s, at, path := root, shape(), place{1, 1}, ""
	for _, token := range e.InstanceLocation {
		s = of(s, token)
		if n.kind == yaml.SequenceNode {
			i, _ := strconv.Atoi(token)
			n, path = n.items[i], path+index(i)
			at = n.place
		} else {
			p := n.pair(token)
			n, at, path = p.value, p.place, below(path, token)
		}
	}
	if path == "" {
		path = topLevel
	}
	switch k := e.ErrorKind.(type) {
	case *kind.AdditionalProperties:
		for _, key := range k.Properties {
			if s.PatternProperties != nil {
				d.failAt(n.pair(key).place, "%s: %s %s", path, quote(key), sentenceOf(s))
			} else {
				d.unknownKey(n, key, path, keysOf(s))
			}
		}
	case *kind.Required:
		for _, key := range k.Missing {
			if n.pair(key) == nil && !n.partial && !n.misspelt[key] {
				d.failAt(at, "%s needs %s: %s", path, key, s.Properties[key].Description)
			}
		}
	default:
		if !n.broken && !(n.partial && len(n.pairs) == 0) {
			d.fail(n, "%s %s", path, misfit(s, n, e.ErrorKind))
		}
		n.broken = true
	}
}

func (d *decoder) unknownKey(n *node, key, path string, known []string) {
	p, remedy := n.pair(key), ""
	meant, _, joined := strings.Cut(key, ":")
	if joined && slices.Contains(known, meant) {
		remedy = "put a space behind the colon"
	} else if meant = Nearest(key, known); meant != "" {
		remedy = "did you mean " + meant + "?"
	}
	if meant == "" || n.pair(meant) != nil {
		d.failAt(p.place, "unknown key %s in %s: remove it, or use one of %s", quote(key), path, keyList(known))
		return
	}
	if n.misspelt == nil {
		n.misspelt = map[string]bool{}
	}
	n.misspelt[meant] = true
	d.failAt(p.place, "unknown key %s in %s: %s", quote(key), path, remedy)
}

// keyList names the keys that are allowed; a tool's are too many for a sentence.
func keyList(keys []string) string {
	const most = 14
	switch {
	case len(keys) > most:
		return "the keys " + strings.Join(keys[:most], ", ") + " and others (docs/config.md)"
	case len(keys) == 1:
		return "the key " + keys[0]
	}
	return "the keys " + strings.Join(keys, ", ")
}

// misfit is the rest of the sentence about a value that is not what the schema wants: what it must be, what it is, and what
// to do. It never shows what came from the environment.
func misfit(s *jsonschema.Schema, n *node, why jsonschema.ErrorKind) string {
	switch why.(type) {
	case *kind.Type:
		return mistyped(s, n)
	case *kind.MinLength:
		return "is empty: give a value or remove the key"
	case *kind.MinItems:
		return "is an empty list: name something or remove the key"
	case *kind.MinProperties:
		keys := keysOf(s)
		last := len(keys) - 1
		return "names none: remove the key, or set one of " + strings.Join(keys[:last], ", ") + " and " + keys[last]
	case *kind.Minimum, *kind.Maximum:
		return fmt.Sprintf("must be between %s and %s, not %s", keyword(s, "minimum").Value, keyword(s, "maximum").Value, printable(n.text))
	}
	for _, branch := range s.AnyOf {
		if branch.Enum != nil {
			return "must be " + strings.Trim(strings.ReplaceAll(fmt.Sprint(branch.Enum.Values), " ", " or "), "[]") + ", not " + quote(n.text)
		}
	}
	sentence := sentenceOf(s)
	if strings.HasPrefix(sentence, "must ") {
		return sentence + ", not " + n.asWritten()
	}
	fault, remedy, _ := strings.Cut(sentence, ": ")
	return fault + fromEnvironment(n) + ": " + remedy
}

// sentenceOf is what the schema says of a text that does not match its pattern.
func sentenceOf(s *jsonschema.Schema) string {
	for _, branch := range append([]*jsonschema.Schema{s}, s.AnyOf...) {
		if w := keyword(branch, "patternErrorMessage"); w != nil {
			return w.Value
		}
	}
	return "is not what docs/config.md says: see there"
}

// mistyped is misfit for a value of another type.
func mistyped(s *jsonschema.Schema, n *node) string {
	const digits = ": write it in plain decimal digits"
	scalar := n.kind == yaml.ScalarNode
	switch {
	case is(s, "object") && s.Properties != nil:
		return "must be a mapping with " + keyList(keysOf(s)) + ", not " + n.describe()
	case is(s, "object"):
		return "must be a mapping of " + s.Title + ", not " + n.describe()
	case is(s, "array") && s.Title == "":
		return "must be a list, not " + n.describe() + ": write [a, b]"
	case is(s, "boolean"):
		return "must be true or false, not " + n.asWritten()
	case is(s, "number"):
		return "must be a number, not " + n.asWritten() + digits
	case is(s, "integer") && scalar && n.style != 0:
		return "must be a whole number, not " + n.asWritten() + digits + " and without quotes"
	case is(s, "integer"):
		return "must be a whole number, not " + n.asWritten() + digits
	case is(s, "string") && strings.HasPrefix(s.Title, "a duration"):
		if scalar && n.resolve() == numberScalar {
			return "must be " + s.Title + ", not " + printable(n.text) + ": add the unit"
		}
		return "must be " + s.Title + ", not " + n.asWritten()
	case allows(s, "string") && scalar:
		return "must be " + cmp.Or(s.Title, "text") + ", not " + n.describe() + ": put it in quotes"
	}
	return "must be " + cmp.Or(s.Title, "text") + ", not " + n.describe()
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
