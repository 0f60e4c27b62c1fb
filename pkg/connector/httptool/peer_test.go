package httptool_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/connectortest"
	"github.com/agentrun/executor/pkg/connector/httptool"
	"github.com/agentrun/executor/pkg/envelope"
)

// peer is an HTTP server on a bare listener: it reads whole requests and answers byte by byte as told, so that nothing of
// net/http's server stands between the test and the wire.
type peer struct {
	kind     *httptool.Kind
	listener net.Listener
	arrived  chan connectortest.Seen
	done     chan struct{}
	wg       sync.WaitGroup

	mu          sync.Mutex
	script      connectortest.Script
	answer      func(req *http.Request, body string) string // wins over script if set
	last        bool                                        // close the connection after the answer
	closed      bool
	connections int
	open        map[net.Conn]bool
}

func newPeer(t testing.TB) *peer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{
		kind: httptool.New(), listener: l, arrived: make(chan connectortest.Seen, 2048), done: make(chan struct{}),
		open: map[net.Conn]bool{},
	}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// close ends the peer; nothing arrives after it has returned.
func (p *peer) close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	p.mu.Unlock()
	close(p.done)
	_ = p.listener.Close()
	p.mu.Lock()
	for c := range p.open {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.kind.Close()
	p.wg.Wait()
}

func (p *peer) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.connections++
		p.open[c] = true
		p.mu.Unlock()
		p.wg.Go(func() {
			p.serve(c)
			p.mu.Lock()
			delete(p.open, c)
			p.mu.Unlock()
			_ = c.Close()
		})
	}
}

func (p *peer) serve(c net.Conn) {
	in := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		p.mu.Lock()
		script, answer, last := p.script, p.answer, p.last
		p.mu.Unlock()
		p.arrived <- connectortest.Seen{
			OperationRef: req.Header.Get("Agentrun-Operation-Ref"), IdempotencyKey: req.Header.Get("Idempotency-Key"),
			Args: string(body),
		}
		if answer != nil {
			if _, err := io.WriteString(c, answer(req, string(body))); err != nil || last {
				return
			}
			continue
		}
		if !p.play(c, script) {
			return
		}
	}
}

// play answers one request and reports whether the connection goes on.
func (p *peer) play(c net.Conn, s connectortest.Script) bool {
	status := "200 OK"
	whole := func() string { return response(status, s.Body) }
	out := ""
	switch s.Do {
	case connectortest.Lose:
		return false
	case connectortest.Hang:
		<-p.done
		return false
	case connectortest.Answer, connectortest.Garble:
		out = whole()
	case connectortest.Fail:
		status = "500 Internal Server Error"
		out = whole()
	case connectortest.Twice:
		out = whole() + whole()
	case connectortest.Break:
		out = whole()
		out = out[:len(out)-len(s.Body)/2]
	}
	_, err := io.WriteString(c, out)
	return err == nil && s.Do != connectortest.Break
}

func response(status, body string) string {
	return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

func (p *peer) url() string { return "http://" + p.listener.Addr().String() }

func (p *peer) Kind() connector.Kind { return p.kind }

func (p *peer) Spec(effect envelope.Effect) connector.KindSpec {
	return connector.KindSpec{HTTP: &connector.HTTPSpec{Method: "POST", URL: p.url() + "/credits"}}
}

func (p *peer) Unreachable(envelope.Effect) connector.KindSpec {
	// Port 1 of this host: nobody listens there.
	return connector.KindSpec{HTTP: &connector.HTTPSpec{Method: "POST", URL: "http://127.0.0.1:1/credits"}}
}

func (p *peer) Can(connectortest.Do) bool { return true }

func (p *peer) Script(s connectortest.Script) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = s
}

func (p *peer) Arrived() <-chan connectortest.Seen { return p.arrived }

func (p *peer) answerWith(f func(req *http.Request, body string) string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = f
}

func (p *peer) answerThenClose(bytes string) {
	p.answerWith(func(*http.Request, string) string { return bytes })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = true
}

func (p *peer) accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.connections
}

func TestConformance(t *testing.T) {
	connectortest.Run(t, func(t *testing.T) connectortest.Peer { return newPeer(t) })
}
