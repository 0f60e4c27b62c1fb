package mcptool

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentrun/executor/pkg/connector"
)

const (
	dialTimeout = 10 * time.Second
	// An idle connection is dropped before the servers that are quickest to do so (5 s) close it under a request.
	idleTimeout  = 3 * time.Second
	sessionName  = "Mcp-Session-Id"
	headerMax    = 64 << 10 // bytes of a response's headers
	resumptions  = 3        // of one answer's event stream
	idleConnsMax = 64
)

// client is the HTTP side of one server. It sends every request once: no redirect is followed, and the bodies of requests
// cannot be had a second time, which keeps net/http from sending them again.
type client struct {
	base    *http.Transport
	headers map[string]string
}

func newClient(headers map[string]string) *client {
	dialer := &net.Dialer{Timeout: dialTimeout}
	return &client{headers: headers, base: &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &gate{Conn: c}, nil
		},
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    dialTimeout,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{}, // HTTP/1.1: one request on a connection at a time
		IdleConnTimeout:        idleTimeout,
		MaxIdleConnsPerHost:    idleConnsMax,
		MaxResponseHeaderBytes: headerMax,
		DisableCompression:     true,
	}}
}

// openHTTP begins a session with a server; nothing is sent before the first message.
func (c *client) open(url string) func(context.Context) (mcp.Connection, error) {
	return func(ctx context.Context) (mcp.Connection, error) {
		t := mcp.StreamableClientTransport{
			Endpoint: url,
			HTTPClient: &http.Client{
				Transport:     c,
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			},
			MaxRetries: resumptions,
			// It would be opened before the first call, and a server that does not answer it would hold that up for ever.
			DisableStandaloneSSE: true,
			MaxEventSize:         messageMax,
		}
		return t.Connect(ctx)
	}
}

// gate is a connection that knows which of our requests is on its way there, and lets nothing through that is no answer to
// one: net/http would print it, or take it for the next request's answer.
type gate struct {
	net.Conn
	passing atomic.Pointer[passage] // nil: nothing was sent yet but TLS
}

// passage is one request's way through one connection, to the end of its response.
type passage struct {
	d     *dispatch // nil: the rest of an event stream
	begun atomic.Bool
	spent atomic.Bool // something came that may be followed by a body that must not be there
}

// idle is what passes between two requests.
var idle = new(passage)

var errUnasked = errors.New("the far side said something unasked")

// Write asks before the first byte of a request, and notes what became of it.
func (g *gate) Write(b []byte) (int, error) {
	p := g.passing.Load()
	if p == nil || p == idle || p.begun.Load() {
		return g.Conn.Write(b)
	}
	if p.d != nil && !p.d.leave() {
		return 0, errHeldBack
	}
	p.begun.Store(true) // before: the answer may be quicker than the return
	n, err := g.Conn.Write(b)
	if n == 0 && err != nil {
		p.begun.Store(false)
		if p.d != nil {
			p.d.stayed()
		}
	}
	return n, err
}

// Read gives out what answers a request. What comes without one ends the connection, and is seen by nobody.
func (g *gate) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if p := g.passing.Load(); n > 0 && p != nil && !p.begun.Load() {
		clear(b[:n])
		return 0, errUnasked
	}
	return n, err
}

// over ends a request's way, once its response has been read.
func (g *gate) over(p *passage) {
	if g.passing.CompareAndSwap(p, idle) && p.spent.Load() {
		_ = g.Conn.Close()
	}
}

// answer is a response's body; its end is the end of the request's way.
type answer struct {
	io.ReadCloser
	over func()
}

func (a *answer) Read(b []byte) (int, error) {
	n, err := a.ReadCloser.Read(b)
	if err != nil {
		a.over()
	}
	return n, err
}

func (a *answer) Close() error {
	defer a.over()
	return a.ReadCloser.Close()
}

