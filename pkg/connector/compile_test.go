package connector

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
)

func decoded(t testing.TB, s string) any {
	t.Helper()
	v, err := decodeJSON([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSpecErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*Spec)
		want string
		line int
	}{
		{"effect", func(s *Spec) { s.Effect = "" }, "[effect]", 0},
		{"no kind", func(s *Spec) { s.Kind = KindSpec{} }, "[]", 0},
		{"two kinds", func(s *Spec) { s.Kind.NATS = &NATSSpec{} }, "[]", 0},
		{"a kind that is not there", func(s *Spec) { s.Kind = kindSpec(KindMCP) }, "[mcp]", 0},
		{"verify without a kind", func(s *Spec) { verify(s); s.Verify.Kind = KindSpec{} }, "[verify]", 0},
		{"verify without committed", func(s *Spec) { verify(s); s.Verify.Committed = "" }, "[verify committed]", 0},
		{"syntax", withRules(Rule{When: "status ==\n ", Code: "SOME_CODE", Category: "internal"}), "[errors 0 when]", 2},
		{"unknown variable", withRules(Rule{When: "status == 1", Code: "SOME_CODE", Category: "internal"}, Rule{When: "exit_code == 1", Code: "SOME_CODE", Category: "internal"}), "[errors 1 when]", 1},
		{"types", withRules(Rule{When: "status == 'a'", Code: "SOME_CODE", Category: "internal"}), "[errors 0 when]", 1},
		{"no condition", withRules(Rule{When: "status", Code: "SOME_CODE", Category: "internal"}), "[errors 0 when]", 1},
		{"code", withRules(Rule{When: "true", Code: "no", Category: "internal"}), "[errors 0 code]", 0},
		{"runtime's code", withRules(Rule{When: "true", Code: "CANCELLED"}), "[errors 0 code]", 0},
		{"category", withRules(Rule{When: "true", Code: "SOME_CODE", Category: "odd"}), "[errors 0 category]", 0},
		{"no category", withRules(Rule{When: "true", Code: "SOME_CODE"}), "[errors 0 category]", 0},
		{"commit state", withRules(Rule{When: "true", Code: "SOME_CODE", Category: "internal", CommitState: "odd"}), "[errors 0 commit_state]", 0},
		{"evidence", func(s *Spec) { s.EvidenceRef = "body." }, "[evidence_ref]", 1},
		{"details", func(s *Spec) { s.SafeDetails = map[string]string{"x": "bdy.x"} }, "[safe_details x]", 1},
		{"reserved detail", func(s *Spec) { s.SafeDetails = map[string]string{"last_code": "body.x"} }, "[safe_details last_code]", 0},
		{"lookup rule", func(s *Spec) { verify(s); s.Verify.NotCommitted = "status = 1" }, "[verify not_committed]", 1},
		{"schema", func(s *Spec) {
			s.InputSchema = map[string]any{"properties": map[string]any{"a": map[string]any{"type": "strin"}}}
		}, "[input_schema properties a type]", 0},
		{"foreign schema", func(s *Spec) { s.OutputSchema = map[string]any{"$ref": "http://127.0.0.1:1/x.json"} }, "[output_schema]", 0},
		{"schema on disk", func(s *Spec) { s.ErrorSchema = map[string]any{"$ref": "file:///etc/passwd"} }, "[error_schema]", 0},
		{"per attempt", func(s *Spec) { s.IdempotencyKey = "per_attempt" }, "[idempotency_key]", 0},
		{"result size", func(s *Spec) { s.MaxResultBytes = ResultBytesMax + 1 }, "[max_result_bytes]", 0},
		{"response", func(s *Spec) { s.Response = "json" }, "[response]", 0},
		{"rate", func(s *Spec) { s.Rate = &Rate{} }, "[rate per_second]", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := Spec{Name: "x", Effect: envelope.Write, Kind: kindSpec(KindHTTP)}
			c.edit(&s)
			_, err := Compile(s, &stub{name: KindHTTP}, &stub{name: KindNATS})
			var e *SpecError
			if !errors.As(err, &e) || !strings.HasPrefix(e.Error(), c.want+": ") || e.Line != c.line {
				t.Fatalf("got %v (%+v)", err, e)
			}
		})
	}
}

func TestPolicy(t *testing.T) {
	s := Spec{
		Name: "credit", Effect: envelope.Write, Kind: kindSpec(KindHTTP), IdempotencyKey: "per_attempt",
		OutputSchema: map[string]any{"type": "object"}, Allow: &Allow{Tenants: []string{"acme"}, Actors: []string{"agent:a"}},
	}
	verify(&s)
	s.Verify.HasWindow, s.Verify.ConsistencyWindow = true, 2*time.Second
	tool, err := Compile(s, &stub{name: KindHTTP})
	if err != nil {
		t.Fatal(err)
	}
	if s.Verify.Timeout != 0 {
		t.Error("Compile changed the caller's spec")
	}
	if !tool.KeyPerAttempt || tool.Timeout != TimeoutDefault || tool.MaxResultBytes != ResultBytesDefault || tool.Kind != KindHTTP {
		t.Errorf("got %+v", tool.Tool)
	}
	if v := tool.Verify; !v.HasWindow || v.Window != 2*time.Second || v.Timeout != TimeoutDefault || v.MaxAttempts != 5 {
		t.Errorf("got %+v", v)
	}
	for _, c := range []struct {
		tenant, actor string
		want          bool
	}{{"acme", "agent:a", true}, {"acme", "agent:b", false}, {"other", "agent:a", false}} {
		if tool.Allowed(c.tenant, c.actor) != c.want {
			t.Errorf("%+v", c)
		}
	}
	for result, want := range map[string]bool{`{}`: true, `[]`: false, `{"a":1,"a":2}`: false, `x`: false, ``: false} {
		if tool.CheckResult(json.RawMessage(result)) != want {
			t.Errorf("result %s", result)
		}
	}
}

