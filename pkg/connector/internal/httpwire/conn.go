package httpwire

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

var (
	errHeaderTooLarge = errors.New("httpwire: the response's header is too large")
	// ErrProxy is of a proxy that cannot be used.
	ErrProxy = errors.New("httpwire: the proxy does not connect")
)

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// conn is one connection, used by one call at a time.
type conn struct {
	net.Conn          // TLS included
	raw      net.Conn // the TCP connection below
	out      *counted // likewise, as what is above writes to it
	secure   bool
	in       *bufio.Reader
	limit    io.LimitedReader // between in and the connection: bounds a response's header
	home     *conns
	timer    *time.Timer // closes it when it has been idle for too long
	spent    bool        // a response has announced a body that it must not have: what comes next may be that
}

// counted counts what is written to a connection.
type counted struct {
	net.Conn
	n atomic.Int64 // bytes
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.n.Add(int64(n))
	return n, err
}

func newConn(c, raw net.Conn, w *counted) *conn {
	out := &conn{Conn: c, raw: raw, out: w, secure: c != net.Conn(w)}
	out.limit = io.LimitedReader{R: c, N: math.MaxInt64}
	out.in = bufio.NewReader(&out.limit)
	return out
}

// alive reports whether an idle connection is worth using: open, and silent. Bytes that came unasked would be taken for the
// next call's answer.
func (c *conn) alive() bool {
	if c.in.Buffered() > 0 || !silent(c.raw) {
		return false
	}
	if !c.secure {
		return true
	}
	// What TLS has already taken from the socket comes out although the deadline has passed.
	if c.SetReadDeadline(longAgo) != nil {
		return false
	}
	n, err := c.in.Peek(1)
	var timeout net.Error
	return len(n) == 0 && errors.As(err, &timeout) && timeout.Timeout() && c.SetReadDeadline(time.Time{}) == nil
}

// dial makes a connection, through a proxy's tunnel and with TLS where asked for.
func (p *Pool) dial(ctx context.Context, o origin, via *url.URL) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	addr := o.addr
	if via != nil {
		port := via.Port()
		if port == "" {
			port = "80"
		}
		addr = net.JoinHostPort(via.Hostname(), port)
	}
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	w := &counted{Conn: raw}
	if !o.secure {
		return newConn(w, raw, w), nil
	}
	if via != nil {
		if err := tunnel(ctx, raw, o.addr, via); err != nil {
			_ = raw.Close()
			return nil, err
		}
	}
	config := p.TLS.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(o.addr)
	}
	secure := tls.Client(w, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return newConn(secure, raw, w), nil
}

// tunnel asks a proxy for a connection to addr.
func tunnel(ctx context.Context, c net.Conn, addr string, via *url.URL) error {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(longAgo) })
	defer stop()
	request := "CONNECT " + addr + " HTTP/1.1\r\nHost: " + addr + "\r\n" + proxyAuthorization(via) + "\r\n"
	if _, err := io.WriteString(c, request); err != nil {
		return err
	}
	in := bufio.NewReader(io.LimitReader(c, headerBytesMax))
	resp, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK || in.Buffered() > 0 {
		return ErrProxy
	}
	return nil
}

// proxyAuthorization is the header line for a proxy's URL with credentials.
func proxyAuthorization(via *url.URL) string {
	if via == nil || via.User == nil {
		return ""
	}
	password, _ := via.User.Password()
	pair := base64.StdEncoding.EncodeToString([]byte(via.User.Username() + ":" + password))
	return "Proxy-Authorization: Basic " + pair + "\r\n"
}

// response reads the header of the final response to a request of this method; those that only announce it (1xx) are
// passed over.
func (c *conn) response(method string) (*http.Response, error) {
	c.limit.N = headerBytesMax
	defer func() { c.limit.N = math.MaxInt64 }()
	for range 8 {
		resp, err := http.ReadResponse(c.in, &http.Request{Method: method})
		switch {
		case err != nil && c.limit.N <= 0:
			return nil, errHeaderTooLarge
		case err != nil:
			return nil, err
		}
		c.spent = c.spent || announces(resp)
		if resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, nil
		}
	}
	return nil, errHeaderTooLarge
}

// announces reports whether a response whose status has no body (RFC 9110, 6.4.1) says that one follows.
func announces(resp *http.Response) bool {
	switch s := resp.StatusCode; {
	case s >= 200 && s != http.StatusNoContent && s != http.StatusNotModified:
		return false
	case len(resp.TransferEncoding) > 0:
		return true
	}
	for _, length := range resp.Header["Content-Length"] {
		if strings.TrimLeft(length, "0") != "" {
			return true
		}
	}
	return false
}
