package httpwire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

func get(t *testing.T, target string) *Request {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	return &Request{Method: http.MethodGet, URL: u, Leave: func() bool { return true }}
}

func TestIdleConnections(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	defer server.Close()
	p := &Pool{}
	r := get(t, server.URL)
	at, _, err := p.locate(r.URL)
	if err != nil {
		t.Fatal(err)
	}
	idle := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.origins[at].idle)
	}
	for range 3 {
		resp, err := p.Send(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if b, reading := ReadBody(resp, 10); string(b) != "{}" || reading != Whole || idle() != 1 {
			t.Fatalf("%d idle: %s", idle(), b)
		}
		if n, err := resp.Body.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Fatalf("after the end: %d, %v", n, err)
		}
	}
	p.mu.Lock()
	c := p.origins[at].idle[0]
	p.mu.Unlock()
	p.expire(c)
	if idle() != 0 {
		t.Error("an expired connection is still idle")
	}
	c2, reused, err := p.get(context.Background(), at, nil)
	if err != nil || reused {
		t.Fatalf("reused %v: %v", reused, err)
	}
	p.expire(c2) // its timer fires just as it is taken
	if _, err := io.WriteString(c2, "x"); err != nil {
		t.Errorf("a connection in use was closed: %v", err)
	}
	p.put(c2)
	p.CloseIdle()
	if idle() != 0 {
		t.Error("CloseIdle left an idle connection")
	}
	// A body that is not wanted to its end takes its connection with it.
	resp, err := p.Send(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if idle() != 0 {
		t.Error("a body was left in a connection that is idle")
	}
}

// cut closes connections in the moment in which something is about to be written to them.
type cut struct{ net.Conn }

func (c cut) Write([]byte) (int, error) { _ = c.Close(); return 0, net.ErrClosed }

// A connection that died idle and took no byte is replaced, and what it did not take has not been sent; with TLS too, where the
// bytes that count are those below it.
func TestDeadConnectionTakesNothing(t *testing.T) {
	for _, secure := range []bool{false, true} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		p := &Pool{}
		if secure {
			server.StartTLS()
			p.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
			p.TLS.RootCAs.AddCert(server.Certificate())
		} else {
			server.Start()
		}
		r := get(t, server.URL)
		left := 0
		r.Leave = func() bool { left++; return true }
		r.Stayed = func() { left-- }
		send := func() {
			resp, err := p.Send(t.Context(), r)
			if err != nil {
				t.Fatalf("secure %v: %v", secure, err)
			}
			if b, reading := ReadBody(resp, 10); string(b) != "{}" || reading != Whole {
				t.Fatalf("secure %v: %q", secure, b)
			}
		}
		send()
		at, _, _ := p.locate(r.URL)
		p.origins[at].idle[0].out.Conn = cut{p.origins[at].idle[0].out.Conn}
		send()
		if left != 2 {
			t.Errorf("secure %v: %d requests have left", secure, left)
		}
		r.Leave = func() bool { return false }
		if _, err := p.Send(t.Context(), r); !errors.Is(err, ErrNotSent) || len(p.origins[at].idle) != 1 {
			t.Errorf("secure %v: held back: %v", secure, err)
		}
		p.CloseIdle()
		server.Close()
	}
}
