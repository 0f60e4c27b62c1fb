package connector

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

var english = message.NewPrinter(language.English)

// compileSchema compiles the schema under one key of a tool's config; nil stays nil.
func compileSchema(key string, doc any) (*jsonschema.Schema, error) {
	if doc == nil {
		return nil, nil
	}
	s, err := CompileSchema("schema:///"+key, doc)
	if err != nil {
		return nil, schemaError(key, err)
	}
	return s, nil
}

func schemaError(key string, err error) error {
	e := &SpecError{Path: []any{key}}
	var invalid *jsonschema.SchemaValidationError
	var mismatch *jsonschema.ValidationError
	switch {
	case errors.As(err, &invalid) && errors.As(invalid.Err, &mismatch):
		leaf := mismatch
		for len(leaf.Causes) > 0 {
			leaf = leaf.Causes[0]
		}
		for _, token := range leaf.InstanceLocation {
			if n, err := strconv.Atoi(token); err == nil {
				e.Path = append(e.Path, n)
			} else {
				e.Path = append(e.Path, token)
			}
		}
		e.Message = "not a JSON Schema: " + leaf.ErrorKind.LocalizedString(english)
	case errors.Is(err, errForeignSchema):
		e.Message = errForeignSchema.Error()
	default:
		e.Message = "not a JSON Schema: " + strings.ReplaceAll(err.Error(), "schema:///"+key, "")
	}
	return e
}

// fits reports whether a decoded value fits; no schema fits everything.
func fits(s *jsonschema.Schema, v any) bool { return s == nil || s.Validate(v) == nil }

// place is where a value does not fit its schema.
type place struct {
	tokens  []string
	missing bool
}

// firstMisfit validates and returns the JSON Pointer of the first offending place: of values that are there, the first
// by path (keys by bytes, indexes by number); only if all of them fit, the first required property that is missing, in
// the schema's order, by the path that it should have. Inside anyOf and oneOf it is the value that no branch accepts.
func firstMisfit(s *jsonschema.Schema, v any) (pointer string, ok bool) {
	if s == nil {
		return "", true
	}
	err := s.Validate(v)
	if err == nil {
		return "", true
	}
	var top *jsonschema.ValidationError
	if !errors.As(err, &top) {
		return "", false
	}
	places := misfits(nil, top)
	if len(places) == 0 {
		return "", false
	}
	first := slices.MinFunc(places, func(a, b place) int {
		if a.missing != b.missing {
			if a.missing {
				return 1
			}
			return -1
		}
		return slices.CompareFunc(a.tokens, b.tokens, compareTokens)
	})
	return Pointer(first.tokens...), false
}

func misfits(places []place, e *jsonschema.ValidationError) []place {
	at := func(more ...string) []string { return slices.Concat(e.InstanceLocation, more) }
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		return append(places, place{at(k.Missing[0]), true})
	case *kind.AdditionalProperties:
		for _, p := range k.Properties {
			places = append(places, place{tokens: at(p)})
		}
		return places
	case *kind.AnyOf, *kind.OneOf:
		return append(places, place{tokens: at()})
	}
	if len(e.Causes) == 0 {
		return append(places, place{tokens: at()})
	}
	for _, cause := range e.Causes {
		places = misfits(places, cause)
	}
	return places
}

func compareTokens(a, b string) int {
	m, errA := strconv.Atoi(a)
	n, errB := strconv.Atoi(b)
	if errA == nil && errB == nil {
		return cmp.Compare(m, n)
	}
	return strings.Compare(a, b)
}

// Pointer is the JSON Pointer (RFC 6901) with these tokens.
func Pointer(tokens ...string) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteByte('/')
		b.WriteString(strings.ReplaceAll(strings.ReplaceAll(t, "~", "~0"), "/", "~1"))
	}
	return b.String()
}
