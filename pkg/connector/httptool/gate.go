package httptool

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
)

var errGateClosed = errors.New("httptool: this request may not leave")

// gate lets one request leave once. net/http asks for a connection, and writes to it in a goroutine of its own; the gate
// stands at the connection, so that the caller's last check really is the last statement before the first byte, and so
// that "sent" is a fact about bytes and not a guess about an error. Whatever net/http tries after that, a second request
// finds the gate closed.
type gate struct {
	leave func() bool

	mu      sync.Mutex
	state   gateState
	refused bool // the caller's last check said no
}

type gateState uint8

const (
	gateNew    gateState = iota // no connection yet
	gateArmed                   // one connection may write
	gatePassed                  // bytes may have left
	gateClosed                  // nothing has left, and nothing will
)

// arm binds the gate to the connection that net/http has chosen. A second connection for the same request is bound to a
// gate that is closed.
func (g *gate) arm(c *gatedConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state != gateNew {
		c.gate.Store(&gate{state: gateClosed})
		return
	}
	g.state = gateArmed
	c.gate.Store(g)
}

// pass is called before every write of the request; the first one asks the caller.
func (g *gate) pass() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch g.state {
	case gatePassed:
		return nil
	case gateArmed:
		if g.leave() {
			g.state = gatePassed
			return nil
		}
		g.refused = true
		g.state = gateClosed
	}
	return errGateClosed
}

// unpass takes a first write back that moved no byte.
func (g *gate) unpass() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state = gateClosed
}

// close ends the request: it reports whether anything may have left, and lets nothing leave from now on if not.
func (g *gate) close() (sent bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state == gatePassed {
		return true
	}
	g.state = gateClosed
	return false
}

func (g *gate) wasRefused() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused
}

// gatedConn is a connection whose writes pass the gate of the request that uses it. Before the first request (TLS and
// proxy handshakes) it has none.
type gatedConn struct {
	net.Conn
	gate  atomic.Pointer[gate]
	plain bool // a write that returns 0 has moved no byte; inside TLS a part of a record may have left
}

func (c *gatedConn) Write(b []byte) (int, error) {
	g := c.gate.Load()
	if g == nil {
		return c.Conn.Write(b)
	}
	first := !g.passed()
	if err := g.pass(); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	if first && c.plain && n == 0 && err != nil {
		g.unpass()
	}
	return n, err
}

func (g *gate) passed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state == gatePassed
}

// gated finds the gatedConn below what net/http shows: the connection itself, or one below TLS where a proxy is between.
func gated(c net.Conn) *gatedConn {
	for range 4 {
		if g, ok := c.(*gatedConn); ok {
			return g
		}
		under, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		c = under.NetConn()
	}
	return nil
}
