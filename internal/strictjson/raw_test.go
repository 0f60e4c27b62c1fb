package strictjson

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestPointer(t *testing.T) {
	// The document and the first rows are RFC 6901 section 5.
	const doc = ` {"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8,"/":9,"~1":10,"e":{"":{"x":11}},"list":[0,1,2,3,4,5,6,7,8,9,10],
		"big":123456789012345678901234567890.10,"\u00e9":{"x":[[1],{"y":1e400}]},"n":null,"$":"s"}`
	tests := []struct{ ptr, want string }{
		{"/foo", `["bar","baz"]`},
		{"/foo/0", `"bar"`},
		{"/foo/1", `"baz"`},
		{"/", `0`},
		{"/a~1b", `1`},
		{"/c%d", `2`},
		{"/e^f", `3`},
		{"/g|h", `4`},
		{`/i\j`, `5`},
		{`/k"l`, `6`},
		{"/ ", `7`},
		{"/m~0n", `8`},
		{"/~1", `9`},
		{"/~01", `10`},
		{"/e//x", `11`},
		{"/list/9", `9`},
		{"/list/10", `10`},
		{"/big", `123456789012345678901234567890.10`},
		{"/é/x/0/0", `1`},
		{"/é/x/1/y", `1e400`},
		{"/n", `null`},
	}
	for _, tt := range tests {
		if got, ok := Pointer(json.RawMessage(doc), tt.ptr); !ok || string(got) != tt.want {
			t.Errorf("%q: got %q, %v, want %q", tt.ptr, got, ok, tt.want)
		}
	}
	if got, ok := Pointer(json.RawMessage(doc), ""); !ok || string(got) != strings.TrimSpace(doc) {
		t.Errorf("the whole document: %q, %v", got, ok)
	}
	for _, ptr := range []string{
		"foo", "#/foo", "/foo/2", "/foo/-", "/foo/00", "/foo/01", "/foo/+1", "/foo/1.0", "/foo/", "/foo/99999999999999999999", "/foo/a", "/foo/:", "/list/1:", "/list/0x1",
		"/nope", "/big/0", "/n/x", "/m~n", "/m~", "/~2", "/a/b", "/FOO", "/$/0",
	} {
		if got, ok := Pointer(json.RawMessage(doc), ptr); ok || got != nil {
			t.Errorf("%q: found %q", ptr, got)
		}
	}
}

// A value found inside a larger one must not let an append reach its neighbour.
func TestPointerCapsItsValue(t *testing.T) {
	doc := json.RawMessage(`{"a":1,"b":2}`)
	got, _ := Pointer(doc, "/a")
	_ = append(got, '9')
	if string(doc) != `{"a":1,"b":2}` {
		t.Errorf("the document became %s", doc)
	}
}

func TestCompact(t *testing.T) {
	tests := []struct{ data, want string }{
		{`{"a":1}`, `{"a":1}`},
		{" { \"a b\" :\t[ 1 , \"\\\" \" ] }\r\n", `{"a b":[1,"\" "]}`},
		{` 1.50 `, `1.50`},
		{`"<&>"`, `"<&>"`},
	}
	for _, tt := range tests {
		if got := Compact([]byte(tt.data)); string(got) != tt.want {
			t.Errorf("%q: got %q, want %q", tt.data, got, tt.want)
		}
	}
}

func TestDepth(t *testing.T) {
	for data, want := range map[string]int{
		`1`: 0, `"[[["`: 0, `[]`: 1, `{"a":1}`: 1, `{"a":{"[":[1,[2]]},"b":[]}`: 4, `[[],[[]],[]]`: 3,
	} {
		if got := depthOf([]byte(data)); got != want {
			t.Errorf("%s: got %d, want %d", data, got, want)
		}
	}
}

