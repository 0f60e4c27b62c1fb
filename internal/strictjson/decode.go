package strictjson

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The numbers that Decode takes: beyond them the schema library and CEL would compute for minutes or fail.
const (
	numberBytesMax    = 4096 // of one number's text
	numberExponentMax = 1000 // either way
)

// Decode reads data that passed CheckJSON: objects as map[string]any, numbers as json.Number with their digits as written.
// ok is false for other data, and where a number is longer than 4096 bytes or its exponent is beyond ±1000.
func Decode(data []byte) (v any, ok bool) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	err := d.Decode(&v)
	return v, err == nil && withinLimits(v)
}

func withinLimits(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			if !withinLimits(e) {
				return false
			}
		}
	case []any:
		return !slices.ContainsFunc(v, func(e any) bool { return !withinLimits(e) })
	case json.Number:
		if e := strings.IndexAny(string(v), "eE"); e >= 0 {
			n, err := strconv.Atoi(string(v[e+1:]))
			return err == nil && max(n, -n) <= numberExponentMax && len(v) <= numberBytesMax
		}
		return len(v) <= numberBytesMax
	}
	return true
}

// AppendValue appends a decoded value as compact JSON: keys sorted by bytes, json.Number as written, and of the control
// characters the long form, so that the same value is always the same bytes. It reports false for a value that JSON cannot
// hold.
func AppendValue(b []byte, v any) ([]byte, bool) {
	ok := true
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), true
	case bool:
		return strconv.AppendBool(b, v), true
	case json.Number:
		return append(b, v...), true
	case string:
		return appendString(b, strings.ToValidUTF8(v, "\ufffd"), false), true
	case []any:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ',')
			}
			if b, ok = AppendValue(b, e); !ok {
				return b, false
			}
		}
		return append(b, ']'), true
	case map[string]any:
		b = append(b, '{')
		for i, k := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, strings.ToValidUTF8(k, "\ufffd"), false), ':')
			if b, ok = AppendValue(b, v[k]); !ok {
				return b, false
			}
		}
		return append(b, '}'), true
	}
	return b, false
}
