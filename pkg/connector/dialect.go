package connector

import (
	"errors"
	"maps"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// noLoader refuses every document that is not the schema itself: nothing is fetched from a network or a disk.
type noLoader struct{}

var errForeignSchema = errors.New("a schema may only refer to places inside itself")

func (noLoader) Load(string) (any, error) { return nil, errForeignSchema }

// drafts are those that a schema is tried as which does not name one, in this order: draft 2020-12 is the default, and what
// it does not allow (a list under items, exclusiveMinimum as a boolean) earlier ones did.
var drafts = []*jsonschema.Draft{jsonschema.Draft2020, jsonschema.Draft7, jsonschema.Draft4}

// CompileSchema compiles a schema as people and libraries write them, decoded with json.Number for numbers. It reads every
// draft from 4 on; a $schema that names none of them is left out. Formats are annotations in all of them, as 2020-12 has it.
// Patterns are those of ECMA 262. The errors may hold text of the schema's, at says where in them the schema is.
func CompileSchema(at string, doc any) (*jsonschema.Schema, error) {
	s := walker{}
	doc = s.schema(doc)
	var first error
	for _, draft := range drafts {
		c := jsonschema.NewCompiler()
		c.DefaultDraft(draft)
		c.UseLoader(noLoader{})
		c.UseRegexpEngine(compilePattern)
		for _, name := range assertedFormats {
			c.RegisterFormat(&jsonschema.Format{Name: name, Validate: func(any) error { return nil }})
		}
		err := c.AddResource(at, doc)
		if err == nil {
			var compiled *jsonschema.Schema
			if compiled, err = c.Compile(at); err == nil {
				return compiled, nil
			}
		}
		if first == nil {
			first = err
		}
		if s.named {
			break
		}
	}
	return nil, first
}

// assertedFormats are the formats that the library would hold values against in drafts up to 7. A format is what its writer
// means by it: pydantic calls a time without a zone a date-time too.
var assertedFormats = []string{
	"json-pointer", "relative-json-pointer", "uuid", "duration", "period", "ipv4", "ipv6", "hostname", "email", "date", "time",
	"date-time", "uri", "iri", "uri-reference", "iri-reference", "uri-template", "semver",
}

// ReadableSchema is a schema that somebody else wrote, without the patterns that nobody can read, and how many those are.
func ReadableSchema(doc any) (readable any, leftOut int) {
	s := walker{lenient: true}
	return s.schema(doc), s.leftOut
}

// walker copies a schema, place by place: what is data in it (const, enum, default, examples) stays as it is.
type walker struct {
	lenient bool // patterns that cannot be read are left out
	leftOut int
	named   bool // a draft is named
}

func (w *walker) schema(v any) any {
	in, is := v.(map[string]any)
	if !is {
		return v
	}
	out := maps.Clone(in)
	for key, v := range in {
		switch key {
		case "$schema":
			if uri, _ := v.(string); knownDraft(uri) {
				w.named = true
			} else {
				delete(out, key)
			}
		case "pattern":
			if p, is := v.(string); is && w.unreadable(p) {
				delete(out, key)
			}
		case "properties", "$defs", "definitions", "dependentSchemas", "dependencies":
			out[key] = w.each(v)
		case "patternProperties":
			out[key] = w.patterns(w.each(v))
		case "allOf", "anyOf", "oneOf", "prefixItems", "items":
			out[key] = w.list(v)
		case "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "not", "propertyNames", "then",
			"unevaluatedItems", "unevaluatedProperties":
			out[key] = w.schema(v)
		}
	}
	return out
}

func (w *walker) each(v any) any {
	in, is := v.(map[string]any)
	if !is {
		return v
	}
	out := make(map[string]any, len(in))
	for name, s := range in {
		out[name] = w.schema(s)
	}
	return out
}

func (w *walker) list(v any) any {
	in, is := v.([]any)
	if !is {
		return w.schema(v)
	}
	out := make([]any, len(in))
	for i, s := range in {
		out[i] = w.schema(s)
	}
	return out
}

// patterns leaves out what cannot be read of patternProperties. Any property may be one of those then.
func (w *walker) patterns(v any) any {
	all, _ := v.(map[string]any)
	open := false
	for p := range all {
		if w.unreadable(p) {
			delete(all, p)
			open = true
		}
	}
	if _, there := all[""]; open && !there {
		all[""] = true
	}
	return v
}

func (w *walker) unreadable(p string) bool {
	if !w.lenient {
		return false
	}
	if _, err := compilePattern(p); err == nil {
		return false
	}
	w.leftOut++
	return true
}

// knownDraft reports whether a $schema names a draft that is read.
func knownDraft(uri string) bool {
	uri = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSuffix(uri, "#"), "http://"), "https://")
	switch uri {
	case "json-schema.org/schema", "json-schema.org/draft/2020-12/schema", "json-schema.org/draft/2019-09/schema",
		"json-schema.org/draft-07/schema", "json-schema.org/draft-06/schema", "json-schema.org/draft-04/schema":
		return true
	}
	return false
}
