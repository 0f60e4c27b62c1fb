package mcptool_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/envelope"
)

func offering(tool string) func(*peer) {
	return func(p *peer) { p.tools = `{"tools":[{"name":"credit","inputSchema":{"type":"object"},` + tool + `}]}` }
}

// Annotations make a tool stricter and never looser: a read that the server calls none is not called.
func TestAnnotations(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		annotations string
		refused     bool
	}{
		{`{}`, false},
		{`{"title":"Credit"}`, false},
		{`{"readOnlyHint":true}`, false},
		{`{"readOnlyHint":true,"destructiveHint":true}`, false},
		{`{"destructiveHint":false}`, false},
		{`{"idempotentHint":true}`, false},
		{`{"destructiveHint":true}`, true},
		{`{"readOnlyHint":false}`, true},
		{`{"readOnlyHint":false,"destructiveHint":false,"idempotentHint":true}`, true},
	} {
		t.Run(c.annotations, func(t *testing.T) {
			p := newPeer(t, offering(`"annotations":`+c.annotations))
			got := compile(t, p, envelope.Read, nil).Caller.Call(t.Context(), call(`{}`))
			if c.refused != (got.Row.Code == mcptool.CodeNotReadOnly) || c.refused == got.OK || len(p.arrived) == 1 == c.refused {
				t.Errorf("a read: %+v, %d arrived", got, len(p.arrived))
			}
			if c.refused && (got.Row.CommitState != envelope.NotCommitted || got.Row.Directive != envelope.Never) {
				t.Errorf("a read: %+v", got.Row)
			}
			if got := compile(t, p, envelope.Write, nil).Caller.Call(t.Context(), call(`{}`)); !got.OK {
				t.Errorf("a write: %+v", got)
			}
		})
	}
}

// Without a schema of the config's the server's own is held against its results.
func TestOutputSchemaOfTheServer(t *testing.T) {
	t.Parallel()
	const schema = `"outputSchema":{"type":"object","required":["credit_id"],"properties":{"credit_id":{"type":"integer","minimum":12345678901234567890}}}`
	for _, c := range []struct {
		name, tool, result string
		own                any
		want               envelope.Code // "" for success
	}{
		{"fits", schema, `"structuredContent":{"credit_id":12345678901234567890}`, nil, ""},
		{"fits, as text", schema, `"content":[{"type":"text","text":"{\"credit_id\":12345678901234567891}"}]`, nil, ""},
		{"does not fit", schema, `"structuredContent":{"credit_id":12345678901234567889}`, nil, envelope.CodeResultInvalid},
		{"says only ok", schema, `"content":[{"type":"text","text":"ok"}]`, nil, envelope.CodeResultInvalid},
		{"says nothing", schema, `"content":[]`, nil, envelope.CodeResultInvalid},
		{"the config's wins", schema, `"structuredContent":{}`, map[string]any{"type": "object"}, ""},
		{"a broken schema", `"outputSchema":{"type":"nonsense"}`, `"structuredContent":{}`, nil, ""},
		{"a foreign schema", `"outputSchema":{"$ref":"http://127.0.0.1:1/schema"}`, `"structuredContent":{}`, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPeer(t, offering(c.tool))
			p.handleWith(answers(`{` + c.result + `}`))
			got := compile(t, p, envelope.Write, func(s *connector.Spec) { s.OutputSchema = c.own }).Caller.Call(t.Context(), call(`{}`))
			if got.OK != (c.want == "") || (c.want != "" && got.Row.Code != c.want) {
				t.Errorf("got %+v", got)
			}
			if c.want != "" && got.Row.CommitState != envelope.Unknown {
				t.Errorf("a write came to %s", got.Row.CommitState)
			}
		})
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	p := newPeer(t, func(p *peer) {
		p.tools = `{"tools":[{"name":"a","title":"A","inputSchema":{"type":"object","properties":{"n":{"maximum":12345678901234567890}}}},
			{"name":"b","annotations":{"title":"B","readOnlyHint":true},"inputSchema":{"type":"object"}}]}`
	})
	offers, err := p.kind.List(t.Context(), "billing")
	if err != nil || len(offers) != 2 {
		t.Fatalf("%v: %v", err, offers)
	}
	b, err := json.Marshal(offers[0].InputSchema)
	if err != nil || !strings.Contains(string(b), "12345678901234567890") {
		t.Errorf("%v: %s", err, b)
	}
	if offers[0].Title != "A" || offers[1].Title != "B" || offers[1].ReadOnly == nil || !*offers[1].ReadOnly || offers[0].ReadOnly != nil {
		t.Errorf("got %+v %+v", offers[0], offers[1])
	}
	if _, err := p.kind.List(t.Context(), "nobody"); err == nil {
		t.Error("an unknown server was listed")
	}
	if _, err := p.kind.List(t.Context(), "nowhere"); err == nil {
		t.Error("a server that is away was listed")
	}
}