// RoundTrip implements http.RoundTripper.
func (c *client) RoundTrip(req *http.Request) (*http.Response, error) {
	d := dispatchOf(req.Context())
	if req.Method != http.MethodPost {
		d = nil // the rest of an event stream
	}
	// Written by the transport before it returns a response, the last for the connection that it is from.
	var way atomic.Pointer[gate]
	var passes atomic.Pointer[passage]
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			conn := info.Conn
			if secure, ok := conn.(*tls.Conn); ok {
				conn = secure.NetConn()
			}
			p := &passage{d: d}
			passes.Store(p)
			way.Store(conn.(*gate))
			conn.(*gate).passing.Store(p)
		},
		Got1xxResponse: func(int, textproto.MIMEHeader) error {
			passes.Load().spent.Store(true)
			return nil
		},
	})
	sent := req.Clone(ctx)
	sent.GetBody = nil
	for name, value := range c.headers {
		sent.Header.Set(name, value)
	}
	resp, err := c.base.RoundTrip(sent)
	if err == nil {
		g, p := way.Load(), passes.Load()
		if resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified {
			p.spent.Store(true)
		}
		resp.Body = &answer{resp.Body, func() { g.over(p) }}
	}
	if d == nil {
		if err == nil {
			resp.Body = &bounded{ReadCloser: resp.Body, left: messageMax, events: isEvents(resp)}
		}
		return resp, err
	}
	if err != nil {
		d.fail(silence(req.Context()))
		return nil, err
	}
	d.mu.Lock()
	d.session = req.Header.Get(sessionName) != ""
	d.mu.Unlock()
	return d.respond(req, resp), nil
}

// silence tells apart why nothing came.
func silence(ctx context.Context) connector.Failure {
	if errors.Is(ctx.Err(), context.Canceled) {
		return connector.Cancelled
	}
	return connector.NoReply
}

func mediaType(resp *http.Response) string {
	t, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return t
}

func isEvents(resp *http.Response) bool { return mediaType(resp) == "text/event-stream" }

// respond takes the response to a request that we follow. The SDK ends a whole session over a response that it does not
// like; it only gets to see those that it does.
func (d *dispatch) respond(req *http.Request, resp *http.Response) *http.Response {
	if resp.StatusCode == http.StatusOK && isEvents(resp) {
		return resp
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(d.max)+1))
	_ = resp.Body.Close()
	switch {
	case resp.StatusCode < 200 || resp.StatusCode >= 300:
		d.settle(func(d *dispatch) {
			d.status, d.header = resp.StatusCode, lowerCase(resp.Header)
			d.fault, d.words = readRefusal(body)
		})
	case len(body) > d.max:
		d.fail(connector.TooLarge)
	case err != nil && req.Context().Err() != nil:
		d.fail(silence(req.Context()))
	case err != nil || resp.StatusCode != http.StatusOK || mediaType(resp) != "application/json":
		d.fail(connector.Unreadable)
	case !answers(req, body):
		if fault, nobodys := readFault(body); fault != nil && nobodys {
			d.settle(func(d *dispatch) { d.fault = fault })
		} else {
			d.fail(connector.Unreadable)
		}
	default:
		resp.Body = io.NopCloser(bytes.NewReader(body))
		return resp
	}
	return substitute(req, resp)
}

func lowerCase(h http.Header) map[string][]string {
	out := make(map[string][]string, len(h))
	for name, v := range h {
		out[strings.ToLower(name)] = v
	}
	return out
}

// answers reports whether a body is a response with the request's id.
func answers(req *http.Request, body []byte) bool {
	m, err := jsonrpc.DecodeMessage(body)
	if err != nil {
		return false
	}
	r, ok := m.(*jsonrpc.Response)
	if !ok {
		return false
	}
	id, err := json.Marshal(r.ID.Raw())
	return err == nil && bytes.Equal(id, idOf(req))
}

// idOf is the JSON-RPC id of a request that we follow.
func idOf(req *http.Request) json.RawMessage {
	if b, ok := req.Context().Value(idKey{}).(json.RawMessage); ok {
		return b
	}
	return json.RawMessage("null")
}

// substitute answers the SDK's request with an error of its own, so that it forgets the request and nothing else.
func substitute(req *http.Request, resp *http.Response) *http.Response {
	body := append(append([]byte(`{"jsonrpc":"2.0","id":`), idOf(req)...), `,"error":{"code":-32000,"message":"settled"}}`...)
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: resp.Proto, ProtoMajor: resp.ProtoMajor, ProtoMinor: resp.ProtoMinor,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)), Request: resp.Request,
	}
}

// idKey is the request's JSON-RPC id in the context of its write.
type idKey struct{}

// bounded ends a body that is longer than any message may be; an event stream is bounded by its events.
type bounded struct {
	io.ReadCloser
	left   int
	events bool
}

var errTooLong = errors.New("the response is too long")

func (b *bounded) Read(p []byte) (int, error) {
	if b.events {
		return b.ReadCloser.Read(p)
	}
	if b.left <= 0 {
		return 0, errTooLong
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