func TestCanonical(t *testing.T) {
	tests := []struct{ name, data, want string }{
		{"sorted, no space, numbers as written", `{ "b": 1.50, "a": [ 1e400, -0, 12345678901234567890 ] }`, `{"a":[1e400,-0,12345678901234567890],"b":1.50}`},
		{"sorted inside lists too", `[{"b":1,"a":{"d":1,"c":2}}]`, `[{"a":{"c":2,"d":1},"b":1}]`},
		{"sorted by UTF-8, not by UTF-16", "{\"\U0001f600\":1,\"\uff5e\":2}", "{\"\uff5e\":2,\"\U0001f600\":1}"},
		{"sorted after unescaping", `{"b":1,"\u0061":2}`, `{"a":2,"b":1}`},
		{"a prefix comes first", `{"aa":1,"a":2,"":3}`, `{"":3,"a":2,"aa":1}`},
		{"only what must be escaped is", `"\u003c\/\u00e9\ud83d\ude00\u007f\u2028"`, "\"</é😀\x7f\u2028\""},
		{"short forms, else lower case", `"\u0022\u005c\u0008\u0009\u000A\u000c\u000d\u0000\u001F"`, `"\"\\\b\t\n\f\r\u0000\u001f"`},
		{"a space is kept", `{"a b": " c\u0020"}`, `{"a b":" c "}`},
		{"scalar", " null\n", `null`},
		{"empty containers", `{ "a" : { } , "b" : [ ] }`, `{"a":{},"b":[]}`},
		{"not JSON", `{"a":1,"a":2}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := canonical([]byte(tt.data)); string(got) != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestArgsDigest(t *testing.T) {
	sum := sha256.Sum256([]byte("apply_credit\n" + `{"amount_minor":500,"invoice_id":"inv_7"}`))
	got := ArgsDigest("apply_credit", json.RawMessage(`{ "invoice_id": "inv\u005f7", "amount_minor": 500 }`))
	if want := hex.EncodeToString(sum[:]); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if ArgsDigest("apply_credit", json.RawMessage(`{"a":1.0}`)) == ArgsDigest("apply_credit", json.RawMessage(`{"a":1}`)) {
		t.Error("numbers are compared as written")
	}
}

func TestMarshalKeepsText(t *testing.T) {
	const raw = `{"a":"<&>","n":1e400}`
	got, err := Marshal(struct {
		Args json.RawMessage `json:"args"`
	}{json.RawMessage(raw)})
	if err != nil || string(got) != `{"args":`+raw+`}` {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestParseReference(t *testing.T) {
	for ref, want := range map[string][2]string{
		"load#": {"load", ""}, "load#/id": {"load", "/id"}, "load#/a~1b/0": {"load", "/a~1b/0"}, "l#/#": {"l", "/#"},
	} {
		if step, ptr, ok := ParseReference(ref); !ok || step != want[0] || ptr != want[1] {
			t.Errorf("%q: got %q, %q, %v", ref, step, ptr, ok)
		}
	}
	for _, ref := range []string{"", "load", "#", "#/id", "load#id", "load#/~", "load#/~2"} {
		if _, _, ok := ParseReference(ref); ok {
			t.Errorf("%q passed", ref)
		}
	}
}

func values(ref string) (json.RawMessage, bool) {
	v, ok := map[string]string{
		"load#": `{"id":7,"again":{"$from":"load#/id"}}`, "load#/id": `7`, "load#/big": `12345678901234567890.0`, "n#": `null`,
	}[ref]
	return json.RawMessage(v), ok
}

func TestSubstitute(t *testing.T) {
	tests := []struct{ name, args, want string }{
		{"none", `{"a":[1, 2]}`, `{"a":[1, 2]}`},
		{"one", `{"id":{"$from":"load#/id"},"b":1}`, `{"id":7,"b":1}`},
		{"every digit", `{"id":{"$from":"load#/big"}}`, `{"id":12345678901234567890.0}`},
		{"null is a value", `{"id":{"$from":"n#"}}`, `{"id":null}`},
		{"space inside", "{\"id\":{ \"$from\" :\n\"load#/id\" } }", `{"id":7 }`},
		{"escaped key and text", `{"id":{"\u0024from":"load#\/id"}}`, `{"id":7}`},
		{"the args themselves", `{"$from":"load#/id"}`, `7`},
		{"in lists, twice", `[{"$from":"load#/id"},[{"$from":"load#/id"}]]`, `[7,[7]]`},
		{"not inside a value that was put in", `{"a":{"$from":"load#"}}`, `{"a":{"id":7,"again":{"$from":"load#/id"}}}`},
		{"not beside another key", `{"a":{"$from":"gone#","b":1}}`, `{"a":{"$from":"gone#","b":1}}`},
		{"not after another key", `{"a":{"b":1,"$from":"gone#"}}`, `{"a":{"b":1,"$from":"gone#"}}`},
		{"but inside such an object", `{"b":{"$from":"load#/id"},"$from":{"x":{"$from":"load#/id"}}}`, `{"b":7,"$from":{"x":7}}`},
		{"not in a string", `{"a":"{\"$from\":\"gone#\"}"}`, `{"a":"{\"$from\":\"gone#\"}"}`},
		{"not as a value", `{"a":"$from","b":["$from"]}`, `{"a":"$from","b":["$from"]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := tt.args
			out, bad, err := Substitute(json.RawMessage(tt.args), 0, values)
			if err != nil || bad != "" || string(out) != tt.want {
				t.Errorf("got %s, %v, %q, want %s", out, err, bad, tt.want)
			}
			if tt.args != before {
				t.Errorf("the args became %s", tt.args)
			}
		})
	}
	out, bad, err := Substitute(json.RawMessage(`[{"$from":"load#/id"},{"$from":"gone#/x"},{"$from":"gone#/y"}]`), 0, values)
	if err == nil || bad != "gone#/x" || out != nil {
		t.Errorf("unresolved: %s, %v, %q", out, err, bad)
	}
	for _, value := range []string{`7`, `null`, `["load#/id"]`, `{"a":1}`} {
		out, bad, err := Substitute(json.RawMessage(`{"a":{"$from":`+value+`}}`), 0, values)
		if err == nil || bad != value || out != nil {
			t.Errorf("a reference that is no text, %s: %s, %v, %q", value, out, err, bad)
		}
	}
}

