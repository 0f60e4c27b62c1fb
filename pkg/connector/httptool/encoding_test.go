package httptool_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
)

func zipped(body string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(body))
	_ = w.Close()
	return b.String()
}

func encodedAs(encoding, status, body string) string {
	return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s", status, encoding, len(body), body)
}

// A compressed answer that nobody asked for is read all the same, and its connection used again. One in an encoding that is
// not read has a status that counts, and of a success nobody says that it did not happen.
func TestEncodedAnswers(t *testing.T) {
	const limit = 256
	for _, c := range []struct {
		name, bytes string
		read, write envelope.Code // "" is ok
		result      string
		connections int
	}{
		{"gzip", encodedAs("gzip", "200 OK", zipped(`{"a":1.10}`)), "", "", `{"a":1.10}`, 1},
		{"gzip, until the end", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n\r\n" + zipped(`{}`), "", "", `{}`, 2},
		{"a bomb", encodedAs("gzip", "200 OK", zipped(strings.Repeat(" ", 1<<16))), envelope.CodeResultTooLarge, envelope.CodeResultTooLarge, "", 1},
		{"a failure", encodedAs("gzip", "422 No", zipped(`{"why":"no money"}`)), "NO_MONEY", "NO_MONEY", "", 1},
		{"cut", encodedAs("gzip", "200 OK", zipped(`{"a":1}`)[:20]), envelope.CodeUpstreamTimeout, envelope.CodeOutcomeUnknown, "", 1},
		{"unknown", encodedAs("compress", "200 OK", "xx"), envelope.CodeResultInvalid, envelope.CodeResultInvalid, "", 1},
		{"stacked", encodedAs("gzip, br", "200 OK", "xx"), envelope.CodeResultInvalid, envelope.CodeResultInvalid, "", 1},
		{"unknown, a failure", encodedAs("compress", "404 Not Found", "xx"), envelope.CodeResourceNotFound, envelope.CodeResourceNotFound, "", 1},
		{"unknown, a failure halfway", encodedAs("compress", "500 Oops", "xx"), envelope.CodeUpstreamUnavailable, envelope.CodeOutcomeUnknown, "", 1},
		{"unknown, and empty", encodedAs("compress", "200 OK", ""), "", "", "null", 1},
	} {
		p := newPeer(t)
		p.answerWith(func(*http.Request, string) string { return c.bytes })
		if strings.Contains(c.bytes, "close") {
			p.answerThenClose(c.bytes)
		}
		for effect, want := range map[envelope.Effect]envelope.Code{envelope.Read: c.read, envelope.Write: c.write} {
			got := compile(t, p, "POST", effect, func(s *connector.Spec) {
				s.MaxResultBytes = limit
				s.Errors = []connector.Rule{{When: "status == 422 && body.why == 'no money'", Code: "NO_MONEY", Category: envelope.Conflict}}
			}).Caller.Call(t.Context(), newCall(`{}`))
			if got.Row.Code != want || string(got.Result) != c.result || got.NotSent {
				t.Errorf("%s, %s: %+v", c.name, effect, got)
			}
			if effect == envelope.Write && want == envelope.CodeResultInvalid && got.Row.CommitState != envelope.Unknown {
				t.Errorf("%s: a write is %s", c.name, got.Row.CommitState)
			}
			if told := got.Details["content_encoding"] == "not supported"; told != (strings.HasPrefix(c.name, "unknown, a") || want == envelope.CodeResultInvalid) && c.result != "null" {
				t.Errorf("%s: details %v", c.name, got.Details)
			}
		}
		if n := p.accepted(); n != c.connections {
			t.Errorf("%s: %d connections", c.name, n)
		}
	}
}

// A lookup whose body cannot be decoded leaves the rules that do without it, as one that is too long does.
func TestEncodedLookup(t *testing.T) {
	p := newPeer(t)
	lookup := func() envelope.Lookup {
		tool := compile(t, p, "POST", envelope.Write, func(s *connector.Spec) {
			s.Verify = &connector.VerifySpec{
				Kind:      connector.KindSpec{HTTP: &connector.HTTPSpec{Method: "GET", URL: p.url() + "/?ref={operation_ref}"}},
				Committed: "status == 200 && body.found", NotCommitted: "status == 404", Result: "body",
			}
		})
		return tool.Looker.Lookup(t.Context(), newCall(`{}`))
	}
	for bytes, want := range map[string]envelope.Answer{
		encodedAs("gzip", "200 OK", zipped(`{"found":true}`)): envelope.Found,
		encodedAs("compress", "200 OK", "xx"):                 envelope.Undecided,
		encodedAs("compress", "404 Not Found", "xx"):          envelope.Absent,
		encodedAs("gzip", "404 Not Found", "xx"):              envelope.Undecided,
	} {
		p.answerWith(func(*http.Request, string) string { return bytes })
		if got := lookup(); got.Answer != want {
			t.Errorf("%q: %+v", bytes, got)
		}
	}
}
