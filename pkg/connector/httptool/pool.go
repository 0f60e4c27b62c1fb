package httptool

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// Limits of a pool of connections.
const (
	dialTimeout      = 10 * time.Second // also of the TLS handshake; a call's own timeout may be shorter
	idleTimeout      = 30 * time.Second // below the usual idle timeouts of servers, so that few connections die in our hands
	idlePerHost      = 256
	idleInAll        = 1024
	headerBytesMax   = 64 << 10
	redirectsMax     = 3 // of a read, within one origin
	staleConnections = 3 // dead idle connections that a call may meet before its bytes have left
)

// newPool makes the connections of tools with the same settings. HTTP/1.1 only: an HTTP/2 connection repeats requests on
// its own account (GOAWAY, REFUSED_STREAM), and its writes cannot be told apart by request.
func newPool(config *tls.Config, proxyFromEnv bool, maxConns int) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &gatedConn{Conn: c, plain: true}, nil
	}
	dialTLS := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		own := config.Clone()
		if own.ServerName == "" {
			if own.ServerName, _, err = net.SplitHostPort(addr); err != nil {
				_ = c.Close()
				return nil, err
			}
		}
		secure := tls.Client(c, own)
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = c.Close()
			return nil, err
		}
		return &gatedConn{Conn: secure}, nil
	}
	p := &http.Transport{
		DialContext: dial, DialTLSContext: dialTLS,
		TLSClientConfig: config, TLSHandshakeTimeout: dialTimeout,
		Protocols:       new(http.Protocols),
		MaxIdleConns:    idleInAll,
		IdleConnTimeout: idleTimeout, MaxIdleConnsPerHost: idlePerHost, MaxConnsPerHost: maxConns,
		MaxResponseHeaderBytes: headerBytesMax,
		DisableCompression:     true, // what is limited is what arrives; nothing grows after that
	}
	p.Protocols.SetHTTP1(true)
	if proxyFromEnv {
		p.Proxy = http.ProxyFromEnvironment
	}
	return p
}
