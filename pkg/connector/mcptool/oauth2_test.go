package mcptool_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/envelope"
)

// guarded is an MCP server that wants a token, and the endpoint that issues them.
type guarded struct {
	*peer
	url, tokens string

	mu     sync.Mutex
	issued int
	answer func(w http.ResponseWriter) bool                      // of the endpoint; nil or false: a token
	refuse func(authorization string, r *http.Request) (no bool) // by the server; nil: all but the latest
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{peer: newPeer(t, nil)}
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.issued++
		if g.answer != nil && g.answer(w) {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"Bearer","expires_in":3600}`, g.issued)
	}))
	t.Cleanup(tokens.Close)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		authorization := r.Header.Get("Authorization")
		g.mu.Lock()
		refused := authorization != fmt.Sprintf("Bearer token-%d", g.issued)
		if g.refuse != nil {
			refused = g.refuse(authorization, r)
		}
		g.mu.Unlock()
		if refused {
			_, _ = io.ReadAll(r.Body)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		g.serve(w, r)
	}))
	t.Cleanup(server.Close)
	g.url, g.tokens = server.URL+"/mcp", tokens.URL
	return g
}

func (g *guarded) set(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
}

// tool is the server's tool, of a kind of its own.
func (g *guarded) tool(t *testing.T) *connector.Tool {
	t.Helper()
	kind := mcptool.New(map[string]connector.MCPServerSpec{"billing": {
		URL: g.url, OAuth2: &connector.OAuth2Spec{TokenURL: g.tokens, ClientID: "me", ClientSecret: "s3cr3t", Timeout: 10 * time.Second},
	}})
	t.Cleanup(kind.Close)
	return compile(t, &peer{kind: kind}, envelope.Write, nil)
}

// All requests to a server carry its token: those of the session as well as the calls.
func TestClientCredentials(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	tool := g.tool(t)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.OK {
				t.Errorf("got %+v", got)
			}
		})
	}
	all.Wait()
	if g.issued != 1 || g.count("initialize") != 1 {
		t.Fatalf("%d tokens, %d sessions", g.issued, g.count("initialize"))
	}
}

// A call that gets no token is not sent, at the beginning of a session and within it, and the session stays.
func TestNoTokenIsNotSent(t *testing.T) {
	t.Parallel()
	refused := func(w http.ResponseWriter) bool {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"error":"invalid_client"}`)
		return true
	}
	away := func(w http.ResponseWriter) bool { w.WriteHeader(http.StatusServiceUnavailable); return true }
	brief := func(w http.ResponseWriter) bool { // one that ends at once
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"access_token":"brief","token_type":"Bearer","expires_in":-1}`)
		return true
	}
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter) bool
		code   envelope.Code
	}{"away": {away, envelope.CodeUpstreamUnavailable}, "refused": {refused, envelope.CodeUpstreamDenied}} {
		t.Run(name, func(t *testing.T) {
			g := newGuarded(t)
			g.answer = c.answer
			if got := g.tool(t).Caller.Call(t.Context(), call(`{}`)); !got.NotSent || got.Row.Code != c.code || g.count("initialize") != 0 {
				t.Fatalf("before there is a session: %+v", got)
			}
			g.set(func() { g.answer, g.refuse = brief, func(string, *http.Request) bool { return false } })
			tool := g.tool(t)
			if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.OK {
				t.Fatalf("got %+v", got)
			}
			g.set(func() { g.answer = c.answer })
			if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.NotSent || got.Row.Code != c.code || g.count("tools/call") != 1 {
				t.Fatalf("within a session: %+v", got)
			}
		})
	}
}

// A token that the server refuses is renewed once, each attempt is one request, and the session stays.
func TestRefusedTokenIsRenewedOnce(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	tool := g.tool(t)
	attempt := func(want envelope.Code) {
		t.Helper()
		asked := 0
		g.set(func() {
			refuse := g.refuse
			g.refuse = func(authorization string, r *http.Request) bool {
				asked++
				return refuse != nil && refuse(authorization, r)
			}
		})
		got := tool.Caller.Call(t.Context(), call(`{}`))
		g.set(func() {
			if asked != 1 || got.Row.Code != want || got.OK != (want == "") || got.RetryAfter != 0 {
				t.Fatalf("%d requests, got %+v; wanted %q", asked, got, want)
			}
		})
	}
	if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.OK {
		t.Fatalf("got %+v", got)
	}
	revoked := func(authorization string, _ *http.Request) bool { return authorization == "Bearer token-1" }
	g.set(func() { g.refuse = revoked })
	attempt(envelope.CodeCredentialsExpired)
	attempt("")
	if n := g.count("initialize"); n != 1 {
		t.Fatalf("%d sessions", n)
	}

	g = newGuarded(t)
	tool = g.tool(t)
	if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.OK {
		t.Fatalf("got %+v", got)
	}
	g.set(func() { g.refuse = func(string, *http.Request) bool { return true } })
	attempt(envelope.CodeCredentialsExpired)
	attempt(envelope.CodeUpstreamDenied)
}

// A token that is refused when a session begins is not used for the next try.
func TestRefusedTokenAtTheBeginningOfASession(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	g.refuse = func(authorization string, _ *http.Request) bool { return authorization == "Bearer token-1" }
	tool := g.tool(t)
	for range 2 {
		if got := tool.Caller.Call(t.Context(), call(`{}`)); got.OK {
			return
		} else if !got.NotSent || got.Row.Outcome != envelope.Retryable {
			t.Fatalf("got %+v", got)
		}
	}
	t.Fatal("no session with the next token")
}
