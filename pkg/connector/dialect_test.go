package connector

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Patterns as libraries put them into schemas, which RE2 lacks.
const (
	zodEmail        = `^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$`
	zodDuration     = `^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$`
	zodUUID         = `^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|00000000-0000-0000-0000-000000000000)$`
	zodEmoji        = `^(\p{Extended_Pictographic}|\p{Emoji_Component})+$`
	pydanticDecimal = `^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$`
)

func TestPatterns(t *testing.T) {
	for _, c := range []struct{ pattern, fits, not string }{
		{zodEmail, "ada@example.org", "ada..l@example.org"},
		{zodDuration, "P1DT2H", "P1W2D"},
		{zodUUID, "7c9e6679-7425-40de-944b-e07fc1f90ae7", "7c9e6679-7425-90de-944b-e07fc1f90ae7"},
		{zodEmoji, "\U0001F600", "a"},
		{pydanticDecimal, "-12.50", "+."},
		{`^(?=.*\d)(?=.*[a-z]).{8,}$`, "secret123", "secretive"},
		{`(?<!un)likely$`, "likely", "unlikely"},
		{`^(a|b)\1$`, "aa", "ab"},
		{`^.{1,5000}$`, "a", ""}, // RE2 repeats no more than a thousand times
		{`^\u00e9\/$`, "é/", "e/"},
		{`^(?P<year>\d{4})\Z`, "2026", "2026-"}, // Python
		{`^\d+$`, "12", "1a"},
	} {
		s, err := CompileSchema("schema:///x", map[string]any{"pattern": c.pattern})
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		if !fits(s, c.fits) || fits(s, c.not) {
			t.Errorf("%s: %q %v, %q %v", c.pattern, c.fits, fits(s, c.fits), c.not, fits(s, c.not))
		}
	}
	if _, err := compileSchema("input_schema", decoded(t, `{"properties":{"a":{"pattern":"(["}}}`)); err == nil || !strings.Contains(err.Error(), "not a JSON Schema") {
		t.Errorf("a pattern that is none, in the config: %v", err)
	}
}

// A pattern that backtracks for ever holds nobody up, and a list of values made for it no longer than one of them.
func TestPatternThatBacktracksForEver(t *testing.T) {
	s, err := CompileSchema("schema:///x", decoded(t, `{"items":{"pattern":"^(?=a)(a+)+$"}}`))
	if err != nil {
		t.Fatal(err)
	}
	bad := make([]any, 2000)
	for i := range bad {
		bad[i] = strings.Repeat("a", 40) + "!"
	}
	done := make(chan bool, 1)
	go func() { done <- fits(s, bad) }()
	select {
	case ok := <-done:
		if ok {
			t.Error("it fits")
		}
	case <-time.After(time.Minute):
		t.Fatal("it is held against its pattern for ever")
	}
}

// A schema as zod 4 and pydantic print it, whatever draft it names.
func TestDrafts(t *testing.T) {
	const object = `{"type":"object","properties":{"email":{"type":"string","format":"email","pattern":` + "`" + `},"at":{"type":"string","format":"date-time"}},"required":["email"],"additionalProperties":false`
	pattern, err := json.Marshal(zodEmail)
	if err != nil {
		t.Fatal(err)
	}
	for _, draft := range []string{
		"", "https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2019-09/schema", "http://json-schema.org/draft-07/schema#",
		"https://json-schema.org/draft-07/schema", "http://json-schema.org/draft-06/schema#", "http://json-schema.org/draft-04/schema#",
		"http://json-schema.org/schema#", "https://spec.openapis.org/oas/3.1/dialect/base", "https://json-schema.org/draft/next/schema",
		"http://json-schema.org/draft-03/schema#", "not a URI",
	} {
		text := strings.Replace(object, "`", string(pattern), 1)
		if draft != "" {
			text += `,"$schema":"` + draft + `"`
		}
		s, err := CompileSchema("schema:///x", decoded(t, text+"}"))
		if err != nil {
			t.Errorf("%q: %v", draft, err)
			continue
		}
		// A format is what its writer means by it: pydantic's date-time may have no zone.
		if !fits(s, decoded(t, `{"email":"ada@example.org","at":"2026-01-01T00:00:00"}`)) || fits(s, decoded(t, `{"email":"ada"}`)) || fits(s, decoded(t, `{}`)) {
			t.Errorf("%q: not held against it", draft)
		}
	}
	for name, text := range map[string]string{
		"a draft 4 that does not say so": `{"properties":{"n":{"minimum":0,"exclusiveMinimum":true}}}`,
		"a list of items":                `{"properties":{"n":{"items":[{"minimum":1}]}}}`,
	} {
		if _, err := CompileSchema("schema:///x", decoded(t, text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	four, err := CompileSchema("schema:///x", decoded(t, `{"minimum":0,"exclusiveMinimum":true}`))
	if err != nil || fits(four, json.Number("0")) || !fits(four, json.Number("1")) {
		t.Errorf("exclusiveMinimum of draft 4: %v", err)
	}
	for _, text := range []string{`{"type":"nonsense"}`, `{"$ref":"http://127.0.0.1:1/x"}`, `{"$schema":"http://127.0.0.1:1/x","$ref":"other.json"}`} {
		if _, err := CompileSchema("schema:///x", decoded(t, text)); err == nil {
			t.Errorf("%s was compiled", text)
		}
	}
}

// Of somebody else's schema a pattern that nobody can read is left out, that one alone, and data that looks like one is left.
func TestReadableSchema(t *testing.T) {
	in := decoded(t, `{"$schema":"urn:x","const":{"pattern":"(["},"default":{"pattern":"(["},"properties":{
		"pattern":{"type":"string","pattern":"^a"},"default":{"pattern":"(["},"b":{"anyOf":[{"pattern":"(["},{"minLength":3}],"pattern":"x(?=y)"}},
		"patternProperties":{"([":{"type":"string"},"^x_":{"type":"number"}},"additionalProperties":false,"items":[{"pattern":"*"}]}`)
	want := decoded(t, `{"const":{"pattern":"(["},"default":{"pattern":"(["},"properties":{
		"pattern":{"type":"string","pattern":"^a"},"default":{},"b":{"anyOf":[{},{"minLength":3}],"pattern":"x(?=y)"}},
		"patternProperties":{"":true,"^x_":{"type":"number"}},"additionalProperties":false,"items":[{}]}`)
	before, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	got, n := ReadableSchema(in)
	if n != 4 || !reflect.DeepEqual(got, want) {
		t.Errorf("%d left out: %v", n, got)
	}
	if after, err := json.Marshal(in); err != nil || string(after) != string(before) {
		t.Errorf("the server's own has changed: %s", after)
	}
	if got, n := ReadableSchema(nil); got != nil || n != 0 {
		t.Errorf("none became %v", got)
	}
}
