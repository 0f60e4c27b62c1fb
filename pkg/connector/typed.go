package connector

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
)

// Typed makes a tool of a Go function with types: its input_schema and output_schema are those of In and Out.
//
// In is a struct, or a map with string keys. A field is required unless it is marked omitempty or omitzero; members that In
// does not have, also those that differ in case only, are refused with INVALID_ARGUMENT before anything is sent, as is a number
// that its field cannot hold. A tag `jsonschema:"…"` describes a field. A type without a schema (one that refers to itself, a
// func, a channel) is an error: use Func. Schemas do not see a MarshalJSON of a type's own, but for time.Time, json.Number,
// json.RawMessage and those of math/big: use Func for others too.
//
// Digits are kept: an integer field takes every whole number of its size, written without fraction and exponent; what is
// decoded into any is a json.Number. A float64 holds about 15 digits and rounds further ones, as everywhere in Go: money goes into
// an integer of minor units, or a json.Number.
//
// WithSpec may set schemas of its own: they hold beside those of the types. An Out that cannot be encoded, or that its schema
// refuses, has been done all the same: a write is then unknown, or its result is invalid. For the rest see Func; fn's errors
// are GoFunc's.
func Typed[In, Out any](name string, effect envelope.Effect, fn func(ctx context.Context, c *Call, in In) (Out, error), options ...Option) (*Tool, error) {
	input, err := schemaOf(reflect.TypeFor[In]())
	if err != nil {
		return nil, &SpecError{Path: []any{"input_schema"}, Message: err.Error()}
	}
	if object, _ := input.(map[string]any); object["type"] != "object" {
		return nil, &SpecError{Path: []any{"input_schema"}, Message: fmt.Sprintf("args are an object: %s is no struct and no map", reflect.TypeFor[In]())}
	}
	output, err := schemaOf(reflect.TypeFor[Out]())
	if err != nil {
		return nil, &SpecError{Path: []any{"output_schema"}, Message: err.Error()}
	}
	both := func(t *funcTool) {
		t.spec.InputSchema, t.spec.OutputSchema = beside(input, t.spec.InputSchema), beside(output, t.spec.OutputSchema)
	}
	tool, err := Func(name, effect, untyped(fn), append(options[:len(options):len(options)], both)...)
	if err != nil {
		return nil, err
	}
	fits := tool.Fits
	tool.Fits = func(args *strictjson.Args) (string, bool) {
		if field, ok := fits(args); !ok {
			return field, false
		}
		_, err := decodeTyped[In](args.Text())
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
			return Pointer(strings.Split(wrong.Field, ".")...), false
		}
		return "", err == nil
	}
	return tool, nil
}

// untyped is the tool as every other is called.
func untyped[In, Out any](fn func(context.Context, *Call, In) (Out, error)) GoFunc {
	return func(ctx context.Context, c *Call) (json.RawMessage, error) {
		in, err := decodeTyped[In](c.Args)
		if err != nil {
			return nil, ErrNotSent // CheckArgs has refused them already
		}
		out, err := fn(ctx, c, in)
		if err != nil {
			return nil, err
		}
		return strictjson.Marshal(out)
	}
}

func decodeTyped[In any](args json.RawMessage) (in In, err error) {
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	d := json.NewDecoder(bytes.NewReader(args))
	d.UseNumber()
	d.DisallowUnknownFields()
	return in, d.Decode(&in)
}

// beside is a schema that asks for both; the given one may refer to places inside itself.
func beside(own, given any) any {
	if given == nil {
		return own
	}
	if object, ok := given.(map[string]any); ok && object["$id"] == nil {
		copied := map[string]any{"$id": "schema:///given"}
		for k, v := range object {
			copied[k] = v
		}
		given = copied
	}
	return map[string]any{"allOf": []any{own, given}}
}

var (
	number   = &jsonschema.Schema{Type: "number"}
	anything = &jsonschema.Schema{}
)

// schemaOf is the schema of a type, decoded as a config's would be.
func schemaOf(t reflect.Type) (any, error) {
	known := map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[json.Number](): number, reflect.TypeFor[json.RawMessage](): anything,
	}
	s, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: known})
	if err != nil {
		return nil, fmt.Errorf("%s has no JSON Schema: %w", t, err)
	}
	data, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("%s has no JSON Schema: %w", t, err)
	}
	v, _ := strictjson.Decode(data)
	return v, nil
}
