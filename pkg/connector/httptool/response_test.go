package httptool_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/connectortest"
	"github.com/agentrun/executor/pkg/envelope"
)

const closing = "Connection: close\r\n"

func TestResponses(t *testing.T) {
	const ct = "Content-Type: application/json\r\n"
	gone := envelope.CodeOutcomeUnknown
	for _, c := range []struct {
		name, method, bytes string
		want                envelope.Code // "" is ok
		result              string
	}{
		{"chunked", "POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"a\r\n4\r\n\":1}\r\n0\r\n\r\n", "", `{"a":1}`},
		{"announced first", "POST", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + response("200 OK", "{}"), "", `{}`},
		{"announced for ever", "POST", strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 20), gone, ""},
		{"switching protocols", "POST", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", gone, ""},
		{"no HTTP", "POST", "hello\r\n\r\n", gone, ""},
		{"two lengths", "POST", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", gone, ""},
		{"not asked encoding", "POST", "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", gone, ""},
		{"identity encoding", "POST", "HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}", "", `{}`},
		{"head", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", "", `null`},
		{"head without length", "HEAD", "HTTP/1.1 200 OK\r\n" + ct + "\r\n", "", `null`},
		{"204", "DELETE", "HTTP/1.1 204 No Content\r\n\r\n", "", `null`},
		{"header too large", "POST", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 70<<10) + "\r\nContent-Length: 2\r\n\r\n{}", gone, ""},
		{"header almost too large", "POST", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 60<<10) + "\r\nContent-Length: 2\r\n\r\n{}", "", `{}`},
		{"too long by its own word", "POST", "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n", envelope.CodeResultTooLarge, ""},
		{"too long, a failure", "POST", "HTTP/1.1 404 Not Found\r\nContent-Length: 300000\r\n\r\n", envelope.CodeResourceNotFound, ""},
		{"chunks without end", "POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("10000\r\n"+strings.Repeat("x", 1<<16)+"\r\n", 5), envelope.CodeResultTooLarge, ""},
		{"bad chunk", "POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", gone, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPeer(t)
			p.answerWith(func(*http.Request, string) string { return c.bytes })
			got := compile(t, p, c.method, envelope.Write, func(s *connector.Spec) { s.Timeout = 2 * time.Second }).Caller.Call(t.Context(), newCall(`{}`))
			if got.Row.Code != c.want || string(got.Result) != c.result {
				t.Errorf("got ok=%v %s %s", got.OK, got.Row.Code, got.Result)
			}
		})
	}
}

// Where the end of a body is the end of its connection, a cut cannot be seen, except in JSON.
func TestBodyUntilClose(t *testing.T) {
	for _, c := range []struct {
		header, body, want string
	}{
		{"Content-Type: application/json\r\n", `{"a":1}`, `{"a":1}`},
		{"Content-Type: application/json; charset=utf-8\r\n", `{"a":`, ""},
		{"Content-Type: application/problem+json\r\n", ``, ""},
		{"Content-Type: text/plain\r\n", `half a sent`, `"half a sent"`},
	} {
		p := newPeer(t)
		p.answerThenClose("HTTP/1.1 200 OK\r\n" + closing + c.header + "\r\n" + c.body)
		got := compile(t, p, "POST", envelope.Write, nil).Caller.Call(t.Context(), newCall(`{}`))
		if string(got.Result) != c.want || got.OK != (c.want != "") || (!got.OK && got.Row.Code != envelope.CodeOutcomeUnknown) {
			t.Errorf("%s%s: %+v", c.header, c.body, got)
		}
	}
}

