package mcptool_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/connectortest"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/envelope"
)

func answers(result string) func(http.ResponseWriter, message) bool {
	return func(w http.ResponseWriter, m message) bool {
		answer(w, m, result)
		return true
	}
}

// Field case 24: an answer with isError is the tool's error, whatever else it holds; not a success, not a schema error.
func TestIsError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, result, rule string }{
		{"text", `{"content":[{"type":"text","text":"no money"}],"isError":true}`, "body == 'no money'"},
		{"structured", `{"content":[],"structuredContent":{"why":"no money"},"isError":true}`, "body.why == 'no money'"},
		{"JSON in text", `{"content":[{"type":"text","text":"{\"why\":\"no money\"}"}],"isError":true}`, "body.why == 'no money'"},
		{"two texts", `{"content":[{"type":"text","text":"no"},{"type":"text","text":"money"}],"isError":true}`, "body == 'no\\nmoney'"},
		{"nothing", `{"content":[],"isError":true}`, "body == null"},
		{"an image", `{"content":[{"type":"image","data":"AA==","mimeType":"image/png"}],"isError":true}`, "body == null"},
		{"fits the schema", `{"content":[],"structuredContent":{"credit_id":"x"},"isError":true}`, "has(body.credit_id)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPeer(t, nil)
			p.handleWith(answers(c.result))
			for effect, want := range map[envelope.Effect]envelope.Code{
				envelope.Read: envelope.CodeUpstreamError, envelope.Write: envelope.CodeOutcomeUnknown,
			} {
				schema := func(s *connector.Spec) {
					s.OutputSchema = map[string]any{"type": "object", "required": []any{"credit_id"}}
				}
				got := compile(t, p, effect, schema).Caller.Call(t.Context(), call(`{}`))
				if got.OK || got.Row.Code != want || (effect == envelope.Read && got.Row.Directive != envelope.Never) {
					t.Errorf("%s: %+v", effect, got)
				}
				got = compile(t, p, effect, func(s *connector.Spec) {
					s.Errors = []connector.Rule{{When: "is_error && " + c.rule, Code: "NO_MONEY", Category: envelope.Conflict}}
				}).Caller.Call(t.Context(), call(`{}`))
				if got.Row.Code != "NO_MONEY" {
					t.Errorf("%s, by rule: %+v", effect, got)
				}
			}
		})
	}
}

