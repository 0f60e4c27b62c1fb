package connector

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentrun/executor/pkg/envelope"
)

var never = func(c envelope.Code) envelope.Row { return envelope.RowFor(c, envelope.Read).NeverRetried() }

func row(c envelope.Code, e envelope.Effect) envelope.Row { return envelope.RowFor(c, e) }

// The default table of contract §6, line by line.
func TestDefaultTable(t *testing.T) {
	rd, wr := envelope.Read, envelope.Write
	unknown := row(envelope.CodeOutcomeUnknown, wr)
	same := func(c envelope.Code) [2]envelope.Row { return [2]envelope.Row{row(c, rd), row(c, rd)} }
	directiveNever := row(envelope.CodeUpstreamRejectedInput, rd)
	directiveNever.Directive = envelope.Never
	cases := []struct {
		name string
		resp Response
		want [2]envelope.Row
	}{
		{"not sent", Response{Failure: NotSent}, same(envelope.CodeUpstreamUnavailable)},
		{"no reply", Response{Failure: NoReply}, [2]envelope.Row{row(envelope.CodeUpstreamTimeout, rd), unknown}},
		{"cancelled", Response{Failure: Cancelled}, [2]envelope.Row{row(envelope.CodeUpstreamTimeout, rd), unknown}},
		{"unreadable", Response{Failure: Unreadable, Status: 200}, [2]envelope.Row{row(envelope.CodeUpstreamTimeout, rd), unknown}},
		{"a failure that broke off", Response{Failure: Unreadable, Status: 400}, [2]envelope.Row{row(envelope.CodeUpstreamTimeout, rd), unknown}},
		{"error object", status(200, `{"error":1}`), [2]envelope.Row{never(envelope.CodeUpstreamError), unknown}},
		{"wrong result", status(200, `{"other":1}`), [2]envelope.Row{row(envelope.CodeResultInvalid, rd), row(envelope.CodeResultInvalid, wr)}},
		{"text", status(200, `oops`), [2]envelope.Row{row(envelope.CodeResultInvalid, rd), row(envelope.CodeResultInvalid, wr)}},
		{"empty", status(204, ``), [2]envelope.Row{row(envelope.CodeResultInvalid, rd), row(envelope.CodeResultInvalid, wr)}},
		{"too large", Response{Failure: TooLarge, Status: 200}, [2]envelope.Row{row(envelope.CodeResultTooLarge, rd), row(envelope.CodeResultTooLarge, wr)}},
		{"too large failure", Response{Failure: TooLarge, Status: 404}, same(envelope.CodeResourceNotFound)},
		{"unreadable failure", status(404, "\xff"), same(envelope.CodeResourceNotFound)},
		{"no status of HTTP", status(99, ``), [2]envelope.Row{row(envelope.CodeUpstreamTimeout, rd), unknown}},
		{"no status of HTTP", status(600, ``), [2]envelope.Row{row(envelope.CodeUpstreamTimeout, rd), unknown}},
	}
	add := func(want [2]envelope.Row, codes ...int) {
		for _, c := range codes {
			cases = append(cases, struct {
				name string
				resp Response
				want [2]envelope.Row
			}{fmt.Sprint(c), status(c, `{"id":1}`), want})
		}
	}
	add([2]envelope.Row{row(envelope.CodeResultInvalid, rd), unknown}, 202, 203, 205, 206, 207, 226)
	add([2]envelope.Row{never(envelope.CodeUpstreamError), unknown}, 300, 301, 302, 303, 304)
	add([2]envelope.Row{never(envelope.CodeUpstreamError), never(envelope.CodeUpstreamError)}, 307, 308)
	add(same(envelope.CodeUpstreamRejectedInput), 400, 422)
	add(same(envelope.CodeUpstreamDenied), 401, 403)
	add(same(envelope.CodeResourceNotFound), 404, 410)
	add(same(envelope.CodeStateConflict), 409)
	add(same(envelope.CodeVersionConflict), 412, 428)
	add(same(envelope.CodeResourceLocked), 423)
	add(same(envelope.CodeUpstreamUnavailable), 425) // RFC 8470: a write was not processed either
	add(same(envelope.CodeUpstreamRateLimited), 429)
	add([2]envelope.Row{row(envelope.CodeUpstreamUnavailable, rd), unknown}, 408, 500, 502, 503, 504, 599)
	add([2]envelope.Row{directiveNever, directiveNever}, 402, 405, 406, 411, 413, 418, 451, 499)
	for _, c := range cases {
		for i, effect := range []envelope.Effect{rd, wr} {
			t.Run(c.name+" "+string(effect), func(t *testing.T) {
				got := classified(t, KindHTTP, effect, c.resp, func(s *Spec) {
					s.OutputSchema = map[string]any{"type": "object", "required": []any{"id"}}
					s.ErrorSchema = map[string]any{"type": "object", "required": []any{"error"}}
				})
				if got.OK || got.Row != c.want[i] {
					t.Errorf("got %+v\nwant %+v", got.Row, c.want[i])
				}
			})
		}
	}
}

