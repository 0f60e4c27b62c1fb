package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
)

// What Substitute can fail with.
var (
	ErrUnresolved   = errors.New("a reference has no value")
	ErrArgsTooLarge = errors.New("resolved args are too large")
)

const refKey = "$from"

// ParseReference splits the text of a $from, "<step>#<JSON Pointer>", in its two parts. It is false without a step or a
// '#', or where what follows is no JSON Pointer.
func ParseReference(ref string) (step, pointer string, ok bool) {
	step, pointer, ok = strings.Cut(ref, "#")
	return step, pointer, ok && step != "" && ValidPointer(pointer)
}

// References lists the references of args in the order in which they are written, each once. An object is a reference
// when "$from" is its only key and its value is a string.
func References(args json.RawMessage) []string {
	var refs []string
	seen := map[string]bool{}
	eachReference(args, func(ref string, _, _ int) bool {
		if !seen[ref] {
			seen[ref] = true
			refs = append(refs, ref)
		}
		return true
	})
	return refs
}

// Substitute replaces every reference in args by the value that fn gives for it. Values are put in as they are: what
// looks like a reference inside one stays. Where fn has none, the error is ErrUnresolved and badRef is that reference. Above
// maxBytes it stops with ErrArgsTooLarge: a small job may name a large result many times; 0 is no limit. Args without a
// reference are returned as they are.
func Substitute(args json.RawMessage, maxBytes int, fn func(ref string) (json.RawMessage, bool)) (out json.RawMessage, badRef string, err error) {
	var buf []byte
	from := 0
	eachReference(args, func(ref string, start, end int) bool {
		value, ok := fn(ref)
		if !ok || len(value) == 0 {
			badRef, err = ref, ErrUnresolved
			return false
		}
		if maxBytes > 0 && len(buf)+start-from+len(value) > maxBytes {
			err = ErrArgsTooLarge
			return false
		}
		buf = append(buf, args[from:start]...)
		buf = append(buf, value...)
		from = end
		return true
	})
	switch {
	case err != nil:
		return nil, badRef, err
	case maxBytes > 0 && len(buf)+len(args)-from > maxBytes:
		return nil, "", ErrArgsTooLarge
	case from == 0:
		return args, "", nil
	}
	return append(buf, args[from:]...), "", nil
}

// eachReference calls fn with each reference of args and the place of its object, in the order of the text, until fn is
// false.
func eachReference(args []byte, fn func(ref string, start, end int) bool) {
	if !bytes.Contains(args, []byte(refKey)) && !bytes.Contains(args, []byte(`\u`)) {
		return
	}
	for i := 0; i < len(args); {
		switch args[i] {
		case '"':
			end, ok := endOfString(args, i)
			if !ok {
				return
			}
			i = end
		case '{':
			ref, end, ok := reference(args, i)
			if !ok {
				i++
				continue
			}
			if !fn(ref, i, end) {
				return
			}
			i = end
		default:
			i++
		}
	}
}

// reference reads the object at i if it is a reference.
func reference(data []byte, i int) (ref string, end int, ok bool) {
	i = skipSpace(data, i+1)
	keyEnd, ok := endOfString(data, i)
	if !ok || !keyIs(data[i+1:keyEnd-1], refKey) {
		return "", 0, false
	}
	i = skipSpace(data, keyEnd)
	if i >= len(data) || data[i] != ':' {
		return "", 0, false
	}
	i = skipSpace(data, i+1)
	valueEnd, ok := endOfValue(data, i)
	if !ok {
		return "", 0, false
	}
	if data[i] == '"' {
		ref = string(appendUnescaped(nil, data[i+1:valueEnd-1]))
	} else {
		ref = string(data[i:valueEnd]) // no text: a reference all the same, and one that leads nowhere
	}
	i = skipSpace(data, valueEnd)
	if i >= len(data) || data[i] != '}' {
		return "", 0, false
	}
	return ref, i + 1, true
}
