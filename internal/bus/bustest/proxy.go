package bustest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Proxy stands between clients and a server and loses or delays what the test says.
type Proxy struct {
	URL string

	target   string
	listener net.Listener
	done     sync.WaitGroup

	mu    sync.Mutex
	drop  func(subject string, payload []byte) bool
	held  chan struct{} // nil: nothing is held; closed at Resume
	conns map[net.Conn]struct{}
}

// StartProxy runs a proxy to the server until the test ends.
func StartProxy(tb testing.TB, s *Server) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("listen: %v", err)
	}
	p := &Proxy{
		URL: "nats://" + l.Addr().String(), target: strings.TrimPrefix(s.URL, "nats://"), listener: l,
		conns: make(map[net.Conn]struct{}),
	}
	p.done.Go(p.accept)
	tb.Cleanup(func() {
		_ = l.Close()
		p.Resume()
		p.Cut()
		p.done.Wait()
	})
	return p
}

// Drop loses every message to a client for which lose returns true; nil loses none. subject is the message's, in the
// case of a reply the inbox.
func (p *Proxy) Drop(lose func(subject string, payload []byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop = lose
}

// Hold keeps back what clients send from now on, as a server that hangs does; Resume lets it go on.
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		p.held = make(chan struct{})
	}
}

// Resume ends a Hold.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held != nil {
		close(p.held)
		p.held = nil
	}
}

// Cut closes all connections; clients may connect again.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = struct{}{}, struct{}{}
		p.mu.Unlock()
		end := func() {
			_ = client.Close()
			_ = server.Close()
			p.mu.Lock()
			delete(p.conns, client)
			delete(p.conns, server)
			p.mu.Unlock()
		}
		p.done.Go(func() { defer end(); p.toServer(server, client) })
		p.done.Go(func() { defer end(); p.toClient(client, bufio.NewReader(server)) })
	}
}

func (p *Proxy) toServer(server io.Writer, client io.Reader) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		p.mu.Lock()
		held := p.held
		p.mu.Unlock()
		if held != nil {
			<-held
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// toClient follows the protocol, so that a lost message leaves the rest readable.
func (p *Proxy) toClient(client io.Writer, server *bufio.Reader) {
	for {
		line, err := server.ReadBytes('\n')
		if err != nil {
			return
		}
		out := line
		if bytes.HasPrefix(line, []byte("MSG ")) || bytes.HasPrefix(line, []byte("HMSG ")) {
			fields := strings.Fields(string(line))
			size, err := strconv.Atoi(fields[len(fields)-1])
			if err != nil {
				return
			}
			payload := make([]byte, size+2)
			if _, err := io.ReadFull(server, payload); err != nil {
				return
			}
			p.mu.Lock()
			drop := p.drop
			p.mu.Unlock()
			if drop != nil && drop(fields[1], payload[:size]) {
				continue
			}
			out = append(out, payload...)
		}
		if _, err := client.Write(out); err != nil {
			return
		}
	}
}