func TestSuccess(t *testing.T) {
	for _, c := range []struct {
		kind string
		resp Response
		want string
	}{
		{KindHTTP, status(200, " {\"a\" : 1.0 ,\n\"b\":[ 12345678901234567890123456789 ]}"), `{"a":1.0,"b":[12345678901234567890123456789]}`},
		{KindHTTP, status(201, `"x"`), `"x"`},
		{KindHTTP, status(201, "  \n"), `null`},
		{KindHTTP, status(204, ``), `null`},
		{KindHTTP, status(200, "it \"works\"\x01é"), `"it \"works\"\u0001é"`},
		{KindHTTP, status(200, `"<&>\u00e9"`), `"<&>\u00e9"`},
		{KindHTTP, status(200, ` {broken`), `" {broken"`},
		{KindHTTP, status(200, `"half`), `"\"half"`},
		{KindNATS, Response{Body: []byte(`{"a":1}`)}, `{"a":1}`},
		{KindMCP, Response{Body: []byte(`text`)}, `"text"`},
		{KindCommand, Response{Body: []byte("{\"a\":1}\n")}, `{"a":1}`},
	} {
		got := classified(t, c.kind, envelope.Write, c.resp, nil)
		if !got.OK || string(got.Result) != c.want {
			t.Errorf("%s %q: got %+v", c.kind, c.resp.Body, got)
		}
	}
}

func TestOtherKinds(t *testing.T) {
	rd, wr := envelope.Read, envelope.Write
	for _, c := range []struct {
		name string
		kind string
		resp Response
		want [2]envelope.Row
	}{
		{"mcp error", KindMCP, Response{IsError: true, Body: []byte(`{"id":1}`)}, [2]envelope.Row{never(envelope.CodeUpstreamError), row(envelope.CodeOutcomeUnknown, wr)}},
		{"mcp error without body", KindMCP, Response{IsError: true}, [2]envelope.Row{never(envelope.CodeUpstreamError), row(envelope.CodeOutcomeUnknown, wr)}},
		{"nats error", KindNATS, Response{IsError: true}, [2]envelope.Row{never(envelope.CodeUpstreamError), row(envelope.CodeOutcomeUnknown, wr)}},
		{"exit 1", KindCommand, Response{ExitCode: 1, Body: []byte(`{}`)}, [2]envelope.Row{row(envelope.CodeUpstreamError, rd), row(envelope.CodeOutcomeUnknown, wr)}},
		{"killed", KindCommand, Response{ExitCode: -1}, [2]envelope.Row{row(envelope.CodeUpstreamError, rd), row(envelope.CodeOutcomeUnknown, wr)}},
		{"nats not sent", KindNATS, Response{Failure: NotSent}, [2]envelope.Row{row(envelope.CodeUpstreamUnavailable, rd), row(envelope.CodeUpstreamUnavailable, rd)}},
		{"huge output", KindCommand, Response{Failure: TooLarge}, [2]envelope.Row{row(envelope.CodeResultTooLarge, rd), row(envelope.CodeResultTooLarge, wr)}},
		{"huge output of a failure", KindCommand, Response{Failure: TooLarge, ExitCode: 3}, [2]envelope.Row{row(envelope.CodeUpstreamError, rd), row(envelope.CodeOutcomeUnknown, wr)}},
		{"two readings", KindMCP, Response{Body: []byte(`{"a":1,"a":2}`)}, [2]envelope.Row{row(envelope.CodeUpstreamTimeout, rd), row(envelope.CodeOutcomeUnknown, wr)}},
	} {
		for i, effect := range []envelope.Effect{rd, wr} {
			if got := classified(t, c.kind, effect, c.resp, nil); got.OK || got.Row != c.want[i] {
				t.Errorf("%s %s: got %+v", c.name, effect, got.Row)
			}
		}
	}
}

var update = flag.Bool("update", false, "write the table in docs/tools.md anew")

const (
	statusesBegin = "<!-- statuses: written by go test ./pkg/connector -update -->\n"
	statusesEnd   = "<!-- end of statuses -->"
)

// docs/tools.md shows the statuses as the code has them.
func TestTheStatusesInTheDocsAreCurrent(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "tools.md")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(data), statusesBegin)
	old, tail, ok2 := strings.Cut(rest, statusesEnd)
	if !ok || !ok2 {
		t.Fatalf("docs/tools.md lacks its markers %q and %q", statusesBegin, statusesEnd)
	}
	want := "\n" + StatusTable() + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(head+statusesBegin+want+statusesEnd+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != want {
		t.Error("the statuses in docs/tools.md are not those of the code; make golden writes them anew")
	}
}

// Every status from 200 on has one line that names its source, and no status has two.
func TestEveryStatusHasItsSource(t *testing.T) {
	seen := map[int]bool{}
	for _, row := range statuses {
		if !strings.Contains(row.source, "RFC ") {
			t.Errorf("%s: source %q", row.name(), row.source)
		}
		for _, c := range row.codes {
			if seen[c] {
				t.Errorf("%d has two lines", c)
			}
			seen[c] = true
		}
	}
	for status := 200; status < 600; status++ {
		if statusOf(status) == nil {
			t.Errorf("%d has no line", status)
		}
	}
}
