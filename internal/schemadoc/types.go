package schemadoc

import (
	"encoding/json"
	"path"
	"reflect"
	"strconv"

	"github.com/invopop/jsonschema"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

var (
	timeType    = reflect.TypeFor[envelope.Time]()
	rawType     = reflect.TypeFor[json.RawMessage]()
	argsType    = reflect.TypeFor[strictjson.Args]()
	codeType    = reflect.TypeFor[envelope.Code]()
	detailsType = reflect.TypeFor[envelope.Details]()
	requestType = reflect.TypeFor[budget.Request]()
	usageType   = reflect.TypeFor[budget.Usage]()
)

// mapType gives the schema of types whose JSON form is not what reflection sees; nil leaves a type to reflection.
func (s *sources) mapType(t reflect.Type) *jsonschema.Schema {
	switch t {
	case timeType:
		return &jsonschema.Schema{Type: "string", Format: "date-time"}
	case rawType, argsType:
		return &jsonschema.Schema{}
	case codeType:
		return &jsonschema.Schema{Type: "string", Pattern: envelope.CodePattern}
	case detailsType:
		return &jsonschema.Schema{
			Type: "object",
			AdditionalProperties: &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
				{Type: "string", MaxLength: number(256)}, {Type: "number"}, {Type: "boolean"},
			}},
		}
	}
	if t.Kind() == reflect.String && t.PkgPath() != "" {
		return &jsonschema.Schema{Type: "string", Enum: s.values[typeKey(t)]}
	}
	return nil
}

// comment finds the doc comment of a type, or of its field; a field without one is described by its type, unless the
// type has a definition of its own that says it.
func (s *sources) comment(t reflect.Type, field string) string {
	if field == "" {
		return s.types[typeKey(t)]
	}
	if text := s.fields[typeKey(t)+"."+field]; text != "" {
		return text
	}
	f, ok := t.FieldByName(field)
	switch {
	case !ok:
		return ""
	case f.Type == codeType:
		return "One of docs/codes.md, or a tool's own."
	case f.Type == rawType:
		return "Any JSON value; numbers keep every digit."
	case f.Type == detailsType || (f.Type.Kind() == reflect.String && f.Type.PkgPath() != ""):
		return s.types[typeKey(f.Type)]
	}
	return ""
}

// typeKey is the name of a type in the sources: its package's last element and its own name.
func typeKey(t reflect.Type) string { return path.Base(t.PkgPath()) + "." + t.Name() }

// defName names a type below $defs. Two packages may have a type of the same name.
func defName(t reflect.Type) string {
	if t.Name() == "" {
		return ""
	}
	return typeKey(t)
}

func number(n uint64) *uint64 { return &n }

// refineJob adds the limits of contract §1, §3 and §12 that a publisher can check before it publishes.
func refineJob(s *jsonschema.Schema) {
	limit(s, "tenant", idPattern)
	limit(s, "run_id", idPattern)
	limit(s, "owner", idPattern)
	p := property(s, "priority")
	p.Minimum, p.Maximum = "0", "9"
	property(s, "steps").MaxItems = number(run.MaxJobSteps)
	step := s.Definitions["run.JobStep"]
	limit(step, "step", idPattern)
	limit(step, "tool", toolPattern)
	args := property(step, "args")
	args.Type = "object"
	args.Description = "The tool's arguments. An object whose only key is $from is replaced by a part of an earlier step's result."
	// Lengths count characters here and bytes in the runtime: what is longer here is refused there for certain.
	property(s, "actor").MaxLength = number(256)
	property(s, "intent").MaxLength = number(1 << 10)
	for _, t := range []reflect.Type{requestType, usageType} {
		for p := s.Definitions[typeKey(t)].Properties.Oldest(); p != nil; p = p.Next() {
			p.Value.Minimum = "0"
			if p.Value.Type == "integer" {
				p.Value.Maximum = json.Number(strconv.Itoa(budget.MaxNumber))
			}
		}
	}
}

// Contract §1, as pkg/run checks it; a test holds them together.
const (
	idPattern   = `^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`
	toolPattern = `^[A-Za-z0-9][A-Za-z0-9_./-]{0,127}$`
)

// refineEnvelope says which fields a success and a failure have.
func refineEnvelope(s *jsonschema.Schema) {
	ok := jsonschema.NewProperties()
	ok.Set("ok", &jsonschema.Schema{Const: true})
	committed := jsonschema.NewProperties()
	committed.Set("commit_state", &jsonschema.Schema{Const: envelope.Committed})
	s.If = &jsonschema.Schema{Properties: ok}
	s.Then = &jsonschema.Schema{Properties: committed}
	s.Else = &jsonschema.Schema{Required: []string{"code", "category", "retry", "next_action"}}
}

func refineOutcome(s *jsonschema.Schema) {
	refineEnvelope(s.Definitions["envelope.Envelope"])
	property(s, "n").Minimum = "1"
}

func limit(s *jsonschema.Schema, name, pattern string) { property(s, name).Pattern = pattern }

// property finds a property that must be there: the code and this file have to agree.
func property(s *jsonschema.Schema, name string) *jsonschema.Schema {
	p, ok := s.Properties.Get(name)
	if !ok {
		panic("schemadoc: no property " + name)
	}
	return p
}
