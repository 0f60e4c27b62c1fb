package strictjson

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// Foreign holds the members of one JSON object that this build does not know: a newer build wrote them, and whoever
// writes the object again writes them too. It is their text as it was, separated by commas. A struct that keeps them has a
// field of this type named Foreign, tagged json:"-".
type Foreign string

// KeepForeign puts the members of data that v does not know into the Foreign fields of v and of the structs in it. v is a
// pointer to a struct that json.Unmarshal has filled from the same data. It reports whether there were any. A struct
// without such a field is closed: an unknown member there is an error, because writing it again would lose it.
func KeepForeign(v any, data []byte) (found bool, err error) {
	k := reading{}
	k.value(reflect.ValueOf(v), data)
	return k.found, k.err
}

// AppendForeign writes data, which is the JSON of v, with the members that v and the structs in it keep.
func AppendForeign(buf []byte, v any, data []byte) []byte {
	return graft(buf, reflect.ValueOf(v), data)
}

var foreignType = reflect.TypeFor[Foreign]()

// opened finds the struct or the list behind pointers; ok is false for anything else, and for args, which have no members that
// anybody knows.
func opened(v reflect.Value) (reflect.Value, bool) {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() || v.Type() == reflect.TypeFor[*Args]() {
			return v, false
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct:
		return v, true
	case reflect.Slice:
		of := v.Type().Elem()
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		return v, of.Kind() == reflect.Struct
	}
	return v, false
}

// member finds the field that encoding/json reads a key into.
func member(v reflect.Value, key string) (reflect.Value, bool) {
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "-" && strings.EqualFold(name, key) {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// foreign is the field that keeps what is not known, or the zero Value.
func foreign(v reflect.Value) reflect.Value {
	if f, ok := v.Type().FieldByName("Foreign"); ok && f.Type == foreignType {
		return v.FieldByIndex(f.Index)
	}
	return reflect.Value{}
}

type reading struct {
	found bool
	err   error
}

func (k *reading) value(v reflect.Value, data json.RawMessage) {
	v, ok := opened(v)
	if !ok {
		return
	}
	if v.Kind() == reflect.Slice {
		i := 0
		Elements(data, func(element json.RawMessage) {
			if i < v.Len() {
				k.value(v.Index(i), element)
			}
			i++
		})
		return
	}
	kept := foreign(v)
	Members(data, func(key string, value json.RawMessage) bool {
		if of, ok := member(v, key); ok {
			k.value(of, value)
			return true
		}
		if !kept.IsValid() {
			if k.err == nil {
				k.err = fmt.Errorf("%s has the member %q, which this build does not know", strings.ToLower(v.Type().Name()), key)
			}
			return true
		}
		k.found = true
		text := kept.String()
		if text != "" {
			text += ","
		}
		name, err := Marshal(key)
		if err != nil && k.err == nil {
			k.err = err
		}
		kept.SetString(text + string(name) + ":" + string(Compact(value)))
		return true
	})
}

func graft(buf []byte, v reflect.Value, data json.RawMessage) []byte {
	v, ok := opened(v)
	if !ok || string(data) == "null" {
		return append(buf, data...)
	}
	if v.Kind() == reflect.Slice {
		i := 0
		buf = append(buf, '[')
		Elements(data, func(element json.RawMessage) {
			if i > 0 {
				buf = append(buf, ',')
			}
			buf = graft(buf, v.Index(i), element)
			i++
		})
		return append(buf, ']')
	}
	start := len(buf)
	buf = append(buf, '{')
	next := func() {
		if len(buf) > start+1 {
			buf = append(buf, ',')
		}
	}
	Members(data, func(key string, value json.RawMessage) bool {
		next()
		buf = append(append(append(buf, '"'), key...), '"', ':') // the names of our own fields need no escape
		if of, ok := member(v, key); ok {
			buf = graft(buf, of, value)
		} else {
			buf = append(buf, value...)
		}
		return true
	})
	if kept := foreign(v); kept.IsValid() && kept.Len() > 0 {
		next()
		buf = append(buf, kept.String()...)
	}
	return append(buf, '}')
}
