package httptool

import (
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/internal/httpwire"
	"github.com/agentrun/executor/pkg/connector/internal/token"
	"github.com/agentrun/executor/pkg/envelope"
)

// redirectsMax is of a read, within one origin.
const redirectsMax = 3

const operationRefHeader = "Agentrun-Operation-Ref"

// transport carries the requests of one tool, or of one tool's lookups.
type transport struct {
	method      string
	url         *template
	head        string   // header lines of every request
	headers     []header // those that take args
	content     *content // nil: the body is the args that nothing else takes
	host        string   // overrides the Host header if not empty
	keyHeader   string
	lookup      bool
	bodyless    bool // GET and HEAD, and DELETE unless the config has a body for it
	restInQuery bool
	consumed    map[string]bool // args that URL, headers or body name
	pool        *httpwire.Pool
	credentials token.Credentials
}

// CheckArgs implements connector.Transport.
func (t *transport) CheckArgs(args map[string]any) (string, bool) {
	for i := range t.headers {
		if name, ok := t.headers[i].check(args); !ok {
			return connector.Pointer(name), false
		}
	}
	if t.content != nil {
		if name, ok := t.content.check(args, t.rest(args), t.lookup); !ok {
			return connector.Pointer(name), false
		}
	}
	return t.url.check(args, t.query(args))
}

// query are the args that go to the query beside what the URL names.
func (t *transport) query(args map[string]any) map[string]any {
	if !t.restInQuery {
		return nil
	}
	return t.rest(args)
}

// rest are the args that have no place of their own in URL, headers and body.
func (t *transport) rest(args map[string]any) map[string]any {
	if len(t.consumed) == 0 {
		return args
	}
	rest := make(map[string]any, len(args))
	for name, v := range args {
		if !t.consumed[name] {
			rest[name] = v
		}
	}
	return rest
}

// RoundTrip implements connector.Transport.
func (t *transport) RoundTrip(ctx context.Context, r *connector.Request) connector.Response {
	u, err := url.Parse(t.url.expand(r.Call, r.ArgValues, t.query(r.ArgValues)))
	if err != nil {
		return connector.Response{Failure: connector.NotSent}
	}
	body, ok := t.body(r)
	if !ok || !httpwire.ValidValue(r.OperationRef) || !httpwire.ValidValue(r.IdempotencyKey) {
		return connector.Response{Failure: connector.NotSent}
	}
	var held token.Token
	if t.credentials.Tokens != nil {
		if held, err = t.credentials.Tokens.Get(ctx); err != nil {
			return token.Response(err)
		}
	}
	resp := t.send(ctx, r, u, held.Header, body)
	if resp.Status != 0 && resp.Failure != connector.Unreadable {
		resp.Renewal = t.credentials.Answered(r, resp.Status, held.ID)
	}
	return resp
}

// send sends the request, and follows where a read is sent to.
func (t *transport) send(ctx context.Context, r *connector.Request, u *url.URL, authorization string, body []byte) connector.Response {
	for hop := 0; ; hop++ {
		resp := t.once(ctx, r, u, authorization, body)
		if hop > 0 && resp.Failure == connector.NotSent {
			resp.Failure = connector.NoReply // the first request has left
		}
		next := t.redirect(&resp, u, r, hop)
		if next == nil {
			return resp
		}
		u = next
	}
}

// body is what the config makes of the args, or a JSON object of those that have no other place, with their digits as
// written. The same args are always the same bytes, because a tool that honours the key may compare them.
func (t *transport) body(r *connector.Request) ([]byte, bool) {
	switch {
	case t.bodyless:
		return nil, true
	case t.content != nil:
		b, ok := t.content.encode(r.Call, r.ArgValues, t.rest(r.ArgValues))
		if b == nil {
			b = []byte{} // an empty form is a body all the same
		}
		return b, ok
	}
	return strictjson.AppendValue(nil, t.rest(r.ArgValues))
}