func TestResults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, result string
		want         string // "" for no reply
	}{
		{"structured wins", `{"content":[{"type":"text","text":"{\"n\":1}"}],"structuredContent":{"n":12345678901234567890.10}}`, `{"n":12345678901234567890.10}`},
		{"null is no structure", `{"content":[{"type":"text","text":"[1]"}],"structuredContent":null}`, `[1]`},
		{"text", `{"content":[{"type":"text","text":"done, \u00fc"}]}`, `"done, ü"`},
		{"no content at all", `{}`, `null`},
		{"an image", `{"content":[{"type":"image","data":"AA==","mimeType":"image/png"}]}`, `null`},
		{"content is no list", `{"content":"done"}`, ""},
		{"isError is no bool", `{"content":[],"isError":"yes"}`, ""},
		{"a result that is none", `[1]`, ""},
		{"a key twice", `{"content":[],"isError":false,"isError":true}`, ""},
		{"lone surrogate", `{"content":[{"type":"text","text":"\ud800"}]}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPeer(t, nil)
			p.handleWith(answers(c.result))
			got := compile(t, p, envelope.Write, nil).Caller.Call(t.Context(), call(`{}`))
			if (c.want == "" && (!got.NoReply || got.OK)) || (c.want != "" && string(got.Result) != c.want) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// A server that asks for more input would be asked again by the SDK, which is a second call.
func TestInputRequired(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	p.handleWith(answers(`{"resultType":"input_required","content":[],"requestState":"s","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object"}}}}}`))
	got := compile(t, p, envelope.Write, nil).Caller.Call(t.Context(), call(`{}`))
	if got.OK || got.Row.Code != envelope.CodeOutcomeUnknown || p.count("tools/call") != 1 {
		t.Errorf("%d calls: %+v", p.count("tools/call"), got)
	}
}

func TestProtocolErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code        int
		read, write envelope.Code
	}{
		{-32602, envelope.CodeUpstreamRejectedInput, envelope.CodeUpstreamRejectedInput},
		{-32601, envelope.CodeUpstreamRejectedInput, envelope.CodeUpstreamRejectedInput},
		{-32600, envelope.CodeUpstreamRejectedInput, envelope.CodeUpstreamRejectedInput},
		{-32700, envelope.CodeUpstreamRejectedInput, envelope.CodeUpstreamRejectedInput},
		{-32603, envelope.CodeUpstreamError, envelope.CodeOutcomeUnknown},
		{-32000, envelope.CodeUpstreamError, envelope.CodeOutcomeUnknown},
		{7, "QUOTA", "QUOTA"},
	} {
		p := newPeer(t, nil)
		p.handleWith(func(w http.ResponseWriter, m message) bool {
			write(w, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"s3cr3t","data":{"why":"quota"}}}`, m.ID, c.code))
			return true
		})
		for effect, want := range map[envelope.Effect]envelope.Code{envelope.Read: c.read, envelope.Write: c.write} {
			got := compile(t, p, effect, func(s *connector.Spec) {
				s.Errors = []connector.Rule{{When: "is_error && body.code == 7 && body.data.why == 'quota'", Code: "QUOTA", Category: envelope.Conflict}}
			}).Caller.Call(t.Context(), call(`{}`))
			if got.OK || got.Row.Code != want || got.NotSent {
				t.Errorf("%d, %s: %+v", c.code, effect, got)
			}
			if n := json.Number(strconv.Itoa(c.code)); got.Details["mcp_code"] != n || got.Seen.MCPCode != c.code {
				t.Errorf("%d, %s: details %v, seen %+v", c.code, effect, got.Details, got.Seen)
			}
		}
		if n := p.count("tools/call"); n != 2 {
			t.Errorf("%d: two calls were %d requests", c.code, n)
		}
	}
}

func TestStatuses(t *testing.T) {
	t.Parallel()
	for status, want := range map[int][2]envelope.Code{
		201: {envelope.CodeUpstreamTimeout, envelope.CodeOutcomeUnknown},
		202: {envelope.CodeUpstreamTimeout, envelope.CodeOutcomeUnknown},
		302: {envelope.CodeUpstreamError, envelope.CodeOutcomeUnknown},
		307: {envelope.CodeUpstreamError, envelope.CodeUpstreamError},
		308: {envelope.CodeUpstreamError, envelope.CodeUpstreamError},
		400: {envelope.CodeUpstreamRejectedInput, envelope.CodeUpstreamRejectedInput},
		401: {envelope.CodeUpstreamDenied, envelope.CodeUpstreamDenied},
		403: {envelope.CodeUpstreamRateLimited, envelope.CodeUpstreamRateLimited}, // it says when to come again
		404: {envelope.CodeResourceNotFound, envelope.CodeResourceNotFound},
		408: {envelope.CodeUpstreamUnavailable, envelope.CodeOutcomeUnknown},
		423: {envelope.CodeResourceLocked, envelope.CodeResourceLocked},
		425: {envelope.CodeUpstreamUnavailable, envelope.CodeUpstreamUnavailable},
		415: {envelope.CodeUpstreamRejectedInput, envelope.CodeUpstreamRejectedInput},
		429: {envelope.CodeUpstreamRateLimited, envelope.CodeUpstreamRateLimited},
		500: {envelope.CodeUpstreamUnavailable, envelope.CodeOutcomeUnknown},
		503: {envelope.CodeUpstreamUnavailable, envelope.CodeOutcomeUnknown},
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			p := newPeer(t, nil)
			p.handleWith(func(w http.ResponseWriter, _ message) bool {
				w.Header().Set("Location", p.url()+"/elsewhere")
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(status)
				return true
			})
			for i, effect := range []envelope.Effect{envelope.Read, envelope.Write} {
				got := compile(t, p, effect, nil).Caller.Call(t.Context(), call(`{}`))
				if got.OK || got.NotSent || got.Row.Code != want[i] {
					t.Errorf("%s: %+v", effect, got)
				}
				if status >= 300 && got.Details["http_status"] != json.Number(strconv.Itoa(status)) {
					t.Errorf("%s: details %v", effect, got.Details)
				}
				if status == 429 && got.RetryAfter != 7000 {
					t.Errorf("wait of %d ms", got.RetryAfter)
				}
			}
			if n := p.count("tools/call"); n != 2 {
				t.Errorf("two calls were %d requests", n)
			}
			// None of that has cost the others their session.
			p.handleWith(nil)
			p.Script(connectortest.Script{Do: connectortest.Answer, Body: "{}"})
			if got := compile(t, p, envelope.Read, nil).Caller.Call(t.Context(), call(`{}`)); !got.OK || p.count("initialize") != 1 {
				t.Errorf("%d sessions: %+v", p.count("initialize"), got)
			}
		})
	}
}

