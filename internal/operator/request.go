package operator

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/run"
)

func refuse(code, format string, args ...any) *engine.Refusal {
	return &engine.Refusal{Code: code, Message: fmt.Sprintf(format, args...)}
}

func badRequest(format string, args ...any) *engine.Refusal {
	return refuse(run.BadRequest, format, args...)
}

// decode reads a request strictly: one JSON object within bounds, keys matched exactly, null like a missing member, unknown
// members ignored. No payload at all is an empty object. request is a pointer to a struct.
func decode(data []byte, request any) error {
	if len(data) == 0 {
		return nil
	}
	if err := strictjson.CheckJSON(data, strictjson.Bounds{MaxBytes: requestMax, MaxDepth: depthMax}); err != nil {
		return badRequest("the request is no JSON object: %v", err)
	}
	fields := fieldsOf(reflect.ValueOf(request).Elem())
	bad := ""
	whole := strictjson.Members(data, func(key string, value json.RawMessage) bool {
		field, known := fields[key]
		if !known || string(value) == "null" {
			return true
		}
		if !decodeField(field, value) {
			bad = key
			return false
		}
		return true
	})
	switch {
	case bad != "":
		return badRequest("%s is not what it should be; the endpoint's metadata has the request's schema", bad)
	case !whole:
		return badRequest("the request is no JSON object")
	}
	return nil
}

func decodeField(field reflect.Value, value json.RawMessage) bool {
	if t, ok := field.Addr().Interface().(*json.RawMessage); ok {
		*t = strictjson.Compact(value)
		return true
	}
	if f, ok := field.Addr().Interface().(**Filter); ok {
		*f = new(Filter)
		return value[0] == '{' && onlyKnown(value, fieldsOf(reflect.ValueOf(*f).Elem())) && decode(value, *f) == nil
	}
	return json.Unmarshal(value, field.Addr().Interface()) == nil
}

// onlyKnown: a filter says which letters a bulk call settles. A misspelt key that were ignored, as elsewhere, would settle
// them all; a misspelt limit in add_budget would leave the run without what it was promised.
func onlyKnown(data json.RawMessage, fields map[string]reflect.Value) bool {
	return strictjson.Members(data, func(key string, _ json.RawMessage) bool {
		_, known := fields[key]
		return known
	})
}

// fieldsOf finds a struct's fields by their JSON names, those of embedded structs included.
func fieldsOf(v reflect.Value) map[string]reflect.Value {
	out := map[string]reflect.Value{}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			for name, field := range fieldsOf(v.Field(i)) {
				out[name] = field
			}
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out[name] = v.Field(i)
	}
	return out
}

// subject is the run that a call is about.
func subject(tenant, runID string) (run.ID, error) {
	switch {
	case runID == "":
		return run.ID{}, badRequest("run_id is missing")
	case !run.ValidID(runID):
		return run.ID{}, badRequest("run_id is no identifier (letters, digits, _ and -, at most 64, the first a letter or digit)")
	}
	return run.ID{Tenant: tenant, Run: runID}, nil
}

// person checks who makes a call.
func person(by string) error {
	switch {
	case by == "":
		return badRequest("by is missing")
	case !run.ValidActor(by):
		return badRequest("by must be text without control characters, at most 256 bytes")
	}
	return nil
}

// why checks the reason of a change.
func why(reason string) error {
	switch {
	case reason == "":
		return badRequest("reason is missing")
	case len(reason) > reasonMax:
		return badRequest("reason must be at most %d bytes", reasonMax)
	}
	return nil
}

// reasonMax bounds what a person may write into the history, in bytes.
const reasonMax = 4 << 10

// within checks a limit that may be left out.
func within(limit *int, otherwise, most int) (int, error) {
	switch {
	case limit == nil:
		return otherwise, nil
	case *limit < 1 || *limit > most:
		return 0, badRequest("limit must be from 1 to %d", most)
	}
	return *limit, nil
}
