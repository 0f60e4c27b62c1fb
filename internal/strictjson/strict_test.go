package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func manyKeys(n int, last string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range n {
		fmt.Fprintf(&b, `"k%d":%d,`, i, i)
	}
	return b.String() + `"` + last + `":0}`
}

var refused = []struct {
	name, data string
	bounds     Bounds
	fault      JSONFault
	offset     int
}{
	{"empty", "", Bounds{}, FaultEnd, 0},
	{"only space", " \n", Bounds{}, FaultEnd, 2},
	{"too large", `"abcdef"`, Bounds{MaxBytes: 7}, FaultTooLarge, 7},
	{"array too deep", `[[[]]]`, Bounds{MaxDepth: 2}, FaultTooDeep, 2},
	{"object too deep", `{"a":{"b":{}}}`, Bounds{MaxDepth: 2}, FaultTooDeep, 10},
	{"deeper than encoding/json reads", strings.Repeat("[", 10_001), Bounds{}, FaultTooDeep, 10_000},
	{"a bound above that", strings.Repeat("[", 10_001), Bounds{MaxDepth: 1 << 30}, FaultTooDeep, 10_000},
	{"duplicate key", `{"a":1,"a":2}`, Bounds{}, FaultDuplicateKey, 7},
	{"duplicate after unescaping", `{"a":1,"\u0061":2}`, Bounds{}, FaultDuplicateKey, 7},
	{"duplicate pair of escapes", `{"😀":1,"\ud83d\ude00":2}`, Bounds{}, FaultDuplicateKey, 10},
	{"duplicate empty key", `{"":1,"":2}`, Bounds{}, FaultDuplicateKey, 6},
	{"duplicate in the inner object", `[{"a":{"b":1,"b":1}}]`, Bounds{}, FaultDuplicateKey, 13},
	{"duplicate in a large object", manyKeys(100, "k7"), Bounds{}, FaultDuplicateKey, len(manyKeys(100, "k7")) - 7},
	{"duplicate of the first key of a large object", "{" + manyKeys(20, "k0")[1:], Bounds{}, FaultDuplicateKey, len(manyKeys(20, "k0")) - 7},
	{"the first of several duplicates", `{"z":1,"a":1,` + manyKeys(20, "z")[1:len(manyKeys(20, "z"))-1] + `,"a":2}`, Bounds{}, FaultDuplicateKey, len(manyKeys(20, "z")) + 6},
	{"trailing value", `{} {}`, Bounds{}, FaultTrailing, 3},
	{"trailing comma behind", `1,`, Bounds{}, FaultTrailing, 1},
	{"trailing NUL", "1 \x00", Bounds{}, FaultTrailing, 2},
	{"invalid UTF-8", "\"a\xff\"", Bounds{}, FaultUTF8, 2},
	{"cut UTF-8", "\"\xc3\"", Bounds{}, FaultUTF8, 1},
	{"overlong UTF-8", "\"\xc0\x80\"", Bounds{}, FaultUTF8, 1},
	{"surrogate in UTF-8", "\"\xed\xa0\x80\"", Bounds{}, FaultUTF8, 1},
	{"invalid UTF-8 in a key", "{\"\x80\":1}", Bounds{}, FaultUTF8, 2},
	{"high surrogate alone", `"\ud83d"`, Bounds{}, FaultSurrogate, 1},
	{"high surrogate and a letter", `"\ud83dx\ude00"`, Bounds{}, FaultSurrogate, 1},
	{"two high surrogates", `"\ud83d\ud83d"`, Bounds{}, FaultSurrogate, 1},
	{"low surrogate alone", `"ab\ude00"`, Bounds{}, FaultSurrogate, 3},
	{"low before high", `"\ude00\ud83d"`, Bounds{}, FaultSurrogate, 1},
	{"raw newline", "\"a\nb\"", Bounds{}, FaultControl, 2},
	{"raw NUL", "\"\x00\"", Bounds{}, FaultControl, 1},
	{"unknown escape", `"\x41"`, Bounds{}, FaultEscape, 1},
	{"short escape", `"\u12"`, Bounds{}, FaultEscape, 1},
	{"escape at the end", `"\`, Bounds{}, FaultEnd, 2},
	{"open string", `"abc`, Bounds{}, FaultEnd, 4},
	{"leading zero", `01`, Bounds{}, FaultNumber, 1},
	{"minus alone", `[-]`, Bounds{}, FaultNumber, 2},
	{"plus", `+1`, Bounds{}, FaultSyntax, 0},
	{"no digit before the point", `.5`, Bounds{}, FaultSyntax, 0},
	{"no digit after the point", `[1.]`, Bounds{}, FaultNumber, 3},
	{"no digit in the exponent", `[1e+]`, Bounds{}, FaultNumber, 4},
	{"number cut off", `-`, Bounds{}, FaultEnd, 1},
	{"hexadecimal", `0x10`, Bounds{}, FaultNumber, 1},
	{"NaN", `NaN`, Bounds{}, FaultSyntax, 0},
	{"Infinity", `-Infinity`, Bounds{}, FaultNumber, 1},
	{"byte order mark", "\xef\xbb\xbf{}", Bounds{}, FaultBOM, 0},
	{"single quotes", `{'a':1}`, Bounds{}, FaultSyntax, 1},
	{"comma before the end", `{"a":1,}`, Bounds{}, FaultSyntax, 7},
	{"comma before the end of a list", `[1,]`, Bounds{}, FaultSyntax, 3},
	{"no colon", `{"a" 1}`, Bounds{}, FaultSyntax, 5},
	{"key that is no string", `{1:2}`, Bounds{}, FaultSyntax, 1},
	{"mismatched end", `[1}`, Bounds{}, FaultSyntax, 2},
	{"open object", `{"a":1`, Bounds{}, FaultEnd, 6},
	{"open list", `[1`, Bounds{}, FaultEnd, 2},
	{"word cut off", `tru`, Bounds{}, FaultEnd, 3},
	{"word in other letters", `True`, Bounds{}, FaultSyntax, 0},
	{"word misspelt", `nulk`, Bounds{}, FaultSyntax, 3},
	{"word with a tail", `nulls`, Bounds{}, FaultTrailing, 4},
	{"comment", `/* */1`, Bounds{}, FaultSyntax, 0},
	{"form feed as space", "\f1", Bounds{}, FaultSyntax, 0},
	{"no-break space", "\u00a01", Bounds{}, FaultSyntax, 0},
}

func TestCheckJSONRefuses(t *testing.T) {
	for _, tt := range refused {
		t.Run(tt.name, func(t *testing.T) {
			err := CheckJSON([]byte(tt.data), tt.bounds)
			var bad *JSONError
			if !errors.As(err, &bad) {
				t.Fatalf("accepted, or another error: %v", err)
			}
			if bad.Fault != tt.fault || bad.Offset != tt.offset {
				t.Errorf("got %q at %d, want %q at %d", bad.Fault, bad.Offset, tt.fault, tt.offset)
			}
		})
	}
}

// An error is shown where the data must not be: it names the fault and the place.
func TestCheckJSONErrorQuotesNothing(t *testing.T) {
	err := CheckJSON([]byte(`{"card":"4111","card":"4111"}`), Bounds{})
	if got, want := err.Error(), "json: duplicate key in an object at byte 15"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

var accepted = []struct{ name, data string }{
	{"object", `{"a":[1,2,{"b":null}],"c":"d"}`},
	{"same key in other objects", `[{"a":{"a":1}},{"a":2}]`},
	{"keys in other letters", `{"a":1,"A":2}`},
	{"keys that only look alike", "{\"\u00e9\":1,\"e\u0301\":2}"},
	{"many keys", manyKeys(500, "last")},
	{"escaped NUL", `{"a":"\u0000"}`},
	{"number beyond float64", `1e400`},
	{"integer of a hundred digits", strings.Repeat("9", 100)},
	{"minus zero", `-0`},
	{"all forms of numbers", `[0,-1,1.50,1E5,1e-5,1.0e+10]`},
	{"surrogate pair", `"\ud83d\ude00"`},
	{"all short escapes", `"\"\\\/\b\f\n\r\t"`},
	{"byte order mark inside", "\"\ufeff\""},
	{"noncharacter", "\"\uffff\""},
	{"replacement character", "\"\ufffd\""},
	{"delete character", "\"\x7f\""},
	{"line separator", "\"\u2028\""},
	{"space around", " \t\r\n{ \"a\" : [ ] , \"b\" : { } } \n"},
	{"scalar", `true`},
	{"as deep as may be", strings.Repeat("[", 64) + strings.Repeat("]", 64)},
}

func TestCheckJSONAccepts(t *testing.T) {
	for _, tt := range accepted {
		t.Run(tt.name, func(t *testing.T) {
			if err := CheckJSON([]byte(tt.data), Bounds{MaxBytes: len(tt.data), MaxDepth: 64}); err != nil {
				t.Error(err)
			}
			if !json.Valid([]byte(tt.data)) {
				t.Error("encoding/json disagrees")
			}
		})
	}
}

func TestCheckJSONDoesNotAllocate(t *testing.T) {
	data := sampleJob()
	if n := testing.AllocsPerRun(100, func() {
		if err := CheckJSON(data, Bounds{MaxBytes: 256 << 10, MaxDepth: 64}); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// sampleJob is a job of eight steps with a few kilobytes of args.
func sampleJob() []byte {
	var b strings.Builder
	b.WriteString(`{"schema":"agentrun.job/v1","tenant":"acme","run_id":"run_1042","workflow":"resolve_billing_case","owner":"billing-oncall",
		"budget":{"max_turns":12,"max_tool_calls":8},"usage":{"turns":1,"input_tokens":1200},"steps":[`)
	for i := range 8 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"step":"s%d","tool":"apply_credit","args":{"invoice_id":{"$from":"load#/id"},"amount_minor":%d,"note":%q,"lines":[1,2.5,true,null]}}`,
			i, i*100, strings.Repeat("für den Kunden, ", 40))
	}
	b.WriteString(`],"more":false}`)
	return []byte(b.String())
}

func FuzzCheckJSON(f *testing.F) {
	for _, tt := range refused {
		if len(tt.data) < 1000 {
			f.Add([]byte(tt.data))
		}
	}
	for _, tt := range accepted {
		f.Add([]byte(tt.data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		err := CheckJSON(data, Bounds{})
		if err != nil {
			var bad *JSONError
			if !errors.As(err, &bad) || bad.Offset < 0 || bad.Offset > len(data) {
				t.Fatalf("an error without a place: %v", err)
			}
			// What only we refuse must be one of the things encoding/json lets through.
			lenient := bad.Fault == FaultDuplicateKey || bad.Fault == FaultUTF8 || bad.Fault == FaultSurrogate || bad.Fault == FaultTooDeep
			if json.Valid(data) && !lenient {
				t.Fatalf("encoding/json accepts what is refused as %v", bad)
			}
			return
		}
		if !json.Valid(data) {
			t.Fatal("encoding/json refuses what is accepted")
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, data); err != nil || !bytes.Equal(compact.Bytes(), Compact(data)) {
			t.Fatalf("Compact: %q, encoding/json: %q, %v", Compact(data), compact.Bytes(), err)
		}
		first := canonical(data)
		if again := canonical(first); !bytes.Equal(again, first) {
			t.Fatalf("Canonical is not idempotent: %q, %q", first, again)
		}
		if a, b := decode(t, data), decode(t, first); a != b {
			t.Fatalf("Canonical changed the value: %q, %q", a, b)
		}
		if whole, ok := Pointer(data, ""); !ok || !bytes.Equal(whole, bytes.Trim(data, " \t\r\n")) {
			t.Fatalf("the whole value is %q, %v", whole, ok)
		}
		if d := depthOf(data); CheckJSON(data, Bounds{MaxDepth: max(d, 1)}) != nil || (d > 1 && CheckJSON(data, Bounds{MaxDepth: d - 1}) == nil) {
			t.Fatalf("Depth is %d", d)
		}
	})
}

// decode reads a value with encoding/json, keeping digits, and writes it in one form.
func decode(t *testing.T, data []byte) string {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func BenchmarkCheckJSON(b *testing.B) {
	data := sampleJob()
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if err := CheckJSON(data, Bounds{MaxBytes: 256 << 10, MaxDepth: 64}); err != nil {
			b.Fatal(err)
		}
	}
}

// The baseline: what a check without duplicates, surrogates and UTF-8 costs.
func BenchmarkEncodingJSONValid(b *testing.B) {
	data := sampleJob()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if !json.Valid(data) {
			b.Fatal("not valid")
		}
	}
}

func BenchmarkCheckJSONManyKeys(b *testing.B) {
	data := []byte(manyKeys(20_000, "last"))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if err := CheckJSON(data, Bounds{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCanonical(b *testing.B) {
	data := sampleJob()
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		canonical(data)
	}
}
