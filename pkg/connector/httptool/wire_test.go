package httptool_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/connectortest"
	"github.com/agentrun/executor/pkg/envelope"
)

func compile(t testing.TB, p *peer, method string, effect envelope.Effect, edit func(*connector.Spec)) *connector.Tool {
	t.Helper()
	spec := connector.Spec{
		Name: "tool", Effect: effect, Timeout: 20 * time.Second,
		Kind: connector.KindSpec{HTTP: &connector.HTTPSpec{Method: method, URL: p.url() + "/things"}},
	}
	if edit != nil {
		edit(&spec)
	}
	tool, err := connector.Compile(spec, p.kind)
	if err != nil {
		t.Fatal(err)
	}
	return tool
}

func newCall(args string) *connector.Call {
	return &connector.Call{
		Tenant: "acme", RunID: "r", Step: "s", OperationRef: "acme/r/s", IdempotencyKey: "acme/r/s", Attempt: 1,
		Args: json.RawMessage(args), Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
}

// answerOnceThenLose answers the first request and takes every later one without an answer. requests counts them.
func answerOnceThenLose(t *testing.T) (url string, requests *atomic.Int64) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	requests = new(atomic.Int64)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if requests.Add(1) == 1 {
			_, _ = io.WriteString(w, "{}")
			return
		}
		c, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = c.Close()
		}
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return "http://" + l.Addr().String(), requests
}

// What this package must prevent is real: a bare client sends an idempotent request again by itself.
func TestBareClientResends(t *testing.T) {
	url, requests := answerOnceThenLose(t)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for range 2 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader([]byte("{}")))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", "k")
		resp, err := client.Do(req)
		if err != nil {
			break
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	if n := requests.Load(); n != 3 {
		t.Fatalf("%d requests; net/http no longer resends, and wire_test.go proves nothing", n)
	}
}

func TestOneRequestOnTheWire(t *testing.T) {
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
		for _, effect := range []envelope.Effect{envelope.Read, envelope.Write} {
			t.Run(method+" "+string(effect), func(t *testing.T) {
				p := newPeer(t)
				tool := compile(t, p, method, effect, nil)
				p.Script(connectortest.Script{Do: connectortest.Answer, Body: ""})
				for range 3 {
					if got := tool.Caller.Call(t.Context(), newCall(`{"a":1}`)); !got.OK {
						t.Fatalf("got %+v", got)
					}
				}
				if n := p.accepted(); n != 1 {
					t.Fatalf("3 calls took %d connections", n)
				}
				p.Script(connectortest.Script{Do: connectortest.Lose})
				got := tool.Caller.Call(t.Context(), newCall(`{"a":1}`))
				if got.OK || !got.NoReply || got.NotSent {
					t.Fatalf("got %+v", got)
				}
				if n := len(p.arrived); n != 4 {
					t.Fatalf("4 calls were %d requests on the wire", n)
				}
				if n := p.accepted(); n != 1 {
					t.Fatalf("a lost call opened %d more connections", n-1)
				}
			})
		}
	}
}

// A connection that the far side closed while it was idle has taken no byte of the request: the call goes out on another.
func TestDeadIdleConnectionIsNoAttempt(t *testing.T) {
	p := newPeer(t)
	tool := compile(t, p, "POST", envelope.Write, nil)
	for i := range 50 {
		p.answerWith(func(*http.Request, string) string {
			return "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
		})
		got := tool.Caller.Call(t.Context(), newCall(`{}`))
		if !got.OK {
			t.Fatalf("call %d: %+v", i, got)
		}
		p.mu.Lock()
		for c := range p.open {
			_ = c.Close()
		}
		p.mu.Unlock()
	}
	if n := len(p.arrived); n != 50 {
		t.Fatalf("50 calls were %d requests", n)
	}
}

func rawRequest(t *testing.T, method string, effect envelope.Effect, args string, edit func(*connector.Spec)) string {
	t.Helper()
	return rawBytes(t, func(url string, p *peer) {
		tool := compile(t, p, method, effect, func(s *connector.Spec) {
			s.Kind.HTTP.URL = url
			if edit != nil {
				edit(s)
			}
		})
		tool.Caller.Call(t.Context(), newCall(args))
	})
}

func rawLookup(t *testing.T, args string) string {
	t.Helper()
	return rawBytes(t, func(url string, p *peer) {
		tool := compile(t, p, "POST", envelope.Write, func(s *connector.Spec) {
			s.Verify = &connector.VerifySpec{
				Kind: connector.KindSpec{HTTP: &connector.HTTPSpec{Method: "GET", URL: url + "?ref={operation_ref}"}}, Committed: "true",
			}
		})
		tool.Looker.Lookup(t.Context(), newCall(args))
	})
}

// rawBytes returns what do sends to the URL, as it is on the wire.
func rawBytes(t *testing.T, do func(url string, p *peer)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	seen := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b := make([]byte, 64<<10)
		n, _ := c.Read(b)
		seen <- string(b[:n])
		_, _ = io.WriteString(c, response("200 OK", "{}"))
	}()
	do("http://"+l.Addr().String()+"/things", newPeer(t))
	return <-seen
}

