package strictjson

import "encoding/json"

// Elements calls fn with the text of each element of a JSON array in order. It returns false if the data is no array. The
// data must have passed CheckJSON.
func Elements(data json.RawMessage, fn func(element json.RawMessage)) bool {
	i := skipSpace(data, 0)
	if i >= len(data) || data[i] != '[' {
		return false
	}
	eachElement(data, i, func(at int) bool {
		end, ok := endOfValue(data, at)
		if ok {
			fn(data[at:end])
		}
		return ok
	})
	return true
}

// Members calls fn with each member of a JSON object in order: the unescaped key and the text of the value. It returns
// false if the data is no object or fn returned false. The data must have passed CheckJSON. Unlike encoding/json it
// matches keys exactly, so that a field in other letters is an unknown field.
func Members(data json.RawMessage, fn func(key string, value json.RawMessage) bool) bool {
	i := skipSpace(data, 0)
	if i >= len(data) || data[i] != '{' {
		return false
	}
	var name []byte
	return eachMember(data, i, func(key []byte, at int) bool {
		end, ok := endOfValue(data, at)
		if !ok {
			return false
		}
		name = appendUnescaped(name[:0], key)
		return fn(string(name), data[at:end])
	})
}