// header is what a request's header holds of the call; authorization is "" where the config has it.
func (t *transport) header(r *connector.Request, authorization string) []byte {
	b := append(make([]byte, 0, 256+len(t.head)), t.head...)
	for i := range t.headers {
		b = httpwire.Line(b, t.headers[i].name, t.headers[i].value.expand(r.Call, r.ArgValues))
	}
	if authorization != "" {
		b = httpwire.Line(b, "Authorization", authorization)
	}
	if r.Effect == envelope.Write {
		b = httpwire.Line(b, t.keyHeader, r.IdempotencyKey)
	}
	if r.Effect == envelope.Write || t.lookup {
		b = httpwire.Line(b, operationRefHeader, r.OperationRef)
	}
	if r.Traceparent != "" && httpwire.ValidValue(r.Traceparent) {
		b = httpwire.Line(b, "Traceparent", r.Traceparent)
	}
	return b
}

// once sends one request and reads its response.
func (t *transport) once(ctx context.Context, r *connector.Request, u *url.URL, authorization string, body []byte) connector.Response {
	head, err := t.pool.Send(ctx, &httpwire.Request{
		Method: t.method, URL: u, Host: t.host, Header: t.header(r, authorization), Body: body, Leave: r.Leave,
	})
	switch {
	case errors.Is(err, httpwire.ErrNotSent):
		return connector.Response{Failure: connector.NotSent}
	case err != nil:
		return connector.Response{Failure: silence(ctx)}
	}
	return read(ctx, head, r.BodyMax)
}

// silence tells apart why nothing came.
func silence(ctx context.Context) connector.Failure {
	if errors.Is(ctx.Err(), context.Canceled) {
		return connector.Cancelled
	}
	return connector.NoReply
}

// read takes the response in, its body up to limit bytes.
func read(ctx context.Context, head *http.Response, limit int) connector.Response {
	out := connector.Response{Status: head.StatusCode, Header: lowerCase(head.Header)}
	b, reading := httpwire.ReadBody(head, limit)
	switch {
	case reading == httpwire.TooLarge:
		out.Failure = connector.TooLarge
	case reading == httpwire.Broken && errors.Is(ctx.Err(), context.Canceled):
		out.Failure = connector.Cancelled
	case reading == httpwire.Broken, httpwire.UntilClose(head) && brokenOff(head, b):
		out.Failure = connector.Unreadable
	case reading == httpwire.Foreign:
		out.Failure = connector.Undecoded
	default:
		out.Body = b
	}
	return out
}

// brokenOff: a body that ends with its connection cannot be told from one that was cut, unless it says that it is JSON and
// is not.
func brokenOff(head *http.Response, body []byte) bool {
	kind, _, err := mime.ParseMediaType(head.Header.Get("Content-Type"))
	return err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json")) && !json.Valid(body)
}

func lowerCase(h http.Header) map[string][]string {
	out := make(map[string][]string, len(h))
	for name, v := range h {
		out[strings.ToLower(name)] = v
	}
	return out
}

// redirect returns where a read goes on: at most to the same scheme, host and port, with the same method.
func (t *transport) redirect(resp *connector.Response, from *url.URL, r *connector.Request, hop int) *url.URL {
	if r.Effect != envelope.Read || hop >= redirectsMax || (t.method != http.MethodGet && t.method != http.MethodHead) {
		return nil
	}
	switch resp.Status {
	case 301, 302, 303, 307, 308:
	default:
		return nil
	}
	locations := resp.Header["location"]
	if len(locations) != 1 || locations[0] == "" {
		return nil
	}
	to, err := from.Parse(locations[0])
	if err != nil || to.User != nil || !strings.EqualFold(to.Scheme, from.Scheme) || !strings.EqualFold(to.Host, from.Host) ||
		!printable(to.RequestURI()) {
		return nil
	}
	to.Fragment, to.RawFragment = "", ""
	return to
}

// printable reports whether a text can stand in a request line.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}