func TestWireForm(t *testing.T) {
	get := rawRequest(t, "GET", envelope.Read, `{"b":[1,2.50],"a":"x y&z","n":null,"big":12345678901234567890}`, nil)
	if !strings.HasPrefix(get, "GET /things?a=x%20y%26z&b=%5B1%2C2.50%5D&big=12345678901234567890 HTTP/1.1\r\n") {
		t.Errorf("GET: %s", get)
	}
	for _, absent := range []string{"Content-Length", "Transfer-Encoding", "Idempotency-Key", "Agentrun-Operation-Ref", "Content-Type"} {
		if strings.Contains(get, absent) {
			t.Errorf("GET has %s: %s", absent, get)
		}
	}
	if strings.Count(get, "Accept-Encoding") != 1 || !strings.Contains(get, "Accept-Encoding: identity\r\n") {
		t.Errorf("GET asks for another body than it is: %s", get)
	}
	if !strings.HasSuffix(get, "\r\n\r\n") || !strings.Contains(get, "Traceparent: 00-0af7651916cd43dd8448eb211c80319c") {
		t.Errorf("GET: %s", get)
	}
	post := rawRequest(t, "POST", envelope.Write, `{"b":1.10,"a":12345678901234567890}`, func(s *connector.Spec) {
		s.Kind.HTTP.IdempotencyHeader = "X-Request-Key"
		s.Kind.HTTP.Headers = map[string]string{"Authorization": "Bearer t"}
	})
	for _, part := range []string{
		"Content-Length: 35\r\n", "Content-Type: application/json\r\n", "X-Request-Key: acme/r/s\r\n", "Agentrun-Operation-Ref: acme/r/s\r\n",
		"Authorization: Bearer t\r\n", "\r\n\r\n" + `{"a":12345678901234567890,"b":1.10}`,
	} {
		if !strings.Contains(post, part) {
			t.Errorf("POST lacks %q: %s", part, post)
		}
	}
	if strings.Contains(post, "Idempotency-Key:") {
		t.Errorf("POST: %s", post)
	}
	consumed := rawRequest(t, "PUT", envelope.Write, `{"id":"a/b","n":1}`, func(s *connector.Spec) { s.Kind.HTTP.URL += "/{id}?key={idempotency_key}" })
	if !strings.HasPrefix(consumed, "PUT /things/a%2Fb?key=acme%2Fr%2Fs HTTP/1.1\r\n") || !strings.HasSuffix(consumed, "\r\n\r\n"+`{"n":1}`) {
		t.Errorf("PUT: %s", consumed)
	}
	lookup := rawLookup(t, `{"id":"a","n":1}`)
	if !strings.HasPrefix(lookup, "GET /things?ref=acme%2Fr%2Fs HTTP/1.1\r\n") || !strings.Contains(lookup, "\r\nAgentrun-Operation-Ref: acme/r/s\r\n") ||
		strings.Contains(lookup, "Idempotency-Key") {
		t.Errorf("lookup: %s", lookup)
	}
	empty := rawRequest(t, "POST", envelope.Read, ``, nil)
	if !strings.HasSuffix(empty, "\r\n\r\n{}") || strings.Contains(empty, "Idempotency-Key") {
		t.Errorf("POST of a read: %s", empty)
	}
}

// Last is asked when the connection stands and before the first byte: its answer is the newest that there can be.
func TestLastIsTheLastStatement(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%v", secure), func(t *testing.T) {
			var handled atomic.Int64
			handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				handled.Add(1)
				_, _ = io.WriteString(w, "{}")
			})
			server := httptest.NewUnstartedServer(handler)
			connected := make(chan struct{}, 8) // asked before there is a connection, Last would wait for ever
			server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
				if s == http.StateNew {
					connected <- struct{}{}
				}
			}
			spec := &connector.HTTPSpec{Method: "POST"}
			if secure {
				server.StartTLS()
				spec.TLS = &connector.TLSSpec{CA: caFile(t, server), ServerName: "example.com"}
			} else {
				server.Start()
			}
			defer server.Close()
			spec.URL = server.URL
			p := newPeer(t)
			tool := compile(t, p, "POST", envelope.Write, func(s *connector.Spec) { s.Kind.HTTP = spec })
			c := newCall(`{}`)
			c.Last = func() error {
				<-connected
				return errors.New("gone")
			}
			if got := tool.Caller.Call(t.Context(), c); !got.NotSent || got.Row.Code != envelope.CodeUpstreamUnavailable {
				t.Fatalf("got %+v", got)
			}
			if handled.Load() != 0 {
				t.Fatal("it was sent all the same")
			}
			if got := tool.Caller.Call(t.Context(), newCall(`{}`)); !got.OK || handled.Load() != 1 {
				t.Fatalf("got %+v", got)
			}
		})
	}
}

// A deadline that passes while the connection is being made has sent nothing.
func TestDeadlineWhileConnecting(t *testing.T) {
	// A listener that never answers a TLS handshake.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := newPeer(t)
	tool := compile(t, p, "POST", envelope.Write, func(s *connector.Spec) {
		s.Kind.HTTP.URL = "https://" + l.Addr().String()
		s.Timeout = 50 * time.Millisecond
	})
	if got := tool.Caller.Call(t.Context(), newCall(`{}`)); !got.NotSent || got.Row.Code != envelope.CodeUpstreamUnavailable {
		t.Fatalf("got %+v", got)
	}
}

func TestConnectionLimitIsNotSent(t *testing.T) {
	p := newPeer(t)
	limit := func(s *connector.Spec) { s.Kind.HTTP.MaxConnsPerHost = 1 }
	tool := compile(t, p, "POST", envelope.Write, limit)
	p.Script(connectortest.Script{Do: connectortest.Hang})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan envelope.Reply, 1)
	go func() { first <- tool.Caller.Call(ctx, newCall(`{}`)) }()
	<-p.arrived
	second := compile(t, p, "POST", envelope.Write, func(s *connector.Spec) {
		limit(s)
		s.Timeout = 50 * time.Millisecond
	})
	if got := second.Caller.Call(t.Context(), newCall(`{}`)); !got.NotSent {
		t.Fatalf("the second waited for a connection: %+v", got)
	}
	cancel()
	if got := <-first; !got.NoReply || got.Row.Code != envelope.CodeOutcomeUnknown {
		t.Fatalf("got %+v", got)
	}
}
