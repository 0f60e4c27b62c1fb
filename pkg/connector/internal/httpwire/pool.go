// Package httpwire carries HTTP/1.1 requests, each once: it is the one way out of all kinds of tools that speak HTTP, and it
// owns the rule of what may pass there.
//
// What leaves is one Write by the goroutine that made the call, after its last question; what was not written is not sent.
// Only a connection that died idle, before it took a byte, is replaced by another. What comes back is the answer to that
// request and nothing else: between requests nobody reads, and a connection on which something came unasked, or on which
// something may still come (a body that was not read to its end, one that a 1xx, 204 or 304 announced), is used no more. What
// came there is seen by nobody and printed nowhere. net/http's Transport does none of that: it repeats requests on its own,
// writes in a goroutine that cannot be asked at the last moment, and prints what a far side sends unasked to the process's log.
package httpwire

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
	"sync"
	"time"
)

// Limits of a pool of connections.
const (
	dialTimeout = 10 * time.Second // of TCP connect, proxy and TLS handshake together; a call's own timeout may be shorter
	// Below the shortest idle timeout that servers have by default (5 s: Node, Apache, uvicorn), so that no connection is closed
	// under a request.
	idleTimeout    = 4 * time.Second
	idlePerOrigin  = 256
	headerBytesMax = 64 << 10
)

// Pool keeps connections of requests with the same settings. HTTP/1.1 only. Safe for concurrent use; its fields are not
// changed once it is used.
type Pool struct {
	TLS      *tls.Config                      // has the rest of what a handshake needs filled in by the address
	Proxy    func(*url.URL) (*url.URL, error) // nil: none
	MaxConns int                              // per origin, 0: no limit

	mu      sync.Mutex
	origins map[origin]*conns
}

// origin is where a connection leads.
type origin struct {
	secure bool
	addr   string // host:port of the far side
	proxy  string // URL of the proxy, "" for none
}

type conns struct {
	idle  []*conn       // the last is the newest
	slots chan struct{} // nil: no limit
}

// locate says where a URL leads, and over which proxy.
func (p *Pool) locate(u *url.URL) (at origin, via *url.URL, err error) {
	at.secure = u.Scheme == "https"
	port := u.Port()
	if port == "" {
		port = "80"
		if at.secure {
			port = "443"
		}
	}
	at.addr = net.JoinHostPort(u.Hostname(), port)
	if p.Proxy != nil {
		if via, err = p.Proxy(u); err != nil {
			return at, nil, err
		}
		if via != nil {
			at.proxy = via.String()
		}
	}
	return at, via, nil
}

func (p *Pool) at(o origin) *conns {
	p.mu.Lock()
	defer p.mu.Unlock()
	cs := p.origins[o]
	if p.origins == nil {
		p.origins = make(map[origin]*conns)
	}
	if cs == nil {
		cs = &conns{}
		if p.MaxConns > 0 {
			cs.slots = make(chan struct{}, p.MaxConns)
		}
		p.origins[o] = cs
	}
	return cs
}

// get returns an idle connection that is still alive, else a new one. It waits for a slot where connections are limited.
// The connection must go back by put or discard.
func (p *Pool) get(ctx context.Context, o origin, via *url.URL) (c *conn, reused bool, err error) {
	cs := p.at(o)
	if cs.slots != nil {
		select {
		case cs.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
	for {
		if c = p.take(cs); c == nil {
			break
		}
		if c.alive() {
			return c, true, nil
		}
		_ = c.Close()
	}
	if c, err = p.dial(ctx, o, via); err != nil {
		cs.free()
		return nil, false, err
	}
	c.home = cs
	return c, false, nil
}

func (p *Pool) take(cs *conns) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(cs.idle)
	if n == 0 {
		return nil
	}
	c := cs.idle[n-1]
	cs.idle[n-1] = nil
	cs.idle = cs.idle[:n-1]
	c.timer.Stop()
	return c
}

func (cs *conns) free() {
	if cs.slots != nil {
		<-cs.slots
	}
}

// put keeps a connection whose last response was read to its end.
func (p *Pool) put(c *conn) {
	p.mu.Lock()
	full := len(c.home.idle) >= idlePerOrigin
	if !full {
		c.home.idle = append(c.home.idle, c)
		if c.timer == nil {
			c.timer = time.AfterFunc(idleTimeout, func() { p.expire(c) })
		} else {
			c.timer.Reset(idleTimeout)
		}
	}
	p.mu.Unlock()
	if full {
		_ = c.Close()
	}
	c.home.free()
}

// discard closes a connection that cannot be used again.
func (p *Pool) discard(c *conn) {
	_ = c.Close()
	c.home.free()
}

// expire closes a connection that has been idle for too long, unless a call has just taken it.
func (p *Pool) expire(c *conn) {
	p.mu.Lock()
	found := false
	for i, other := range c.home.idle {
		if other == c {
			c.home.idle = append(c.home.idle[:i], c.home.idle[i+1:]...)
			found = true
			break
		}
	}
	p.mu.Unlock()
	if found {
		_ = c.Close()
	}
}

// CloseIdle closes what is idle. Requests in flight go on.
func (p *Pool) CloseIdle() {
	p.mu.Lock()
	var idle []*conn
	for _, cs := range p.origins {
		for _, c := range cs.idle {
			c.timer.Stop()
			idle = append(idle, c)
		}
		cs.idle = nil
	}
	p.mu.Unlock()
	for _, c := range idle {
		_ = c.Close()
	}
}
