package mcptool

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/internal/httpwire"
	"github.com/agentrun/executor/pkg/connector/internal/token"
)

const (
	sessionName = "Mcp-Session-Id"
	resumptions = 3 // of one answer's event stream
)

// client is the HTTP side of one server. It sends every request once, over the way that all HTTP takes here, and follows no
// redirect.
type client struct {
	pool        *httpwire.Pool
	headers     map[string]string
	credentials token.Credentials
}

func newClient(spec connector.MCPServerSpec, secure *tls.Config) *client {
	secure.NextProtos = []string{"http/1.1"}
	c := &client{headers: spec.Headers, pool: &httpwire.Pool{TLS: secure}, credentials: token.Credentials{Files: spec.Secrets}}
	if spec.OAuth2 != nil {
		c.credentials.Tokens = token.New(*spec.OAuth2, secure, nil)
	}
	return c
}

// open begins a session with a server; nothing is sent before the first message.
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

// RoundTrip implements http.RoundTripper.
func (c *client) RoundTrip(req *http.Request) (*http.Response, error) {
	d := dispatchOf(req.Context())
	if req.Method != http.MethodPost {
		d = nil // the rest of an event stream
	}
	out, err := c.request(req)
	if err != nil {
		return nil, err
	}
	var held token.Token
	if c.credentials.Tokens != nil {
		if held, err = c.credentials.Tokens.Get(req.Context()); err != nil {
			return d.unauthorized(req, err)
		}
		out.Header = httpwire.Line(out.Header, "Authorization", held.Header)
	}
	if d != nil {
		out.Leave, out.Stayed = d.leave, d.stayed
	}
	resp, err := c.pool.Send(req.Context(), out)
	meet(req.Context(), resp, err)
	switch {
	case err != nil && d != nil:
		d.fail(silence(req.Context()))
		return nil, err
	case err != nil:
		return nil, err
	}
	resp.Request = req
	if c.credentials.Tokens != nil && d == nil && resp.StatusCode == http.StatusUnauthorized {
		c.credentials.Tokens.Drop(held.ID)
	}
	if note, _ := req.Context().Value(noteKey{}).(bool); note && (resp.StatusCode < 200 || resp.StatusCode >= 300) {
		_ = resp.Body.Close()
		resp.StatusCode, resp.Body, resp.ContentLength = http.StatusAccepted, http.NoBody, 0
	}
	if d == nil {
		resp.Body = bounded(resp)
		if err := httpwire.Decode(resp); err != nil {
			_ = resp.Body.Close()
			return nil, err
		}
		resp.Body = bounded(resp)
		return resp, nil
	}
	d.mu.Lock()
	d.session, d.token = req.Header.Get(sessionName) != "", held.ID
	d.mu.Unlock()
	return d.respond(req, resp), nil
}

var errHeader = errors.New("mcp: a header that no request can have")

// unauthorized ends a request that gets no token; d is nil where it is none that we follow. The session stays.
func (d *dispatch) unauthorized(req *http.Request, err error) (*http.Response, error) {
	if d == nil {
		return nil, err
	}
	d.settle(func(d *dispatch) { d.failure, d.unheld = connector.NotSent, err })
	return substitute(req, &http.Response{Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req}), nil
}

// request is the SDK's request as it goes out.
func (c *client) request(req *http.Request) (*httpwire.Request, error) {
	header := req.Header.Clone()
	header.Set("User-Agent", "agentrun")
	header.Set("Accept-Encoding", httpwire.AcceptEncoding)
	for name, value := range c.headers {
		header.Set(name, value)
	}
	host := header.Get("Host")
	for _, name := range []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Trailer", "Expect", "Upgrade"} {
		header.Del(name) // the connection's own
	}
	out := &httpwire.Request{Method: req.Method, URL: req.URL, Host: host, Leave: func() bool { return true }}
	for _, name := range slices.Sorted(maps.Keys(header)) {
		for _, value := range header[name] {
			if !httpwire.ValidName(name) || !httpwire.ValidValue(value) {
				return nil, errHeader
			}
			out.Header = httpwire.Line(out.Header, name, value)
		}
	}
	if req.Body == nil {
		return out, nil
	}
	defer req.Body.Close()
	b, err := io.ReadAll(req.Body)
	out.Body = append([]byte{}, b...)
	return out, err
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
		if httpwire.Decode(resp) == nil {
			return resp
		}
		_ = resp.Body.Close()
		d.fail(connector.Undecoded)
		return substitute(req, resp)
	}
	body, reading := httpwire.ReadBody(resp, d.max)
	switch {
	case resp.StatusCode < 200 || resp.StatusCode >= 300:
		d.settle(func(d *dispatch) {
			d.status, d.header = resp.StatusCode, lowerCase(resp.Header)
			d.fault, d.words = readRefusal(body)
		})
	case reading == httpwire.TooLarge:
		d.fail(connector.TooLarge)
	case reading == httpwire.Broken && req.Context().Err() != nil:
		d.fail(silence(req.Context()))
	case reading == httpwire.Broken || resp.StatusCode != http.StatusOK || mediaType(resp) != "application/json":
		d.fail(connector.Unreadable)
	case reading == httpwire.Foreign:
		d.fail(connector.Undecoded)
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

// noteKey marks the write of a message that nobody waits for an answer to. The SDK would end the session if it is refused,
// and with it every call in flight there.
type noteKey struct{}

// idKey is the request's JSON-RPC id in the context of its write.
type idKey struct{}

// bounded ends a body that is longer than any message may be; an event stream is bounded by its events.
func bounded(resp *http.Response) io.ReadCloser {
	if isEvents(resp) {
		return resp.Body
	}
	return &bound{resp.Body, messageMax}
}

type bound struct {
	io.ReadCloser
	left int
}

var errTooLong = errors.New("the response is too long")

func (b *bound) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
