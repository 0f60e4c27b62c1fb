package envelope

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"
)

// The functions of this file work on the text of a value that passed CheckJSON: numbers are never decoded, so every
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
	var out []byte
	from := 0
	for i := 0; i < len(data); {
		switch data[i] {
		case '"':
			end, ok := endOfString(data, i)
			if !ok {
				end = len(data)
			}
			i = end
		case ' ', '\t', '\n', '\r':
			if out == nil {
				out = make([]byte, 0, len(data))
			}
			out = append(out, data[from:i]...)
			i = skipSpace(data, i)
			from = i
		default:
			i++
		}
	}
	if out == nil {
		return data
	}
	return append(out, data[from:]...)
}

// Depth is the number of containers around the innermost value: 0 for a scalar, 1 for [] and {"a":1}.
func Depth(data []byte) int {
	depth, deepest := 0, 0
	for i := 0; i < len(data); {
		switch data[i] {
		case '"':
			end, ok := endOfString(data, i)
			if !ok {
				return deepest
			}
			i = end
			continue
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		}
		i++
	}
	return deepest
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
	if bytes.IndexByte(key, '\\') >= 0 {
		return string(appendUnescaped(nil, key)) == name
	}
	return string(key) == name
}

// Canonical writes the one form in which equal args have equal bytes (contract §9, approve): keys sorted by the bytes of
// their UTF-8, numbers as written, no white space, and in strings only what must be escaped is (the quote, the backslash
// and control characters, with the short forms where JSON has them, else \u00xx in lower case). Data that CheckJSON
// refuses gives nil.
func Canonical(data []byte) []byte {
	if CheckJSON(data, Bounds{}) != nil {
		return nil
	}
	return appendCanonical(make([]byte, 0, len(data)), data, skipSpace(data, 0))
}

func appendCanonical(dst, data []byte, i int) []byte {
	switch data[i] {
	case '{':
		type member struct {
			name  []byte
			value int
		}
		var members []member
		eachMember(data, i, func(key []byte, value int) bool {
			if bytes.IndexByte(key, '\\') >= 0 {
				key = appendUnescaped(nil, key)
			}
			members = append(members, member{key, value})
			return true
		})
		slices.SortFunc(members, func(a, b member) int { return bytes.Compare(a.name, b.name) })
		dst = append(dst, '{')
		for k, m := range members {
			if k > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendString(dst, m.name), ':')
			dst = appendCanonical(dst, data, m.value)
		}
		return append(dst, '}')
	case '[':
		dst = append(dst, '[')
		first := true
		eachElement(data, i, func(value int) bool {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = appendCanonical(dst, data, value)
			return true
		})
		return append(dst, ']')
	case '"':
		end, _ := endOfString(data, i)
		text := data[i+1 : end-1]
		if bytes.IndexByte(text, '\\') >= 0 {
			text = appendUnescaped(nil, text)
		}
		return appendString(dst, text)
	}
	end, _ := endOfValue(data, i)
	return append(dst, data[i:end]...)
}

// ArgsDigest names args exactly: the SHA-256 of the tool's name, a newline and the canonical form of the args, in 64
// lower-case hex digits (contract §9, approve).
func ArgsDigest(tool string, args json.RawMessage) string {
	h := sha256.New()
	h.Write([]byte(tool))
	h.Write([]byte{'\n'})
	h.Write(Canonical(args))
	return hex.EncodeToString(h.Sum(nil))
}

const hexDigits = "0123456789abcdef"

// appendString writes a string of valid UTF-8 in the canonical form.
func appendString(dst, text []byte) []byte {
	dst = append(dst, '"')
	for _, b := range text {
		switch {
		case b == '"' || b == '\\':
			dst = append(dst, '\\', b)
		case b >= ' ':
			dst = append(dst, b)
		case b == '\b':
			dst = append(dst, '\\', 'b')
		case b == '\t':
			dst = append(dst, '\\', 't')
		case b == '\n':
			dst = append(dst, '\\', 'n')
		case b == '\f':
			dst = append(dst, '\\', 'f')
		case b == '\r':
			dst = append(dst, '\\', 'r')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[b>>4], hexDigits[b&15])
		}
	}
	return append(dst, '"')
}

