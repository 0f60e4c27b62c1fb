package app

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/internal/strictjson"
)

// KnownKeys refuses JSON with a member that the message's type does not have, and names the one that was probably meant.
// Who reads a message ignores what it does not know, so that a newer publisher can talk to it; who types one for a person
// does not, because a misspelt key would be ignored in silence. message gives the type, what names the message in the
// error. JSON that is malformed or of another shape is left to whoever reads it.
func KnownKeys(data []byte, message any, what string) error {
	if !json.Valid(data) {
		return nil
	}
	return knownKeys(data, reflect.TypeOf(message), what, "")
}

func knownKeys(data json.RawMessage, t reflect.Type, what, at string) (bad error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		i := 0
		strictjson.Elements(data, func(v json.RawMessage) {
			if bad == nil {
				bad = knownKeys(v, t.Elem(), what, at+"/"+strconv.Itoa(i))
			}
			i++
		})
	case t.Kind() == reflect.Struct:
		keys, fields := members(t)
		strictjson.Members(data, func(key string, v json.RawMessage) bool {
			field, known := fields[key]
			if !known {
				bad = unknownKey(what+at, key, keys)
			} else {
				bad = knownKeys(v, field, what, at+"/"+key)
			}
			return bad == nil
		})
	}
	return bad
}

func unknownKey(where, key string, keys []string) error {
	if meant := config.Nearest(key, keys); meant != "" {
		return fmt.Errorf("%s: unknown key %q: did you mean %s?", where, key, meant)
	}
	return fmt.Errorf("%s: unknown key %q: remove it, or use one of %s", where, key, strings.Join(keys, ", "))
}

// members are the JSON names of a struct's fields, in order, and the fields' types.
func members(t reflect.Type) (keys []string, fields map[string]reflect.Type) {
	fields = map[string]reflect.Type{}
	for i := range t.NumField() {
		if key, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); key != "" && key != "-" {
			keys, fields[key] = append(keys, key), t.Field(i).Type
		}
	}
	return keys, fields
}
