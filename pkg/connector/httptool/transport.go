package httptool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
)

const operationRefHeader = "Agentrun-Operation-Ref"

// transport carries the requests of one tool, or of one tool's lookups.
type transport struct {
	method      string
	url         *template
	header      http.Header // of every request; never changed
	host        string      // overrides the Host header if not empty
	keyHeader   string
	lookup      bool
	bodyless    bool // GET, HEAD, DELETE
	restInQuery bool
	pool        *http.Transport
}

// CheckArgs implements connector.Transport.
func (t *transport) CheckArgs(args map[string]any) (string, bool) {
	return t.url.check(args, t.restInQuery)
}

// RoundTrip implements connector.Transport.
func (t *transport) RoundTrip(ctx context.Context, r *connector.Request) connector.Response {
	u, err := url.Parse(t.url.expand(r.Call, r.ArgValues, t.restInQuery))
	if err != nil {
		return connector.Response{Failure: connector.NotSent}
	}
	body, ok := t.body(r)
	if !ok {
		return connector.Response{Failure: connector.NotSent}
	}
	header := t.headers(r)
	sent := false
	for hop := 0; ; hop++ {
		resp, left := t.once(ctx, r, u, header, body)
		sent = sent || left
		if resp == nil {
			return failure(ctx, sent)
		}
		if next := t.redirect(resp, u, r, hop); next != nil {
			_ = resp.Body.Close()
			u = next
			continue
		}
		return read(ctx, resp, r.BodyMax)
	}
}

// failure is the end of a request without a response. What has not left has not left, whatever the reason.
func failure(ctx context.Context, sent bool) connector.Response {
	switch {
	case !sent:
		return connector.Response{Failure: connector.NotSent}
	case errors.Is(ctx.Err(), context.Canceled):
		return connector.Response{Failure: connector.Cancelled}
	}
	return connector.Response{Failure: connector.NoReply}
}

// body is the request's JSON: the args that the URL has not used up, with their digits as written. The same args are
// always the same bytes, because a tool that honours the key may compare them.
func (t *transport) body(r *connector.Request) ([]byte, bool) {
	if t.bodyless {
		return nil, true
	}
	rest := r.ArgValues
	if len(t.url.names) > 0 {
		rest = make(map[string]any, len(r.ArgValues))
		for name, v := range r.ArgValues {
			if !t.url.consumes(name) {
				rest[name] = v
			}
		}
	}
	return connector.AppendJSON(nil, rest)
}

func (t *transport) headers(r *connector.Request) http.Header {
	h := make(http.Header, len(t.header)+4)
	for name, v := range t.header {
		h[name] = v
	}
	if !t.bodyless && h["Content-Type"] == nil {
		h["Content-Type"] = []string{"application/json"}
	}
	if r.Effect == envelope.Write {
		h[t.keyHeader] = []string{r.IdempotencyKey}
	}
	if r.Effect == envelope.Write || t.lookup {
		h[operationRefHeader] = []string{r.OperationRef}
	}
	if r.Traceparent != "" && validValue(r.Traceparent) {
		h["Traceparent"] = []string{r.Traceparent}
	}
	return h
}

// once sends one request. left says whether anything of it may have left the process; a nil response is a failure.
//
// net/http repeats a request on its own when a reused connection dies, if it can make the body again and the method or an
// idempotency header calls it repeatable. Every request here has a body that cannot be made again, an empty one too (a
// GET's empty body puts nothing on the wire), so it does not; and the gate would not let a second one through. What may
// be tried again is a connection that turns out dead before the first byte: that is still one request on the wire.
func (t *transport) once(ctx context.Context, r *connector.Request, u *url.URL, header http.Header, body []byte) (*http.Response, bool) {
	for range staleConnections {
		g := &gate{leave: r.Leave}
		reused := false
		traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
			reused = info.Reused
			if c := gated(info.Conn); c != nil {
				g.arm(c)
				return
			}
			_ = info.Conn.Close() // no gate, no request; a pool dials gated connections only
		}})
		req := (&http.Request{
			Method: t.method, URL: u, Host: t.host, Header: header, ContentLength: int64(len(body)),
			Body: unrepeatable{bytes.NewReader(body)}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		}).WithContext(traced)
		resp, err := t.pool.RoundTrip(req)
		left := g.close()
		switch {
		case err == nil && left:
			return resp, true
		case err == nil:
			// An answer to a request that has not left is an answer to nothing.
			_ = resp.Body.Close()
		case left:
			return nil, true
		}
		if !reused || g.wasRefused() || ctx.Err() != nil {
			return nil, false
		}
	}
	return nil, false
}

// unrepeatable is a body without GetBody.
type unrepeatable struct{ io.Reader }

func (unrepeatable) Close() error { return nil }

// redirect returns where a read goes on: at most to the same scheme, host and port, with the same method.
func (t *transport) redirect(resp *http.Response, from *url.URL, r *connector.Request, hop int) *url.URL {
	if r.Effect != envelope.Read || hop >= redirectsMax || (t.method != http.MethodGet && t.method != http.MethodHead) {
		return nil
	}
	switch resp.StatusCode {
	case 301, 302, 303, 307, 308:
	default:
		return nil
	}
	locations := resp.Header["Location"]
	if len(locations) != 1 || locations[0] == "" {
		return nil
	}
	to, err := from.Parse(locations[0])
	if err != nil || to.User != nil || !strings.EqualFold(to.Scheme, from.Scheme) || !strings.EqualFold(to.Host, from.Host) {
		return nil
	}
	to.Fragment, to.RawFragment = "", ""
	return to
}

// read takes the response in, its body up to limit bytes.
func read(ctx context.Context, resp *http.Response, limit int) connector.Response {
	defer resp.Body.Close()
	out := connector.Response{Status: resp.StatusCode, Header: lowerCase(resp.Header)}
	if encoding := resp.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		out.Failure = connector.Unreadable // not asked for
		return out
	}
	if resp.Request.Method == http.MethodHead {
		return out
	}
	if resp.ContentLength > int64(limit) {
		out.Failure = connector.TooLarge
		return out
	}
	var b bytes.Buffer
	if resp.ContentLength > 0 {
		b.Grow(int(resp.ContentLength) + bytes.MinRead)
	}
	n, err := b.ReadFrom(io.LimitReader(resp.Body, int64(limit)+1))
	switch {
	case n > int64(limit):
		out.Failure = connector.TooLarge
	case err != nil && errors.Is(ctx.Err(), context.Canceled):
		out.Failure = connector.Cancelled
	case err != nil:
		out.Failure = connector.Unreadable
	case brokenOff(resp, b.Bytes()):
		out.Failure = connector.Unreadable
	default:
		out.Body = b.Bytes()
	}
	return out
}

// brokenOff: a body that ends with its connection cannot be told from one that was cut, unless it says that it is JSON and
// is not.
func brokenOff(resp *http.Response, body []byte) bool {
	if resp.ContentLength >= 0 || len(resp.TransferEncoding) > 0 {
		return false
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json")) && !json.Valid(body)
}

func lowerCase(h http.Header) map[string][]string {
	out := make(map[string][]string, len(h))
	for name, v := range h {
		out[strings.ToLower(name)] = v
	}
	return out
}
