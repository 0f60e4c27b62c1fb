package mcptool_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/envelope"
)

// compressed is a server that compresses whatever it says, as a proxy before it may, and says in what.
type compressed struct {
	http.ResponseWriter
	encoding string
	zip      *gzip.Writer
}

func (c *compressed) WriteHeader(status int) {
	c.Header().Set("Content-Encoding", c.encoding)
	c.ResponseWriter.WriteHeader(status)
}

func (c *compressed) Write(b []byte) (int, error) {
	if c.zip == nil {
		c.Header().Set("Content-Encoding", c.encoding)
		c.zip = gzip.NewWriter(c.ResponseWriter)
	}
	n, err := c.zip.Write(b)
	if err == nil {
		err = c.zip.Flush()
	}
	return n, err
}

func (c *compressed) Close() {
	if c.zip != nil {
		_ = c.zip.Close()
	}
}

// A session with a server that compresses everything, its list of tools and its refusals too.
func TestServerThatCompresses(t *testing.T) {
	t.Parallel()
	for _, events := range []bool{false, true} {
		p := newPeer(t, func(p *peer) {
			p.events, p.refuse, p.session = events, refusal(400, "text/plain", "Session not found"), "s"
		})
		p.tools = `{"tools":[{"name":"credit","annotations":{"readOnlyHint":false},"inputSchema":{"type":"object"}}]}`
		var asked []string
		url := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p.mu.Lock()
			asked = append(asked, r.Header.Get("Accept-Encoding"))
			p.mu.Unlock()
			c := &compressed{ResponseWriter: w, encoding: "gzip"}
			p.serve(c, r)
			c.Close()
		}))
		kind := mcptool.New(map[string]connector.MCPServerSpec{"billing": {URL: url}})
		t.Cleanup(kind.Close)
		p.structured = true
		p.script.Body = `{"n":1.10}`
		tool := compile(t, &peer{kind: kind}, envelope.Write, nil)
		if got := tool.Caller.Call(t.Context(), call(`{}`)); string(got.Result) != `{"n":1.10}` {
			t.Errorf("events %v: %+v", events, got)
		}
		if got := compile(t, &peer{kind: kind}, envelope.Read, nil).Caller.Call(t.Context(), call(`{}`)); got.Row.Code != mcptool.CodeNotReadOnly {
			t.Errorf("events %v, by the list of tools: %+v", events, got)
		}
		restarted(p)
		if got := tool.Caller.Call(t.Context(), call(`{}`)); got.Row.Code != envelope.CodeUpstreamUnavailable || got.Row.CommitState != envelope.NotCommitted {
			t.Errorf("events %v, a lost session: %+v", events, got)
		}
		p.mu.Lock()
		encodings := slices.Clone(asked)
		p.mu.Unlock()
		for _, a := range encodings {
			if a != "identity" {
				t.Errorf("a request asks for %q", a)
			}
		}
	}
}

func TestEncodedAnswers(t *testing.T) {
	t.Parallel()
	zipped := func(s string) string {
		var b bytes.Buffer
		w, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		_, _ = io.WriteString(w, s)
		_ = w.Close()
		return b.String()
	}
	bomb, event := zipped(strings.Repeat(" ", 2<<20)), zipped("data: "+strings.Repeat(" ", 40<<20))
	for _, c := range []struct {
		name, encoding, kind string
		status               int
		body                 func(m message) string
		read, write          envelope.Code
	}{
		{"a bomb", "gzip", "application/json", 200, func(message) string { return bomb }, envelope.CodeResultTooLarge, envelope.CodeResultTooLarge},
		{"a bomb in an event", "gzip", "text/event-stream", 200, func(message) string { return event }, envelope.CodeUpstreamTimeout, envelope.CodeOutcomeUnknown},
		{"unknown", "compress", "application/json", 200, func(message) string { return "x" }, envelope.CodeResultInvalid, envelope.CodeResultInvalid},
		{"unknown, events", "compress", "text/event-stream", 200, func(message) string { return "x" }, envelope.CodeResultInvalid, envelope.CodeResultInvalid},
		{"stacked", "gzip, gzip", "application/json", 200, func(message) string { return "x" }, envelope.CodeResultInvalid, envelope.CodeResultInvalid},
		{"unknown, a failure", "compress", "application/json", 401, func(message) string { return "x" }, envelope.CodeUpstreamDenied, envelope.CodeUpstreamDenied},
		{"no gzip", "gzip", "application/json", 200, func(m message) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}`, m.ID)
		}, envelope.CodeUpstreamTimeout, envelope.CodeOutcomeUnknown},
	} {
		p := newPeer(t, nil)
		p.handleWith(func(w http.ResponseWriter, m message) bool {
			w.Header().Set("Content-Type", c.kind)
			w.Header().Set("Content-Encoding", c.encoding)
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body(m))
			return true
		})
		for effect, want := range map[envelope.Effect]envelope.Code{envelope.Read: c.read, envelope.Write: c.write} {
			got := compile(t, p, effect, func(s *connector.Spec) { s.MaxResultBytes = 1 << 10 }).Caller.Call(t.Context(), call(`{}`))
			if got.OK || got.NotSent || got.Row.Code != want {
				t.Errorf("%s, %s: %+v", c.name, effect, got)
			}
			if effect == envelope.Write && c.status == 200 && got.Row.CommitState == envelope.NotCommitted {
				t.Errorf("%s: a write is %s", c.name, got.Row.CommitState)
			}
		}
	}
}