func skipSpace(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\n' || data[i] == '\t' || data[i] == '\r') {
		i++
	}
	return i
}

// endOfString finds the byte after the closing quote of the string that begins at i.
func endOfString(data []byte, i int) (int, bool) {
	if i >= len(data) || data[i] != '"' {
		return 0, false
	}
	for i++; i < len(data); i++ {
		switch data[i] {
		case '"':
			return i + 1, true
		case '\\':
			i++
		}
	}
	return 0, false
}

// endOfValue finds the byte after the value that begins at i; a value is never empty.
func endOfValue(data []byte, i int) (int, bool) {
	if i >= len(data) {
		return 0, false
	}
	switch data[i] {
	case '"':
		return endOfString(data, i)
	case '{', '[':
		for depth := 0; i < len(data); i++ {
			switch data[i] {
			case '"':
				end, ok := endOfString(data, i)
				if !ok {
					return 0, false
				}
				i = end - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1, true
				}
			}
		}
		return 0, false
	}
	start := i
	for i < len(data) && bytes.IndexByte([]byte(" \t\n\r,]}:\""), data[i]) < 0 {
		i++
	}
	return i, i > start
}

// eachMember calls fn with each key of the object at i, as written and without its quotes, and where its value begins,
// until fn is false. It reports whether it saw the object's end.
func eachMember(data []byte, i int, fn func(key []byte, value int) bool) bool {
	i = skipSpace(data, i+1)
	if i < len(data) && data[i] == '}' {
		return true
	}
	for {
		end, ok := endOfString(data, i)
		if !ok {
			return false
		}
		key := data[i+1 : end-1]
		i = skipSpace(data, end)
		if i >= len(data) || data[i] != ':' {
			return false
		}
		i = skipSpace(data, i+1)
		if i >= len(data) || !fn(key, i) {
			return false
		}
		if i, ok = endOfValue(data, i); !ok {
			return false
		}
		i = skipSpace(data, i)
		if i >= len(data) || data[i] != ',' {
			return i < len(data) && data[i] == '}'
		}
		i = skipSpace(data, i+1)
	}
}

// eachElement is eachMember for an array.
func eachElement(data []byte, i int, fn func(value int) bool) bool {
	i = skipSpace(data, i+1)
	if i < len(data) && data[i] == ']' {
		return true
	}
	for {
		if i >= len(data) || !fn(i) {
			return false
		}
		var ok bool
		if i, ok = endOfValue(data, i); !ok {
			return false
		}
		i = skipSpace(data, i)
		if i >= len(data) || data[i] != ',' {
			return i < len(data) && data[i] == ']'
		}
		i = skipSpace(data, i+1)
	}
}

// appendUnescaped appends the UTF-8 that the inside of a JSON string stands for. A lone surrogate reads as U+FFFD.
func appendUnescaped(dst, text []byte) []byte {
	for i := 0; i < len(text); {
		b := text[i]
		if b != '\\' || i+1 >= len(text) {
			dst = append(dst, b)
			i++
			continue
		}
		b = text[i+1]
		i += 2
		switch b {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			u, ok := hex4(text[i:])
			if !ok {
				dst = utf8.AppendRune(dst, utf8.RuneError)
				continue
			}
			i += 4
			if u >= 0xd800 && u < 0xdc00 {
				if lo, ok := lowSurrogate(text[i:]); ok {
					i += 6
					u = 0x10000 + (u-0xd800)<<10 + (lo - 0xdc00)
				}
			}
			dst = utf8.AppendRune(dst, u)
		default:
			dst = append(dst, b)
		}
	}
	return dst
}

// hex4 reads four hexadecimal digits.
func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, d := range b[:4] {
		switch {
		case d >= '0' && d <= '9':
			d -= '0'
		case d >= 'a' && d <= 'f':
			d -= 'a' - 10
		case d >= 'A' && d <= 'F':
			d -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	return r, true
}

// lowSurrogate reads the escape of a low surrogate.
func lowSurrogate(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	r, ok := hex4(b[2:])
	return r, ok && r >= 0xdc00 && r < 0xe000
}
