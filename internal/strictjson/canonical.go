package strictjson

import (
	"bytes"
	"slices"
	"strings"
)

// appendCanonical appends the value at i of checked data in the one form in which equal args have equal bytes (contract §9,
// approve), and says where it ends: keys sorted by the bytes of their UTF-8, numbers as written, no white space, and in
// strings only what must be escaped is (the quote, the backslash and control characters, with the short forms where JSON has
// them, else \u00xx in lower case).
func appendCanonical(dst, data []byte, i int) (out []byte, end int) {
	switch data[i] {
	case '{':
		return appendCanonicalObject(dst, data, i)
	case '[':
		dst = append(dst, '[')
		for i = skipSpace(data, i+1); data[i] != ']'; {
			dst, i = appendCanonical(dst, data, i)
			if i = skipSpace(data, i); data[i] == ',' {
				dst = append(dst, ',')
				i = skipSpace(data, i+1)
			}
		}
		return append(dst, ']'), i + 1
	case '"':
		end, _ = endOfString(data, i)
		return appendString(dst, unescaped(data[i+1:end-1]), true), end
	}
	end, _ = endOfValue(data, i)
	return append(dst, data[i:end]...), end
}

func appendCanonicalObject(dst, data []byte, i int) (out []byte, end int) {
	type member struct {
		name     []byte
		from, to int // the member in dst, with its key
	}
	var members []member
	dst = append(dst, '{')
	start := len(dst)
	for i = skipSpace(data, i+1); data[i] != '}'; {
		end, _ := endOfString(data, i)
		m := member{name: unescaped(data[i+1 : end-1]), from: len(dst)}
		dst = append(appendString(dst, m.name, true), ':')
		i = skipSpace(data, skipSpace(data, end)+1)
		dst, i = appendCanonical(dst, data, i)
		m.to = len(dst)
		members = append(members, m)
		if i = skipSpace(data, i); data[i] == ',' {
			dst = append(dst, ',')
			i = skipSpace(data, i+1)
		}
	}
	byName := func(a, b member) int { return bytes.Compare(a.name, b.name) }
	if !slices.IsSortedFunc(members, byName) {
		slices.SortFunc(members, byName)
		written := slices.Clone(dst[start:])
		dst = dst[:start]
		for k, m := range members {
			if k > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, written[m.from-start:m.to-start]...)
		}
	}
	return append(dst, '}'), i + 1
}

// unescaped is the UTF-8 of the inside of a JSON string: the text itself where it has no escapes.
func unescaped(text []byte) []byte {
	if bytes.IndexByte(text, '\\') < 0 {
		return text
	}
	return appendUnescaped(nil, text)
}

const (
	hexDigits = "0123456789abcdef"
	shortened = "\b\t\n\f\r"
)

// appendString writes a string of valid UTF-8, in which only what must be escaped is: control characters in the short forms
// that JSON has for some of them, as the canonical form wants, or all alike.
func appendString[T string | []byte](dst []byte, text T, short bool) []byte {
	dst = append(dst, '"')
	for i := range len(text) {
		b := text[i]
		switch {
		case b == '"' || b == '\\':
			dst = append(dst, '\\', b)
		case b >= ' ':
			dst = append(dst, b)
		case short && strings.IndexByte(shortened, b) >= 0:
			dst = append(dst, '\\', "btnfr"[strings.IndexByte(shortened, b)])
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[b>>4], hexDigits[b&15])
		}
	}
	return append(dst, '"')
}
