package httptool

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/internal/httpwire"
	"github.com/agentrun/executor/pkg/envelope"
)

func poolOf(k *Kind) *httpwire.Pool {
	for _, p := range k.pools {
		return p
	}
	return nil
}

func tool(t *testing.T, k *Kind, target string) *connector.Tool {
	t.Helper()
	tool, err := connector.Compile(connector.Spec{
		Name: "x", Effect: envelope.Write, Kind: connector.KindSpec{HTTP: &connector.HTTPSpec{Method: "POST", URL: target}},
	}, k)
	if err != nil {
		t.Fatal(err)
	}
	return tool
}

func testCall() *connector.Call {
	return &connector.Call{OperationRef: "acme/r/s", IdempotencyKey: "acme/r/s", Args: json.RawMessage(`{}`)}
}

// proxy is a forward proxy that counts what it is asked.
type proxy struct {
	plain, tunnels, refused atomic.Int64
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Proxy-Authorization") != "Basic dTpw" {
		p.refused.Add(1)
		http.Error(w, "", http.StatusProxyAuthRequired)
		return
	}
	if r.Method != http.MethodConnect {
		p.plain.Add(1)
		resp, err := http.DefaultTransport.RoundTrip(&http.Request{Method: r.Method, URL: r.URL, Header: r.Header, Body: r.Body, ContentLength: r.ContentLength})
		if err != nil {
			http.Error(w, "", http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
		return
	}
	p.tunnels.Add(1)
	far, err := net.Dial("tcp", r.Host)
	if err != nil {
		http.Error(w, "", http.StatusBadGateway)
		return
	}
	near, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = far.Close()
		return
	}
	_, _ = io.WriteString(near, "HTTP/1.1 200 Connected\r\n\r\n")
	go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
	go func() { _, _ = io.Copy(near, far); _ = near.Close() }()
}

func TestProxy(t *testing.T) {
	var seen atomic.Value
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Header.Get("Proxy-Authorization") + r.Header.Get("Idempotency-Key"))
		_, _ = io.WriteString(w, "{}")
	})
	p := &proxy{}
	front := httptest.NewServer(p)
	defer front.Close()
	via, err := url.Parse(strings.Replace(front.URL, "//", "//u:p@", 1))
	if err != nil {
		t.Fatal(err)
	}
	for _, secure := range []bool{false, true} {
		server := httptest.NewUnstartedServer(handler)
		if secure {
			server.StartTLS()
		} else {
			server.Start()
		}
		k := New()
		x := tool(t, k, server.URL)
		pool := poolOf(k)
		pool.Proxy = func(*url.URL) (*url.URL, error) { return via, nil }
		if secure {
			pool.TLS.RootCAs = x509.NewCertPool()
			pool.TLS.RootCAs.AddCert(server.Certificate())
		}
		for range 2 {
			if got := x.Caller.Call(t.Context(), testCall()); !got.OK {
				t.Errorf("secure %v: %+v", secure, got)
			}
		}
		if secure && seen.Load() != "acme/r/s" {
			t.Errorf("the far side saw %q", seen.Load())
		}
		wrong := *via
		wrong.User = nil
		pool.Proxy = func(*url.URL) (*url.URL, error) { return &wrong, nil }
		got := x.Caller.Call(t.Context(), testCall())
		if secure && !got.NotSent {
			t.Errorf("a tunnel that was refused: %+v", got)
		}
		k.Close()
		server.Close()
	}
	if p.plain.Load() != 2 || p.tunnels.Load() != 1 || p.refused.Load() != 2 {
		t.Errorf("plain %d, tunnels %d, refused %d", p.plain.Load(), p.tunnels.Load(), p.refused.Load())
	}
}

// held keeps what is written until it is flushed, so that two TLS records leave as one segment.
type held struct {
	net.Conn
	hold bool
	b    []byte
}

func (h *held) Write(b []byte) (int, error) {
	if h.hold {
		h.b = append(h.b, b...)
		return len(b), nil
	}
	return h.Conn.Write(b)
}

func (h *held) flush() error {
	_, err := h.Conn.Write(h.b)
	h.b = nil
	return err
}

// A second answer in a TLS record of its own may already be inside TLS when the connection is used again: it must not
// become the next call's answer.
func TestUnaskedAnswerInsideTLS(t *testing.T) {
	started := httptest.NewUnstartedServer(nil)
	started.StartTLS()
	config, root := &tls.Config{Certificates: started.TLS.Certificates}, started.Certificate()
	started.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var connections atomic.Int64
	done := make(chan struct{})
	serve := func(c net.Conn) {
		defer c.Close()
		h := &held{Conn: c}
		secure := tls.Server(h, config)
		in := bufio.NewReader(secure)
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			b, _ := io.ReadAll(r.Body)
			out := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
			h.hold = true
			_, _ = io.WriteString(secure, out+string(b))
			_, _ = io.WriteString(secure, out+"99") // nobody's answer
			if h.flush() != nil {
				return
			}
		}
	}
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			go serve(c)
		}
	}()
	k := New()
	x := tool(t, k, "https://"+l.Addr().String())
	p := poolOf(k)
	p.TLS.RootCAs = x509.NewCertPool()
	p.TLS.RootCAs.AddCert(root)
	const calls = 5
	for i := range calls {
		if got := x.Caller.Call(t.Context(), testCall()); !got.OK || string(got.Result) != "{}" {
			t.Fatalf("call %d: %+v", i, got)
		}
	}
	k.Close()
	_ = l.Close()
	<-done
	if n := connections.Load(); n != calls {
		t.Errorf("%d calls took %d connections: an unasked answer did not end its connection", calls, n)
	}
}