func TestSubstituteWithinBytes(t *testing.T) {
	args := json.RawMessage(`[{"$from":"load#/id"},{"$from":"load#/id"}]`)
	if out, _, err := Substitute(args, 5, values); err != nil || string(out) != `[7,7]` {
		t.Errorf("at the limit: %s, %v", out, err)
	}
	if out, _, err := Substitute(json.RawMessage(`{"$from":"load#/id"}`), 1, values); err != nil || string(out) != `7` {
		t.Errorf("a value at the limit: %s, %v", out, err)
	}
	if _, _, err := Substitute(args, 4, values); !errors.Is(err, ErrArgsTooLarge) {
		t.Errorf("above the limit: %v", err)
	}
	if _, _, err := Substitute(json.RawMessage(`[1,2]`), 4, values); !errors.Is(err, ErrArgsTooLarge) {
		t.Errorf("without a reference: %v", err)
	}
	calls := 0
	many := json.RawMessage("[" + strings.Repeat(`{"$from":"x#"},`, 10_000) + "0]")
	_, _, err := Substitute(many, 256<<10, func(string) (json.RawMessage, bool) {
		calls++
		return bytes.Repeat([]byte("1"), 100<<10), true
	})
	if !errors.Is(err, ErrArgsTooLarge) || calls > 3 {
		t.Errorf("it went on for %d values: %v", calls, err)
	}
	if _, bad, err := Substitute(json.RawMessage(`{"$from":"gone#"}`), 0, values); !errors.Is(err, ErrUnresolved) || bad != "gone#" {
		t.Errorf("unresolved: %q, %v", bad, err)
	}
}

