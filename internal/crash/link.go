package main

import (
	"net"
	"sync"
	"time"
)

// Link stands between one process and NATS. While it is deaf, what the server says is lost, acknowledgements of stored
// messages among them; then the connection is cut.
type Link struct {
	Addr string

	target   string
	listener net.Listener
	mu       sync.Mutex
	deaf     bool
	conns    map[net.Conn]bool
}

// NewLink listens on a free port of the loopback interface.
func NewLink(target string) (*Link, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	k := &Link{Addr: l.Addr().String(), target: target, listener: l, conns: map[net.Conn]bool{}}
	go k.accept()
	return k, nil
}

// Close ends the link.
func (k *Link) Close() {
	_ = k.listener.Close()
	k.cut()
}

// Deafen loses what the server says for a time, then cuts.
func (k *Link) Deafen(d time.Duration) {
	k.set(true)
	time.AfterFunc(d, func() {
		k.cut()
		k.set(false)
	})
}

func (k *Link) set(deaf bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.deaf = deaf
}

func (k *Link) isDeaf() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.deaf
}

func (k *Link) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.conns {
		_ = c.Close()
	}
}

func (k *Link) keep(c net.Conn, keep bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if keep {
		k.conns[c] = true
	} else {
		delete(k.conns, c)
	}
}

func (k *Link) accept() {
	for {
		client, err := k.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.DialTimeout("tcp", k.target, time.Second)
		if err != nil {
			_ = client.Close()
			continue
		}
		k.keep(client, true)
		k.keep(server, true)
		end := func() {
			for _, c := range []net.Conn{client, server} {
				_ = c.Close()
				k.keep(c, false)
			}
		}
		go k.copy(server, client, end, false)
		go k.copy(client, server, end, true)
	}
}

func (k *Link) copy(to, from net.Conn, end func(), fromServer bool) {
	defer end()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && (!fromServer || !k.isDeaf()) {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