// resumable answers a call by an event stream that breaks off after an event with an id, and goes on in a GET.
type resumable struct {
	mu    sync.Mutex
	id    string
	calls int
	gets  int
	after string
}

func (s *resumable) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := between(string(body), `"id":`, `,`)
	switch {
	case r.Method == http.MethodGet:
		s.gets++
		s.after = r.Header.Get("Last-Event-ID")
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "id: e2\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[],\"structuredContent\":{\"n\":1.10}}}\n\n", s.id)
	case strings.Contains(string(body), `"tools/call"`):
		s.calls++
		s.id = id
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "id: e1\nretry: 10\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":1,\"progress\":1}}\n\n")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	case strings.Contains(string(body), `"initialize"`):
		write(w, `{"jsonrpc":"2.0","id":`+id+`,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}`)
	case strings.Contains(string(body), `"tools/list"`):
		write(w, `{"jsonrpc":"2.0","id":`+id+`,"result":{"tools":[]}}`)
	case id != "":
		write(w, `{"jsonrpc":"2.0","id":`+id+`,"error":{"code":-32601,"message":"no"}}`)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func between(s, from, to string) string {
	_, rest, ok := strings.Cut(s, from)
	if !ok {
		return ""
	}
	out, _, _ := strings.Cut(rest, to)
	return out
}

// Resuming an event stream asks for the rest of the answer; the call is on the wire once.
func TestResumption(t *testing.T) {
	t.Parallel()
	s := &resumable{}
	server := newServer(t, s)
	kind := mcptool.New(map[string]connector.MCPServerSpec{"billing": {URL: server}})
	t.Cleanup(kind.Close)
	got := compile(t, &peer{kind: kind}, envelope.Write, nil).Caller.Call(t.Context(), call(`{}`))
	s.mu.Lock()
	defer s.mu.Unlock()
	if !got.OK || string(got.Result) != `{"n":1.10}` || s.calls != 1 || s.gets != 1 || s.after != "e1" {
		t.Fatalf("%d calls, %d resumptions after %q: %+v", s.calls, s.gets, s.after, got)
	}
}

func newServer(t *testing.T, h http.Handler) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return "http://" + l.Addr().String()
}

