package strictjson

import (
	"bytes"
	"unicode/utf8"
)

// How raw.go, canonical.go and reference.go walk through text that was checked before. On other text they stop early.

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

// eachElement is eachMember for an array, with where each element begins.
func eachElement(data []byte, i int, fn func(value int) bool) {
	i = skipSpace(data, i+1)
	for i < len(data) && data[i] != ']' && fn(i) {
		end, ok := endOfValue(data, i)
		if !ok {
			return
		}
		i = skipSpace(data, end)
		if i >= len(data) || data[i] != ',' {
			return
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