func TestCheckArgs(t *testing.T) {
	schema := decoded(t, `{"type":"object","required":["invoice_id","amount_minor"],"additionalProperties":false,
		"properties":{"invoice_id":{"type":"string"},"amount_minor":{"type":"integer","minimum":1},
		"lines":{"type":"array","items":{"type":"object","required":["a/b~c"]}},
		"who":{"oneOf":[{"type":"string"},{"type":"object","required":["id"]}]},"big":{"const":12345678901234567890123}}}`)
	s := Spec{Name: "x", Effect: envelope.Write, Kind: kindSpec(KindHTTP), InputSchema: schema}
	tool, err := Compile(s, &stub{name: KindHTTP})
	if err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		`{"invoice_id":"i","amount_minor":1}`:                                     "ok",
		`{"invoice_id":"i","amount_minor":1.0}`:                                   "ok",
		`{"invoice_id":"i","amount_minor":12345678901234567890123}`:               "ok",
		`{"invoice_id":"i","amount_minor":1,"big":12345678901234567890123}`:       "ok",
		`{"invoice_id":"i","amount_minor":1,"big":12345678901234567890124}`:       "/big",
		`{"invoice_id":"i","amount_minor":0}`:                                     "/amount_minor",
		`{"invoice_id":"i","amount_minor":1.5}`:                                   "/amount_minor",
		`{"invoice_id":7,"amount_minor":"x"}`:                                     "/amount_minor",
		`{"amount_minor":1}`:                                                      "/invoice_id",
		`{}`:                                                                      "/invoice_id",
		`{"amount_minor":0}`:                                                      "/amount_minor",
		`{"invoice_id":"i","amount_minor":1,"extra/x":1}`:                         "/extra~1x",
		`{"invoice_id":"i","amount_minor":1,"lines":[{"a/b~c":1},{}]}`:            "/lines/1/a~1b~0c",
		`{"invoice_id":"i","amount_minor":1,"lines":[1,2,3,4,5,6,7,8,9,10,11,2]}`: "/lines/0",
		`{"invoice_id":"i","amount_minor":1,"who":7}`:                             "/who",
		`{"invoice_id":"i","amount_minor":1,"amount_minor":2}`:                    "",
		`{"invoice_id":"i","amount_minor":1e99999999}`:                            "",
		`[]`:  "",
		`{`:   "",
		`7`:   "",
		`nul`: "",
	} {
		field, ok := tool.CheckArgs(json.RawMessage(args))
		if ok {
			field = "ok"
		}
		if field != want {
			t.Errorf("%s: %q, want %q", args, field, want)
		}
	}
}

func TestDecodeJSON(t *testing.T) {
	for in, want := range map[string]error{
		`{"a":[1,-0,0.5,1e5,1E+5,1e-5,true,false,null,"\u00e9\ud83d\ude00\n\/"]}`: nil,
		" \t\r\n1 ": nil,
		`"\ud800"`:  errUnreadable, `"\ud800`: errNotJSON, `{"a":1,"a":2`: errNotJSON,
		`01`: errNotJSON, `1.`: errNotJSON, `.5`: errNotJSON, `+1`: errNotJSON, `1e`: errNotJSON, `-`: errNotJSON,
		`NaN`: errNotJSON, `{"a":1,}`: errNotJSON, `[1,]`: errNotJSON, `{a:1}`: errNotJSON, `{"a" 1}`: errNotJSON, `1 2`: errNotJSON,
		`"\x"`: errNotJSON, `"\u12"`: errNotJSON, "\"\n\"": errNotJSON, `"`: errNotJSON, `tru`: errNotJSON, ``: errNotJSON, `[`: errNotJSON,
		`{"a":1,"a":1}`: errUnreadable, `{"a":1,"\u0061":1}`: errUnreadable, "\"\xff\"": errUnreadable, `1e1001`: errUnreadable,
		`1e-1001`: errUnreadable, `1e99999999999999999999`: errUnreadable,
		strings.Repeat("[", 600) + strings.Repeat("]", 600): errUnreadable,
		strings.Repeat("9", 5000):                           errUnreadable,
	} {
		v, err := decodeJSON([]byte(in))
		if !errors.Is(err, want) {
			t.Errorf("%.40q: %v, want %v", in, err, want)
			continue
		}
		if err == nil {
			if _, ok := strictjson.AppendValue(nil, v); !ok {
				t.Errorf("%.40q does not encode", in)
			}
		}
	}
}