// pages answers tools/list page by page; forever goes on without an end.
func pages(t *testing.T, next func(cursor string) string) *mcptool.Kind {
	t.Helper()
	p := newPeer(t, nil)
	p.mu.Lock()
	p.list = func(m message) string {
		var params struct{ Cursor string }
		_ = json.Unmarshal(m.Params, &params)
		return fmt.Sprintf(`{"tools":[{"name":"tool%s","inputSchema":{"type":"object"}}],"nextCursor":%q}`, params.Cursor, next(params.Cursor))
	}
	p.mu.Unlock()
	return p.kind
}

func TestPages(t *testing.T) {
	t.Parallel()
	kind := pages(t, func(cursor string) string { return map[string]string{"": "1", "1": "2"}[cursor] })
	offers, err := kind.List(t.Context(), "billing")
	if err != nil || len(offers) != 3 || offers[2].Name != "tool2" {
		t.Fatalf("%v: %d tools", err, len(offers))
	}
	kind = pages(t, func(cursor string) string { return cursor + "1" })
	if offers, err := kind.List(t.Context(), "billing"); err == nil {
		t.Fatalf("a list without an end: %d tools", len(offers))
	}
	kind = pages(t, func(string) string { return "same" })
	if offers, err := kind.List(t.Context(), "billing"); err != nil || len(offers) != 2 {
		t.Fatalf("%v: %d tools", err, len(offers))
	}
}

// A server may change its list while it runs: what it says then counts.
func TestListChanges(t *testing.T) {
	t.Parallel()
	p := newPeer(t, func(p *peer) { p.stdio = true })
	tool := compile(t, p, envelope.Read, nil)
	if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.OK {
		t.Fatalf("got %+v", got)
	}
	p.mu.Lock()
	p.tools = `{"tools":[{"name":"credit","annotations":{"readOnlyHint":false},"inputSchema":{"type":"object"}}]}`
	p.mu.Unlock()
	p.handleWith(func(w http.ResponseWriter, m message) bool {
		write(w, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`+"\n"+
			fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}`, m.ID))
		return true
	})
	for begun := time.Now(); ; {
		got := tool.Caller.Call(t.Context(), call(`{}`))
		if got.Row.Code == mcptool.CodeNotReadOnly {
			return
		}
		if !got.OK || time.Since(begun) > 10*time.Second {
			t.Fatalf("got %+v", got)
		}
	}
}

// A tool that is gone, and a server that has no list at all: the server's own word decides.
func TestUnlisted(t *testing.T) {
	t.Parallel()
	for _, tools := range []string{`{"tools":[]}`, `[]`, `{"tools":[{"name":1}]}`} {
		p := newPeer(t, func(p *peer) { p.tools = tools })
		if got := compile(t, p, envelope.Read, nil).Caller.Call(t.Context(), call(`{}`)); !got.OK {
			t.Errorf("%s: %+v", tools, got)
		}
	}
}

func TestNextKind(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	tool := compile(t, p, envelope.Read, nil)
	tool.Caller.Call(t.Context(), call(`{}`))
	changed := p.spec()
	changed.Headers = map[string]string{"X-Other": "1"}
	same := p.kind.Next(map[string]connector.MCPServerSpec{"billing": p.spec()})
	p.kind.Leave(same)
	if got := compile(t, &peer{kind: same}, envelope.Read, nil).Caller.Call(t.Context(), call(`{}`)); !got.OK || p.count("initialize") != 1 {
		t.Errorf("an unchanged server: %d sessions, %+v", p.count("initialize"), got)
	}
	other := same.Next(map[string]connector.MCPServerSpec{"billing": changed})
	t.Cleanup(other.Close)
	// A call in flight under the old config finishes; the next is not sent.
	begun, release := make(chan struct{}), make(chan struct{})
	p.handleWith(func(w http.ResponseWriter, m message) bool {
		close(begun)
		<-release
		answer(w, m, `{}`)
		return true
	})
	done := make(chan envelope.Reply, 1)
	go func() { done <- tool.Caller.Call(t.Context(), call(`{}`)) }()
	<-begun
	same.Leave(other)
	if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.NotSent {
		t.Errorf("under the old config: %+v", got)
	}
	close(release)
	if got := <-done; !got.OK {
		t.Errorf("in flight: %+v", got)
	}
	p.handleWith(nil)
	if got := compile(t, &peer{kind: other}, envelope.Read, nil).Caller.Call(t.Context(), call(`{}`)); !got.OK || p.count("initialize") != 2 {
		t.Errorf("a changed server: %d sessions, %+v", p.count("initialize"), got)
	}
}

func TestPrepare(t *testing.T) {
	t.Parallel()
	kind := mcptool.New(map[string]connector.MCPServerSpec{"billing": {URL: "http://127.0.0.1:1/"}})
	for spec, want := range map[connector.MCPSpec]string{
		{Server: "other", Tool: "x"}: "[mcp server]",
		{Server: "billing"}:          "[mcp tool]",
	} {
		_, err := connector.Compile(connector.Spec{Name: "x", Effect: envelope.Read, Kind: connector.KindSpec{MCP: &spec}}, kind)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v", spec, err)
		}
	}
}
