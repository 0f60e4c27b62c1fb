package strictjson

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Compact, Pointer, Members and References work on the text of a value that passed CheckJSON: numbers are never decoded, so every
// digit is kept. On other data they do not panic, and what they return means nothing.

// Marshal is json.Marshal without the escaping of <, > and & for HTML: raw values inside v keep the text they were
// checked and digested with, so that the bytes of a repeated request are those of the first.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Compact drops the white space between tokens. It returns the data itself where there is none.
func Compact(data []byte) json.RawMessage {
	out, _ := compact(data)
	return out
}

// compact is Compact, and says how many containers are around the innermost value.
func compact(data []byte) (out []byte, deepest int) {
	from, depth := 0, 0
	for i := 0; i < len(data); {
		switch data[i] {
		case '"':
			end, ok := endOfString(data, i)
			if !ok {
				end = len(data)
			}
			i = end
			continue
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		case ' ', '\t', '\n', '\r':
			if out == nil {
				out = make([]byte, 0, len(data))
			}
			out = append(out, data[from:i]...)
			i = skipSpace(data, i)
			from = i
			continue
		}
		i++
	}
	if out == nil {
		return data, deepest
	}
	return append(out, data[from:]...), deepest
}

// Pointer finds the value at an RFC 6901 JSON Pointer, as a part of data. "" is the whole value; the elements of an
// array are counted from 0 without leading zeros, and "-" names none. It is false where nothing is found or ptr is no
// JSON Pointer.
func Pointer(data json.RawMessage, ptr string) (json.RawMessage, bool) {
	if !ValidPointer(ptr) {
		return nil, false
	}
	i := skipSpace(data, 0)
	for ptr != "" {
		token := ptr[1:]
		if k := strings.IndexByte(token, '/'); k >= 0 {
			token, ptr = token[:k], token[k:]
		} else {
			ptr = ""
		}
		var ok bool
		if i, ok = child(data, i, token); !ok {
			return nil, false
		}
	}
	end, ok := endOfValue(data, i)
	if !ok {
		return nil, false
	}
	return data[i:end:end], true
}

// ValidPointer reports whether the text is an RFC 6901 JSON Pointer.
func ValidPointer(ptr string) bool {
	if ptr != "" && ptr[0] != '/' {
		return false
	}
	for i := 0; i < len(ptr); i++ {
		if ptr[i] == '~' && (i+1 >= len(ptr) || (ptr[i+1] != '0' && ptr[i+1] != '1')) {
			return false
		}
	}
	return true
}

var pointerUnescape = strings.NewReplacer("~1", "/", "~0", "~")

// child finds where the member begins that a pointer's token names, in the container that begins at i.
func child(data []byte, i int, token string) (at int, ok bool) {
	if i >= len(data) {
		return 0, false
	}
	switch data[i] {
	case '{':
		name := token
		if strings.IndexByte(token, '~') >= 0 {
			name = pointerUnescape.Replace(token)
		}
		eachMember(data, i, func(key []byte, value int) bool {
			if keyIs(key, name) {
				at, ok = value, true
			}
			return !ok
		})
	case '[':
		n, valid := arrayIndex(token)
		if !valid {
			return 0, false
		}
		eachElement(data, i, func(value int) bool {
			if n == 0 {
				at, ok = value, true
			}
			n--
			return !ok
		})
	}
	return at, ok
}

// arrayIndex reads an index of RFC 6901: digits without a leading zero.
func arrayIndex(token string) (n int, ok bool) {
	if token == "" || len(token) > 9 || (len(token) > 1 && token[0] == '0') {
		return 0, false
	}
	for i := 0; i < len(token); i++ {
		if token[i] < '0' || token[i] > '9' {
			return 0, false
		}
		n = n*10 + int(token[i]-'0')
	}
	return n, true
}

// keyIs compares a key as written, without its quotes, with a name.
func keyIs(key []byte, name string) bool {
	return string(unescaped(key)) == name
}