func TestReferences(t *testing.T) {
	got := References(json.RawMessage(`{"a":{"$from":"x#/1"},"b":[{"$from":"y#"},{"$from":"x#/1"}],"c":{"$from":"z#","d":1}}`))
	if want := []string{"x#/1", "y#"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := References(json.RawMessage(`{"a":1}`)); got != nil {
		t.Errorf("got %q", got)
	}
}

func TestMembers(t *testing.T) {
	var got []string
	ok := Members(json.RawMessage(` { "\u0061" : [1, 2] , "A":"x"}`), func(key string, value json.RawMessage) bool {
		got = append(got, key+"="+string(value))
		return true
	})
	if want := []string{"a=[1, 2]", "A=x"}; !ok || len(got) != 2 || got[0] != want[0] || got[1] != `A="x"` {
		t.Errorf("got %q, %v", got, ok)
	}
	if Members(json.RawMessage(`[1]`), func(string, json.RawMessage) bool { return true }) {
		t.Error("a list is no object")
	}
	if !Members(json.RawMessage(`{}`), func(string, json.RawMessage) bool { return true }) {
		t.Error("an empty object is one")
	}
}

// The escapes that one comparison with the wrong bound would get wrong.
func TestEscapes(t *testing.T) {
	for escaped, want := range map[string]string{
		`\u0009\u00a0\u00AF\u00fa\u00FA`: "\t\u00a0\u00af\u00fa\u00fa",
		`\ud7ff\ue000\uffff`:             "\ud7ff\ue000\uffff",
		`\ud800\udc00`:                   "\U00010000",
		`\uD800\uDFFF`:                   "\U000103ff",
		`\udbff\udc00`:                   "\U0010fc00",
		`\udbff\udfff`:                   "\U0010ffff",
		`\ud83d\ude00\u0041`:             "\U0001f600A",
	} {
		if err := CheckJSON([]byte(`"`+escaped+`"`), Bounds{}); err != nil {
			t.Errorf("%s: %v", escaped, err)
		}
		if got := string(appendUnescaped(nil, []byte(escaped))); got != want {
			t.Errorf("%s: got %q, want %q", escaped, got, want)
		}
	}
	for _, escaped := range []string{`\udc00`, `\udfff`, `\ud800`, `\udbff`, `\ud800\ud7ff`, `\ud800\ue000`, `\ud800\n0000000`, `\ud800 udc00`, `\u00g0`, `\u00G0`, "\\u00`0", `\u00@0`, `\u00:0`, `\u00/0`} {
		if err := CheckJSON([]byte(`"`+escaped+`"`), Bounds{}); err == nil {
			t.Errorf("%s passed", escaped)
		}
	}
}

// A document that was cut off anywhere is refused, and nothing that walks through it panics.
func TestEveryPrefix(t *testing.T) {
	const doc = `{"a\u00e9":[1,-2.5e+3,true,false,null,{"$from":"x#/y"}],"b":{"c":"\ud83d\ude00 \\ é"},"d":[[],{}]}`
	for n := range len(doc) {
		data := []byte(doc[:n])
		var bad *JSONError
		if err := CheckJSON(data, Bounds{}); !errors.As(err, &bad) {
			t.Fatalf("%q: %v", data, err)
		}
		switch bad.Fault {
		case FaultEnd, FaultEscape, FaultSurrogate, FaultUTF8: // the last three where the cut is inside an escape or a character
		default:
			t.Errorf("%q: %v", data, bad)
		}
		for _, ptr := range []string{"", "/aé", "/aé/5/$from", "/b/c", "/d/1/x", "/d/9", "/zz"} {
			if whole, ok := Pointer(data, ptr); ok && ptr == "" {
				t.Errorf("%q: the whole is %q", data, whole)
			}
		}
		Compact(data)
		depthOf(data)
		References(data)
		if Members(data, func(string, json.RawMessage) bool { return true }) {
			t.Errorf("%q: all members were seen", data)
		}
		if canonical(data) != nil {
			t.Errorf("%q has a canonical form", data)
		}
	}
}

// Whatever the bytes, nothing panics: a mistake in a caller must not cost a worker.
func FuzzRaw(f *testing.F) {
	for _, tt := range refused {
		if len(tt.data) < 1000 {
			f.Add([]byte(tt.data), "/a/0")
		}
	}
	for _, s := range []string{`{"a":{"$from":"load#/id"}}`, `{"\u0024from":"\ud83d"}`, `{"$from`, `{"$from":`, `{"$from":"a"`, `"\`, `{"a`, `[1`} {
		f.Add([]byte(s), "/$from")
	}
	f.Fuzz(func(t *testing.T, data []byte, ptr string) {
		valid := CheckJSON(data, Bounds{}) == nil
		found, ok := Pointer(data, ptr)
		if ok && valid && CheckJSON(found, Bounds{}) != nil {
			t.Fatalf("%q at %q is no JSON", found, ptr)
		}
		Compact(data)
		depthOf(data)
		Members(data, func(string, json.RawMessage) bool { return true })
		refs := References(data)
		out, bad, err := Substitute(data, 0, func(string) (json.RawMessage, bool) { return json.RawMessage(`[1]`), true })
		if err != nil || bad != "" {
			t.Fatal("every reference has a value")
		}
		if valid && (CheckJSON(out, Bounds{}) != nil || References(out) != nil) {
			t.Fatalf("substituted: %q", out)
		}
		if len(refs) == 0 && !bytes.Equal(out, data) {
			t.Fatalf("without a reference it became %q", out)
		}
	})
}

func depthOf(data []byte) int {
	_, depth := compact(data)
	return depth
}

// canonical is nil for what the check refuses.
func canonical(data []byte) []byte {
	if CheckJSON(data, Bounds{}) != nil {
		return nil
	}
	out, _ := appendCanonical(nil, data, skipSpace(data, 0))
	return out
}
