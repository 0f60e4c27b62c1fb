package httpwire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// ErrNotSent is of a request of which provably nothing has left the process; it may wrap why there is no connection. After any
// other error something may have left.
var ErrNotSent = errors.New("httpwire: not sent")

// Request is one request.
type Request struct {
	Method string
	URL    *url.URL
	Host   string // "": the URL's
	Header []byte // whole lines, without Host, Content-Length and what belongs to the connection
	Body   []byte // nil: none, and no Content-Length
	// Leave is asked as the last statement before the first byte leaves; on false nothing does. It is asked again when an idle
	// connection turned out dead before it took a byte. Stayed is told then; both are called by the goroutine of Send.
	Leave  func() bool
	Stayed func() // may be nil
}

// Line appends a header line.
func Line(b []byte, name, value string) []byte {
	return append(append(append(append(b, name...), ": "...), value...), "\r\n"...)
}

// ValidName reports whether a text can be a header's name.
func ValidName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`()<>@,;:\"/[]?={}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// ValidValue reports whether a text can be a header's value.
func ValidValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < ' ' && c != '\t') || c == 0x7f {
			return false
		}
	}
	return true
}

// bytes is the whole request.
func (r *Request) bytes(via *url.URL) []byte {
	proxied := via != nil && r.URL.Scheme == "http"
	b := make([]byte, 0, 256+len(r.Header)+len(r.Body))
	b = append(append(b, r.Method...), ' ')
	if proxied {
		b = append(append(b, "http://"...), r.URL.Host...)
	}
	b = append(append(b, r.URL.RequestURI()...), " HTTP/1.1\r\n"...)
	host := r.Host
	if host == "" {
		host = r.URL.Host
	}
	b = append(Line(b, "Host", host), r.Header...)
	if proxied {
		b = append(b, proxyAuthorization(via)...)
	}
	if r.Body != nil {
		b = Line(b, "Content-Length", strconv.Itoa(len(r.Body)))
	}
	return append(append(b, "\r\n"...), r.Body...)
}

// Send sends a request once and returns the head of its response when that has come, with a body that must be closed, and
// that ends with ctx. Errors other than ErrNotSent say nothing that a caller could branch on, and may hold text of the far side.
func (p *Pool) Send(ctx context.Context, r *Request) (*http.Response, error) {
	at, via, err := p.locate(r.URL)
	if err != nil {
		return nil, ErrNotSent
	}
	request := r.bytes(via)
	for {
		c, reused, err := p.get(ctx, at, via)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
		}
		resp, dead, err := p.exchange(ctx, r, c, request)
		if dead && reused && ctx.Err() == nil {
			continue
		}
		return resp, err
	}
}

// exchange sends on a connection and reads the head of the response. dead: the connection took nothing.
func (p *Pool) exchange(ctx context.Context, r *Request, c *conn, request []byte) (resp *http.Response, dead bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(longAgo) })
	// A deadline that was set, or may just be being set, is not taken back: the connection goes.
	end := func(keep bool) {
		if stop() && keep {
			p.put(c)
		} else {
			p.discard(c)
		}
	}
	if ctx.Err() != nil || !r.Leave() {
		end(true)
		return nil, false, ErrNotSent
	}
	// The request leaves here, in one write, and nowhere else.
	before := c.out.n.Load()
	if _, err := c.Write(request); err != nil && c.out.n.Load() == before {
		if r.Stayed != nil {
			r.Stayed()
		}
		end(false)
		return nil, true, ErrNotSent
	}
	// After a write that failed halfway there may still be an answer: a far side that refuses early closes its side.
	resp, err = c.response(r.Method)
	if err != nil {
		end(false)
		return nil, false, err
	}
	reusable := !c.spent && !resp.Close && !UntilClose(resp) && resp.StatusCode != http.StatusSwitchingProtocols
	b := &body{ReadCloser: resp.Body, end: func(whole bool) { end(whole && reusable && c.in.Buffered() == 0) }}
	if resp.Body == http.NoBody { // a HEAD's Content-Length is about something else
		b.over(true)
	}
	resp.Body = b
	return resp, false, nil
}

// body is a response's body. Its end is the end of the exchange, and the connection's next use, if there is one.
type body struct {
	io.ReadCloser
	end   func(whole bool)
	once  sync.Once
	ended atomic.Bool
}

func (b *body) over(whole bool) {
	b.once.Do(func() {
		b.ended.Store(true)
		b.end(whole)
	})
}

// Read implements io.Reader. After the end nothing is read: the connection may be somebody else's.
func (b *body) Read(p []byte) (int, error) {
	if b.ended.Load() {
		return 0, io.EOF
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.over(err == io.EOF)
	}
	return n, err
}

// Close implements io.Closer. A body that was not read to its end takes its connection with it.
func (b *body) Close() error {
	b.over(false)
	return nil
}

// UntilClose reports whether a body ends where its connection does, so that a cut cannot be seen.
func UntilClose(resp *http.Response) bool {
	return resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 && resp.Request.Method != http.MethodHead
}