// A connection is used again exactly if the response before was read to its end and nothing came after it.
func TestReuse(t *testing.T) {
	for _, c := range []struct {
		name, bytes string
		connections int
	}{
		{"length", response("200 OK", "{}"), 1},
		{"failure", response("500 Oops", "{}"), 1},
		{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 1},
		{"asked to close", "HTTP/1.1 200 OK\r\n" + closing + "Content-Length: 2\r\n\r\n{}", 3},
		{"more than the answer", response("200 OK", "{}") + "HTTP/1.1 200 OK\r\n", 3},
		// The body that must not be there may come later, as the next call's answer.
		{"204", "HTTP/1.1 204 No Content\r\n\r\n", 1},
		{"204 with no length", "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 1},
		{"204 that announces a body", "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n", 3},
		{"204 that announces chunks", "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", 3},
		{"304 that announces a body", "HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n", 3},
		{"103", "HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + response("200 OK", "{}"), 1},
		{"103 that announces a body", "HTTP/1.1 103 Early Hints\r\nContent-Length: 2\r\n\r\n" + response("200 OK", "{}"), 3},
		{"too long", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n\"1234567\"", 3},
	} {
		p := newPeer(t)
		p.answerWith(func(*http.Request, string) string { return c.bytes })
		tool := compile(t, p, "POST", envelope.Write, func(s *connector.Spec) { s.MaxResultBytes = 8 })
		for range 3 {
			tool.Caller.Call(t.Context(), newCall(`{}`))
		}
		if n := p.accepted(); n != c.connections || len(p.arrived) != 3 {
			t.Errorf("%s: %d connections, %d requests", c.name, n, len(p.arrived))
		}
	}
}

func TestRedirects(t *testing.T) {
	other := newPeer(t)
	other.Script(connectortest.Script{Do: connectortest.Answer, Body: `"other"`})
	p := newPeer(t)
	to := func(status int, location string) func(*http.Request, string) string {
		return func(r *http.Request, _ string) string {
			if r.URL.Path == "/end" {
				return response("200 OK", `"end"`)
			}
			return fmt.Sprintf("HTTP/1.1 %d Go\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n", status, location)
		}
	}
	for _, c := range []struct {
		name, method string
		effect       envelope.Effect
		status       int
		location     string
		want         envelope.Code
		requests     int
	}{
		{"same host", "GET", envelope.Read, 302, "/end", "", 2},
		{"same host, absolute", "GET", envelope.Read, 308, p.url() + "/end", "", 2},
		{"other host", "GET", envelope.Read, 302, other.url() + "/end", envelope.CodeUpstreamError, 1},
		{"other scheme", "GET", envelope.Read, 302, strings.Replace(p.url(), "http:", "https:", 1) + "/end", envelope.CodeUpstreamError, 1},
		{"host in disguise", "GET", envelope.Read, 302, "//" + strings.TrimPrefix(other.url(), "http://") + "/end", envelope.CodeUpstreamError, 1},
		{"with credentials", "GET", envelope.Read, 302, strings.Replace(p.url(), "//", "//u:p@", 1) + "/end", envelope.CodeUpstreamError, 1},
		{"no request line", "GET", envelope.Read, 302, "/end?a b", envelope.CodeUpstreamError, 1},
		{"in circles", "GET", envelope.Read, 302, "/again", envelope.CodeUpstreamError, 4},
		{"nowhere", "GET", envelope.Read, 302, "", envelope.CodeUpstreamError, 1},
		{"304", "GET", envelope.Read, 304, "/end", envelope.CodeUpstreamError, 1},
		{"a read by POST", "POST", envelope.Read, 307, "/end", envelope.CodeUpstreamError, 1},
		{"write 302", "POST", envelope.Write, 302, "/end", envelope.CodeOutcomeUnknown, 1},
		{"write 303", "GET", envelope.Write, 303, "/end", envelope.CodeOutcomeUnknown, 1},
		{"write 307", "POST", envelope.Write, 307, "/end", envelope.CodeUpstreamError, 1},
		{"write 308", "PUT", envelope.Write, 308, "/end", envelope.CodeUpstreamError, 1},
	} {
		p.answerWith(to(c.status, c.location))
		before := len(p.arrived)
		got := compile(t, p, c.method, c.effect, nil).Caller.Call(t.Context(), newCall(`{}`))
		if got.Row.Code != c.want || len(p.arrived)-before != c.requests || len(other.arrived) != 0 {
			t.Errorf("%s: %+v after %d requests", c.name, got, len(p.arrived)-before)
		}
	}
}

// A lease that ends between a read's request and where it was sent on: something has left.
func TestRedirectWithoutLease(t *testing.T) {
	p := newPeer(t)
	p.answerWith(func(*http.Request, string) string {
		return "HTTP/1.1 302 Found\r\nLocation: /end\r\nContent-Length: 0\r\n\r\n"
	})
	c := newCall(`{}`)
	asked := 0
	c.Last = func() error {
		if asked++; asked > 1 {
			return errors.New("gone")
		}
		return nil
	}
	got := compile(t, p, "GET", envelope.Read, nil).Caller.Call(t.Context(), c)
	if got.NotSent || !got.NoReply || asked != 2 || len(p.arrived) != 1 {
		t.Errorf("asked %d times, %d requests: %+v", asked, len(p.arrived), got)
	}
}

// Whatever is cancelled when: a call that says "not sent" has not arrived, and no call arrives twice.
func TestNotSentIsTrue(t *testing.T) {
	p := newPeer(t)
	p.Script(connectortest.Script{Do: connectortest.Answer, Body: `{}`})
	tool := compile(t, p, "POST", envelope.Write, nil)
	const calls = 600
	type end struct {
		ref   string
		reply envelope.Reply
	}
	ends := make(chan end, calls)
	slots := make(chan struct{}, 32)
	for i := range calls {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%60)*10*time.Microsecond)
			defer cancel()
			c := newCall(`{}`)
			c.OperationRef = fmt.Sprintf("acme/r/s%d", i)
			ends <- end{c.OperationRef, tool.Caller.Call(ctx, c)}
		}()
	}
	notSent, answered := map[string]bool{}, 0
	for range calls {
		e := <-ends
		switch {
		case e.reply.NotSent:
			notSent[e.ref] = true
		case e.reply.OK:
			answered++
		}
	}
	p.close()
	seen := map[string]bool{}
	for len(p.arrived) > 0 {
		ref := (<-p.arrived).OperationRef
		if seen[ref] || notSent[ref] {
			t.Fatalf("%s arrived: again %v, said to be not sent %v", ref, seen[ref], notSent[ref])
		}
		seen[ref] = true
	}
	t.Logf("%d calls: %d not sent, %d arrived, %d answered", calls, len(notSent), len(seen), answered)
	if len(notSent) == 0 || len(seen) == 0 {
		t.Fatal("every call ended alike; the test has shown nothing")
	}
}

func TestManyAtOnce(t *testing.T) {
	p := newPeer(t)
	p.answerWith(func(_ *http.Request, body string) string { return response("200 OK", body) })
	tool := compile(t, p, "POST", envelope.Write, nil)
	done := make(chan error, 256)
	for i := range 256 {
		go func() {
			for j := range 4 {
				args := fmt.Sprintf(`{"i":%d,"j":%d}`, i, j)
				if got := tool.Caller.Call(t.Context(), newCall(args)); !got.OK || string(got.Result) != args {
					done <- fmt.Errorf("%s: %+v", args, got)
					return
				}
			}
			done <- nil
		}()
	}
	for range 256 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if n := p.accepted(); n > 256 {
		t.Errorf("1024 calls, 256 at once, took %d connections", n)
	}
}