// One call's bad answer is no other call's business.
func TestBadAnswersAreOneCallsOwn(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]func(w http.ResponseWriter, m message){
		"no JSON":     func(w http.ResponseWriter, _ message) { write(w, "<html>") },
		"no response": func(w http.ResponseWriter, _ message) { write(w, `{"jsonrpc":"2.0","method":"x"}`) },
		"another media type": func(w http.ResponseWriter, _ message) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "x")
		},
		"too long": func(w http.ResponseWriter, _ message) { write(w, strings.Repeat("x", 8<<20)) },
		"broken off": func(w http.ResponseWriter, _ message) {
			w.Header().Set("Content-Length", "100")
			write(w, "{")
			panic(http.ErrAbortHandler)
		},
		"an event stream, cut": func(w http.ResponseWriter, _ message) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {")
			panic(http.ErrAbortHandler)
		},
		"an empty stream": func(w http.ResponseWriter, _ message) { w.Header().Set("Content-Type", "text/event-stream") },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, nil)
			waiting, release := make(chan struct{}), make(chan struct{})
			p.handleWith(func(w http.ResponseWriter, m message) bool {
				if strings.Contains(string(m.Params), `"slow"`) {
					close(waiting)
					<-release
					answer(w, m, `{"content":[]}`)
					return true
				}
				bad(w, m)
				return true
			})
			done := make(chan envelope.Reply, 1)
			tool := compile(t, p, envelope.Write, nil)
			go func() { done <- tool.Caller.Call(t.Context(), call(`{"slow":1}`)) }()
			<-waiting
			got := tool.Caller.Call(t.Context(), call(`{}`))
			if got.OK || got.NotSent || got.Row.CommitState != envelope.Unknown {
				t.Errorf("the bad one: %+v", got)
			}
			close(release)
			if got := <-done; !got.OK {
				t.Errorf("the other one: %+v", got)
			}
			if n := p.count("initialize"); n != 1 {
				t.Errorf("%d sessions", n)
			}
		})
	}
}

// A call that is cut off is cancelled at the server, by the protocol's notification, and not sent again.
func TestCancellationIsTold(t *testing.T) {
	t.Parallel()
	p := newPeer(t, func(p *peer) { p.events = true })
	p.Script(connectortest.Script{Do: connectortest.Hang})
	got := compile(t, p, envelope.Write, func(s *connector.Spec) { s.Timeout = time.Second }).Caller.Call(t.Context(), call(`{}`))
	if !got.NoReply || got.Row.Code != envelope.CodeOutcomeUnknown {
		t.Fatalf("got %+v", got)
	}
	for begun := time.Now(); p.count("notifications/cancelled") == 0; {
		if time.Since(begun) > 10*time.Second {
			t.Fatal("the server was not told")
		}
	}
	if p.count("tools/call") != 1 {
		t.Fatalf("%d calls", p.count("tools/call"))
	}
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	for _, stdio := range []bool{false, true} {
		p := newPeer(t, func(p *peer) { p.stdio = stdio })
		p.handleWith(func(w http.ResponseWriter, m message) bool {
			answer(w, m, `{"content":[],"structuredContent":`+seen(m).Args+`}`)
			return true
		})
		tool := compile(t, p, envelope.Read, nil)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				args := fmt.Sprintf(`{"n":%d}`, i)
				if got := tool.Caller.Call(t.Context(), call(args)); string(got.Result) != args {
					t.Errorf("%s was answered with %s", args, got.Result)
				}
			})
		}
		wg.Wait()
		if n := p.count("initialize"); n != 1 {
			t.Errorf("%d sessions", n)
		}
	}
}

// A server that takes its time to begin a session holds up the call no longer than the call may take, and nothing is sent.
func TestSlowStart(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	server := newServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-block }))
	t.Cleanup(func() { close(block) })
	kind := mcptool.New(map[string]connector.MCPServerSpec{"billing": {URL: server}})
	t.Cleanup(kind.Close)
	tool := compile(t, &peer{kind: kind}, envelope.Write, func(s *connector.Spec) { s.Timeout = 100 * time.Millisecond })
	if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.NotSent {
		t.Fatalf("got %+v", got)
	}
}

func TestHeadersOfTheConfig(t *testing.T) {
	t.Parallel()
	got := make(chan http.Header, 64)
	server := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Clone()
		w.WriteHeader(http.StatusUnauthorized)
	}))
	kind := mcptool.New(map[string]connector.MCPServerSpec{"billing": {URL: server, Headers: map[string]string{"Authorization": "Bearer t"}}})
	t.Cleanup(kind.Close)
	if got := compile(t, &peer{kind: kind}, envelope.Write, nil).Caller.Call(t.Context(), call(`{}`)); !got.NotSent {
		t.Errorf("got %+v", got)
	}
	if h := <-got; h.Get("Authorization") != "Bearer t" {
		t.Errorf("headers %v", h)
	}
}
